"""What is said where no other Python is. Run this file."""

import contextlib
import io
import os
import unittest
from unittest import mock

import python_versions
import results


class Alone(unittest.TestCase):
    def test_it_is_counted_as_a_test_with_nothing_to_do(self):
        said = io.StringIO()
        with mock.patch.object(python_versions, "others", return_value={}), \
                contextlib.redirect_stdout(said):
            self.assertEqual(python_versions.main(), 0)
        self.assertEqual(results.count(said.getvalue()), (1, 0, [], 1))

    def test_the_ends_run_everything_and_what_is_between_what_is_there(self):
        def tests(minor):
            return python_versions.tests_of(minor, [9, 11, 13])
        self.assertEqual(tests(9), tests(13))
        self.assertIn("python/tests/core", tests(9))
        for path in tests(11):
            self.assertTrue((python_versions.ROOT / path).is_file(), path)

    def test_a_machine_without_another_has_none(self):
        with mock.patch.dict("os.environ", PATH="", HOME=os.devnull):
            self.assertEqual(python_versions.others(), {})


if __name__ == "__main__":
    unittest.main()
