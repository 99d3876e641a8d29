"""From raw rows to ratios: what is compared with what, and how sure the result is.

A sample is one round's time of ringcomm over that round's best peer. Cores can be near or far from
each other and change between rows, so every row is framed by two probes of the cross-core latency;
a sample whose two sides saw different states is marked and does not count.

    python3 benches/peers/report.py benches/results/peers-DATE.json

prints where ringcomm was not ahead, for docs/performance.md.
"""

import json
import sys
import textwrap
from pathlib import Path
from statistics import median

# Cores that other programs used before a round, beyond which the round was not on an idle machine.
MOST_OTHERS = 0.5

# Rounds below which a median says little.
LEAST_ROUNDS = 3

# Far takes this many times as long as near at least; the probes of each are this share of all at
# least. What is less is a disturbed probe.
STATES_DIFFER = 1.6
LEAST_SHARE = 0.03


def threshold(probes):
    """The latency between near and far, or None where all probes are of one state.

    It lies between the medians of those below it and of those above."""
    probes = sorted(probe for probe in probes if probe)
    least = max(1, int(LEAST_SHARE * len(probes)))
    if len(probes) < 2 * least:
        return None
    limit = (probes[least - 1] * probes[-least]) ** 0.5
    for _ in range(len(probes)):
        below = [probe for probe in probes if probe < limit]
        above = probes[len(below) :]
        if min(len(below), len(above)) < least or median(above) < STATES_DIFFER * median(below):
            return None
        before, limit = limit, (median(below) * median(above)) ** 0.5
        if before == limit:
            break
    return limit


def state(probes, limit):
    """`near` or `far`, `changed` in between, `one` where there is only one state."""
    before, after = probes
    if limit is None or not before or not after:
        return "one"
    if (before < limit) != (after < limit):
        return "changed"
    return "near" if before < limit else "far"


def probes_of(raw):
    """All probes of a run: around its starts and between their rows."""
    framed = [one for start in raw["starts"] for one in (start, *start["rows"])]
    return [probe for one in framed for probe in one.get("cross_core_ns") or () if probe]


def tables(raw):
    """`(op, in_place, ranks)` in order, each `{size: {round: {system: (time, state)}}}`."""
    limit = threshold(probes_of(raw))
    found = {}
    for start in raw["starts"]:
        for row in start["rows"]:
            seen = state(row.get("cross_core_ns") or start["cross_core_ns"], limit)
            key = (row["op"], bool(row["in_place"]), row["ranks"])
            cells = found.setdefault(key, {}).setdefault(row["bytes"], {})
            cells.setdefault(start["round"], {})[start["system"]] = (row["time_us"], seen)
    order = raw["operations"]

    def place(key):
        name = key[0] + (":in" if key[1] else "")
        return (key[2], order.index(name) if name in order else len(order))

    return {key: dict(sorted(found[key].items())) for key in sorted(found, key=place)}


def typical(rounds, system):
    """A system's median time over the rounds, or None."""
    times = [cells[system][0] for cells in rounds.values() if system in cells]
    return median(times) if times else None


def samples(rounds, ours, peers):
    """Per round: (ratio to that round's best peer, the best peer, common state or `changed`)."""
    for cells in rounds.values():
        present = [peer for peer in peers if peer in cells]
        if ours not in cells or not present:
            continue
        best = min(present, key=lambda peer: cells[peer][0])
        time, own_state = cells[ours]
        best_time, best_state = cells[best]
        same = own_state if own_state == best_state else "changed"
        yield time / best_time, best, same


def spread(ratios):
    return {
        "median": median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "rounds": len(ratios),
    }


def compare(rounds, ours, peers):
    """Ratio over all unmarked rounds, and by state where both were seen; None without a sample."""
    taken = list(samples(rounds, ours, peers))
    good = [sample for sample in taken if sample[2] != "changed"]
    if not taken:
        return None
    result = spread([ratio for ratio, _, _ in good or taken])
    result["marked"] = len(taken) - len(good)
    result["only_marked"] = not good
    for name in ("near", "far"):
        ratios = [ratio for ratio, _, same in good if same == name]
        if ratios:
            result[name] = spread(ratios)
    return result


def summary(raw):
    """What the table and the chart show, ready for JSON."""
    ours = [one["name"] for one in raw["systems"] if one["peer"] == "ringcomm"]
    peers = [one["name"] for one in raw["systems"] if one["peer"] != "ringcomm"]
    result = []
    for (op, in_place, ranks), sizes in tables(raw).items():
        for size, rounds in sizes.items():
            times = {name: typical(rounds, name) for name in ours + peers}
            ranked = sorted((time, name) for name, time in times.items() if name in peers and time)
            best = ranked[0][1] if ranked else None
            result.append(
                {
                    "op": op,
                    "in_place": in_place,
                    "ranks": ranks,
                    "bytes": size,
                    "time_us": {name: time for name, time in times.items() if time},
                    "best_peer": best,
                    "ratio": {
                        name: ratio for name in ours if (ratio := compare(rounds, name, peers))
                    },
                }
            )
    return result


def human(size):
    for letter, unit in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def micro(time):
    """Three significant figures."""
    if time is None:
        return "-"
    digits = 3 if time < 1 else 2 if time < 10 else 1 if time < 100 else 0
    return f"{time:,.{digits}f}"


def ratio_text(ratio):
    if ratio is None:
        return "-"
    mark = "*" if ratio["only_marked"] else ""
    return f"{ratio['median']:.2f}{mark} ({ratio['least']:.2f}-{ratio['most']:.2f})"


def by_distance(ratio):
    """The medians with near and with far cores, where both were seen."""
    if ratio is None or "near" not in ratio or "far" not in ratio:
        return "-"
    return f"{ratio['near']['median']:.2f} / {ratio['far']['median']:.2f}"


def lines_of(title, rows, ours):
    short = [name.removeprefix("ringcomm ") for name in ours]
    head = ["bytes", *(f"{name} us" for name in short), "peer us", "best peer"]
    head += [f"{name} / peer" for name in short]
    moved = [
        name for name in ours if any(by_distance(row["ratio"].get(name)) != "-" for row in rows)
    ]
    head += [f"{name.removeprefix('ringcomm ')} near / far" for name in moved]
    body = []
    for row in rows:
        times, ratios = row["time_us"], [row["ratio"].get(name) for name in ours]
        cells = [human(row["bytes"]), *(micro(times.get(name)) for name in ours)]
        cells += [micro(times.get(row["best_peer"])), row["best_peer"] or "none"]
        cells += [ratio_text(ratio) for ratio in ratios]
        body.append(cells + [by_distance(row["ratio"].get(name)) for name in moved])
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
    named = head.index("best peer")

    def laid(line):
        cells = (
            text.ljust(width) if column >= named else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths))
        )
        return "  ".join(cells).rstrip()

    return [title, laid(head), *map(laid, body), ""]


EXPLANATION = """\
Ratios are ringcomm's time over the best peer's of the same round: below 1, ringcomm is faster.
Median (least-most) of the rounds; * = only rounds in which the distance of the cores changed.
The times beside them are medians over all rounds; the peer named there has the least.
"""


def load_lines(raw):
    """What else the machine had to do: before every round, when nothing of the run's own ran."""
    lines = []
    if "load" in raw["machine"]:
        lines.append(f"load average at the start {raw['machine']['load'][0]:.2f}")
    for number, others in enumerate(raw.get("others_cores", []), 1):
        busy = "   NOT IDLE" if others > MOST_OTHERS else ""
        lines.append(f"round {number}: others used {others:.2f} cores before it{busy}")
    return lines


def counted(ratio):
    """Rounds that a ratio is taken over, in words where they are too few for a median."""
    rounds = 0 if ratio["only_marked"] else ratio["rounds"]
    if rounds >= LEAST_ROUNDS:
        return ""
    return f" ({rounds} round)" if rounds == 1 else f" ({rounds} rounds)"


def behind(raw):
    """Where ringcomm's systems took longer than the best peer, in words: operation, sizes with
    ratios, as in the table. A line names its system where there are several."""
    ours = [one["name"] for one in raw["systems"] if one["peer"] == "ringcomm"]
    lines = []
    for system in ours:
        groups = {}
        for row in raw["summary"]:
            ratio = row["ratio"].get(system)
            # What the table shows as 1.00 is even.
            if ratio and round(ratio["median"], 2) > 1:
                name = row["op"] + (" in place" if row["in_place"] else "")
                mark = "*" if ratio["only_marked"] else ""
                cell = f"{human(row['bytes'])} {ratio['median']:.2f}{mark}{counted(ratio)}"
                groups.setdefault(row["ranks"], {}).setdefault(name, []).append(cell)
        named = f", {system.removeprefix('ringcomm ')}" if len(ours) > 1 else ""
        lines += [
            f"{ranks} ranks{named}: "
            + "; ".join(f"{name} {', '.join(cells)}" for name, cells in ops.items())
            for ranks, ops in groups.items()
        ]
    return lines


def table(raw):
    """The report in words: times are medians over the rounds, ratios ringcomm over best peer."""
    machine = raw["machine"]
    probes = probes_of(raw)
    limit = threshold(probes)
    lines = [
        "{cpu}, {cores} cores, {memory_gib} GiB, Linux {kernel}".format(**machine),
        f"commit {machine['commit']}, {raw['rounds_done']} rounds, {raw['date']}",
    ]
    lines += load_lines(raw)
    if probes:
        kinds = "one state" if limit is None else f"near below {limit:.0f}, far above"
        lines.append(f"cross-core cache line {min(probes):.0f} to {max(probes):.0f} ns ({kinds})")
    for one in raw["systems"]:
        lines.append(f"  {one['name']}: {one['version']}")
    lines += [f"  missing: {title}: {why}" for title, why in raw["missing"].items()]
    lines += [f"  note: {note}" for note in raw["notes"]]
    lines += ["", EXPLANATION]
    ours = [one["name"] for one in raw["systems"] if one["peer"] == "ringcomm"]
    groups = {}
    for row in raw["summary"]:
        groups.setdefault((row["ranks"], row["op"], row["in_place"]), []).append(row)
    for (ranks, op, in_place), rows in groups.items():
        where = "in place" if in_place else "out of place"
        lines += lines_of(f"{op}, float32 sum, {where}, {ranks} ranks", rows, ours)
    return "\n".join(lines)


if __name__ == "__main__":
    for line in behind(json.loads(Path(sys.argv[1]).read_text())):
        print(textwrap.fill(line, 100, break_on_hyphens=False))
