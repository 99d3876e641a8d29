#!/usr/bin/env python3
"""The kernels of one rank per device, for all ranks of one device in one cooperative launch:
gpu-ranks.py FATBIN HOST.so [LARGEST_BYTES [TIMES]] [--checks | --times].

A row of the grid is a rank. All blocks are resident together, so that ranks may wait for each other on
the device as they would between devices: the protocol is tested and timed, without the links. For two,
four and eight ranks and every size: `two-shot` (each rank reduces its share of everybody's memory between
two barriers), `one-shot` (flags packed with data), `ring` (the plan interpreter through connections), and
`fused`, which waits for nothing, beside them. Every result is compared, then timed in a stream and in a
graph; prints a JSON object for each. Before all that a rank never comes: the others end at their deadline,
or when the host calls them off, and report whom they waited for. And one-shot and ring do every type and
operation of random bits as the kernels compiled for the host do, bit for bit. `--checks` is these two
and no more, `--times` all but these.
"""
import ctypes
import json
import random
import struct
import sys
import time

from gpu_driver import AVG, PREMULSUM, SUM, TYPES, Block, Device, Host, NoDevice, operations

SIZE = 4
FINISH, COPY, NONE = 1, 2, 0xFFFFFFFF
INPUT, OUTPUT, PEER = 0, 1, 3
BARRIER_BLOCKS, FLAG_BYTES, LINE_BYTES, LINE_PAYLOAD = 320, 128, 16, 8
SECOND_NS = 10**9
# Why a kernel ended early, and what it waited for (kernels/abi.h).
ABORTED, LATE = 1, 2
FOR_MESSAGE, FOR_BARRIER, FOR_LINES = 1, 3, 4
RANKS = [2, 4, 8]
# Every type and operation is tried with so many ranks and bytes: no power of two, no whole lines.
ODD_RANKS, ODD_BYTES = 3, 5000
# Every rank's factor of a pre-multiplied sum.
SCALAR = 1.75
SIZES = [8, 1000, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]
# An exchange of lines moves each byte twice to everybody: no use for long vectors.
ONESHOT_BYTES = 256 << 10
# Before the contents of buffers repeat, so that the host need not compute much.
PATTERN_BYTES = 64 << 10
# The longest output that is compared to its last byte.
WHOLLY_CHECKED = 16 << 20
# (bytes of a slot, steps a slice apart): short and long messages, with and without pipelining.
RINGS = [(32 << 10, 0), (32 << 10, 1), (128 << 10, 0), (128 << 10, 1)]


def pattern(rank, turn):
    """One period of small numbers: their sums are exact in any order."""
    return [float((7 * i + 13 * rank + 17 * turn) % 61) for i in range(61)]


def repeated(period):
    """Floats over and over: what a buffer begins with."""
    packed = struct.pack(f"{len(period)}f", *period)
    return (packed * -(-PATTERN_BYTES // len(packed)))[:PATTERN_BYTES]


class Ranks:
    """The buffers of all ranks, and what bounds their waits."""

    def __init__(self, device, layout, nranks, size, timeout_ns=5 * SECOND_NS):
        self.device, self.layout, self.nranks, self.size = device, layout, nranks, size
        self.timeout_ns = timeout_ns
        # DataType, bytes and kernels' suffix; and what is reduced how.
        self.kind, self.op = TYPES["float"], SUM
        self.inputs = [device.allocate(max(size, PATTERN_BYTES)) for _ in range(nranks)]
        self.outputs = [device.allocate(size) for _ in range(nranks)]
        self.turn = 0
        self.fill()
        control = layout["ringcomm_control", ""][1]
        self.controls = [device.pinned(control) for _ in range(nranks)]
        self.stops = [device.zeros(FLAG_BYTES) for _ in range(nranks)]

    def fill(self):
        """New inputs, so that what earlier launches left behind is wrong; and poisoned outputs."""
        self.turn += 1
        values = [pattern(rank, self.turn) for rank in range(self.nranks)]
        self.want = repeated([sum(column) for column in zip(*values)])
        for memory, one in zip(self.inputs, values):
            self.device.write(memory, repeated(one))
            have = PATTERN_BYTES
            while have < self.size:
                self.device.copy(memory + have, memory, min(have, self.size - have))
                have *= 2
        for output in self.outputs:
            self.device.fill(output, 0xC3, self.size)

    def watch(self, block, path, rank):
        block.put(f"{path} ringcomm_watch.control".strip(), "Q", self.controls[rank], index=rank)
        block.put(f"{path} ringcomm_watch.stop".strip(), "Q", self.stops[rank], index=rank)
        block.put(f"{path} ringcomm_watch.timeout_ns".strip(), "Q", self.timeout_ns, index=rank)
        block.put(f"{path} ringcomm_watch.rank".strip(), "I", rank, index=rank)

    def blocks(self, useful):
        """Blocks of each rank: all are resident at once."""
        return max(1, min(self.device.multiprocessors // self.nranks, BARRIER_BLOCKS, useful))

    def report(self, rank):
        """Why a rank's kernel ended early; its reason is 0 where it did not."""
        at = self.controls[rank] + self.layout["ringcomm_control", "report"][0]
        names = ["reason", "waiting", "rank", "peer", "block", "step"]
        return dict(zip(names, struct.unpack("6I", ctypes.string_at(at, 24))))

    def call_off(self):
        """As the host ends kernels: a word of every block of every rank's."""
        for control in self.controls:
            at = control + self.layout["ringcomm_control", "abort"][0]
            for block in range(BARRIER_BLOCKS):
                ctypes.c_uint64.from_address(at + block * FLAG_BYTES).value = 1

    def check(self):
        """What is wrong with the outputs, or with a wait."""
        for rank in range(self.nranks):
            if self.report(rank)["reason"]:
                return f"rank {rank} gave up: {self.report(rank)}"
        for rank, output in enumerate(self.outputs):
            for begin, end in self.windows():
                got = self.device.read(output + begin, end - begin)
                want = (self.want * -(-(end - begin) // PATTERN_BYTES))[:end - begin]
                if got != want:
                    at = next(i for i in range(end - begin) if got[i] != want[i])
                    return f"rank {rank}: byte {begin + at} of {self.size} differs"
        return None

    def windows(self):
        """What is compared: all of it, or of what takes seconds to read back a sixteenth and the end."""
        if self.size <= WHOLLY_CHECKED:
            return [(0, self.size)]
        window = WHOLLY_CHECKED // 16
        return [(begin, begin + window) for begin in
                [*range(0, self.size, WHOLLY_CHECKED), self.size - window]]


def tile_of(blocks, nranks, size):
    """As src/device/cuda/fused.rs."""
    share, tile = size // blocks, 2 << 10
    while tile < min(share, (64 if nranks == 2 else 32) << 10):
        tile *= 2
    return tile // SIZE


def typed(ranks, structure, tile=None):
    """Arguments of a kernel of the ranks' type."""
    block = Block(ranks.layout, structure)
    block.put("data_type", "i", ranks.kind[0])
    block.put("op", "i", ranks.op)
    block.put("parts", "Q", ranks.nranks if ranks.op == AVG else 1)
    if tile:
        block.put("tile", "I", tile)
    return block


def add_piece(pieces, index, count, first_end, nranks):
    pieces.put("count", "Q", count, index=index)
    pieces.put("first_end", "I", first_end, index=index)
    pieces.put("nsources", "H", nranks, index=index)
    pieces.put("ntargets", "H", nranks, index=index)
    pieces.put("flags", "I", FINISH, index=index)


def fused(ranks):
    """One row, which has everything."""
    device, count = ranks.device, ranks.size // SIZE
    tile = tile_of(device.multiprocessors, ranks.nranks, ranks.size)
    args = typed(ranks, "ringcomm_reduce_args", tile)
    pieces = Block(ranks.layout, "ringcomm_piece")
    add_piece(pieces, 0, count, 0, ranks.nranks)
    ends = ranks.inputs + ranks.outputs
    args.put("call ringcomm_reduce_call.npieces", "I", 1)
    args.put("call ringcomm_reduce_call.ntiles", "I", -(-count // tile))
    args.put("inline_pieces", f"{pieces.size}s", bytes(pieces.bytes))
    args.put("inline_ends", f"{len(ends)}Q", *ends)
    blocks = min(-(-count // tile), device.multiprocessors)
    return lambda: device.launch("ringcomm_reduce_f32", args.bytes, blocks)


def two_shot(ranks):
    """Row r reduces part r of all inputs into all outputs, between two barriers."""
    device, nranks, count = ranks.device, ranks.nranks, ranks.size // SIZE
    # Whole lines of the cache, as src/executor/device_work.rs cuts them.
    share = -(-(-(-count // 32)) // nranks) * 32
    blocks = ranks.blocks(-(-share * SIZE // (2 << 10)))
    tile = tile_of(blocks, nranks, share * SIZE)
    pieces = Block(ranks.layout, "ringcomm_piece", nranks)
    calls = Block(ranks.layout, "ringcomm_reduce_call", nranks)
    flags = [device.zeros(BARRIER_BLOCKS * nranks * FLAG_BYTES) for _ in range(nranks)]
    table, ends = device.table(struct.pack(f"{nranks}Q", *flags)), []
    for rank in range(nranks):
        first = min(rank * share, count)
        mine = min(share, count - first)
        add_piece(pieces, rank, mine, len(ends), nranks)
        ends += [end + first * SIZE for end in ranks.inputs + ranks.outputs]
        calls.put("first_piece", "I", rank, index=rank)
        calls.put("npieces", "I", 1, index=rank)
        calls.put("ntiles", "I", -(-mine // tile), index=rank)
        calls.put("barrier ringcomm_barrier.flags", "Q", table, index=rank)
        calls.put("barrier ringcomm_barrier.epochs", "Q", device.zeros(8 * BARRIER_BLOCKS), index=rank)
        calls.put("barrier ringcomm_barrier.nranks", "I", nranks, index=rank)
        ranks.watch(calls, "barrier ringcomm_barrier.watch", rank)
    args = typed(ranks, "ringcomm_reduce_args", tile)
    args.put("calls", "Q", device.table(calls.bytes))
    args.put("pieces", "Q", device.table(pieces.bytes))
    args.put("ends", "Q", device.table(struct.pack(f"{len(ends)}Q", *ends)))
    args.put("inline_scalars", "16d", *[1.0] * 16)
    return lambda rows=nranks: device.launch("ringcomm_reduce_f32", args.bytes, blocks, rows, cooperative=True)


def one_shot(ranks):
    device, nranks = ranks.device, ranks.nranks
    lines = -(-ranks.size // LINE_PAYLOAD)
    inboxes = [device.zeros(2 * nranks * lines * LINE_BYTES) for _ in range(nranks)]
    table = device.table(struct.pack(f"{nranks}Q", *inboxes))
    calls = Block(ranks.layout, "ringcomm_oneshot_call", nranks)
    for rank in range(nranks):
        for field, value in [("input", ranks.inputs[rank]), ("output", ranks.outputs[rank]),
                             ("count", ranks.size // ranks.kind[1]), ("inboxes", table), ("lines", lines),
                             ("epoch", device.zeros(FLAG_BYTES))]:
            calls.put(field, "Q", value, index=rank)
        calls.put("nranks", "I", nranks, index=rank)
        calls.put("scalar", "d", SCALAR, index=rank)
        ranks.watch(calls, "watch", rank)
    args = typed(ranks, "ringcomm_oneshot_args")
    args.put("calls", "Q", device.table(calls.bytes))
    blocks = ranks.blocks(-(-lines // 512))
    return lambda rows=nranks: device.launch(f"ringcomm_oneshot_{ranks.kind[2]}", args.bytes, blocks, rows,
                                             cooperative=True)


def ring_steps(rank, nranks):
    """(chunk, sources, targets, flags) of a ring: reduce while the chunk goes round, then pass it on."""
    back, on = (PEER, (rank - 1) % nranks), (PEER, (rank + 1) % nranks)
    mine, out, last = (INPUT, 0), (OUTPUT, 0), 2 * nranks - 2
    yield rank, [mine], [on], COPY
    for step in range(1, last + 1):
        sources = [back, mine] if step < nranks else [back]
        targets = ([out] if step >= nranks - 1 else []) + ([on] if step < last else [])
        flags = 0 if step < nranks - 1 else FINISH if step == nranks - 1 else COPY
        yield (rank - step) % nranks, sources, targets, flags


def cut_of(ranks, part, channels):
    """Where part `part` of channels x ranks begins: at a line of the cache."""
    lines = -(-ranks.size // 128)
    return min(lines * part // (channels * ranks.nranks) * 128, ranks.size)


def ring_program(ranks, rank, channel, channels, slot, apart):
    """The steps of a channel, which has its share of the vector in a chunk for every rank."""
    device, nranks, layout = ranks.device, ranks.nranks, ranks.layout
    def cut(part):
        return cut_of(ranks, part, channels)
    steps = list(ring_steps(rank, nranks))
    table, spans = Block(layout, "ringcomm_step", len(steps)), Block(layout, "ringcomm_span", len(steps))
    ends, slices = [], 1
    for chunk in range(nranks):
        part = channel * nranks + chunk
        slices = max(slices, -(-(cut(part + 1) - cut(part)) // slot))
    for index, (chunk, sources, targets, flags) in enumerate(steps):
        part = channel * nranks + chunk
        begin, end = cut(part), cut(part + 1)
        for field, value in [("input", begin), ("output", begin), ("bytes", end - begin)]:
            spans.put(field, "Q", value, index=index)
        for field, form, value in [
                ("first_span", "I", index), ("nspans", "I", 1), ("first_end", "I", len(ends) // 2),
                ("nsources", "H", len(sources)), ("ntargets", "H", len(targets)), ("slices", "I", slices),
                ("stage", "I", index * apart), ("scaled", "I", NONE), ("flags", "I", flags)]:
            table.put(field, form, value, index=index)
        for end in sources + targets:
            ends += end
    program = Block(layout, "ringcomm_program")
    program.put("steps", "Q", device.table(table.bytes))
    program.put("ends", "Q", device.table(struct.pack(f"{len(ends)}I", *ends)))
    program.put("spans", "Q", device.table(spans.bytes))
    program.put("nsteps", "I", len(steps))
    program.put("ticks", "I", slices + apart * (len(steps) - 1))
    program.put("slice_bytes", "Q", slot)
    program.put("lives", "I", 1)
    return bytes(program.bytes)


def channels_of(ranks):
    """Of a ring: a chunk of a channel has a kilobyte at least."""
    return ranks.blocks(-(-ranks.size // (1024 * ranks.nranks)))


def ring(ranks, slot, apart):
    """Channels of a block each; a slot for every message of a round, and one more."""
    device, nranks, layout = ranks.device, ranks.nranks, ranks.layout
    depth, channels = 2 * nranks, channels_of(ranks)
    slots = device.allocate(nranks * channels * depth * slot)
    flags = device.zeros(2 * nranks * channels * FLAG_BYTES)
    size = channels * nranks
    sends = [Block(layout, "ringcomm_connection", size) for _ in range(nranks)]
    receives = [Block(layout, "ringcomm_connection", size) for _ in range(nranks)]
    for rank in range(nranks):
        on = (rank + 1) % nranks
        for channel in range(channels):
            at = rank * channels + channel
            for side, index in [(sends[rank], channel * nranks + on), (receives[on], channel * nranks + rank)]:
                side.put("slots", "Q", slots + at * depth * slot, index=index)
                side.put("posted", "Q", flags + 2 * at * FLAG_BYTES, index=index)
                side.put("freed", "Q", flags + (2 * at + 1) * FLAG_BYTES, index=index)
    calls = Block(layout, "ringcomm_plan_call", nranks)
    for rank in range(nranks):
        programs = b"".join(ring_program(ranks, rank, channel, channels, slot, apart)
                            for channel in range(channels))
        for field, value in [("input", ranks.inputs[rank]), ("output", ranks.outputs[rank]),
                             ("programs", device.table(programs)), ("slot_bytes", slot),
                             ("sends", device.table(sends[rank].bytes)),
                             ("receives", device.table(receives[rank].bytes))]:
            calls.put(field, "Q", value, index=rank)
        calls.put("npeers", "I", nranks, index=rank)
        calls.put("depth", "I", depth, index=rank)
        calls.put("scalar", "d", 1.0, index=rank)  # a mean's inputs are not made smaller first
        ranks.watch(calls, "watch", rank)
    args = typed(ranks, "ringcomm_plan_args")
    args.put("calls", "Q", device.table(calls.bytes))
    return lambda rows=nranks: device.launch(f"ringcomm_plan_{ranks.kind[2]}", args.bytes, channels, rows,
                                             cooperative=True)


def algorithms(ranks):
    """Name, launch, and the bytes that it moves, if all of them go through memory."""
    traffic = ranks.nranks * ranks.size
    yield "fused", lambda: fused(ranks), 2 * traffic
    yield "two-shot", lambda: two_shot(ranks), 2 * traffic
    if ranks.size <= ONESHOT_BYTES:
        yield "one-shot", lambda: one_shot(ranks), None
    for slot, apart in RINGS if ranks.size > 64 << 10 else RINGS[:2]:
        yield (f"ring slots={slot >> 10}K apart={apart}", lambda: ring(ranks, slot, apart),
               (6 * ranks.nranks - 4) * ranks.size)


def measure(ranks, make, times):
    """What is wrong, and microseconds of a launch: in a stream, and in a replayed graph."""
    device, launch = ranks.device, make()
    ranks.fill()
    launch()
    device.synchronize()
    wrong = ranks.check()
    if wrong:
        return wrong, None, None
    # Warm, and deep into the connections.
    device.timed(launch, times)
    eager_us = device.timed(launch, times)
    try:
        replay = device.captured(launch, times)
        device.timed(replay, 1)
        graph_us = min(device.timed(replay, 1) for _ in range(3)) / times
    except OSError as reason:
        print(f"no graph: {reason}", file=sys.stderr)
        graph_us = None
    ranks.fill()
    launch()
    device.synchronize()
    return ranks.check(), eager_us, graph_us


def absent(device, layout, nranks, make, waiting, is_cancelled):
    """What is wrong when the last rank never comes."""
    # A deadline that is long beside a launch, and one that is not waited for.
    timeout_ns = 60 * SECOND_NS if is_cancelled else SECOND_NS // 10
    ranks = Ranks(device, layout, nranks, 4096, timeout_ns)
    launch, begun = make(ranks), time.monotonic()
    launch(nranks - 1)
    if is_cancelled:
        time.sleep(0.02)
        ranks.call_off()
    device.synchronize()
    seconds, wrong = time.monotonic() - begun, []
    # In a ring only the next one waits for it by itself; the others for whoever waits.
    wanted = {"reason": ABORTED if is_cancelled else LATE, "waiting": waiting}
    reports = [ranks.report(rank) for rank in range(nranks - 1)]
    for rank, report in enumerate(reports):
        if any(report[name] != value for name, value in wanted.items()) or report["rank"] != rank:
            wrong.append(f"rank {rank} reports {report}")
    if not any(report["peer"] == nranks - 1 for report in reports):
        wrong.append(f"nobody waited for rank {nranks - 1}: {reports}")
    if is_cancelled and seconds > 10:
        wrong.append(f"{seconds:.1f} s to call kernels off")
    device.free_all()
    return "; ".join(wrong) or None


def absences(device, layout, endings):
    """How many launches without their last rank did not end as they should."""
    failed = 0
    ways = {"two-shot": (two_shot, FOR_BARRIER), "one-shot": (one_shot, FOR_LINES),
            "ring": (lambda ranks: ring(ranks, *RINGS[0]), FOR_MESSAGE)}
    for name, (make, waiting) in ways.items():
        for nranks in RANKS[:2]:
            for is_cancelled in endings:
                wrong = absent(device, layout, nranks, make, waiting, is_cancelled)
                failed += wrong is not None
                print(json.dumps({"algorithm": name, "ranks": nranks, "absent": nranks - 1,
                                  "cancelled": is_cancelled, "wrong": wrong}), flush=True)
    return failed


def reduced(host, ranks, sources, flags=FINISH):
    """What the host's kernels make of so many buffers."""
    size, count = len(sources[0]), len(sources[0]) // ranks.kind[1]
    # Sixteen bytes are the least that an end is aligned to there.
    memory = [ctypes.create_string_buffer(source, size + 16) for source in [*sources, sources[0]]]
    args = typed(ranks, "ringcomm_reduce_args", 16 * 1024 // ranks.kind[1])
    piece = Block(ranks.layout, "ringcomm_piece")
    for field, form, value in [("count", "Q", count), ("nsources", "H", len(sources)), ("ntargets", "H", 1),
                               ("flags", "I", flags)]:
        piece.put(field, form, value)
    args.put("call ringcomm_reduce_call.npieces", "I", 1)
    args.put("call ringcomm_reduce_call.ntiles", "I", -(-size // (16 * 1024)))
    args.put("inline_pieces", f"{piece.size}s", bytes(piece.bytes))
    args.put("inline_ends", f"{len(memory)}Q", *map(ctypes.addressof, memory))
    args.put("inline_scalars", "16d", *[SCALAR] * 16)
    host.launch(f"ringcomm_reduce_{ranks.kind[2]}", bytes(args.bytes))
    return memory[-1].raw[:size]


def in_a_ring(host, ranks, inputs):
    """The same, chunk by chunk and rank after rank, rounded at every step as a ring does."""
    channels, whole = channels_of(ranks), b""
    for part in range(channels * ranks.nranks):
        begin, end = cut_of(ranks, part, channels), cut_of(ranks, part + 1, channels)
        value = inputs[part % ranks.nranks][begin:end]
        for step in range(1, ranks.nranks):
            mine = inputs[(part + step) % ranks.nranks][begin:end]
            value = reduced(host, ranks, [value, mine], FINISH if step == ranks.nranks - 1 else 0)
        whole += value
    return whole


def every_type(device, host, layout):
    """How many types or operations have other bits than the host's in the kernels that meet."""
    failed, chance = 0, random.Random(7)
    for name, kind in TYPES.items():
        ranks = Ranks(device, layout, ODD_RANKS, ODD_BYTES // kind[1] * kind[1])
        ranks.kind, wrong = kind, []
        for ranks.op in operations(name):
            inputs = [chance.randbytes(ranks.size) for _ in range(ranks.nranks)]
            for memory, content in zip(ranks.inputs, inputs):
                device.write(memory, content)
            ways = {"one-shot": (one_shot, lambda: reduced(host, ranks, inputs))}
            if ranks.op != PREMULSUM:
                # A plan says of each step which source is scaled: the library's, tried by its calls.
                ways["ring"] = (lambda ranks: ring(ranks, *RINGS[0]), lambda: in_a_ring(host, ranks, inputs))
            for way, (make, want) in ways.items():
                for output in ranks.outputs:
                    device.fill(output, 0xC3, ranks.size)
                make(ranks)()
                device.synchronize()
                wanted = want()
                if any(device.read(output, ranks.size) != wanted for output in ranks.outputs):
                    wrong.append(f"{way} op {ranks.op}")
        failed += len(wrong)
        print(json.dumps({"type": name, "operations": len(operations(name)), "wrong": wrong or None}), flush=True)
        device.free_all()
    return failed


def main():
    fatbin, library, *numbers = [word for word in sys.argv[1:] if not word.startswith("--")]
    checks, times_only = ("--checks" in sys.argv), ("--times" in sys.argv)
    largest = int(numbers[0]) if numbers else SIZES[-1]
    host = Host(library)
    layout = host.layout
    try:
        device = Device(fatbin)
    except NoDevice as reason:
        print(f"skipped: no device ({reason})")
        return 0
    # A tool that looks at every access may keep the caller until a kernel has ended, so that nobody
    # could call it off.
    endings = [False] if len(numbers) > 1 else [False, True]
    failed = 0 if times_only else absences(device, layout, endings)
    # A tool that looks at every access has no time for as much.
    failed += 0 if times_only or largest < ODD_BYTES else every_type(device, host, layout)
    for size in [] if checks else [size for size in SIZES if size <= largest]:
        for nranks in RANKS:
            ranks = Ranks(device, layout, nranks, size)
            # A device that is none computes at the pace of the processor.
            times = 2 if device.multiprocessors <= 8 else 100 if size <= 1 << 20 else 5
            times = int(numbers[1]) if len(numbers) > 1 else times
            for name, make, traffic in algorithms(ranks):
                wrong, eager_us, graph_us = measure(ranks, make, times)
                failed += wrong is not None
                best = min(filter(None, [eager_us, graph_us]), default=None)
                print(json.dumps({"algorithm": name, "ranks": nranks, "bytes": size, "wrong": wrong,
                                  "eager_us": eager_us, "graph_us": graph_us,
                                  "traffic_gb_per_s": traffic / best / 1e3 if traffic and best else None,
                                  "scope": "one GPU, HBM-bound"}), flush=True)
                if wrong:
                    # Its blocks may not be where the next launch expects them.
                    return 1
            device.free_all()
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
