"""Tests of a test program that failed, or did not end, run again by themselves: what fails alone is simpler."""
import re
import time

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


def hung(words, said, hang, env):
    """Tests that had begun and not ended, by the names of threads that were there. Tests begin in the order in
    which they are listed, so that those that share such a name with them and come later have not begun."""
    names = [one["name"] for process in hang for one in process["threads"]]
    _, listed, _, _ = bounded([*words, "--list"], SECONDS, env)
    ended = set(ENDED.findall(said))
    found = []
    for test in LISTED.findall(listed):
        if test not in ended and test[:NAME_LENGTH] in names:
            names.remove(test[:NAME_LENGTH])
            found.append(test)
    return found


def alone(program, test, seconds, env):
    """How a test ends that has the device to itself."""
    words = [program, test, "--exact", "--nocapture", "--test-threads", "1"]
    status, said, took, _ = bounded(words, min(seconds, SECONDS), env)
    return {"test": test, "status": status, "seconds": round(took, 1), "output": said[-MOST_OUTPUT:]}


def again(words, said, hang, end_at, env):
    """Some of the tests that failed or hung, each by itself, until one hangs or the time is over."""
    tests = FAILED.findall(said) + (hung(words, said, hang, env) if hang else [])
    results = []
    for test in list(dict.fromkeys(tests))[:MOST]:
        left = end_at - time.monotonic()
        if left < 1:
            break
        results.append(alone(words[0], test, left, env))
        if not isinstance(results[-1]["status"], int):
            break
    return results
