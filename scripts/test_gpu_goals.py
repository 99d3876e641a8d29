"""The judge of scripts/gpu-check, on rows that are made up. scripts/test_gpu_check.py runs these."""
import unittest

import gpu_goals
from gpu_goals import KINDS, LARGE, LEFT_OUT, MET, MISSED, PEERS, RANKS, SMALL, UNKNOWN

# As their driver names cards.
CARD, H100, A100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def report(sizes, **fields):
    return [{"device": CARD, "rows": [{"bytes": size, "wrong": 0, **fields} for size in sizes]}]


def good_run():
    """The lines of a run that meets every goal, by its steps."""
    rows = {"processes-many": report([1024], iterations=5000),
            "processes-large": report(LARGE[-1:], bound_percent=81)}
    for ranks in RANKS:
        small = {"graph_us": 3.9, "eager_one_stream_us": 5.9, "hot_us": 9.9}
        rows[f"small-{ranks}"] = report([8 << shift for shift in range(14)], **small)
        for kind in KINDS:
            rows[f"large-{ranks}-{kind}"] = report([1 << 20, *LARGE], bound_percent=93, rotating_us=95,
                                                   hot_us=94)
        rows[f"together-twoshot-{ranks}"] = report(LARGE, rotating_us=100, algorithm="twoshot")
        rows[f"together-ring-{ranks}"] = report(LARGE, bound_percent=80, algorithm="ring")
    for peer in PEERS:
        name = f"peer-{peer.split('.')[-1]}"
        cells = [(ranks, size) for ranks in RANKS for size in [*SMALL, *LARGE]]
        rows[name] = [{"peer": peer, "ranks": ranks, "bytes": size, "mode": mode, "time_us": 190}
                      for ranks, size in cells for mode in ["eager", "graph"]]
    return {name: {"step": name, "status": 0, "rows": all_rows} for name, all_rows in rows.items()}


def verdicts(run):
    return {row["goal"]: row for row in gpu_goals.judge(run.values())}


class Judge(unittest.TestCase):
    def changed(self, goal, verdict, change):
        """Only one goal changes its verdict with one row."""
        run = good_run()
        change(run)
        others = {name: row["verdict"] for name, row in verdicts(run).items() if row["verdict"] != MET}
        self.assertEqual(others, {goal: verdict})

    def test_a_good_run_meets_every_goal(self):
        rows = verdicts(good_run())
        self.assertEqual({row["verdict"] for row in rows.values()}, {MET})
        self.assertEqual(len(rows), 6 + 7 + 3 + 3 + 9 + 8 + 2)
        self.assertEqual(rows["busbw of 2 ranks, >= 64 MiB, of nccl"]["value"], 190 / 94)

    def test_every_goal_is_missed_by_its_own_row(self):
        def put(step, index, field, value):
            return lambda run: run[step]["rows"][0]["rows"][index].__setitem__(field, value)
        self.changed("fused of 4 ranks, bfloat16, >= 64 MiB, of the bound 2NS/B", MISSED,
                     put("large-4-bfloat16", 2, "bound_percent", 91.9))
        self.changed("eager on one stream, 8 ranks, <= 64 KiB", MISSED,
                     put("small-8", 13, "eager_one_stream_us", 6.1))
        self.changed("eager on two streams, 2 ranks, <= 64 KiB", MISSED, put("small-2", 5, "hot_us", 10.1))
        self.changed("two-shot of 8 ranks in one launch, >= 64 MiB, of fused", MISSED,
                     put("together-twoshot-8", 1, "rotating_us", 106))
        self.changed("ring of 2 ranks in one launch, >= 64 MiB, of (6N-4)S/B", MISSED,
                     put("together-ring-2", 0, "bound_percent", 79.9))
        self.changed("operations of two processes by IPC without a hang", MISSED,
                     put("processes-many", 0, "iterations", 4999))
        self.changed("graph replay, 2 ranks, <= 64 KiB", MISSED, put("small-2", 3, "graph_us", 4.1))

    def test_what_is_not_there_is_not_measured_and_says_why(self):
        def without(run):
            run["peer-nccl"]["rows"] = [{"peer": "nccl", "error": "NCCL 2.27 refuses"}]
            run["peer-nccl"]["status"] = 1
        run = good_run()
        without(run)
        unknown = [row for row in verdicts(run).values() if row["verdict"] == UNKNOWN]
        self.assertEqual(len(unknown), 6)
        self.assertTrue(all("NCCL 2.27 refuses" in row["why"] for row in unknown))
        self.changed("operations of two processes by IPC without a hang", UNKNOWN,
                     lambda run: run["processes-many"].update(status="out of time"))
        # A fused call is no two-shot, whatever the step is called.
        self.changed("two-shot of 4 ranks in one launch, >= 64 MiB, of fused", UNKNOWN,
                     lambda run: run.update({"together-twoshot-4": {
                         "step": "together-twoshot-4", "status": 0,
                         "rows": report(LARGE, rotating_us=95, algorithm="fused")}}))
        self.changed("graph replay, 4 ranks, <= 64 KiB", UNKNOWN,
                     lambda run: run["small-4"]["rows"][0]["rows"][12].update(graph_us=None))
        # A fast wrong result is none.
        for wrong in [3, None]:
            def spoilt(run, wrong=wrong):
                run["together-ring-4"]["rows"][0]["rows"][1].update(wrong=wrong)
            self.changed("ring of 4 ranks in one launch, >= 64 MiB, of (6N-4)S/B", UNKNOWN, spoilt)
        self.assertEqual({row["verdict"] for row in verdicts({}).values()}, {UNKNOWN})

    def test_a_time_that_was_not_taken_has_its_reason(self):
        run, why = good_run(), "capturing: refused (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)"
        run["small-4"]["rows"][0]["rows"][3].update(graph_us=None, graph_error=why)
        row = verdicts(run)["graph replay, 4 ranks, <= 64 KiB"]
        self.assertEqual((row["verdict"], row["why"]), (UNKNOWN, f"small-4 has no graph_us at 64 bytes: {why}"))
        run["processes-many"].update(status="out of time", rows=report([256, 512], iterations=1000))
        row = verdicts(run)["operations of two processes by IPC without a hang"]
        self.assertIn("out of time after 4000 operations", row["why"])

    @staticmethod
    def run_on(device):
        run = good_run()
        for step in run.values():
            for rows in step["rows"]:
                rows |= {"device": device, "copy_driver_gbps": 2990.0, "copy_kernel_gbps": 3010.0} \
                    if "device" in rows else {}
        return verdicts(run)

    def test_shares_and_ratios_are_decided_by_any_hopper_card_and_microseconds_by_two(self):
        def undecided(device):
            return {row["unit"] for row in self.run_on(device).values() if gpu_goals.is_elsewhere(row)}
        self.assertEqual([undecided(name) for name in (CARD, H100, None)], [set()] * 3)
        self.assertEqual(undecided("NVIDIA H20"), {"us"})
        self.assertEqual(undecided("NVIDIA GH200 480GB"), {"us"})
        self.assertEqual(undecided(A100), {"us", "%", "x"})

    def test_what_the_card_copies_stands_beside_each_share(self):
        rows = self.run_on(H100)
        share = gpu_goals.text(rows["fused of 4 ranks, float, >= 64 MiB, of the bound 2NS/B"])
        self.assertIn("the card copies 3010 GB/s", share)
        self.assertNotIn("decided by", share)
        self.assertNotIn("copies", gpu_goals.text(rows["graph replay, 4 ranks, <= 64 KiB"]))
        self.assertIn(f"not by {A100}", gpu_goals.text(self.run_on(A100)["graph replay, 4 ranks, <= 64 KiB"]))

    def test_ratios_to_processes_that_take_turns_are_labelled(self):
        for name, row in verdicts(good_run()).items():
            is_sliced = any(peer in name for peer in ("nccl", "symmetric"))
            self.assertEqual("time-sliced" in gpu_goals.text(row), is_sliced, name)

    def test_a_peer_that_cannot_run_on_one_gpu_is_left_out(self):
        run, why = good_run(), "NCCL 2.28.9 refuses two ranks of one GPU, which 2.30 takes"
        run["peer-nccl"]["rows"] = [{"peer": "nccl", "left_out": why}]
        rows = [row for row in verdicts(run).values() if row["verdict"] != MET]
        self.assertEqual({(row["verdict"], row["why"]) for row in rows}, {(LEFT_OUT, why)})
        self.assertEqual(len(rows), 6)

    def test_one_thread_is_held_against_one_thread(self):
        self.changed("latency of 8 ranks, <= 64 KiB, eager, below torch.stack", MISSED,
                     lambda run: [row.update(time_us=17) for row in run["peer-stack"]["rows"]
                                  if (row["ranks"], row["bytes"], row["mode"]) == (8, 8, "eager")])
        run = good_run()
        for row in run["small-8"]["rows"][0]["rows"]:
            row["eager_one_stream_us"] = 5.0
        self.assertEqual(verdicts(run)["latency of 8 ranks, <= 64 KiB, eager, below torch.stack"]["value"], 190 / 5)

    def test_the_fastest_of_a_peer_counts(self):
        run = good_run()
        run["peer-symmetric"]["rows"].append({"peer": "symmetric", "ranks": 2, "bytes": 8, "mode": "eager",
                                              "way": "one-shot", "time_us": 20})
        row = verdicts(run)["latency of 2 ranks, <= 64 KiB, eager, below symmetric"]
        self.assertEqual((row["verdict"], row["value"]), (MISSED, 20 / 9.9))
