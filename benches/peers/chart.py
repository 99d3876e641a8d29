"""The chart: time against size, both logarithmic, one panel per number of ranks, as plain SVG."""

import math
from html import escape

from report import human

# ringcomm stands out by weight; the peers differ by hue. Readable on white and in greyscale order.
OURS = ["#0b4f9e", "#2a9df4", "#0a8f6a"]
PEERS = ["#d1495b", "#e08e2b", "#8a5fbf", "#7a7a7a", "#b5651d", "#444444"]
PANEL, GAP, HEIGHT = 400, 70, 380
LEFT, TOP, BOTTOM, LEGEND = 66, 58, 52, 190


def text(x, y, words, anchor="middle", size=12, fill="#333", extra=""):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{fill}" {extra}>{escape(words)}</text>'
    )


def line(x1, y1, x2, y2, stroke="#e3e3e3", width=1.0):
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{stroke}" stroke-width="{width}"/>'


def duration(micro):
    """A power of ten in microseconds, as people say it."""
    for unit, factor in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if micro >= factor:
            return f"{micro / factor:g} {unit}"
    return f"{micro * 1e3:g} ns"


class Scale:
    """A logarithmic axis from values to pixels."""

    def __init__(self, low, high, start, end):
        self.low, self.span = math.log(low), max(math.log(high) - math.log(low), 1e-9)
        self.start, self.end = start, end

    def __call__(self, value):
        return self.start + (math.log(value) - self.low) / self.span * (self.end - self.start)


def frame(left, title, sizes, x, y, low, high):
    bottom = TOP + HEIGHT
    parts = [text(left + PANEL / 2, TOP - 14, title, size=14, extra='font-weight="bold"')]
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        at = y(10.0**power)
        parts += [
            line(left, at, left + PANEL, at),
            text(left - 8, at + 4, duration(10.0**power), "end"),
        ]
    for size in sizes:
        parts += [line(x(size), TOP, x(size), bottom), text(x(size), bottom + 18, human(size))]
    parts.append(
        f'<rect x="{left}" y="{TOP}" width="{PANEL}" height="{HEIGHT}" fill="none" stroke="#888"/>'
    )
    parts.append(text(left + PANEL / 2, bottom + 40, "bytes per rank"))
    return parts


def curve(points, color, ours):
    width = 3 if ours else 1.6
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    radius = 3.6 if ours else 2.4
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}"/>' for x, y in points]
    return [
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"/>',
        *dots,
    ]


def legend(left, names, colors, ours):
    parts = []
    for index, name in enumerate(names):
        at = TOP + 14 + 24 * index
        weight = 'font-weight="bold"' if name in ours else ""
        parts.append(line(left, at, left + 28, at, colors[name], 3 if name in ours else 1.6))
        parts.append(text(left + 36, at + 4, name, "start", extra=weight))
    return parts


def draw(raw, op="all_reduce", in_place=False):
    """The SVG's text, or None where nothing of this operation was measured."""
    rows = [row for row in raw["summary"] if row["op"] == op and row["in_place"] == in_place]
    times = [time for row in rows for time in row["time_us"].values()]
    if not times:
        return None
    ours = [one["name"] for one in raw["systems"] if one["peer"] == "ringcomm"]
    peers = [one["name"] for one in raw["systems"] if one["peer"] != "ringcomm"]
    seen = {name for row in rows for name in row["time_us"]}
    colors = {name: OURS[index % len(OURS)] for index, name in enumerate(ours)}
    colors |= {name: PEERS[index % len(PEERS)] for index, name in enumerate(peers)}
    low = 10.0 ** math.floor(math.log10(min(times)))
    high = 10.0 ** math.ceil(math.log10(max(times)))
    ranks = sorted({row["ranks"] for row in rows})
    parts = []
    for panel, count in enumerate(ranks):
        left = LEFT + panel * (PANEL + GAP)
        here = [row for row in rows if row["ranks"] == count]
        sizes = [row["bytes"] for row in here]
        x = Scale(min(sizes), max(max(sizes), 2 * min(sizes)), left + 14, left + PANEL - 14)
        y = Scale(low, high, TOP + HEIGHT, TOP)
        crowded = (
            " on " + str(raw["machine"]["cores"]) + " cores"
            if count > raw["machine"]["cores"]
            else ""
        )
        parts += frame(left, f"{count} ranks{crowded}", sizes, x, y, low, high)
        # The peers first: ringcomm's lines lie over them.
        for name in peers + ours:
            points = [
                (x(row["bytes"]), y(row["time_us"][name])) for row in here if name in row["time_us"]
            ]
            if points:
                parts += curve(points, colors[name], name in ours)
    right = LEFT + len(ranks) * (PANEL + GAP) - GAP + 22
    parts += legend(right, [name for name in ours + peers if name in seen], colors, ours)
    width, height = right + LEGEND, TOP + HEIGHT + BOTTOM
    place = "in place" if in_place else "out of place"
    title = (
        f"{op}, float32 sum, {place}: time of one call (lower is better), {raw['machine']['cpu']}"
    )
    root = (
        'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, Helvetica, Arial, sans-serif"'
    )
    lines = [
        f'<svg {root} viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(LEFT, 22, title, "start", 15, "#111"),
        *parts,
    ]
    return "\n".join(lines) + "\n</svg>\n"
