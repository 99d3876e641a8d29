"""scripts/gpu-check driven from end to end, on the driver without a GPU and on planted faults: each is found, and
what can be known of it is told. scripts/test_gpu_check.py runs these."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import gpu_clocks
import gpu_hang
import gpu_pack
from suites import on_fake_driver

SCRIPTS = Path(__file__).resolve().parent
DEBUG, FAKE = gpu_pack.ROOT / "target/debug", gpu_pack.ROOT / "target/fakecuda"
# What a run needs of what the tests have built.
BUILT = {"ring-perf": DEBUG / "ring-perf", "ringrun": DEBUG / "ringrun", "kernels-host.so": FAKE / "kernels.so",
         "ringcomm.fatbin": FAKE / "image"}
FIRST = ["first-bits", "first-fused", "first-cooperative", "first-processes", "first-timed"]
# Says which tests it has, and ends or hangs as a test program does that runs one: one fails, and one never ends.
TESTS = r"""#!/bin/sh
case "$*" in
    *--list*) printf 'a::fails: test\nb::passes: test\nc::hangs: test\n' ;;
    *a::fails*) echo "said: $1"; exit 101 ;;
    *b::passes*) echo 'skipped: b::passes: not here'; echo 'test result: ok. 1 passed' ;;
    *) exec sleep 100 ;;
esac
"""
# Answers as nvidia-smi does, of a card that is hot; as cuda-gdb, of a kernel that waits and of many threads; and as
# ncu, which may not read counters.
SMI = """#!/bin/sh
case "$*" in *query-gpu*) ;; *) echo 'Driver Version: 580.159'; exit ;; esac
while :; do echo "$(date '+%Y/%m/%d %H:%M:%S.%3N'), 1755, 2619, 0x0000000000000024, 612.5, 84"; sleep 0.1; done
"""
GDB = """#!/bin/sh
echo "asked of $4: $*"; echo '  Kernel 0 ringcomm_plan_f32 on device 0'; seq 20000; echo 'Thread 1 main'
"""
SLOW_GDB = "#!/bin/sh\necho begun; exec sleep 100\n"
NCU = "#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'; exit 1\n"


def program(folder, name, text):
    path = Path(folder) / name
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Driven(unittest.TestCase):
    """Whole runs, of programs that the tests have built."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder, self.out, self.tools = (Path(scratch.name) / name for name in ("packed", "out", "tools"))
        for path in (self.folder, self.tools):
            path.mkdir()
        for name, path in BUILT.items():
            if not path.exists():
                print(f"skipped: test_gpu_check::{self._testMethodName}: {path.name} is not built", flush=True)
                self.skipTest(f"{path.name} is not built")
            (self.folder / name).symlink_to(path)

    def run_of(self, *words, mode=("--dry",), **env):
        """Status, what it printed, and the lines that it left, by their steps."""
        path = f"{self.tools}:{os.environ['PATH']}"
        env = {**os.environ, **on_fake_driver(1, 8), "OUT": str(self.out), "PATH": path, **env}
        for earlier in self.out.glob("*"):
            earlier.unlink()
        done = subprocess.run([sys.executable, SCRIPTS / "gpu-check", *mode, *words, self.folder], env=env,
                              capture_output=True, text=True, timeout=600)
        lines = [json.loads(line) for path in self.out.glob("*.jsonl") for line in path.read_text().splitlines()]
        return done.returncode, done.stdout + done.stderr, {line["step"]: line for line in lines}

    def test_the_first_minute_passes_step_by_step(self):
        status, said, lines = self.run_of("--first")
        self.assertEqual((status, list(lines)), (0, ["origin", *FIRST, "goals"]), said)
        sizes = [row["bytes"] for report in lines["first-timed"]["rows"] for row in report["rows"]]
        self.assertEqual(len(sizes), 2)
        self.assertIn("--first", lines["origin"]["arguments"])

    def test_the_first_failure_is_the_last_step_and_all_of_it_is_told(self):
        for failure, step, words in [
                ("cuModuleLoadData:1:209", "first-bits", "cuModuleLoadData: CUDA error 209"),
                ("cuLaunchCooperativeKernel:1:719", "first-cooperative", "CUDA_ERROR_LAUNCH_FAILED"),
                ("cuIpcGetMemHandle:1:1", "first-processes", "transport is")]:
            status, said, lines = self.run_of("--first", FAKECUDA_FAIL=failure)
            begun = FIRST[:FIRST.index(step) + 1]
            self.assertEqual((status, list(lines)), (1, ["origin", *begun, "goals"]), said)
            self.assertIn(f"FAILED: gpu-check {step}", said)
            self.assertIn(words, said)
            self.assertIn("command: ", said)
            self.assertIn(f"{len(FIRST) - len(begun)} steps after it were not begun", said)

    def test_a_path_that_was_not_taken_says_why(self):
        _, said, lines = self.run_of("--only", "processes-large", FAKECUDA_FAIL="cuIpcGetMemHandle:1:1")
        self.assertIn("transport is gpu/staged", said)
        self.assertRegex(lines["processes-large"]["output"], "ringcomm: .*(not pass|cannot|refused|does not)")

    def test_only_the_steps_that_were_asked_for_are_run(self):
        status, said, lines = self.run_of("--only", "costs,small-4")
        self.assertEqual(status, 0, said)
        names = [name for name in lines if name not in ("origin", "goals")]
        self.assertEqual(names, ["small-4", "costs-parts", "costs-counters-2"])
        costs = {row["cost"] for row in lines["costs-parts"]["rows"] if "cost" in row}
        for part in ["launch a kernel", "a store and a system fence, in a kernel", "a step of the timer",
                     "a flag and its answer between two blocks", "two events and waits between streams"]:
            self.assertIn(part, costs)
        status, said, _ = self.run_of("--only", "costs,nonsense")
        self.assertEqual(status, 2)
        self.assertIn("nonsense: there is no such step", said)

    def test_a_run_ends_when_its_seconds_are_over(self):
        program(self.folder, "ring-perf", "#!/bin/sh\nexec sleep 100\n")
        begun = time.monotonic()
        status, said, lines = self.run_of("--only", "small,avg", "--seconds", "12")
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual((status, lines["small-2"]["status"], lines["avg"]["status"]),
                         (1, "out of time", "no time left"), said)
        self.assertIn("not begun: gpu-check avg", said)

    def test_who_looks_at_what_hangs_is_ended_in_time_too(self):
        program(self.folder, "ring-perf", "#!/bin/sh\nexec sleep 100\n")
        program(self.tools, "cuda-gdb", SLOW_GDB)
        begun = time.monotonic()
        status, said, lines = self.run_of("--only", "small-2,small-4", "--seconds", "15")
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual((status, lines["small-2"]["status"]), (1, "out of time"), said)
        self.assertLess(lines["small-2"]["seconds"], 14)

    def test_what_does_not_end_is_told_before_anybody_looks_at_it(self):
        program(self.folder, "ring-perf", "#!/bin/sh\necho so far; exec sleep 100\n")
        self.run_of("--only", "avg", "--seconds", "6")
        rows = [json.loads(line) for path in self.out.iterdir() for line in path.read_text().splitlines()]
        first, last = [row for row in rows if row["step"] == "avg"]
        self.assertEqual((first["hang"], first["output"]), ("is being looked at", "so far\n"))
        self.assertEqual(last["output"], "so far\n")

    def test_a_run_that_counts_takes_only_programs_of_this_checkout(self):
        origin = {"commit": "a", "sources": gpu_pack.digest(), "profile": "release"}
        program(self.tools, "nvidia-smi", SMI)
        for made_of, want in [(origin, 0), (origin | {"sources": "b"}, 2), (origin | {"profile": "dev"}, 2)]:
            (self.folder / gpu_pack.ORIGIN).write_text(json.dumps(made_of))
            status, said, lines = self.run_of("--only", "facts,costs-parts", mode=())
            self.assertEqual(status, want, said)
            self.assertEqual({name: line["status"] for name, line in lines.items()},
                             dict.fromkeys(["origin", "facts", "costs-parts", "goals"], 0) if want == 0 else {})

    def test_a_profiler_that_may_not_read_counters_has_measured_nothing(self):
        program(self.tools, "ncu", NCU)
        status, said, _ = self.run_of("--only", "costs-counters-2")
        self.assertEqual(status, 3, said)
        self.assertIn("not measured: gpu-check costs-counters-2: ERROR== ERR_NVGPUCTRPERM", said)
        program(self.tools, "ncu", "#!/bin/sh\necho 'No kernels were profiled.'\n")
        self.assertEqual(self.run_of("--only", "costs-counters-2")[0], 1)
        program(self.tools, "ncu", "#!/bin/sh\necho '    Duration  us  12.3'\n")
        self.assertEqual(self.run_of("--only", "costs-counters-2")[0], 0)

    def test_a_program_that_hangs_is_looked_at_before_it_is_killed(self):
        program(self.folder, "ring-perf", "#!/bin/sh\nexec python3 -c 'import time; time.sleep(100)'\n")
        program(self.tools, "cuda-gdb", GDB)
        status, said, lines = self.run_of("--first", "--seconds", "25")
        [process] = lines["first-fused"]["hang"]
        self.assertEqual((status, process["threads"][0]["name"]), (1, "python3"), said)
        self.assertIn("info cuda kernels", process["debugger"])
        self.assertIn("Thread 1 main", process["debugger"])
        for words in ["ringcomm_plan_f32 on device 0", f"asked of {process['process']}", "waits in"]:
            self.assertIn(words, said)

    def test_tests_that_fail_or_hang_hide_no_other(self):
        program(self.folder, "cuda-tests", TESTS)
        program(self.tools, "cuda-gdb", GDB)
        _, said, lines = self.run_of("--only", "correctness", "--seconds", "60")
        step = lines["correctness"]
        self.assertEqual((step["status"], step["skipped"]), (101, [["b::passes", "not here"]]), said)
        for words in ["test a::fails ... FAILED <", "said: a::fails", "test b::passes ... ok <",
                      "test c::hangs ... FAILED (out of time) <", "Thread 1 main",
                      "test result: FAILED. 1 passed; 2 failed"]:
            self.assertIn(words, step["output"])

    def test_clocks_that_were_held_down_are_told_of_timed_steps(self):
        program(self.tools, "nvidia-smi", SMI)
        status, said, lines = self.run_of("--only", "kernels-that-meet,small-8")
        self.assertEqual(status, 0, said)
        self.assertEqual(lines["small-8"]["clocks"]["reasons"], ["power cap", "thermal slowdown"])
        self.assertNotIn("clocks", lines["kernels-that-meet"])
        self.assertIn("clocks held down by power cap and thermal slowdown", said)


class Hanging(unittest.TestCase):
    def test_what_a_session_started_is_found_wherever_it_is_and_ended(self):
        # One in a session of its own, as ranks of a launcher are.
        script = "setsid sleep 100 & sleep 100 & wait"
        process = subprocess.Popen(["sh", "-c", script], start_new_session=True)
        deadline = time.monotonic() + 30
        while len(found := gpu_hang.processes_of(process.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(len(found), 3)
        gpu_hang.end(process.pid)
        process.wait(30)

        def living():
            known = {pid: gpu_hang.identity(pid) for pid in found}
            return [pid for pid, one in known.items() if one and one["state"] not in "ZX"]

        # A signal is on its way for a moment.
        while living() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(living(), [])

    def test_a_debugger_that_hangs_is_ended(self):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch, mock.patch.object(gpu_hang, "debugger", lambda: str(path)):
            path = program(scratch, "cuda-gdb", SLOW_GDB)
            said = gpu_hang.debugged([1, 2], 1)
        self.assertLess(time.monotonic() - begun, 20)
        for pid in (1, 2):
            self.assertIn("begun", said[pid])
            self.assertIn("the debugger was ended", said[pid])

    def test_of_a_long_text_the_beginning_and_the_end_are_kept(self):
        text = "first" + "x" * 100_000 + "last"
        kept = gpu_hang.shortened(text)
        self.assertLess(len(kept), gpu_hang.MOST_DEBUGGER_OUTPUT + 20)
        self.assertTrue(kept.startswith("first") and kept.endswith("last"))

    def test_only_new_lines_of_the_log_that_tell_are_kept(self):
        log = "[1] usb 1-1: new device\n[2] NVRM: Xid (PCI:0000:01:00): 31, pid=7\n[3] python3[7]: segfault at 0"
        done = mock.Mock(returncode=0, stdout=log)
        with mock.patch("subprocess.run", return_value=done):
            lines = gpu_hang.kernel_log()
        self.assertEqual(len(lines), 2)
        self.assertEqual(gpu_hang.new_lines(lines[:1], lines), lines[1:])
        with mock.patch("subprocess.run", return_value=mock.Mock(returncode=1, stderr="not permitted\n")):
            lines = gpu_hang.kernel_log()
        self.assertEqual(lines, ["dmesg: not permitted"])
        self.assertEqual(gpu_hang.new_lines(lines, lines), lines)


class Clocking(unittest.TestCase):
    def test_samples_of_a_while_are_summed_up(self):
        lines = ["2026/11/26 10:00:00.000, 1980, 3201, 0x0000000000000000, 120.5, 41",
                 "2026/11/26 10:00:01.500, 345, 2619, 0x0000000000000008, [N/A], 45"]
        with mock.patch("subprocess.Popen", side_effect=OSError("not there")):
            clocks = gpu_clocks.Clocks()
        self.assertEqual(clocks.between(0, 9e9), {"samples": 0, "why": "nvidia-smi: not there"})
        self.assertIsNone(gpu_clocks.parsed("Field \"clocks.sm\" is not a valid field to query."))
        clocks.samples = list(map(gpu_clocks.parsed, lines))
        begun = clocks.samples[0][0]
        seen = clocks.between(begun, begun + 9)
        self.assertEqual((seen["samples"], seen["sm_mhz"], seen["watts"]), (2, [345, 1162.5, 1980], [120.5] * 3))
        self.assertEqual(gpu_clocks.slowed(seen), ["hardware slowdown"])
        self.assertEqual(gpu_clocks.slowed(clocks.between(begun, begun + 1)), [])
        self.assertEqual(gpu_clocks.slowed(None), [])
