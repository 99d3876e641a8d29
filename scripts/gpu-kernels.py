#!/usr/bin/env python3
"""Every reduction on a GPU against the same kernel on the host: gpu-kernels.py FATBIN HOST.so [TYPE...].

What only a device has (conversions in hardware, min and max, the vectors' loads) is compared bit for bit:
all pairs of 8-bit floats, all 16-bit floats with awkward partners, random bits of every type, at odd
alignments and counts, with everything around the buffers. Prints a line for each type; without a
device it says `skipped`.
"""
import ctypes
import random
import struct
import sys

from gpu_driver import AVG, TYPES, Device, Host, NoDevice, operations

FINISH = 1
# Zeros, one, a third, denormals, the largest, halfway cases, infinity.
AWKWARD = {"half": [0x8000, 0, 0x3C00, 0x3555, 0x0001, 0x7BFF, 0x1001, 0x7C00],
           "bfloat16": [0x8000, 0, 0x3F80, 0x3EAB, 0x0001, 0x7F7F, 0x3B81, 0x7F80]}
# Room for the buffers of a case, and what is around them.
ARENA = 1 << 22


class OnHost:
    def __init__(self, host):
        self.host = host
        # As a device's memory is aligned.
        self.memory = ctypes.create_string_buffer(ARENA + 256)
        self.base = (ctypes.addressof(self.memory) + 255) // 256 * 256

    def run(self, symbol, args, content):
        ctypes.memmove(self.base, content, ARENA)
        self.host.launch(symbol, args)
        return ctypes.string_at(self.base, ARENA)


class OnDevice:
    def __init__(self, device):
        self.device, self.base = device, device.allocate(ARENA)

    def run(self, symbol, args, content):
        self.device.write(self.base, content)
        self.device.launch(symbol, args, 3)
        return self.device.read(self.base, ARENA)


def arguments(layout, base, case):
    """A launch of one piece, its ends at offsets from `base`."""
    args = bytearray(layout["ringcomm_reduce_args", ""][1])

    def put(structure, field, form, *values, at=0):
        struct.pack_into(form, args, at + layout[structure, field][0], *values)
    launch, call = "ringcomm_reduce_args", layout["ringcomm_reduce_args", "call"][0]
    piece = layout[launch, "inline_pieces"][0]
    number, size, _ = TYPES[case["type"]]
    tile = 16 * case["tile"] // size
    put(launch, "data_type", "i", number)
    put(launch, "op", "i", case["op"])
    put(launch, "parts", "Q", case["parts"])
    put(launch, "tile", "I", tile)
    put("ringcomm_reduce_call", "npieces", "I", 1, at=call)
    put("ringcomm_reduce_call", "ntiles", "I", -(-case["count"] // tile), at=call)
    put("ringcomm_piece", "count", "Q", case["count"], at=piece)
    put("ringcomm_piece", "nsources", "H", len(case["ends"]) - 1, at=piece)
    put("ringcomm_piece", "ntargets", "H", 1, at=piece)
    put("ringcomm_piece", "flags", "I", FINISH, at=piece)
    put(launch, "inline_ends", f"{len(case['ends'])}Q", *(base + end for end in case["ends"]))
    put(launch, "inline_scalars", "16d", *([case["scalar"]] + [1.0] * 15))
    return bytes(args)


def place(name, sources, shifts, chance):
    """An arena of random bytes with the sources in it; where they and a target are."""
    content, ends, at = bytearray(chance.randbytes(ARENA)), [], 256
    for source, shift in zip(sources + [sources[0]], shifts):
        ends.append(at + shift)
        content[at + shift:at + shift + len(source)] = source
        at += (len(source) + shift) // 256 * 256 + 512
    return {"type": name, "ends": ends, "content": bytes(content),
            "count": len(sources[0]) // TYPES[name][1]}


def cases(name, chance):
    """Buffers of a type: all codes where there are few, and random bits."""
    size = TYPES[name][1]
    if name.startswith("f8"):
        codes = bytes(range(256))
        yield place(name, [codes * 256, b"".join(bytes([code]) * 256 for code in codes)], [0, 0, 0], chance)
    for partner in AWKWARD.get(name, []):
        codes = struct.pack("65536H", *range(65536))
        yield place(name, [codes, struct.pack("H", partner) * 65536], [0, 0, 0], chance)
    for count, nsources, shift in [(100_003, 2, 0), (4_099, 5, 8), (777, 3, 1), (15, 2, 0), (5_000, 1, 0)]:
        sources = [chance.randbytes(count * size) for _ in range(nsources)]
        alike = count % 2 == 1
        shifts = [shift if alike else (shift + 3 * end) % 16 for end in range(nsources + 1)]
        yield place(name, sources, shifts, chance)


def check(name, layout, places):
    """The first case of a type that differs, as a text."""
    chance, done = random.Random(name), 0
    symbol = f"ringcomm_reduce_{TYPES[name][2]}"
    for case in cases(name, chance):
        for op in operations(name):
            for parts in ([2, 3, 8] if op == AVG else [1]):
                case |= {"op": op, "parts": parts, "scalar": 1.7, "tile": 2048}
                results = [on.run(symbol, arguments(layout, on.base, case), case["content"])
                           for on in places]
                done += 1
                if results[0] != results[1]:
                    at = next(i for i in range(ARENA) if results[0][i] != results[1][i])
                    return f"op {op} parts {parts} count {case['count']}: byte {at - case['ends'][-1]} of the target"
    return done


def main():
    fatbin, library, *chosen = sys.argv[1:]
    host = Host(library)
    try:
        device = Device(fatbin)
    except NoDevice as reason:
        print(f"skipped: no device ({reason})")
        return 0
    places, failed = (OnHost(host), OnDevice(device)), 0
    for name in chosen or TYPES:
        result = check(name, host.layout, places)
        good = isinstance(result, int)
        failed += not good
        print(f"{'ok' if good else 'FAILED'}: {name}: {f'{result} launches' if good else result}", flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
