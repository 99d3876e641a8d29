"""scripts/gpu-nccl.py without frameworks, and its examples on the driver without a GPU. scripts/test_gpu_check.py
runs these."""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import gpu_pack
from gpu_steps import every_step
from suites import on_fake_driver
from test_gpu_pack import Programs, loaded

SCRIPTS = Path(__file__).resolve().parent
LIBRARY = gpu_pack.ROOT / "target/debug/libringcomm_nccl.so"
# Of the examples on a busy machine.
PATIENCE_SECONDS = 300


def sleeping(seconds, code=0):
    words = [sys.executable, "-c", f"import sys, time; time.sleep({seconds}); sys.exit({code})"]
    return subprocess.Popen(words)


class InNcclsPlace(unittest.TestCase):
    need = Programs.need

    def ran(self, *parts, **env):
        """Status and rows of the script."""
        words = [sys.executable, SCRIPTS / "gpu-nccl.py", LIBRARY, *parts]
        done = subprocess.run(words, env={**os.environ, **env}, capture_output=True, text=True,
                              timeout=PATIENCE_SECONDS)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def with_frameworks(self, text, *parts):
        """The same where all frameworks are a module of this text."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("torch", "cupy", "jax"):
                (Path(folder) / f"{name}.py").write_text(text)
            return self.ran(*parts, PYTHONPATH=folder)

    def test_what_is_not_installed_says_so_and_is_no_failure(self):
        parts = [part for part in loaded("gpu-nccl.py").PARTS if part != "examples"]
        status, rows = self.with_frameworks("raise ImportError('planted')", *parts)
        self.assertEqual(status, 0)
        self.assertEqual({row["part"] for row in rows}, set(parts))
        for row in rows:
            self.assertIn(f"{row['framework']} is not installed (planted)", row["what"])
            self.assertFalse(row["wrong"])

    def test_a_part_that_ends_badly_is_a_failure(self):
        status, [row] = self.with_frameworks("import os; os._exit(3)", "cupy")
        self.assertEqual((status, row["part"], row["status"], row["wrong"]), (1, "cupy", 3, True))

    def test_the_others_of_a_part_that_fails_are_ended_and_no_other_part_is(self):
        script = loaded("gpu-nccl.py")
        started = {("jax", 0): sleeping(0, 1), ("jax", 1): sleeping(100), ("torch-2", 0): sleeping(2)}
        begun = time.monotonic()
        with mock.patch.object(script, "GRACE_SECONDS", 0.5):
            bad = script.watch(started, begun + 60)
        self.assertLess(time.monotonic() - begun, 60)
        self.assertEqual(bad[("jax", 0)], 1)
        self.assertIn("killed", bad[("jax", 1)])
        self.assertEqual(len(bad), 2)
        self.assertIn("killed", script.watch({("cupy", 0): sleeping(100)}, time.monotonic() + 1)[("cupy", 0)])

    def test_a_rank_that_kills_itself_has_not_failed(self):
        script = loaded("gpu-nccl.py")
        for part, is_meant in [("torch-failures", True), ("torch-2", False)]:
            words = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
            bad = script.watch({(part, 1): subprocess.Popen(words)}, time.monotonic() + 60)
            self.assertEqual(not bad, is_meant, bad)

    def test_calls_that_another_library_has_had_are_told(self):
        script, out = loaded("gpu-nccl.py"), io.StringIO()
        ours = "NCCL version 2.32.3 (ringcomm 0.1.0)\nvm:1:1 [0] NCCL INFO AllReduce: sendbuff 0x1 recvbuff 0x2\n"
        cases = [(ours, ["/a/ours.so"], False), (ours, ["/a/ours.so", "/b/libnccl.so.2"], False),
                 (ours, ["/b/libnccl.so.2"], True), (None, ["/a/ours.so"], True),
                 (ours.splitlines()[0], ["/a/ours.so"], True), (ours.replace("ringcomm", ""), ["/a/ours.so"], True)]
        for log, files, is_wrong in cases:
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), \
                    mock.patch.object(script, "loaded", lambda files=files: files):
                if log:
                    (Path(folder) / f"log.{os.getpid()}").write_text(log)
                self.assertEqual(bool(script.who_is_called("/a/ours.so", "a", folder)), is_wrong, (log, files))
        rows = [json.loads(line) for line in out.getvalue().splitlines()]
        self.assertEqual([row["loaded_beside"] for row in rows[:2]], [[], ["/b/libnccl.so.2"]])
        self.assertEqual(rows[0]["calls"], {"AllReduce": 1})

    def test_what_the_step_wants_to_read_is_what_the_script_says(self):
        [step] = [step for step in every_step(Path("x"), False, Path("x")) if step.name == "frameworks-nccl"]
        text = (SCRIPTS / "gpu-nccl.py").read_text()
        for what in ["NCCL's calls are ringcomm's", "a rank that does not come", "abort of all"]:
            self.assertIn(f'"{what}"', text)
            self.assertTrue(any(what in pattern for pattern in step.says))

    def test_the_examples_run_and_a_driver_that_fails_is_told(self):
        for path in [LIBRARY, gpu_pack.ROOT / "target/debug/libfakecuda.so",
                     gpu_pack.ROOT / "target/fakecuda/kernels.so"]:
            self.need(path.exists(), f"{gpu_pack.shown(path)} is not built")
        status, rows = self.ran("examples", **on_fake_driver(1, 8))
        self.assertEqual((status, {row["wrong"] for row in rows}), (0, {False}), rows)
        self.assertEqual(rows[-1]["what"], "a rank that dies")
        status, rows = self.ran("examples", **on_fake_driver(1, 8, FAKECUDA_FAIL="cuLaunchKernel:2:719"))
        self.assertEqual(status, 1)
        self.assertIn("CUDA", next(row["why"] for row in rows if row["wrong"]))
        self.assertEqual([row for row in rows if row.get("status")][0]["part"], "examples")


if __name__ == "__main__":
    unittest.main()
