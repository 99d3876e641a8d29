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

    def test_a_fence_before_each_line_is_found(self):
        push = "each:  MOV R2, R3\n{}       STG.E.128.STRONG.SYS [R2.64], R4\n       @P0 BRA each\n       EXIT\n"
        self.assertEqual(fences(push.format("")), [])
        self.assertEqual(fences(push.format("       MEMBAR.ALL.SYS\n")), ["MEMBAR.ALL.SYS"])

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


# A sum of sources by two vectors of a thread: two sources are asked for, and the loop has a turn for each
# but the first. `{turn}` is what a turn does. Then one of more to compute, by one vector: `{more}`.
SUM = """
       LDG.E.128.STRONG.GPU R20, desc[UR4][R2.64]
       LDG.E.128.STRONG.GPU R24, desc[UR4][R4.64]
       CS2R R40, SRZ
       LDG.E.128.STRONG.GPU R32, desc[UR4][R6.64]
       LDG.E.128.STRONG.GPU R36, desc[UR4][R8.64]
       FADD R10, R20, R24
turn:  IADD3 R0, R0, 0x1, RZ
{turn}
       @!P0 BRA turn
       STG.E.128 desc[UR4][R2.64], R8
{more}
       ST.E.128 desc[UR4][R2.64], R8
       EXIT
"""
MORE = """
more:  MOV R50, R32
       LDG.E.128 R32, [R6.64]
       FADD R10, R10, R50
       @P3 BRA more
"""
KEEP = """       IMAD.MOV.U32 R50, RZ, RZ, R32
       MOV R51, R36
"""
ASK = """       @P1 BRA over
       LDG.E.128.STRONG.GPU R32, desc[UR4][R6.64]
       @!P2 LDG.E.128.STRONG.GPU R36, desc[UR4][R8.64]
over:  NOP
"""
ADD = """       IMAD.U32 R52, R50, 0x10000, RZ
       FADD R10, R10, R52
       FADD R11, R11, R51
"""


class Sources(unittest.TestCase):
    def late(self, turn, text=SUM, more=MORE, **how):
        return sass.late_loads(listing(text.format(turn=turn.strip("\n"), more=more)), 2, 2, **how)

    def test_the_next_source_before_the_last_is_added_is_right(self):
        self.assertEqual(self.late(KEEP + ASK + ADD), [])

    def test_a_conversion_may_come_before_the_next_is_asked_for(self):
        convert = KEEP.replace("MOV R51, R36", "IMAD.U32 R51, R36, 0x10000, RZ")
        self.assertEqual(self.late(convert + ASK + ADD), [])

    def test_one_vector_at_a_time_is_found_behind_a_good_beginning(self):
        turn = ("       LDG.E.128.STRONG.GPU R32, [R6.64]\n       FADD R10, R10, R32\n"
                "       LDG.E.128.STRONG.GPU R36, [R8.64]\n       FADD R11, R11, R36\n")
        told = self.late(turn)
        # The first is added before the second vector is asked for, and each in its own turn.
        self.assertTrue(any("used in the turn that asks for it" in text for text in told), told)

    def test_a_whole_source_that_is_used_in_its_own_turn_is_found(self):
        turn = ASK + "       FADD R10, R10, R32\n       FADD R11, R11, R36\n"
        self.assertEqual(len(self.late(turn)), 2)

    def test_what_is_asked_for_after_the_sum_is_found(self):
        self.assertEqual(len(self.late(KEEP + ADD + ASK)), 2)

    def test_a_vector_that_is_asked_for_after_a_sum_is_found(self):
        early = ASK.replace("       @!P2", "       FADD R11, R11, R51\n       @!P2")
        told = self.late(KEEP + early + ADD.replace("       FADD R11, R11, R51\n", ""))
        self.assertEqual(len(told), 1)
        self.assertIn("added before the next is asked for", told[0])

    def test_a_first_source_that_is_used_before_the_second_is_asked_for_is_found(self):
        begin = SUM.replace("CS2R R40, SRZ", "FMUL R20, R20, R41")
        self.assertEqual(len(self.late(KEEP + ASK + ADD, begin)), 1)
        self.assertEqual(self.late(KEEP + ASK + ADD, begin, converts_first=True), [])

    def test_a_table_of_branches_leads_on(self):
        table = "       BRX R60 -0x100\n" + ADD + "       BRA done\n" + ADD + "done:  NOP\n"
        self.assertEqual(self.late(KEEP + ASK + table), [])
        self.assertEqual(len(self.late(KEEP + table + ASK)), 4)

    def test_one_vector_in_a_turn_uses_what_an_earlier_one_asked_for(self):
        def late(more):
            return self.late(KEEP + ASK + ADD, more=more)
        early = MORE.replace("       LDG", "       FADD R11, R11, R50\n       LDG")
        self.assertEqual(late(early), [])
        self.assertEqual(len(late(MORE.replace("R10, R50", "R10, R32"))), 1)

    def test_a_kernel_without_such_a_loop_is_found(self):
        missing = "no loop over sources that moves "
        told = sass.late_loads(listing("       LDG.E.128 R4, [R2.64]\n       EXIT\n"), 2, 2)
        self.assertEqual(told, [missing + "all vectors of a thread", missing + "one vector"])
        self.assertEqual(self.late(KEEP + ASK + ADD, more=MORE.replace(".128", ".64")),
                         [missing + "one vector"])
        self.assertEqual(len(self.late(ASK)), 1)

    def test_it_is_told_of_kernels(self):
        usage = {"REG": 128, "STACK": 0, "LOCAL": 0}
        code = listing(SUM.format(turn=(KEEP + ADD + ASK).strip("\n"), more=MORE))
        for device, name in [("sm_80", "plan_e4m3"), ("sm_90", "reduce_e5m2")]:
            name = f"ringcomm_{name}"
            told = dict(sass.judge(device, {name: code}, {name: usage}))
            self.assertEqual(told["loads and stores of 128 bits"], [])
            self.assertEqual(len(told["sources are asked for ahead"]), 2)


# A turn of eight sources for one vector, and a loop in it that adds them: {0} is before the last is asked for.
WIDE = "".join(f"       @!P0 LDG.E.128.STRONG.GPU R{at}, desc[UR4][R{at}.64]\n" for at in range(20, 48, 4))
WIDE = ("turn:  IMAD.WIDE.U32 R4, R2, 0x8, R6\n" + WIDE + "{}       @!P1 LDG.E.128 R48, [R60.64]\n"
        "add:   FADD R10, R10, R20\n       MOV R20, R24\n       @P2 BRA add\n       @P3 BRA turn\n"
        "       ST.E.128 desc[UR4][R2.64], R8\n       EXIT\n")


class Wide(unittest.TestCase):
    def few(self, text):
        return sass.narrow_turns(listing(text))

    def test_eight_sources_before_the_first_is_used_are_right(self):
        self.assertEqual(self.few(WIDE.format("       IADD3 R60, R61, R62, RZ\n")), [])

    def test_a_source_that_is_used_before_the_last_is_asked_for_is_found(self):
        for use in ["FADD R10, R10, R20", "MOV R50, R47", "IADD3 R60, R61, R33, RZ"]:
            self.assertEqual(len(self.few(WIDE.format(f"       {use}\n"))), 1, use)

    def test_an_address_that_a_load_brings_is_found(self):
        last = WIDE.format("").replace("[R60.64]", "[R20.64]")
        self.assertEqual(len(self.few(last)), 1)

    def test_a_kernel_that_never_asks_for_eight_is_found(self):
        missing = ["no loop that asks for 8 sources at once"]
        self.assertEqual(self.few(WIDE.format("").replace("@!P1 LDG.E.128", "@!P1 LDG.E.64")), missing)
        # Nor are eight before a loop, a batch of each of two sources.
        self.assertEqual(self.few(WIDE.format("").replace("@P3 BRA turn", "NOP")), missing)

    def test_it_is_told_of_kernels(self):
        usage = {"REG": 128, "STACK": 0, "LOCAL": 0}
        name = "ringcomm_plan_e4m3"
        more = "       ST.E.128 [R2.64], R8\n"
        for early, complaints in [("", 0), ("       FADD R10, R10, R20\n", 1)]:
            code = listing(WIDE.format(early).replace("       EXIT", more + "       EXIT"))
            told = dict(sass.judge("sm_90", {name: code}, {name: usage}))
            self.assertEqual(len(told["8 sources are asked for at once for one vector"]), complaints)


class Lines(unittest.TestCase):
    def told(self, loads, stores):
        usage = {"REG": 128, "STACK": 0, "LOCAL": 0}
        text = ("       LDG.E.128.STRONG.SYS R4, [R2.64]\n" * loads
                + "       STG.E.128.STRONG.SYS [R2.64], R4\n" * stores + "       EXIT\n")
        name = "ringcomm_oneshot_f32"
        return dict(sass.judge("sm_90", {name: listing(text)}, {name: usage}))["loads and stores of 128 bits"]

    def test_eight_whole_lines_are_polled_at_once_and_stored_whole(self):
        self.assertEqual(self.told(8, 1), [])
        self.assertEqual(len(self.told(7, 1)), 1)
        self.assertEqual(len(self.told(8, 0)), 1)


class Resources(unittest.TestCase):
    def complaints(self, text, **usage):
        usage = {"REG": 128, "STACK": 0, "LOCAL": 0, **usage}
        name = "ringcomm_delay"
        return dict(sass.judge("sm_90", {name: listing(text)}, {name: usage}))

    def test_registers_beyond_a_threads_share_are_found(self):
        rule = "at most 128 registers"
        self.assertEqual(self.complaints("       EXIT\n")[rule], [])
        self.assertEqual(len(self.complaints("       EXIT\n", REG=129)[rule]), 1)

    def test_local_memory_is_found(self):
        rule = "no local memory"
        self.assertEqual(self.complaints("       LDG.E R4, [R2.64]\n       EXIT\n")[rule], [])
        for text, usage in [("       LDL R4, [R1]\n", {}), ("       STL.64 [R1+0x8], R4\n", {}),
                            ("       EXIT\n", {"STACK": 8}), ("       EXIT\n", {"LOCAL": 16})]:
            self.assertEqual(len(self.complaints(text, **usage)[rule]), 1, text)


if __name__ == "__main__":
    unittest.main()
