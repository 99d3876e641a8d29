"""scripts/gpu-check without a GPU and without its programs: the judge, the steps, the deadline. Run this file."""
import contextlib
import datetime
import io
import json
import os
import py_compile
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import gpu_goals
from gpu_goals import LARGE, MET, PEERS, RANKS, SMALL, UNKNOWN
from gpu_steps import FIRST_SECONDS, LONGEST, MOST_SECONDS, Step, allowance, every_step, first_steps
# What these test has its tests there: they are run from here.
from test_gpu_goals import A100, CARD, H100, Judge, good_run, report, verdicts
from test_gpu_nccl import InNcclsPlace
from test_gpu_pack import Origin, Packed, Programs, loaded
from test_gpu_runs import Clocking, Driven, Hanging

SCRIPTS = Path(__file__).resolve().parent

class Steps(unittest.TestCase):
    def test_the_limits_add_up_with_a_sanitizer(self):
        with tempfile.TemporaryDirectory() as scratch:
            program = Path(scratch) / "compute-sanitizer"
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
            before, os.environ["PATH"] = os.environ["PATH"], f"{scratch}:{os.environ['PATH']}"
            try:
                steps = list(every_step(Path(scratch), False, Path(scratch)))
            finally:
                os.environ["PATH"] = before
        sanitized = {step.name: step for step in steps if "sanitizer" in step.name}
        self.assertEqual(len(sanitized), 3)
        # Only memcheck knows the option.
        quiet = [name for name, step in sanitized.items() if "--report-api-errors" in step.words]
        self.assertEqual(quiet, ["sanitizer-memcheck"])
        self.assertLessEqual(sum(step.limit for step in steps), MOST_SECONDS)
        self.assertEqual(len({step.name for step in steps}), len(steps))

    def test_what_is_right_comes_first_then_times_then_what_looks_at_every_access(self):
        order = ["facts", "kernels", "correctness", "pieces", "checked", "processes", "small", "large", "avg",
                 "together", "ranks", "costs", "frameworks", "peer", "sanitizer", "stress"]
        names = [step.name.split("-")[0] for step in every_step(Path("x"), False, Path("x"))]
        self.assertEqual(names, sorted(names, key=order.index))
        self.assertEqual(set(names), set(order))

    def test_the_first_minute_is_one(self):
        steps = list(first_steps(Path("x"), False, Path("x")))
        self.assertLessEqual(sum(step.limit for step in steps), FIRST_SECONDS)
        self.assertEqual([step.name for step in steps],
                         [f"first-{name}" for name in
                          ("facts", "bits", "fused", "cooperative", "processes", "timed")])

    def test_every_step_says_why_a_path_was_not_taken(self):
        for steps in (every_step, first_steps):
            self.assertEqual({step.env["RINGCOMM_DEBUG"] for step in steps(Path("x"), False, Path("x"))}, {1})

    def test_a_name_means_a_step_or_all_that_begin_with_it(self):
        def called(name):
            return [step.name for step in every_step(Path("x"), False, Path("x")) if step.is_called(name)]
        self.assertEqual(called("small-2"), ["small-2"])
        self.assertEqual(called("small"), ["small-2", "small-4", "small-8"])
        self.assertEqual(called("costs"), ["costs-parts", "costs-counters-2", "costs-counters-8", "costs-ptx"])
        self.assertEqual(called("frameworks"), ["frameworks", "frameworks-nccl"])
        self.assertEqual(called("smal"), [])

    def test_what_a_step_leaves_goes_to_those_that_follow(self):
        steps = [Step(str(limit), limit, "x") for limit in (10, 20, 30)]
        # Nothing to spare; what the first leaves; no more than so many times a limit.
        self.assertEqual(allowance(steps[0], steps[1:], 60), 10)
        self.assertEqual(allowance(steps[1], steps[2:], 58), 28)
        self.assertEqual(allowance(steps[0], steps[1:], 600), LONGEST * 10)
        self.assertEqual(allowance(steps[2], [], 45), 45)
        # What was lost by those before it is the last one's loss.
        self.assertEqual(allowance(steps[1], steps[2:], 45), 20)
        self.assertEqual(allowance(steps[2], [], 25), 25)

    def test_whatever_they_take_the_deadline_holds(self):
        plan, now = list(every_step(Path("x"), False, Path("x"))), 0
        for at, step in enumerate(plan):
            seconds = allowance(step, plan[at + 1:], MOST_SECONDS - now)
            self.assertGreaterEqual(seconds, step.limit)
            # Some are done at once, and some take all that they get.
            now += seconds if at % 3 else 0
        self.assertLessEqual(now, MOST_SECONDS)

    def test_a_peer_is_told_what_it_gets(self):
        peers = [step for step in every_step(Path("x"), False, Path("x")) if step.name.startswith("peer-")]
        self.assertEqual([step.command(70)[-1] for step in peers], ["66"] * len(PEERS))

    def test_every_field_that_is_judged_has_to_be_in_a_dry_run(self):
        judged, values = set(), gpu_goals.Results.values

        def noted(results, name, field, sizes, **alike):
            judged.update((name.split("-")[0], one) for one in [field, *alike])
            return values(results, name, field, sizes, **alike)
        with mock.patch.object(gpu_goals.Results, "values", noted):
            verdicts(good_run())
        present = {}
        for step in every_step(Path("x"), True, Path("x")):
            present.setdefault(step.name.split("-")[0], set(step.present)).intersection_update(step.present)
        # Large ones have the same report, and no dry run has time for them.
        present["large"] = present["small"]
        self.assertGreater(len(judged), 6)
        for kind, field in judged:
            self.assertIn(field, present[kind], kind)
        self.assertLessEqual({"wrong", "iterations"}, present["processes"] & present["small"])

    def test_every_size_of_the_peers_is_timed(self):
        def value(words, name):
            text = str(words[words.index(name) + 1])
            return int(text.replace("K", "")) << 10 if "K" in text else \
                int(text.replace("M", "")) << 20 if "M" in text else int(text)
        for step in every_step(Path("x"), False, Path("x")):
            if not step.name.startswith(("small", "large", "together")):
                continue
            least, most, factor = (value(step.words, name) for name in ["-b", "-e", "-f"])
            sizes = {least * factor ** power for power in range(30) if least * factor ** power <= most}
            if step.name.startswith(("small", "together-oneshot")):
                self.assertLessEqual({SMALL[0], SMALL[-1]}, sizes, step.name)
            else:
                self.assertLessEqual(set(LARGE), sizes, step.name)
            if step.name.startswith("small"):
                self.assertLessEqual(set(SMALL), sizes, step.name)

    def test_rows_of_another_way_are_surprises(self):
        step = Step("together", 1, "x", expects={"algorithm": "ring"}, present=["hot_us"])
        self.assertEqual(list(step.surprises("", report([8], algorithm="ring", hot_us=1))), [])
        self.assertEqual(list(step.surprises("", report([8], algorithm="fused", hot_us=None))),
                         ["8 bytes: algorithm is fused, not ring", "8 bytes: there is no hot_us"])


class Runs(unittest.TestCase):
    def setUp(self):
        self.check = loaded("gpu-check")

    def test_a_step_ends_at_its_limit_and_leaves_its_rows(self):
        with tempfile.TemporaryDirectory() as scratch:
            rows = Path(scratch) / "rows.json"
            script = f"echo '{{\"rows\": [1]}}' > {rows}; echo '{{\"a\": 1}}'; sleep 30 & sleep 30"
            begun = time.monotonic()
            result = self.check.execute(Step("slow", 9, "sh", "-c", script, rows=rows), 3)
        self.assertLess(time.monotonic() - begun, 25)
        self.assertEqual(result["status"], "out of time")
        self.assertEqual(result["rows"], [{"a": 1}, {"rows": [1]}])

    def test_what_a_test_program_skips_is_counted(self):
        said = "test a ... ok\nskipped: flags::a_test: needs two devices\nok"
        result = self.check.execute(Step("tests", 9, "printf", said), 5)
        self.assertEqual(result["skipped"], [("flags::a_test", "needs two devices")])

    def test_what_finds_no_device_has_not_passed(self):
        for said in ["skipped: no device", "running 9 tests\nskipped: no device (there is no driver)\nok"]:
            self.assertEqual(self.check.execute(Step("tests", 9, "printf", said), 5)["status"], "no device")

    def test_a_measurement_without_rows_has_failed(self):
        with tempfile.TemporaryDirectory() as scratch:
            rows = Path(scratch) / "rows.json"
            for script, status in [(":", "left no rows"), (f"echo '{{\"rows\": []}}' > {rows}", "left no rows"),
                                   (f"echo '{{\"rows\": [{{}}]}}' > {rows}", 0)]:
                step = Step("measured", 9, "sh", "-c", script, rows=rows)
                self.assertEqual(self.check.execute(step, 5)["status"], status)

    def ended(self, said, **like):
        """How a step ends that prints this, by another one's name and demands."""
        step = next(step for step in every_step(Path("x"), False, Path("x")) if step.name == like["name"])
        words = ["sh", "-c", f"cat <<'END'\n{said}\nEND\nexit {like.get('code', 0)}"]
        step.words, step.needs, step.rows = words, [], None
        run, out = self.check.Run(Path("x"), False, io.StringIO()), io.StringIO()
        with contextlib.redirect_stdout(out):
            run.do(step, like.get("seconds", 20))
        return {"failed": run.failed, "incomplete": run.incomplete, "said": out.getvalue()}

    def test_a_filter_that_matches_no_test_has_failed(self):
        def said(number):
            return f"running {number} tests\ntest result: ok. {number} passed; 0 failed; 0 ignored"
        row = '{"stress": 50000, "seed": 1, "seconds": 2.0}'
        self.assertEqual(self.ended(said(0), name="correctness")["failed"], 1)
        self.assertEqual(self.ended(said(10), name="correctness")["failed"], 0)
        self.assertEqual(self.ended(said(0), name="pieces")["failed"], 1)
        for number, rows, failed in [(1, row, 0), (1, "", 1), (0, row, 1), (1, row.replace("50000", "400"), 1)]:
            self.assertEqual(self.ended(f"{rows}\n{said(number)}", name="stress-1-queues")["failed"], failed)
        self.assertEqual(self.ended("", name="kernels")["failed"], 1)
        self.assertEqual(self.ended("ok: int8: 70 launches", name="kernels")["failed"], 0)

    def test_a_sanitizer_that_cannot_look_has_measured_nothing(self):
        def ended(said, **like):
            with mock.patch("shutil.which", lambda *_, **__: "/bin/true"):
                result = self.ended(said, name="sanitizer-memcheck", **like)
            return result["failed"], result["incomplete"]
        refusal = "========= Error: Device not supported. Please refer to the documentation"
        self.assertEqual(ended(f"{refusal}\n========= ERROR SUMMARY: 1 error", code=9), (0, 1))
        self.assertEqual(ended(f"{refusal}\nskipped: no device (CUDA error 999)"), (0, 1))
        self.assertEqual(ended("========= Internal Sanitizer Error: didn't track the launch\n"
                               "========= ERROR SUMMARY: 0 errors"), (0, 1))
        self.assertEqual(ended("========= ERROR SUMMARY: 3 errors", code=9), (1, 0))
        self.assertEqual(ended("========= ERROR SUMMARY: 0 errors"), (0, 0))
        self.assertEqual(ended("no word of what it has seen"), (1, 0))

    def test_goals_are_decided_by_their_card(self):
        def status(device, percent, us=3.9):
            run, lines = self.check.Run(Path("x"), False, io.StringIO()), good_run()
            lines["large-2-float"]["rows"][0]["rows"][1]["bound_percent"] = percent
            for row in lines["small-2"]["rows"][0]["rows"]:
                row["graph_us"] = us
            # The first that names one.
            run.lines = [{"step": "a", "status": 0, "rows": [{"device": device}]}, *lines.values()]
            with contextlib.redirect_stdout(io.StringIO()):
                run.conclude()
                return run.status()
        for card in (CARD, H100):
            self.assertEqual([status(card, 93), status(card, 50), status(card, 93, 5)], [0, 1, 1])
        incomplete = self.check.INCOMPLETE
        self.assertEqual([status("NVIDIA H20", 93, us) for us in (3, 5)], [incomplete] * 2)
        self.assertEqual(status("NVIDIA H20", 50), 1)
        self.assertEqual([status(A100, percent) for percent in (93, 50)], [incomplete] * 2)

    def test_goals_of_steps_that_were_not_asked_for_are_not_judged(self):
        def verdicts_of(is_part, *names):
            run = self.check.Run(Path("x"), False, io.StringIO(), is_part=is_part)
            run.lines = [line for name, line in good_run().items() if name in names]
            with contextlib.redirect_stdout(io.StringIO()):
                run.conclude()
            return [row["verdict"] for row in run.lines[-1]["rows"]], run.status()
        self.assertEqual(verdicts_of(True, "small-2"), ([MET] * 3, 0))
        rows, status = verdicts_of(False, "small-2")
        self.assertEqual((len(rows), rows.count(UNKNOWN), status), (38, 35, self.check.INCOMPLETE))

    def test_a_second_run_has_a_file_of_its_own(self):
        first = datetime.datetime(2026, 11, 24, 9, 5, 7)
        names = {self.check.results_file(Path(), commit, now).name
                 for commit in ("1234567890abcdef", "1234567890abcdef-dirty", None)
                 for now in (first, first + datetime.timedelta(seconds=1))}
        self.assertEqual(len(names), 6)
        self.assertIn("gpu-2026-11-24-090507-1234567890ab.jsonl", names)
        # Letters, digits and these: whatever takes them back takes such names.
        self.assertTrue(all(name.replace("-", "").replace(".", "").isalnum() for name in names))

    def test_a_driver_that_the_linker_does_not_know_is_found(self):
        def told(loads, *before):
            with tempfile.TemporaryDirectory() as scratch, \
                    mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": before[0]} if before else {}), \
                    mock.patch("ctypes.CDLL", side_effect=None if loads else OSError):
                if not before:
                    os.environ.pop("LD_LIBRARY_PATH", None)
                (Path(scratch) / "libcuda.so.1").touch()
                self.check.find_driver(["/nowhere", scratch])
                return os.environ.get("LD_LIBRARY_PATH", "").replace(scratch, "found")
        self.assertEqual([told(True), told(False), told(False, "/a"), told(True, "/a")],
                         ["", "found", "/a:found", "/a"])

    def test_peers_meet_without_a_network_and_say_at_once_what_refuses(self):
        peers, torch, said = loaded("gpu-peers.py"), mock.MagicMock(), io.StringIO()
        torch.cuda.get_device_name.return_value, torch.__version__ = CARD, "2.11"
        process = torch.multiprocessing.get_context.return_value.Process
        process.return_value.exitcode = 0
        with mock.patch.dict(os.environ), contextlib.redirect_stdout(said):
            with mock.patch.object(peers, "loaded_nccl", lambda _: (2, 28, 9)):
                self.assertFalse(peers.processes(torch, "nccl", 0))
                process.assert_not_called()
            with mock.patch.object(peers, "loaded_nccl", lambda _: (2, 30, 7)):
                self.assertFalse(peers.processes(torch, "nccl", 0))
            self.assertEqual(process.call_count, RANKS[-1])
            self.assertEqual({os.environ[f"{name}_SOCKET_IFNAME"] for name in ("GLOO", "NCCL")}, {"lo"})
        rows = [json.loads(line) for line in said.getvalue().splitlines()]
        self.assertIn("NCCL 2.28.9 refuses", rows[1]["left_out"])
        self.assertTrue(all("time-sliced" in row["scope"] for row in rows))
        self.assertEqual([row.get("device") for row in rows], [CARD, None, CARD])

    def test_what_may_be_missing(self):
        def failures(dry, *names):
            run = self.check.Run(Path("x"), dry, io.StringIO())
            run.do(Step("a", 5, "true", needs=[Path("nowhere") / name for name in names]), 5)
            return run.failed, run.incomplete
        out, sys.stdout = sys.stdout, io.StringIO()
        try:
            self.assertEqual(failures(False, "ring-perf"), (0, 1))
            self.assertEqual(failures(True, "cuda-tests"), (0, 0))
            self.assertEqual(failures(True, "compute-sanitizer"), (0, 0))
            self.assertEqual(failures(True, "cuda-tests", "ring-perf"), (1, 0))
        finally:
            sys.stdout = out

    def test_ends_differ(self):
        def status_of(*ends):
            run = self.check.Run(Path("x"), False, io.StringIO())
            for name, script in ends:
                run.do(Step(name, 5, "sh", "-c", script), 5)
            return run.status()
        out, sys.stdout = sys.stdout, io.StringIO()
        try:
            self.assertEqual(status_of(("a", "exit 0"), ("peer-b", "exit 0")), 0)
            self.assertEqual(status_of(("a", "exit 0"), ("peer-b", "exit 1")), self.check.INCOMPLETE)
            self.assertEqual(status_of(("a", "exit 1"), ("peer-b", "exit 1")), 1)
        finally:
            sys.stdout = out

    def test_a_peer_without_its_library_says_so(self):
        for peer in ["stack", "nccl", "symmetric"]:
            # No package of this machine's is found.
            words = [sys.executable, "-S", str(SCRIPTS / "gpu-peers.py"), peer, "5"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("torch", json.loads(done.stdout.splitlines()[0])["error"])

    def test_a_graph_of_a_peer_has_as_many_calls_as_the_librarys(self):
        bench = (SCRIPTS.parent / "programs/ring-perf/gpu/bench.rs").read_text()
        for size, name in [(SMALL[0], "SMALL"), (LARGE[0], "LARGE")]:
            calls = gpu_goals.calls_of_a_graph(size)
            self.assertIn(f"const {name}: (usize, usize) = ({calls}, ", bench)
        self.assertIn(f"const LARGE_BYTES: usize = {gpu_goals.GRAPH_LARGE_BYTES >> 20} << 20;", bench)
        torch, captured = mock.MagicMock(), []
        torch.cuda.graph.return_value.__enter__.side_effect = lambda: captured.append(-torch.stack.call_count)
        torch.cuda.graph.return_value.__exit__.side_effect = \
            lambda *_: captured.append(captured.pop() + torch.stack.call_count)
        # Whatever is timed takes as long.
        torch.cuda.Event.return_value.elapsed_time.return_value = 1.0
        self.differing(torch, 0)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            self.assertFalse(loaded("gpu-peers.py").stack(torch, mock.Mock()))
        rows = {(row["ranks"], row["bytes"], row["mode"]): row["time_us"]
                for row in map(json.loads, said.getvalue().splitlines())}
        graphs = [size for _, size, mode in rows if mode == "graph"]
        self.assertEqual(captured, [gpu_goals.calls_of_a_graph(size) for size in graphs])
        for (ranks, size, mode), time_us in rows.items():
            calls = gpu_goals.calls_of_a_graph(size) if mode == "graph" else 1
            self.assertAlmostEqual(time_us * calls, rows[ranks, size, "eager"])

    @staticmethod
    def differing(torch, count):
        """Let so many elements of what is copied to differ from the sum."""
        differs = mock.MagicMock()
        differs.sum.return_value = count
        torch.empty_like.return_value.__ne__.return_value = differs
        torch.empty_like.return_value.numel.return_value = 9

    def test_a_peer_whose_result_is_wrong_has_no_time(self):
        torch, said = mock.MagicMock(), io.StringIO()
        torch.cuda.Event.return_value.elapsed_time.return_value = 1.0
        self.differing(torch, 3)
        with contextlib.redirect_stdout(said):
            self.assertTrue(loaded("gpu-peers.py").stack(torch, mock.Mock()))
        for row in map(json.loads, said.getvalue().splitlines()):
            self.assertNotIn("time_us", row)
            self.assertIn(f"3 of 9 elements here are not the sum of {row['ranks']} ones", row["error"])
        # Wrong on another rank, it has none here.
        right = mock.MagicMock()
        right.__ne__.return_value.sum.return_value = 0
        with self.assertRaises(ArithmeticError):
            loaded("gpu-peers.py").check(right, 2, lambda mine: 0)

    def test_what_was_carried_is_made_executable(self):
        with tempfile.TemporaryDirectory() as scratch:
            program = Path(scratch) / "ring-perf"
            program.write_text("#!/bin/sh\n")
            program.chmod(0o644)
            self.check.make_executable(Path(scratch))
            self.assertEqual(subprocess.run([program]).returncode, 0)

    def test_who_reads_ahead_ends_with_the_run(self):
        with self.check.reading_ahead() as process:
            # It has the device open for as long as that, whatever it finds.
            with self.assertRaises(subprocess.TimeoutExpired):
                process.wait(1)
        self.assertIsNotNone(process.returncode)
        with self.check.reading_ahead() as process:
            # As the system does where the run was killed.
            process.stdin.close()
            self.assertEqual(process.wait(60), 0)

    def test_scripts_compile(self):
        with tempfile.TemporaryDirectory() as scratch:
            for path in [*SCRIPTS.glob("gpu*.py"), SCRIPTS / "nccl_calls.py", SCRIPTS / "gpu-check"]:
                py_compile.compile(str(path), cfile=str(Path(scratch) / "x"), doraise=True)


class Patterns(unittest.TestCase):
    def test_a_period_is_all_of_it(self):
        ranks = loaded("gpu-ranks.py")
        for rank, turn in [(0, 1), (7, 40)]:
            whole = [float((7 * i + 13 * rank + 17 * turn) % 61) for i in range(ranks.PATTERN_BYTES // 4)]
            self.assertEqual(ranks.repeated(ranks.pattern(rank, turn)), struct.pack(f"{len(whole)}f", *whole))


# Named, as nothing else here does.
ALSO = [Clocking, Driven, Hanging, InNcclsPlace, Judge, Origin, Packed, Programs]

if __name__ == "__main__":
    unittest.main()
