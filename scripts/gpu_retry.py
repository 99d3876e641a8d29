"""Tests of a test program that failed, or did not end, run again by themselves: what fails alone is simpler."""
import re

from gpu_hang import bounded

# As libtest says it.
FAILED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. FAILED", re.MULTILINE)
ENDED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. ", re.MULTILINE)
LISTED = re.compile(r"^(\S+): test$", re.MULTILINE)
# A thread has its test's name, of which the system keeps so much.
NAME_LENGTH = 15
# The most tests, and the seconds for one.
MOST, SECONDS = 3, 10
MOST_OUTPUT = 6_000


def hung(program, said, hang):
    """Tests whose threads were there when the program was looked at, and that had not ended."""
    names = {one["name"] for process in hang for one in process["threads"]}
    _, listed, _ = bounded([program, "--list"], SECONDS, None)
    ended = set(ENDED.findall(said))
    return [test for test in LISTED.findall(listed) if test[:NAME_LENGTH] in names and test not in ended]


def alone(program, test, env):
    """How a test ends that has the device to itself."""
    status, said, _ = bounded([program, test, "--exact", "--nocapture", "--test-threads", "1"], SECONDS, env)
    return {"test": test, "status": status, "output": said[-MOST_OUTPUT:]}


def again(program, said, hang, env):
    """Some of the tests that failed or hung, each by itself."""
    failed = FAILED.findall(said) + (hung(program, said, hang) if hang else [])
    return [alone(program, test, env) for test in list(dict.fromkeys(failed))[:MOST]]
