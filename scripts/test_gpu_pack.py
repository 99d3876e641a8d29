"""What scripts/gpu-check packs: the programs that the tests have built, on the driver without a GPU.
scripts/test_gpu_check.py runs these."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import gpu_goals
import gpu_pack
from gpu_steps import every_step, first_steps
from suites import on_fake_driver

SCRIPTS = Path(__file__).resolve().parent
# Where the tests' own programs are.
DEBUG = gpu_pack.ROOT / "target/debug"
# Of a packed test of a dry run, on a busy machine.
PATIENCE_SECONDS = 300


def loaded(name):
    """A script as a module."""
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(SCRIPTS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class Programs(unittest.TestCase):
    """Those that the tests have built, and the driver is not to be found by."""

    def need(self, is_there, why):
        """Skip this test, and say so where it is counted, as what tests says of itself."""
        if not is_there:
            print(f"skipped: test_gpu_check::{self._testMethodName}: {why}", flush=True)
            self.skipTest(why)

    def test_ring_perf_knows_the_options_of_every_step(self):
        self.need((DEBUG / "ring-perf").exists(), "ring-perf is not built")
        with tempfile.TemporaryDirectory() as scratch:
            steps = [*every_step(DEBUG, False, Path(scratch)), *first_steps(DEBUG, False, Path(scratch))]
        env = {**os.environ, "LD_LIBRARY_PATH": scratch}
        measured = [step.words for step in steps if str(DEBUG / "ring-perf") in step.words]
        self.assertGreater(len(measured), 20)
        for words in measured:
            words = words[words.index(str(DEBUG / "ring-perf")):]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=env)
            self.assertIn("no CUDA driver", done.stderr, words)

    def need_driver(self):
        for path in [DEBUG / "ring-perf", DEBUG / "libfakecuda.so", gpu_pack.ROOT / "target/fakecuda/kernels.so"]:
            self.need(path.exists(), f"{gpu_pack.shown(path)} is not built")

    def rows_with(self, failure):
        """The rows of two sizes where the driver fails so; none where it does so outside of a capture."""
        env = os.environ | on_fake_driver(1, 8, FAKECUDA_FAIL=failure)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "rows.json"
            words = "all_reduce -g 1 -t 2 -b 8 -e 512 -f 64 -n 3 -d float --json".split()
            done = subprocess.run([DEBUG / "ring-perf", *words, path], env=env, capture_output=True,
                                  text=True, timeout=PATIENCE_SECONDS)
            return json.loads(path.read_text())["rows"] if done.returncode == 0 else []

    def test_a_graph_that_fails_is_told_and_the_next_size_is_measured(self):
        self.need_driver()
        # A launch of a capture ends the communicators; a graph has twenty. The first that is in one counts.
        launches = (self.rows_with(f"cuLaunchKernel:{nth}:801") for nth in range(50, 200, 10))
        in_capture = next(rows for rows in launches if rows and rows[0]["graph_error"])
        others = [self.rows_with(f"{symbol}:1:801") for symbol in
                  ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"]]
        for first, second in [in_capture, *others]:
            self.assertIsNone(first["graph_us"])
            self.assertIn("801", first["graph_error"])
            self.assertIsNotNone(first["eager_one_stream_us"])
            self.assertEqual((second["graph_error"], second["wrong"]), (None, 0))
            self.assertGreater(second["graph_us"], 0)
            lines = [{"step": "small-2", "status": 0, "rows": [{"rows": [first, second]}]}]
            with self.assertRaises(gpu_goals.Missing) as raised:
                gpu_goals.Results(lines).values("small-2", "graph_us", [8])
            self.assertIn(first["graph_error"], str(raised.exception))


class Packed(unittest.TestCase):
    need, need_driver = Programs.need, Programs.need_driver

    def test_what_the_tests_have_built_is_packed_and_its_tests_run(self):
        self.need_driver()
        with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()) as said:
            folder, programs = Path(scratch) / "packed", Path(scratch) / "programs"
            self.assertFalse(gpu_pack.pack(folder, "dev"))
            self.assertEqual({path.name for path in folder.iterdir()}, {gpu_pack.ARCHIVE, gpu_pack.ORIGIN})
            self.assertEqual(gpu_pack.origin(folder)["profile"], "dev")
            self.assertIn("of 64 at most", said.getvalue())
            with mock.patch.object(gpu_pack, "MOST_SENT", 1 << 20):
                self.assertTrue(gpu_pack.weigh(folder))
            self.assertEqual(gpu_pack.unpacked(folder, programs), programs)
            self.assertEqual({path.name for path in programs.iterdir()}, set(gpu_pack.PACKED))
            check = loaded("gpu-check")
            tests = [step for step in every_step(programs, True, Path(scratch))
                     if programs / "cuda-tests" in step.needs]
            self.assertEqual([step.name for step in tests],
                             ["correctness", "pieces", "stress-1-queues", "stress-32-queues"])
            with mock.patch.dict(os.environ, on_fake_driver(1, 8)):
                for step in tests:
                    result = check.execute(step, PATIENCE_SECONDS)
                    self.assertEqual(result["status"], 0, result["output"])
            # No figures are made of it.
            done = subprocess.run([SCRIPTS / "gpu-check", folder], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn("for tests, not for figures", done.stderr)

    def test_blocks_of_an_archive_are_sent(self):
        with tempfile.TemporaryDirectory() as scratch:
            paths = [Path(scratch) / str(size) for size in (0, 1, 512, 513)]
            for path in paths:
                path.write_bytes(bytes(int(path.name)))
            self.assertEqual(gpu_pack.sent(paths), 4 * 512 + 4 * 512)

    def test_what_git_ignores_is_no_part_of_the_checkout(self):
        found = {path.relative_to(gpu_pack.ROOT).parts[0] for path in gpu_pack.checkout()}
        self.assertLessEqual({"src", "kernels", "scripts"}, found)
        self.assertEqual(found & {"target", ".git"}, set())


class Origin(unittest.TestCase):
    def test_another_checkouts_programs_are_told(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            self.assertFalse(gpu_pack.origin(folder)["is_this_checkout"])
            (folder / gpu_pack.ORIGIN).write_text(json.dumps({"commit": "a", "sources": gpu_pack.digest()}))
            self.assertEqual(gpu_pack.origin(folder)["commit"], "a")
            self.assertTrue(gpu_pack.origin(folder)["is_this_checkout"])
            (folder / gpu_pack.ORIGIN).write_text(json.dumps({"commit": "a", "sources": "0"}))
            (folder / "ring-perf").touch()
            done = subprocess.run([SCRIPTS / "gpu-check", folder], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn("made of other sources", done.stderr)

    def test_one_changed_byte_is_another_checkout(self):
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            (root / "src").mkdir()
            (root / "src/a.rs").write_text("a")
            before = gpu_pack.digest(root)
            (root / "src/a.rs").write_text("b")
            self.assertNotEqual(before, gpu_pack.digest(root))
