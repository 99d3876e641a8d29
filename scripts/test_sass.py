"""Tests of sass.py's rule about fences, on listings with a fence where the rule forbids it."""

import unittest

import sass

# Waits for one peer after the other: a poll within a loop over peers, and one fence for all.
WAITS = """
    peers:  MOV R2, R4
    poll:   LDG.E.64.STRONG.SYS R6, desc[UR4][R2.64]
            ISETP.GE.U32.AND P0, PT, R6, R8, PT
            @!P0 BRA poll
            IADD3 R4, R4, 0x1, RZ
            ISETP.GE.U32.AND P1, PT, R4, R9, PT
            @!P1 BRA peers
            MEMBAR.ALL.SYS
            BAR.SYNC.DEFER_BLOCKING 0x0
            EXIT
"""
# Sets the flags of all peers after one fence.
SETS = """
            BAR.SYNC.DEFER_BLOCKING 0x0
            MEMBAR.ALL.SYS
    peers:  STG.E.64.STRONG.SYS desc[UR4][R2.64], R6
            IADD3 R4, R4, 0x1, RZ
            ISETP.GE.U32.AND P1, PT, R4, R9, PT
            @!P1 BRA peers
            EXIT
"""
FENCE = "            MEMBAR.ALL.SYS\n"


def listing(text):
    """Instructions as the disassembler gives them: labels become addresses."""
    lines = [line.strip() for line in text.strip().splitlines()]
    labels, code = {}, []
    for line in lines:
        label, colon, rest = line.partition(":")
        if colon:
            labels[label] = len(code) * 16
        code.append((len(code) * 16, rest.strip() if colon else line))
    for label, address in labels.items():
        code = [(at, one.replace(f"BRA {label}", f"BRA {address:#x}")) for at, one in code]
    return code


def found(text):
    return [instruction for _, instruction in sass.fences_among_peers(listing(text))]


def fenced(text, after):
    """With a fence after the line that has these words."""
    lines = text.splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if after in line)
    return "".join(lines[:at + 1] + [FENCE] + lines[at + 1:])


class Fences(unittest.TestCase):
    def test_one_fence_for_all_peers_passes(self):
        self.assertEqual(found(WAITS), [])
        self.assertEqual(found(SETS), [])

    def test_a_fence_after_each_wait_is_found(self):
        self.assertEqual(found(fenced(WAITS, "@!P0 BRA poll")), ["MEMBAR.ALL.SYS"])

    def test_a_fence_after_each_poll_is_found(self):
        self.assertEqual(found(fenced(WAITS, "LDG")), ["MEMBAR.ALL.SYS"])

    def test_a_fence_before_each_flag_is_found(self):
        self.assertEqual(found(fenced(SETS, "IADD3")), ["MEMBAR.ALL.SYS"])

    def test_a_loop_over_steps_has_fences(self):
        steps = WAITS.replace("            EXIT", "            BRA peers\n            EXIT")
        self.assertEqual(found(steps), [])


if __name__ == "__main__":
    unittest.main()
