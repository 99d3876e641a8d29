#!/usr/bin/env python3
"""What the compiler made of the kernels: sass.py [FATBIN], by default that of the last debug build.

For every device that has machine code: all kernels are there, within their registers and without local
memory; the hot ones load and store 128 bits, have asked for two sources' vectors before they use the
first, and for the next source's in every turn of their loops before they add those that have come; for a
thread's only vector they ask for eight sources before they use one; no loop over peers has a fence in it. Prints a line for each rule and device.

Needs cuobjdump and nvdisasm on the PATH.
"""
import re
import subprocess
import sys
from pathlib import Path

from sass_flow import LOAD, USED, followers, hasty, innermost, leaders, loops, reached, registers

KINDS = ["w1", "w2", "w4", "w8", "e4m3", "e5m2", "f16", "bf16", "f32", "f64"]
KERNELS = [f"ringcomm_{family}_{kind}" for family in ("reduce", "plan", "oneshot") for kind in KINDS]
KERNELS += ["ringcomm_costs", "ringcomm_delay"]
DEVICES = ["sm_80", "sm_90", "sm_100", "sm_120"]
# kernels/build.rs, COMPILED.
PORTABLE = "sm_90"
# What a thread of a block of 512 has: kernels/abi.h, RINGCOMM_THREADS.
MOST_REGISTERS = 128
# Vectors of a thread under way for one source: kernels/reduce.cuh, BATCH.
BATCH = {kind: 2 if kind in ("e4m3", "e5m2") else 4 for kind in KINDS}
# The same where a thread asks for those of its next place, too, of two sources: kernels/reduce.cuh, AHEAD. Such a
# loop asks for the next source, or for both of these.
AHEAD = {kind: 2 if kind in ("f16", "bf16", "e4m3", "e5m2") else 4 for kind in KINDS}
# Sources that a thread with one vector asks for at once: kernels/reduce.cuh, WIDE.
WIDE = 8
# Whose conversions are so long there that the compiler begins the first source's before it asks for the
# second: no device of the kind is one that the library is measured on.
CONVERTS_FIRST = [("sm_80", "e4m3")]

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
STORE = re.compile(r"\bST(G)?\.E\.128")
FENCE = re.compile(r"\b(MEMBAR|FENCE)\b")
BARRIER = re.compile(r"\bBAR\.")
# Who is the first of a rank to give up: only a wait that has failed comes to it.
GIVE_UP = re.compile(r"\bATOM(G)?\.E\.CAS")
# A flag of another device: what a loop over peers polls or sets.
FLAG = re.compile(r"\b(LD|ST)(G)?\.E\.(64\.STRONG|STRONG\.SYS|64\.SYS|128\.STRONG\.SYS)")
# A line of one-shot's, which has its flag in it; peers whose lines a thread polls at once: kernels/oneshot.cu.
LINE_LOAD, LINE_STORE = re.compile(r"\bLD(G)?\.E\.128\.STRONG\.SYS"), re.compile(r"\bST(G)?\.E\.128\.STRONG\.SYS")
POLLED = 8


def embedded():
    """What the last debug build embedded."""
    builds = (Path(__file__).resolve().parent.parent / "target/debug/build").glob("ringcomm-*/out/*.fatbin")
    made = [build for build in builds if build.stat().st_size > 0]
    return max(made, key=lambda build: build.stat().st_mtime, default=None)


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def disassemble(fatbin):
    """Of each device, the instructions of each kernel: (address, text)."""
    devices, kernel = {}, None
    for line in output("cuobjdump", "-sass", fatbin).splitlines():
        if match := INSTRUCTION.match(line):
            kernel.append((int(match[1], 16), match[2]))
        elif "Function :" in line:
            kernel = device.setdefault(line.split()[-1], [])
        elif line.startswith("arch = "):
            device = devices.setdefault(line.split()[-1], {})
    return devices


def resources(fatbin):
    """Of each device, what each kernel takes: {"REG": 96, "STACK": 0, ...}."""
    devices = {}
    for line in output("cuobjdump", "-res-usage", fatbin).splitlines():
        if line.startswith("arch = "):
            device = devices.setdefault(line.split()[-1], {})
        elif match := re.match(r" Function (\w+):", line):
            name = match[1]
        elif "REG:" in line:
            device[name] = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
    return devices


def fences_among_peers(code):
    """Fences that loops over peers come to once for every peer. Those are the loops that poll or set
    flags, however deep, and in which the block does not meet, as it does for every step of a plan; and a
    turn in which a wait fails is none of theirs: its fence is before the report, which comes once."""
    after = followers(code)
    before, found = leaders(after), set()
    for head, body in loops(after, before).items():
        texts = [code[at][1] for at in body]
        if not any(map(FLAG.search, texts)) or any(map(BARRIER.search, texts)):
            continue
        patient = {at for at in body if not GIVE_UP.search(code[at][1])}
        turn = reached(head, after, patient) & reached(head, before, patient)
        found |= {code[at] for at in turn if FENCE.search(code[at][1])}
    return sorted(found)


def loads_before_use(code, batch):
    """Whether two batches of loads, those that are last in some code, are all asked for before one of the
    first is used."""
    loads = [at for at, (_, text) in enumerate(code) if LOAD.search(text)][-2 * batch:]
    if len(loads) < 2 * batch:
        return False
    first = registers(code[loads[0]][1])[0]
    between = [text for _, text in code[loads[0] + 1:loads[-1]] if not LOAD.search(text)]
    return not any(first & registers(text)[1] for text in between)


def late_loads(code, batch, ahead, converts_first=False):
    """Where a kernel asks for sources too late. Its hot loops, a turn for each source, are those of a batch
    of loads: before one, two sources are asked for before the first is used; in it, the next before the one
    that has come is added. One vector at a time moves where there is more to compute: that loop uses nothing
    that its own turn asks for."""
    after = followers(code)
    found, missing = [], {"all vectors of a thread", "one vector"}
    for head, body in innermost(loops(after, leaders(after))).items():
        count = sum(bool(LOAD.search(code[at][1])) for at in body)
        if not count or count == WIDE:
            # The latter is for `narrow_turns`.
            continue
        told = hasty(code, head, body, after)
        place = f"loop at {code[head][0]:#x}"
        if count < batch:
            missing.discard("one vector")
            found += [f"{place}: {text}" for text in told or [] if text.startswith(USED)]
            continue
        missing.discard("all vectors of a thread")
        found += [f"{place}: {text}" for text in told or []]
        if told is None:
            found.append(f"{place}: adds nothing")
        before = ahead if count == 3 * ahead else batch
        if not converts_first and not loads_before_use(code[:head], before):
            found.append(f"{place}: the first source is used before the second is asked for")
    return found + [f"no loop over sources that moves {what}" for what in sorted(missing)]


def early_uses(code, body):
    """What in a loop waits for one of its loads before the last of them is asked for."""
    loads = sorted(at for at in body if LOAD.search(code[at][1]))
    coming, found = set(), []
    for at in range(loads[0], loads[-1] + 1):
        written, read = registers(code[at][1])
        if at in body and read & coming:
            found.append(f"{code[at][0]:#x} {code[at][1]}")
        coming |= written if at in loads else set()
    return found


def narrow_turns(code):
    """Where a thread with one vector asks for too few sources at once. It does that in a loop with a turn for
    each `WIDE` of them; no other loop has as many loads."""
    after = followers(code)
    wide = [(head, body) for head, body in loops(after, leaders(after)).items()
            if sum(bool(LOAD.search(code[at][1])) for at in body) == WIDE]
    if not wide:
        return [f"no loop that asks for {WIDE} sources at once"]
    return [f"loop at {code[head][0]:#x}: waits for a source before it asks for the last: {text}"
            for head, body in wide for text in early_uses(code, body)]


def portable(fatbin):
    """What the driver compiles for all other devices: the names of the fatbin's PTX."""
    return re.findall(r"^PTX file.*?: *(\S+)$", output("cuobjdump", "-lptx", fatbin), re.MULTILINE)


def judge(device, kernels, usage):
    """Complaints, rule by rule."""
    missing = [name for name in KERNELS if name not in kernels]
    yield "all kernels are there", missing
    over = [f"{name}: {usage[name]}" for name in kernels if usage[name]["REG"] > MOST_REGISTERS]
    yield f"at most {MOST_REGISTERS} registers", over
    local = [name for name, code in kernels.items() if usage[name]["STACK"] or usage[name]["LOCAL"]
             or any(re.search(r"\b(LDL|STL)\b", text) for _, text in code)]
    yield "no local memory", local
    narrow, late, few = [], [], []
    for name, code in kernels.items():
        family, kind = name.split("_")[1], name.split("_")[-1]
        if family == "oneshot":
            loads, stores = (sum(bool(line.search(text)) for _, text in code) for line in (LINE_LOAD, LINE_STORE))
            if loads < POLLED or stores < 1:
                narrow.append(f"{name}: {loads} loads and {stores} stores of whole lines")
        if family not in ("reduce", "plan"):
            continue
        loads = sum(bool(LOAD.search(text)) for _, text in code)
        stores = sum(bool(STORE.search(text)) for _, text in code)
        if loads < 2 * BATCH[kind] or stores < BATCH[kind]:
            narrow.append(f"{name}: {loads} loads, {stores} stores")
        else:
            told = late_loads(code, BATCH[kind], AHEAD[kind], (device, kind) in CONVERTS_FIRST)
            late += [f"{name}: {text}" for text in told]
            few += [f"{name}: {text}" for text in narrow_turns(code)]
    yield "loads and stores of 128 bits", narrow
    yield "sources are asked for ahead", late
    yield f"{WIDE} sources are asked for at once for one vector", few
    waiting = [name for name in kernels if "_" in name.removeprefix("ringcomm_")]
    fences = [f"{name}: {address:#x} {text}" for name in waiting
              for address, text in fences_among_peers(kernels[name])]
    polls = [name for name in waiting if not any(FLAG.search(text) for _, text in kernels[name])]
    yield "no fence in a loop over peers", fences + [f"{name}: no flag seen" for name in polls]


def main():
    fatbin = sys.argv[1] if len(sys.argv) > 1 else embedded()
    if not fatbin:
        print("FAILED: no build with kernels in target/debug")
        return 1
    code, usage = disassemble(fatbin), resources(fatbin)
    ptx = portable(fatbin)
    failed = len(ptx) != 1 or f".{PORTABLE}." not in ptx[0]
    print(f"{'FAILED' if failed else 'ok'}: PTX of {PORTABLE} for all other devices: {ptx}")
    for device in DEVICES:
        for rule, complaints in judge(device, code.get(device, {}), usage.get(device, {})):
            failed += bool(complaints)
            print(f"{'FAILED' if complaints else 'ok'}: {device}: {rule}", *complaints[:8], sep="\n    ")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
