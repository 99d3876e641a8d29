#!/usr/bin/env python3
"""The kernels of one rank per device, for all ranks of one device in one cooperative launch:
gpu-ranks.py FATBIN HOST.so [LARGEST_BYTES].

A row of the grid is a rank. All blocks are resident together, so that ranks may wait for each other on
the device as they would between devices: the protocol is tested and timed, without the links. For two,
four and eight ranks and every size: `two-shot` (each rank reduces its share of everybody's memory between
two meetings), `one-shot` (flags packed with data), `ring` (the plan interpreter through connections), and
`fused`, which waits for nothing, beside them. Every result is compared, then timed in a stream and in a
graph; prints a JSON object for each.
"""
import ctypes
import json
import struct
import sys

from gpu_driver import Block, Device, Host

FLOAT, SUM, SIZE = 7, 0, 4
FINISH, COPY, NONE = 1, 2, 0xFFFFFFFF
INPUT, OUTPUT, PEER = 0, 1, 3
MEETING_BLOCKS, FLAG_BYTES, LINE_BYTES, LINE_PAYLOAD = 320, 128, 16, 8
SECOND_NS = 10**9
RANKS = [2, 4, 8]
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
    """Small numbers: their sums are exact in any order."""
    return [float((7 * i + 13 * rank + 17 * turn) % 61) for i in range(PATTERN_BYTES // SIZE)]


class Ranks:
    """The buffers of all ranks, and what bounds their waits."""

    def __init__(self, device, layout, nranks, size):
        self.device, self.layout, self.nranks, self.size = device, layout, nranks, size
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
        form = f"{len(values[0])}f"
        self.want = struct.pack(form, *map(sum, zip(*values)))
        for memory, one in zip(self.inputs, values):
            self.device.write(memory, struct.pack(form, *one))
            have = PATTERN_BYTES
            while have < self.size:
                self.device.copy(memory + have, memory, min(have, self.size - have))
                have *= 2
        for output in self.outputs:
            self.device.fill(output, 0xC3, self.size)

    def watch(self, block, path, rank):
        block.put(f"{path} ringcomm_watch.control".strip(), "Q", self.controls[rank], index=rank)
        block.put(f"{path} ringcomm_watch.stop".strip(), "Q", self.stops[rank], index=rank)
        block.put(f"{path} ringcomm_watch.timeout_ns".strip(), "Q", 5 * SECOND_NS, index=rank)
        block.put(f"{path} ringcomm_watch.rank".strip(), "I", rank, index=rank)

    def blocks(self, useful):
        """Blocks of each rank: all are resident at once."""
        return max(1, min(self.device.multiprocessors // self.nranks, MEETING_BLOCKS, useful))

    def check(self):
        """What is wrong with the outputs, or with a wait."""
        reason = self.layout["ringcomm_control", "report"][0]
        for rank, control in enumerate(self.controls):
            report = struct.unpack("6I", ctypes.string_at(control + reason, 24))
            if report[0]:
                names = ["reason", "waiting", "rank", "peer", "block", "step"]
                return f"rank {rank} gave up: {dict(zip(names, report))}"
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


def tile_of(device, size):
    """As src/device/cuda/fused.rs."""
    share, tile = size // device.multiprocessors, 8 << 10
    while tile < min(share, 32 << 10):
        tile *= 2
    return tile // SIZE


def typed(block, tile=None):
    block.put("data_type", "i", FLOAT)
    block.put("op", "i", SUM)
    block.put("parts", "Q", 1)
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
    tile = tile_of(device, ranks.size)
    args = typed(Block(ranks.layout, "ringcomm_reduce_args"), tile)
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
    """Row r reduces part r of all inputs into all outputs, between two meetings."""
    device, nranks, count = ranks.device, ranks.nranks, ranks.size // SIZE
    # Whole lines of the cache, as src/executor/cuda.rs cuts them.
    share = -(-(-(-count // 32)) // nranks) * 32
    tile = tile_of(device, ranks.size)
    pieces = Block(ranks.layout, "ringcomm_piece", nranks)
    calls = Block(ranks.layout, "ringcomm_reduce_call", nranks)
    flags = [device.zeros(MEETING_BLOCKS * nranks * FLAG_BYTES) for _ in range(nranks)]
    table, ends = device.table(struct.pack(f"{nranks}Q", *flags)), []
    for rank in range(nranks):
        first = min(rank * share, count)
        mine = min(share, count - first)
        add_piece(pieces, rank, mine, len(ends), nranks)
        ends += [end + first * SIZE for end in ranks.inputs + ranks.outputs]
        calls.put("first_piece", "I", rank, index=rank)
        calls.put("npieces", "I", 1, index=rank)
        calls.put("ntiles", "I", -(-mine // tile), index=rank)
        calls.put("meeting ringcomm_meeting.flags", "Q", table, index=rank)
        calls.put("meeting ringcomm_meeting.epochs", "Q", device.zeros(8 * MEETING_BLOCKS), index=rank)
        calls.put("meeting ringcomm_meeting.nranks", "I", nranks, index=rank)
        ranks.watch(calls, "meeting ringcomm_meeting.watch", rank)
    args = typed(Block(ranks.layout, "ringcomm_reduce_args"), tile)
    args.put("calls", "Q", device.table(calls.bytes))
    args.put("pieces", "Q", device.table(pieces.bytes))
    args.put("ends", "Q", device.table(struct.pack(f"{len(ends)}Q", *ends)))
    args.put("inline_scalars", "16d", *[1.0] * 16)
    blocks = ranks.blocks(-(-share // tile))
    return lambda: device.launch("ringcomm_reduce_f32", args.bytes, blocks, nranks, cooperative=True)


def one_shot(ranks):
    device, nranks = ranks.device, ranks.nranks
    lines = -(-ranks.size // LINE_PAYLOAD)
    inboxes = [device.zeros(2 * nranks * lines * LINE_BYTES) for _ in range(nranks)]
    table = device.table(struct.pack(f"{nranks}Q", *inboxes))
    calls = Block(ranks.layout, "ringcomm_oneshot_call", nranks)
    for rank in range(nranks):
        for field, value in [("input", ranks.inputs[rank]), ("output", ranks.outputs[rank]),
                             ("count", ranks.size // SIZE), ("inboxes", table), ("lines", lines),
                             ("epoch", device.zeros(FLAG_BYTES))]:
            calls.put(field, "Q", value, index=rank)
        calls.put("nranks", "I", nranks, index=rank)
        ranks.watch(calls, "watch", rank)
    args = typed(Block(ranks.layout, "ringcomm_oneshot_args"))
    args.put("calls", "Q", device.table(calls.bytes))
    blocks = ranks.blocks(-(-lines // 512))
    return lambda: device.launch("ringcomm_oneshot_f32", args.bytes, blocks, nranks, cooperative=True)


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


def ring_program(ranks, rank, channel, channels, slot, apart):
    """The steps of a channel, which has its share of the vector in a chunk for every rank."""
    device, nranks, layout = ranks.device, ranks.nranks, ranks.layout
    lines = -(-ranks.size // 128)

    def cut(part):
        """Where part `part` of channels x ranks begins."""
        return min(lines * part // (channels * nranks) * 128, ranks.size)
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


def ring(ranks, slot, apart):
    """Channels of a block each; a slot for every message of a round, and one more."""
    device, nranks, layout = ranks.device, ranks.nranks, ranks.layout
    depth, channels = 2 * nranks, ranks.blocks(-(-ranks.size // (1024 * nranks)))
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
        ranks.watch(calls, "watch", rank)
    args = typed(Block(layout, "ringcomm_plan_args"))
    args.put("calls", "Q", device.table(calls.bytes))
    return lambda: device.launch("ringcomm_plan_f32", args.bytes, channels, nranks, cooperative=True)


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


def main():
    fatbin, library = sys.argv[1:3]
    largest = int(sys.argv[3]) if len(sys.argv) > 3 else SIZES[-1]
    layout = Host(library).layout
    try:
        device = Device(fatbin)
    except OSError as reason:
        print(f"skipped: no device ({reason})")
        return 0
    failed = 0
    for size in [size for size in SIZES if size <= largest]:
        for nranks in RANKS:
            ranks = Ranks(device, layout, nranks, size)
            # A device that is none computes at the pace of the processor.
            times = 2 if device.multiprocessors <= 8 else 100 if size <= 1 << 20 else 10
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
