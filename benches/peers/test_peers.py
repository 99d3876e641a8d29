"""The arithmetic, the chart and the command line, without any peer: run this file."""

import json
import os
import subprocess
import sys
import time
import unittest
import unittest.mock
import xml.etree.ElementTree as xml
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import chart
import compare
import launch
import options
import report
import systems


def begin(number, system, time, probes=(50.0, 50.0), size=8, ranks=2):
    row = {"op": "all_reduce", "in_place": False, "bytes": size, "ranks": ranks, "time_us": time}
    return {
        "round": number,
        "system": system,
        "ranks": ranks,
        "cross_core_ns": list(probes),
        "rows": [row],
    }


def raw_of(starts, names=("ringcomm processes", "A", "B & C")):
    raw = {
        "date": "2026-01-02",
        "machine": {"cpu": "a <cpu>", "cores": 2, "memory_gib": 8, "kernel": "6", "commit": "abc"},
        "operations": ["all_reduce"],
        "systems": [{"name": name, "peer": name.split()[0], "version": "1"} for name in names],
        "missing": {"D": "no network"},
        "notes": [],
        "rounds_done": 3,
        "starts": starts,
    }
    raw["summary"] = report.summary(raw)
    return raw


class Words(unittest.TestCase):
    def test_a_round_beside_other_work_is_flagged(self):
        raw = raw_of([begin(0, "ringcomm processes", 1.0), begin(0, "A", 2.0)])
        self.assertNotIn("load", report.table(raw))
        raw["machine"]["load"] = (7.5, 7.0, 8.0)
        raw["others_cores"] = [0.1, 0.75]
        words = report.table(raw).splitlines()
        self.assertIn("load average at the start 7.50", words)
        self.assertIn("round 1: others used 0.10 cores before it", words)
        self.assertIn("round 2: others used 0.75 cores before it   NOT IDLE", words)

    def test_what_is_not_ahead_is_listed(self):
        starts = []
        for size, time, probes in ((8, 3.0, (50.0, 50.0)), (1024, 1.0, (50.0, 50.0)),
                                   (1 << 20, 5.0, (50.0, 300.0))):
            starts.append(begin(0, "ringcomm processes", time, probes, size))
            starts.append(begin(0, "A", 2.0, size=size))
        wanted = ["2 ranks: all_reduce 8 1.50 (1 round), 1M 2.50* (0 rounds)"]
        self.assertEqual(report.behind(raw_of(starts)), wanted)

    def test_every_system_that_is_not_ahead_is_listed(self):
        systems = ("ringcomm processes", "ringcomm registered", "ringcomm threads", "A")
        times = {8: (3.0, 1.0, 4.0, 2.0), 64: (1.0, 1.0, 3.0, 2.0)}
        starts = [
            begin(number, system, time, size=size)
            for size, all_times in times.items()
            for number in range(3 if size == 8 else 2)
            for system, time in zip(systems, all_times)
        ]
        wanted = [
            "2 ranks, processes: all_reduce 8 1.50",
            "2 ranks, threads: all_reduce 8 2.00, 64 1.50 (2 rounds)",
        ]
        self.assertEqual(report.behind(raw_of(starts, systems)), wanted)

    def test_the_cores_of_others_are_some(self):
        self.assertTrue(0 <= compare.others_cores() <= os.cpu_count())


class Ratios(unittest.TestCase):
    def test_each_round_has_its_own_best_peer(self):
        rounds = [(1.0, 2.0, 4.0), (1.0, 4.0, 2.0), (3.0, 2.0, 2.5)]
        starts = []
        for number, times in enumerate(rounds):
            for system, time in zip(("ringcomm processes", "A", "B & C"), times):
                starts.append(begin(number, system, time))
        cell = raw_of(starts)["summary"][0]
        ratio = cell["ratio"]["ringcomm processes"]
        self.assertEqual((ratio["median"], ratio["least"], ratio["most"]), (0.5, 0.5, 1.5))
        self.assertEqual((ratio["rounds"], ratio["marked"], cell["best_peer"]), (3, 0, "A"))
        self.assertNotIn("near", ratio)

    def test_a_change_of_distance_marks_the_round(self):
        near, far, moved = (50.0, 55.0), (280.0, 290.0), (50.0, 280.0)
        starts = []
        for number, (ours, theirs) in enumerate(
            [(near, near), (far, far), (near, far), (moved, near)]
        ):
            starts.append(begin(number, "ringcomm processes", [1.0, 3.0, 1.0, 9.0][number], ours))
            starts.append(begin(number, "A", [2.0, 4.0, 100.0, 1.0][number], theirs))
        ratio = raw_of(starts)["summary"][0]["ratio"]["ringcomm processes"]
        self.assertEqual((ratio["median"], ratio["rounds"], ratio["marked"]), (0.625, 2, 2))
        self.assertEqual((ratio["near"]["median"], ratio["far"]["median"]), (0.5, 0.75))

    def test_only_marked_rounds_are_said_to_be_so(self):
        starts = [begin(0, "ringcomm processes", 1.0, (50.0, 280.0)), begin(0, "A", 2.0)]
        raw = raw_of(starts)
        self.assertTrue(raw["summary"][0]["ratio"]["ringcomm processes"]["only_marked"])
        self.assertIn("0.50*", report.table(raw))

    def test_the_table_names_what_is_missing(self):
        words = report.table(raw_of([begin(0, "ringcomm processes", 1.0), begin(0, "A", 2.0)]))
        self.assertIn("missing: D: no network", words)
        self.assertIn("all_reduce, float32 sum, out of place, 2 ranks", words)


class Launching(unittest.TestCase):
    def test_sizes_become_scans(self):
        sizes = [8, 64, 1024, 8192, 65536, 1 << 20, 1 << 24, 1 << 26]
        runs = launch.progressions(sizes)
        self.assertEqual(
            runs, [(8, 64, 8), (1024, 65536, 8), (1 << 20, 1 << 24, 16), (1 << 26, 1 << 26, 2)]
        )
        for wish in (sizes, [8], [8, 12, 20], [16, 8, 24]):
            scanned = []
            for first, last, factor in launch.progressions(wish):
                while first <= last:
                    scanned.append(first)
                    first *= factor
            self.assertEqual(scanned, sorted(wish))

    def test_placements_share_a_start(self):
        wishes = ["all_reduce", "all_reduce:in", "all_gather", "broadcast:in"]
        wanted = [("both", ["all_reduce"]), ("out", ["all_gather"]), ("in", ["broadcast"])]
        self.assertEqual(launch.placements(wishes), wanted)

    def test_rows_of_every_shape(self):
        row = {"op": "all_reduce", "time_us": 1.5}
        for text in (
            json.dumps({"header": {}, "rows": [row]}),
            json.dumps([row]),
            f"words\n{json.dumps(row)}\n{{half",
        ):
            self.assertEqual(launch.rows_in(text), [row])

    def test_the_limit_ends_what_was_started(self):
        status, output, _ = launch.start(["sh", "-c", "echo begun; sleep 60; echo ended"], 3)
        self.assertEqual((status, output), (None, "begun\n"))


class Drawing(unittest.TestCase):
    def test_it_is_well_formed_with_a_curve_for_each(self):
        starts = []
        for size in (8, 64, 1024):
            for system, time in (("ringcomm processes", 0.1), ("A", 0.2), ("B & C", 0.3)):
                starts.append(begin(0, system, time * size, size=size))
                starts.append(begin(0, system, time * size * 2, size=size, ranks=4))
        picture = xml.fromstring(chart.draw(raw_of(starts)))
        curves = [part for part in picture if part.tag.endswith("polyline")]
        self.assertEqual(len(curves), 6)
        self.assertTrue(all(len(part.get("points").split()) == 3 for part in curves))
        words = [part.text for part in picture if part.tag.endswith("text")]
        self.assertIn("4 ranks on 2 cores", words)
        self.assertIn("B & C", words)

    def test_nothing_measured_nothing_drawn(self):
        self.assertIsNone(chart.draw(raw_of([]), "broadcast"))


class CommandLine(unittest.TestCase):
    def refused(self, *arguments):
        program = Path(compare.__file__)
        done = subprocess.run(
            [sys.executable, str(program), *arguments], capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 2)
        return done.stderr

    def test_a_bad_option_is_named_with_a_suggestion(self):
        self.assertIn("did you mean --rounds?", self.refused("--roudns", "3"))
        self.assertIn("did you mean all_reduce?", self.refused("--ops", "allreduce"))
        self.assertIn("did you mean openmpi?", self.refused("--only", "ompi"))
        self.assertIn("at least 4 bytes", self.refused("--sizes", "3"))

    def test_sizes(self):
        self.assertEqual(options.parse(["--sizes", "8,1K,16m"]).sizes, [8, 1024, 16 << 20])


class Large(unittest.TestCase):
    SIZES = [8, 64, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]

    def test_only_one_operation_runs_the_largest_size_unasked(self):
        def scans(*arguments, sizes=None):
            chosen = options.parse(list(arguments))
            return options.scans(chosen, sizes or chosen.sizes)

        usual = (options.OPERATIONS, self.SIZES)
        self.assertEqual(scans(), [usual, (["all_reduce"], [256 << 20])])
        self.assertEqual(scans(sizes=self.SIZES), [usual])
        self.assertEqual(scans("--ops", "send_recv"), [(["send_recv"], self.SIZES)])
        everything = [*self.SIZES, 256 << 20]
        self.assertEqual(scans("--ops", "all_reduce"), [(["all_reduce"], everything)])
        asked = scans("--sizes", "8,256M")
        self.assertEqual(asked, [(options.OPERATIONS, [8, 256 << 20])])
        self.assertEqual(len(scans("--tcp")), 1)

    def test_a_peer_that_is_too_slow_for_it_keeps_the_other_sizes(self):
        comparison = compare.Comparison(options.parse([]), [])
        comparison.probe_program = None
        done = [begin(0, "A", 2.0, size=size)["rows"][0] for size in self.SIZES]
        answers = [(done, None), ([], "stopped after 12 s")] * 2 + [(done, None)]
        system = systems.System("A", "a", "1", None)
        with unittest.mock.patch.object(launch, "run_peer", side_effect=answers) as run:
            for number in range(3):
                comparison.start(system, 2, number)
        self.assertEqual(run.call_count, 5)
        self.assertEqual([len(one["rows"]) for one in comparison.raw["starts"]], [8, 8, 8])
        self.assertEqual(comparison.raw["notes"], ["A, 2 ranks: stopped after 12 s, at 256M"])

    def test_a_failure_in_each_of_two_scans_leaves_nothing_out(self):
        comparison = compare.Comparison(options.parse([]), [])
        comparison.probe_program = None
        done = [begin(0, "A", 2.0, size=size)["rows"][0] for size in self.SIZES]
        slow = ([], "stopped after 12 s")
        answers = [(done[:-1], slow[1]), (done, None), slow, (done, None), (done, None)]
        system = systems.System("A", "a", "1", None)
        with unittest.mock.patch.object(launch, "run_peer", side_effect=answers) as run:
            for number in range(3):
                comparison.start(system, 2, number)
        self.assertEqual(run.call_count, 5)


class Probing(unittest.TestCase):
    def test_every_row_has_the_probes_around_it(self):
        told = iter([50.0, 200.0, 51.0])
        probes = launch.Probes(lambda: next(told), launch.is_table_row)
        for line in ("# size\n", "   8  2  1.0\n", "\n", "  16  4  2.0\n"):
            probes.at_line(line, 1 << 22)
        rows = [{"bytes": size, "in_place": place} for size in (8, 16) for place in (0, 1)]
        given = probes.give(rows, lambda row: row["bytes"])
        around = [row["cross_core_ns"] for row in given]
        self.assertEqual(around, [[50.0, 200.0]] * 2 + [[200.0, 51.0]] * 2)

    def test_lines_are_seen_as_they_come(self):
        seen = []
        command = ["sh", "-c", "echo one; echo two; echo wrong >&2; exit 3"]
        ended = launch.start(command, 10, at_line=lambda line, _: seen.append(line))
        self.assertEqual(ended, (3, "one\ntwo\n", "wrong\n"))
        self.assertEqual(seen, ["one\n", "two\n"])

    def test_the_next_row_waits_for_the_probe(self):
        ended = []

        def probe():
            time.sleep(0.5)
            ended.append(time.time())
            return 1.0

        probes = launch.Probes(probe, lambda line: line == "8\n")
        script = "echo 8; sleep 0.2; date +%s.%N"
        status, output, _ = launch.start(["sh", "-c", script], 10, at_line=probes.at_line)
        self.assertEqual((status, probes.seen), (0, [1.0, 1.0]))
        self.assertGreater(float(output.split()[1]), ended[1])

    def test_near_and_far_are_told_apart_with_probes_in_between(self):
        near, far = [45.0 + one % 15 for one in range(300)], [190.0 + one % 30 for one in range(90)]
        self.assertTrue(70 < report.threshold([*near, *far, 100.0, 140.0, 834.0]) < 150)
        self.assertIsNone(report.threshold([*near, 834.0]))
        self.assertIsNone(report.threshold([50.0]))

    def test_the_state_of_a_row_is_its_own(self):
        starts = [begin(0, name, 1.0) for name in ("ringcomm processes", "A")]
        starts[0]["rows"][0]["cross_core_ns"] = [200.0, 200.0]
        (row,) = raw_of(starts, ("ringcomm processes", "A"))["summary"]
        self.assertTrue(row["ratio"]["ringcomm processes"]["only_marked"])


class Rewriting(unittest.TestCase):
    def test_every_system_is_asked_for_it_or_none(self):
        for asked in (False, True):
            chosen = options.parse(["--rewrite"] if asked else [])
            comparison = compare.Comparison(chosen, [])
            comparison.probe_program = None
            comparison.command = ["ring-perf"]
            peer = systems.System("A", "a", "1", lambda *_: ["peer"])
            own = systems.System("ringcomm threads", "ringcomm", "1", None)
            started = []
            ended = (0, "", "")
            with unittest.mock.patch.object(
                launch, "start", side_effect=lambda *given: started.append(given) or ended
            ):
                comparison.start(peer, 2, 0)
                comparison.start(own, 2, 0)
            peers = [given for given in started if given[0] == ["peer"]]
            self.assertTrue(peers and len(peers) < len(started))
            for given in started:
                environment = given[2] or {}
                told = "BENCH_REWRITE" in environment if given in peers else "--rewrite" in given[0]
                self.assertEqual(told, asked)


class OverTcp(unittest.TestCase):
    def test_every_library_is_told(self):
        for key, name in (("openmpi", "OMPI_MCA_btl"), ("mpich", "FI_PROVIDER")):
            system = systems.System("one", key, "1", lambda *_: [], {"KEPT": "1"})
            environment = systems.over_tcp(system).environment
            self.assertIn("tcp", environment[name])
            self.assertEqual(environment["KEPT"], "1")
        shared = systems.System("Open MPI coll/sm", "openmpi", "1", lambda *_: [])
        self.assertIsNone(systems.over_tcp(shared))

    def test_ringcomm_runs_under_every_protection(self):
        chosen = options.parse(["--tcp"])
        self.assertEqual((chosen.ranks, chosen.sizes[-1]), ([2], 256 << 20))
        self.assertEqual(chosen.modes, ("checksum", "clear", "encrypted"))
        self.assertIn("--tcp", launch.MODES["clear"](2))
        self.assertEqual(options.parse([]).ranks, [2, 4])


if __name__ == "__main__":
    unittest.main()
