"""The rules of scripts/sass.py on listings that keep and that break them. Run this file."""
import unittest

import sass

# A wait for one peer: it polls until the flag has come, and looks at its patience in between. Who has
# none gives up, which the first of a rank reports; `END` is where it goes on in both cases.
WAIT = """
poll:  LDG.E.64.STRONG.SYS R4, desc[UR4][R2.64]
       ISETP.GE.U32.AND P0, PT, R4, R6, PT
       @P0 BRA {end}
       @P1 BRA poll
       ATOMG.E.CAS.64.STRONG.GPU PT, R8, [R10], R12
       @P2 BRA {end}
       ST.E.64 desc[UR4][R14.64], R6
       MEMBAR.ALL.SYS
       ST.E.STRONG.SYS desc[UR4][R14.64+0x8], R7
"""


def listing(text):
    """Instructions at addresses of their own, from lines of which some have labels."""
    lines = [line for line in text.splitlines() if line.strip()]
    places = {line.split(":")[0]: 16 * at for at, line in enumerate(lines) if not line.startswith(" ")}
    code = []
    for at, line in enumerate(lines):
        words = line.split(":", 1)[-1] if not line.startswith(" ") else line
        target = words.split()[-1]
        if "BRA" in words and target in places:
            words = words.replace(target, hex(places[target]))
        code.append((16 * at, words.strip()))
    return code


def fences(text):
    return [instruction for _, instruction in sass.fences_among_peers(listing(text))]


class LoopsOverPeers(unittest.TestCase):
    def test_one_fence_after_all_waits_is_right(self):
        text = WAIT.format(end="next") + "next:  @P3 BRA poll\n       MEMBAR.ALL.SYS\n       EXIT\n"
        self.assertEqual(fences(text), [])

    def test_a_fence_after_each_wait_is_found(self):
        text = WAIT.format(end="next") + "next:  MEMBAR.SC.SYS\n       @P3 BRA poll\n       EXIT\n"
        self.assertEqual(fences(text), ["MEMBAR.SC.SYS"])

    def test_a_fence_before_each_flag_is_found(self):
        text = "each:  FENCE.VIEW.ASYNC\n       STG.E.64.STRONG.SYS [R2], R4\n       @P0 BRA each\n       EXIT\n"
        self.assertEqual(len(fences(text)), 1)

    def test_a_fence_in_a_branch_of_the_loop_is_found(self):
        text = (WAIT.format(end="next") + "next:  @P4 BRA over\n       MEMBAR.SC.SYS\n"
                "over:  @P3 BRA poll\n       EXIT\n")
        self.assertEqual(fences(text), ["MEMBAR.SC.SYS"])

    def test_a_fence_for_every_step_is_right(self):
        text = ("step:  MOV R2, R3\n" + WAIT.format(end="next") + "next:  @P3 BRA poll\n       MEMBAR.ALL.SYS\n"
                "       BAR.SYNC.DEFER_BLOCKING 0x0\n       @P5 BRA step\n       EXIT\n")
        self.assertEqual(fences(text), [])

    def test_who_gives_up_out_of_line_is_in_no_loop(self):
        wait = ("each:  MOV R2, R3\npoll:  LDG.E.64.STRONG.SYS R4, desc[UR4][R2.64]\n       @P0 BRA next\n"
                "       @P1 BRA gone\n       BRA poll\nnext:  @P3 BRA each\n       MEMBAR.ALL.SYS\n       EXIT\n"
                "gone:  ATOMG.E.CAS.64.STRONG.GPU PT, R8, [R10], R12\n       MEMBAR.SC.SYS\n       BRA next\n")
        self.assertEqual(fences(wait), [])


if __name__ == "__main__":
    unittest.main()
