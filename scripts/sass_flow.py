"""How a kernel's machine code flows: its branches, its loops, and what of memory its registers hold.

What a loop does with what it has loaded is followed turn by turn: a value that a turn asks for is on its
way; in the next turn it has come; what is computed from it, and still there a turn later, is a total.
"""
import re

LOAD = re.compile(r"\bLD(G)?\.E\.128")
WORDS = re.compile(r"^(@!?U?P\w+\s+)?(\S+)\s*(.*)$")
# Copies of registers, and zeros.
MOVE = re.compile(r"^(MOV|IMAD\.MOV\S*|CS2R\S*)$|^IMAD\.U32 R\w+, RZ, RZ,")
# Their first register is none that they write.
WRITES_NONE = re.compile(r"^(ST|RED|BR|BAR|EXIT|RET|CALL|\w*SETP|PLOP|R2P|R2UR)")

# What a register holds, as bits: memory that this turn asked for, or one before; what this turn made of
# that; what earlier turns did.
COMING, HERE, MADE, TOTAL = 1, 2, 4, 8
# How a complaint begins of what uses what its own turn of a loop asks for.
USED = "used in the turn that asks for it"


def followers(code):
    """Of each instruction, by index, where control goes next."""
    index = {address: at for at, (address, _) in enumerate(code)}
    after = []
    for at, (_, text) in enumerate(code):
        conditional = text.startswith("@")
        words = re.sub(r"^@!?\w+\s+", "", text)
        next_ones = [at + 1] if at + 1 < len(code) else []
        if words.startswith(("EXIT", "RET")):
            after.append(next_ones if conditional else [])
        elif words.startswith("BRA"):
            target = re.search(r"0x([0-9a-f]+)", words)
            jump = [index[int(target[1], 16)]] if target and int(target[1], 16) in index else []
            # A branch may also depend on a predicate among its operands.
            conditional = conditional or re.match(r"BRA(\.\w+)* !?U?P\d", words)
            after.append(jump + (next_ones if conditional else []))
        else:
            after.append(next_ones)
    # Where a branch by a table leads is not in the listing: to what nothing else does, up to the next.
    table, known = None, {target for targets in after for target in targets}
    for at, (_, text) in enumerate(code):
        if re.search(r"\bBRX\b", text):
            table = at
        elif table is not None and at not in known:
            after[table].append(at)
    return after


def leaders(after):
    """Of each instruction, by index, where control comes from."""
    before = [[] for _ in after]
    for at, targets in enumerate(after):
        for target in targets:
            before[target].append(at)
    return before


def loops(after, before):
    """The natural loops, by the branches back to their heads: sets of indices, by their heads."""
    bodies = {}
    for at, targets in enumerate(after):
        for head in targets:
            if head > at:
                continue
            body, pending = bodies.setdefault(head, {head}), [at]
            while pending:
                one = pending.pop()
                if one not in body:
                    body.add(one)
                    pending += before[one]
    return bodies


def innermost(bodies):
    """Those of some loops that have no other in them."""
    return {head: body for head, body in bodies.items() if not any(other < body for other in bodies.values())}


def reached(start, follow, within):
    """What can be come to from an instruction, by steps that stay within some."""
    seen, pending = set(), [start]
    while pending:
        one = pending.pop()
        if one in within and one not in seen:
            seen.add(one)
            pending += follow[one]
    return seen


def registers(text):
    """The registers that an instruction writes, and those that it reads."""
    _, name, operands = WORDS.match(text).groups()
    named = [int(number) for number in re.findall(r"\bR(\d+)\b", operands)]
    # Predicates may be written before it.
    first = re.match(r"(?:U?P[T\d]+,\s*)*R(\d+)\b", operands)
    if not first or WRITES_NONE.match(name):
        return set(), set(named)
    wide = 4 if ".128" in name else 2 if re.search(r"\.(64|WIDE)\b", name) or name.startswith("D") else 1
    return set(range(int(first[1]), int(first[1]) + wide)), set(named[1:])


def is_move(text):
    _, name, operands = WORDS.match(text).groups()
    return bool(MOVE.match(name) or MOVE.match(f"{name} {operands}"))


def held(code, head, body, after):
    """Of each instruction of a loop, what the registers that it reads hold, as bits."""
    acts = {at: registers(code[at][1]) for at in body}
    before = {at: {} for at in body}

    def read(at):
        bits = 0
        for register in acts[at][1]:
            bits |= before[at].get(register, 0)
        return bits

    def left(at):
        """What registers hold after an instruction. One under a condition counts as done."""
        bits, text = read(at), code[at][1]
        if LOAD.search(text):
            bits = COMING
        elif not is_move(text):
            bits = (MADE if bits & (COMING | HERE | MADE) else 0) | bits & TOTAL
        return {**before[at], **{register: bits for register in acts[at][0]}}

    pending = set(body)
    while pending:
        at = pending.pop()
        after_it = left(at)
        for target in after[at]:
            if target not in body:
                continue
            for register, bits in after_it.items():
                if target == head:
                    bits = (HERE if bits & (COMING | HERE) else 0) | (TOTAL if bits & (MADE | TOTAL) else 0)
                if bits & ~before[target].get(register, 0):
                    before[target][register] = before[target].get(register, 0) | bits
                    pending.add(target)
    return {at: read(at) for at in body}


def hasty(code, head, body, after):
    """What a loop does too early, in words: it uses what the same turn asked for, which nothing is then
    on its way behind; or it adds what has come to the totals before it has asked for what is next. None:
    there is nothing that it adds."""
    loads = {at for at in body if LOAD.search(code[at][1])}
    turn = [[target for target in targets if target != head] for targets in after]
    told, has_added = [], False
    for at, bits in sorted(held(code, head, body, after).items()):
        if at in loads or is_move(code[at][1]):
            continue
        where = f"{code[at][0]:#x} {code[at][1]}"
        if bits & COMING:
            told.append(f"{USED}: {where}")
        if bits & (HERE | MADE) and bits & TOTAL:
            has_added = True
            if reached(at, turn, body) & loads:
                told.append(f"added before the next is asked for: {where}")
    return told if has_added or told else None
