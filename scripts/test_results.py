"""How scripts/test counts what its commands print, what it compiles early and which tests it names, and
that the workflow runs every suite, without running any. Run this file."""

import contextlib
import io
import re
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import results
import run_suites
from run_suites import BESIDE, only_built
from suites import CONCURRENT, ROOT, SUITES, USUAL, Command, Lacking, Together, install, peers, tests_named
from tools import Missing


class Outcomes(unittest.TestCase):
    def counted(self, words, code, text):
        """What a command counts as that prints this."""
        return results.outcome(words.split(), code, *results.count(text)[:2])

    def test_results_count(self):
        result = "test result: ok. 3 passed; 0 failed; 0 ignored\n"
        self.assertEqual(self.counted("cargo test", 0, 2 * result), (6, 0))
        # Of several programs some have nothing to do with a filter.
        none = result.replace("3", "0")
        self.assertEqual(self.counted("cargo test -- a", 0, none + result + none), (3, 0))
        self.assertEqual(self.counted("python -m pytest -q", 0, "3 passed, 1 skipped in 0.10s"), (3, 0))
        self.assertEqual(self.counted("python -m pytest -q", 1, "3 passed, 2 failed in 0.10s"), (3, 2))

    def test_where_nothing_was_tested_it_failed(self):
        result = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n"
        self.assertEqual(self.counted("cargo test -- nothing_has_this_name", 0, 2 * result), (0, 1))
        self.assertEqual(self.counted("python -m pytest -q", 0, "3 skipped in 0.10s"), (0, 1))

    def test_tests_with_nothing_to_do_are_counted_however_they_run(self):
        said = "skipped: hosts::ipv6_alone: this machine has no ::1\n"
        text = f"{said}test ipv6_alone ... ok\ntest parted::alone ... {said}ok\n"
        result = "test result: ok. 2 passed; 0 failed; 0 ignored\n"
        self.assertEqual(results.count(text + result), (2, 0, [], 2))
        # Of a whole command.
        self.assertEqual(results.count("skipped: no device\n"), (0, 0, ["skipped: no device"], 0))

    def test_other_commands_are_one_each(self):
        self.assertEqual(self.counted("cargo fmt --check", 0, ""), (1, 0))
        self.assertEqual(self.counted("cargo build --release", 0, ""), (0, 0))
        for words in ["cargo build", "cargo fmt --check", "cargo test"]:
            self.assertEqual(self.counted(words, 101, ""), (0, 1))

    def test_a_suite_names_no_test_that_is_gone(self):
        self.assertEqual(tests_named("hosts", "namespaces"),
                         ["--test", "hosts", "--test", "namespaces"])
        with self.assertRaises(FileNotFoundError):
            tests_named("hosts", "gone")
        # Those that the sanitizers run.
        tests_named(*CONCURRENT)

    def test_the_installation_is_not_tried_by_half(self):
        def which(program):
            return None if program == "pkg-config" else f"/usr/bin/{program}"
        with mock.patch("tools.shutil.which", which), \
                mock.patch("tools.debian", return_value=False) as debian:
            self.assertRaises(Missing, install)
        debian.assert_called_once_with("pkg-config")

    def test_what_is_compiled_early_is_what_runs_later(self):
        def built(*words):
            early = only_built(Command(*words, env={"A": "1"}))
            return early and (" ".join(early.words), early.env["A"])
        self.assertEqual(built("cargo", "test", "--lib", "--", "--skip", "a"),
                         ("cargo test --lib --no-run", "1"))
        self.assertEqual(built("cargo", "run", "--bin", "a", "--", "b"), ("cargo build --bin a", "1"))
        self.assertEqual(built("cargo", "build", "--release"), ("cargo build --release", "1"))
        self.assertIsNone(built("cargo", "fmt", "--check"))
        self.assertIsNone(built("scripts/sass.py"))
        self.assertIsNone(only_built(Lacking("a", "b")))


class SideBySide(unittest.TestCase):
    def test_commands_that_run_together_are_counted_one_by_one(self):
        def says(passed, failed):
            text = f"test result: ok. {passed} passed; {failed} failed; 0 ignored"
            return Command("sh", "-c", f"echo '{text}'; exit {min(failed, 1)}", cwd=".")

        def suite():
            return [Together(says(3, 0), says(2, 1), says(4, 0)), says(5, 0)]
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as logs, contextlib.redirect_stdout(said), \
                mock.patch.multiple(run_suites, LOGS=Path(logs), ROOT=Path(logs)):
            self.assertEqual(run_suites.run(suite), (14, 1))
            self.assertEqual((Path(logs) / "suite.log").read_text().count("\ntest result"), 4)
            self.assertEqual(len(list(Path(logs).iterdir())), 1)
        self.assertIn("suite: 14 passed, 1 failed", said.getvalue())


class Chosen(unittest.TestCase):
    def ran(self, *names):
        """The suites that run where these are named, and what the last line says."""
        suites, said = [], io.StringIO()

        def run(suite):
            suites.append(suite)
            return 1, 0
        nothing = mock.Mock()
        with mock.patch.multiple(run_suites, run=run, install_early=nothing, build_early=nothing,
                                 short_of_disk=nothing, nvcc=lambda: "nvcc"), \
                mock.patch("sys.argv", ["test", *names]), mock.patch.dict("os.environ"), \
                contextlib.redirect_stdout(said):
            self.assertEqual(run_suites.main(), 0)
        return suites, said.getvalue().splitlines()[-1]

    def test_the_usual_suites_run_or_those_named(self):
        suites, said = self.ran()
        self.assertEqual(said, f"{len(USUAL)} passed, 0 failed")
        self.assertCountEqual(suites, USUAL)

    def test_all_suites_run_or_those_named(self):
        suites, said = self.ran("all")
        self.assertEqual(said, f"{len(SUITES)} passed, 0 failed")
        self.assertCountEqual(suites, SUITES)
        # But for those that begin earlier, beside others, in order.
        early = BESIDE.values()
        self.assertEqual(*([suite for suite in some if suite not in early] for some in (suites, SUITES)))
        for first, second in BESIDE.items():
            names = first.__name__, second.__name__
            self.assertCountEqual(self.ran(*names)[0], [first, second])
            # Where it comes first it is not beside.
            self.assertEqual(self.ran(*reversed(names))[0], [second, first])
        self.assertEqual(self.ran("peers"), ([peers], "1 passed, 0 failed"))

    def test_the_workflow_runs_every_suite_once(self):
        text = (ROOT / ".github/workflows/tests.yml").read_text()
        listed = re.search(r"suites:\n((?: +- .*\n)+)", text)[1]
        words = re.findall(r"\w+", listed)
        self.assertEqual(sorted(words), sorted(suite.__name__ for suite in SUITES))


if __name__ == "__main__":
    unittest.main()
