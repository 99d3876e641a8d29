"""What scripts/gpu-check is to reach on one GPU, and how its results are judged: gpu_goals.py RESULTS.jsonl

The sizes that ring-perf and the peers have in common, and a function from the lines of a run to a verdict
for every goal: `met`, `not met`, or `not measured` and why. It reads lines and nothing else, so that results
of another day are judged as well as those of a run that has just ended.
"""
import json
import re
import sys

# Bytes of each rank that the library and every peer are timed at: latencies, and what no cache holds.
SMALL = [8, 1 << 10, 64 << 10]
LARGE = [64 << 20, 256 << 20]
# And what lies between, for the reader of the results.
SIZES = [*SMALL, 1 << 20, 16 << 20, *LARGE]
RANKS = [2, 4, 8]
KINDS = ["float", "bfloat16"]
PEERS = ["nccl", "symmetric", "torch.stack"]
# Times of the peers' bus bandwidth at LARGE, by the number of ranks; and of their latency at SMALL.
BANDWIDTHS = {2: 1.5, 4: 2.0, 8: 2.0}
LATENCY = 3.0
# Calls that one graph holds, of small calls and of larger ones than so many bytes: of ring-perf's graphs
# (programs/ring-perf/gpu/bench.rs) and of the peers', so that both have as much of a graph's launch in them.
GRAPH_CALLS, GRAPH_LARGE_CALLS, GRAPH_LARGE_BYTES = 20, 5, 4 << 20
# Operations of two processes.
OPERATIONS = 10_000
# The cards that decide a goal, as their driver names them. Shares of what the card itself copies in the same run,
# and of what others take there, count on any Hopper card; microseconds on these two, whose clocks are alike.
HOPPER, TIMED = re.compile(r"\b(G?H100|G?H200|H800|H20)\b"), re.compile(r"\bH[12]00\b")
# Peers whose ranks are processes, which take turns on one GPU: a ratio to them is no headline.
TIME_SLICED = ["nccl", "symmetric"]
# Processes that wait for each other in kernels take a time slice for every call, 9 ms of two: more say no more.
RANKS_OF = {"symmetric": [2]}
# What every row of ring-perf's has that is judged or read here, and those of ranks that one process has on
# one device.
EVERYWHERE = ["bytes", "type", "ranks", "hot_us", "rotating_us", "bound_percent", "iterations", "wrong", "busbw",
              "transport", "algorithm"]
ON_ONE_DEVICE = ["graph_us", "eager_one_stream_us"]

# What no figure of a single GPU is to be read without.
SCOPE = "one GPU, HBM-bound"
SLICED = "time-sliced: the peer's processes take turns on the GPU"

MET, MISSED, UNKNOWN, LEFT_OUT = "met", "not met", "not measured", "left out"


def calls_of_a_graph(bytes_):
    return GRAPH_LARGE_CALLS if bytes_ > GRAPH_LARGE_BYTES else GRAPH_CALLS


class Missing(Exception):
    """What a goal needs is not in the results; the text says what and why."""


class LeftOut(Missing):
    """A peer that cannot run on one GPU; the text says why."""


class NotRun(Missing):
    """Its step was not asked for."""


class Results:
    """The lines of a run, by their steps."""

    def __init__(self, lines):
        self.steps = {line["step"]: line for line in lines if "step" in line}
        # GB/s that the card copied, in the steps that a goal has asked for.
        self.copied = []
        self.peers = [row for name, line in self.steps.items() if name.startswith("peer-")
                      for row in line["rows"]]
        devices = (row["device"] for line in self.steps.values() for row in line["rows"] if row.get("device"))
        # There is one; None where nothing was measured.
        self.device = next(devices, None)

    def rows(self, name):
        """The rows of a step's report; ring-perf has them all in one object."""
        step = self.steps.get(name)
        if step is None:
            raise NotRun(f"there is no step {name}")
        self.copied += [max(speeds) for report in step["rows"] if (speeds := copies(report))]
        rows = [row for report in step["rows"] for row in report.get("rows", [])]
        if not rows:
            raise Missing(f"{name}: {step['status']}")
        return rows

    def values(self, name, field, sizes, **alike):
        """A field at each of the sizes, of rows that are alike in other fields."""
        rows = {row["bytes"]: row for row in self.rows(name)
                if all(row[key] == value for key, value in alike.items())}
        for size in sizes:
            if rows.get(size, {}).get(field) is None:
                status = self.steps[name]["status"]
                why = f" ({status})" if status != 0 else ""
                # A time that could not be taken has its reason beside it.
                reason = rows.get(size, {}).get(field.replace("_us", "_error"))
                why += f": {reason}" if reason and field.endswith("_us") else ""
                raise Missing(f"{name} has no {field} at {size} bytes{why}")
            if rows[size].get("wrong") != 0:
                raise Missing(f"{name}: what it computed at {size} bytes is wrong, or was not compared")
        return [rows[size][field] for size in sizes]

    def peer(self, peer, ranks, size, mode):
        """The fastest of a peer's ways, in microseconds."""
        rows = [row for row in self.peers if row["peer"] == peer and row.get("ranks") in (ranks, None)]
        times = [row["time_us"] for row in rows
                 if row.get("bytes") == size and row.get("mode") == mode and row.get("time_us")]
        if times:
            return min(times)
        for row in rows:
            if row.get("left_out"):
                raise LeftOut(row["left_out"])
        reasons = [row["error"] for row in rows if row.get("error") and row.get("bytes") in (size, None)]
        step = self.steps.get(f"peer-{peer.split('.')[-1]}")
        if step is None:
            raise NotRun(f"{peer} was not run")
        status = f"ended with {step['status']}"
        raise Missing(f"{peer} {status}" + (f": {reasons[0]}" if reasons else f", without {size} bytes"))


def copies(report):
    """What a report of ring-perf says that the card copies, by the driver and by the library's kernel, in GB/s."""
    return list(filter(None, (report.get(f"copy_{way}_gbps") for way in ("driver", "kernel"))))


def at_least(value, goal):
    return value >= goal


def at_most(value, goal):
    return value <= goal


def small_sizes(results, name):
    """All sizes of a step, up to where a goal for latencies ends: the last of SMALL has to be there."""
    sizes = sorted({row["bytes"] for row in results.rows(name) if row["bytes"] <= SMALL[-1]})
    return sizes if sizes and sizes[-1] == SMALL[-1] else [*sizes, SMALL[-1]]


def own_goals():
    """(name, unit, compare, goal, value of results) of what the library is held against by itself."""
    for ranks in RANKS:
        for kind in KINDS:
            yield (f"fused of {ranks} ranks, {kind}, >= 64 MiB, of the bound 2NS/B", "%", at_least, 92,
                   lambda r, n=ranks, k=kind: min(r.values(f"large-{n}-{k}", "bound_percent", LARGE)))
    for field, what, goal, of in [("graph_us", "graph replay", 4, RANKS),
                                  ("eager_one_stream_us", "eager on one stream", 6, RANKS),
                                  ("hot_us", "eager on two streams", 10, [2])]:
        for ranks in of:
            def worst(r, name=f"small-{ranks}", field=field):
                return max(r.values(name, field, small_sizes(r, name)))
            yield f"{what}, {ranks} ranks, <= 64 KiB", "us", at_most, goal, worst
    for ranks in RANKS:
        def of_fused(r, n=ranks):
            fused = r.values(f"large-{n}-float", "rotating_us", LARGE)
            mine = r.values(f"together-twoshot-{n}", "rotating_us", LARGE, algorithm="twoshot")
            return min(100 * one / other for one, other in zip(fused, mine))
        yield f"two-shot of {ranks} ranks in one launch, >= 64 MiB, of fused", "%", at_least, 90, of_fused
    for ranks in RANKS:
        def of_model(r, n=ranks):
            return min(r.values(f"together-ring-{n}", "bound_percent", LARGE, algorithm="ring"))
        yield f"ring of {ranks} ranks in one launch, >= 64 MiB, of (6N-4)S/B", "%", at_least, 80, of_model


def peer_goals():
    """The same of what it is held against others by; a busbw is to another as the times are, turned over.
    torch.stack is one thread's on one stream, and so is what it is held against."""
    for peer in PEERS:
        for ranks in RANKS_OF.get(peer, RANKS):
            def bandwidth(r, p=peer, n=ranks):
                mine = r.values(f"large-{n}-float", "hot_us", LARGE)
                return min(r.peer(p, n, size, "eager") / one for size, one in zip(LARGE, mine))
            yield f"busbw of {ranks} ranks, >= 64 MiB, of {peer}", "x", at_least, BANDWIDTHS[ranks], bandwidth
            modes = {"eager": "eager_one_stream_us", "graph": "graph_us"} if peer == "torch.stack" \
                else {"eager": "hot_us"}
            for mode, field in modes.items():
                def latency(r, p=peer, n=ranks, mode=mode, field=field):
                    mine = r.values(f"small-{n}", field, SMALL)
                    return min(r.peer(p, n, size, mode) / one for size, one in zip(SMALL, mine))
                yield (f"latency of {ranks} ranks, <= 64 KiB, {mode}, below {peer}", "x", at_least, LATENCY,
                       latency)


def process_goals():
    """The same of two processes."""
    def operations(r):
        step = r.steps.get("processes-many")
        if step is None:
            raise NotRun("there is no step processes-many")
        if step["status"] != 0:
            done = 2 * sum(row.get("iterations") or 0 for report in step.get("rows", [])
                           for row in report.get("rows", []))
            raise Missing(f"processes-many: {step['status']} after {done} operations at least")
        # With the same buffers, and with buffers in turn.
        return 2 * sum(row["iterations"] for row in r.rows("processes-many"))
    yield "operations of two processes by IPC without a hang", "", at_least, OPERATIONS, operations
    yield ("two processes by IPC at 256 MiB, of the bound", "%", at_least, 80,
           lambda r: r.values("processes-large", "bound_percent", LARGE[-1:])[0])


def judge(lines):
    """A row for every goal."""
    results = Results(lines)
    for name, unit, compare, goal, value in [*own_goals(), *peer_goals(), *process_goals()]:
        is_sliced = any(name.endswith(f" {peer}") for peer in TIME_SLICED)
        row = {"goal": name, "unit": unit, "wanted": goal,
               "compare": ">=" if compare is at_least else "<=", "device": results.device,
               "scope": f"{SCOPE}; {SLICED}" if is_sliced else SCOPE}
        results.copied = []
        try:
            found = value(results)
            verdict = MET if compare(found, goal) else MISSED
            yield row | {"value": found, "verdict": verdict, "copies_gb_per_s": min(results.copied, default=None)}
        except Missing as why:
            verdict = LEFT_OUT if isinstance(why, LeftOut) else UNKNOWN
            yield row | {"value": None, "verdict": verdict, "why": str(why), "not_run": isinstance(why, NotRun)}


def is_elsewhere(row):
    """Whether a verdict was measured on a card that does not decide it; rows of old results name none."""
    deciding = {"us": TIMED, "%": HOPPER, "x": HOPPER}.get(row["unit"])
    return None not in (deciding, row.get("device")) and not deciding.search(row["device"])


def text(row):
    """A verdict in a line."""
    wanted = f"{row['compare']} {row['wanted']:g}{row['unit'] and ' ' + row['unit']}"
    if row["value"] is None:
        return f"{row['verdict']}: {row['goal']}: {wanted}: {row['why']}"
    copied = row.get("copies_gb_per_s")
    beside = f"; the card copies {copied:.0f} GB/s" if copied and row["unit"] == "%" else ""
    where = f" (decided by a Hopper card only, not by {row['device']})" if is_elsewhere(row) else ""
    return f"{row['verdict']}: {row['goal']}: {row['value']:.4g}, wanted {wanted}; {row['scope']}{beside}{where}"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = list(judge([json.loads(line) for line in file]))
    print("\n".join(map(text, rows)))
    return any(row["verdict"] not in (MET, LEFT_OUT) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
