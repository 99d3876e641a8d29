#!/usr/bin/env python3
"""The tests of a test program, each in a process of its own: gpu-tests.py PROGRAM [FILTER...] [--skip FILTER]...

On a GPU the tests of one process are not independent. `cuMemFree` waits for all that the device was given and
holds the driver's lock meanwhile: a test that frees memory waits for another's stream, which may wait for a
thread that needs the lock. Programs take turns, a few at a time; one that does not end hides no other.
Prints what libtest prints: a line for each test, what a failed one said, and a summary.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import time

from gpu_hang import bounded, known_of, text

# Programs at once: each has a context on the device, some 500 MB.
AT_ONCE = 6
# For one test, and for who looks at one that does not end.
SECONDS, LOOK_SECONDS = 20, 4
MOST_LINES = 60
LISTED = re.compile(r"^(\S+): test$", re.MULTILINE)
SAID = re.compile(r"^(?:skipped|\{).*$", re.MULTILINE)


def run(program, test):
    """How a test ends: its line, whether it passed, and what is told of it."""
    words = [program, test, "--exact", "--nocapture", "--test-threads", "1"]
    status, said, took, hang = bounded(words, SECONDS, os.environ, look=lambda one: known_of(
        one.process.pid, LOOK_SECONDS))
    passed = status == 0 and re.search(r"^test result: ok\. 1 passed", said, re.MULTILINE)
    verdict = "ok" if passed else "FAILED" if status == 101 else f"FAILED ({status})"
    told = SAID.findall(said) if passed else [*said.splitlines()[-MOST_LINES:], *text(hang, MOST_LINES)]
    return f"test {test} ... {verdict} <{took:.1f}s>", bool(passed), told


def main():
    program, *filters = sys.argv[1:]
    begun = time.monotonic()
    listed = subprocess.run([program, "--list", *filters], capture_output=True, text=True, check=True).stdout
    tests = LISTED.findall(listed)
    npassed, failed = 0, []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for line, passed, told in pool.map(lambda test: run(program, test), tests):
            print("\n".join([line, *(told if passed else [])]), flush=True)
            npassed += passed
            failed += [] if passed else [line, *told]
    # Last, as of what is long the end is kept.
    print("\n".join(failed))
    nfailed = len(tests) - npassed
    print(f"test result: {'FAILED' if nfailed else 'ok'}. {npassed} passed; {nfailed} failed; "
          f"finished in {time.monotonic() - begun:.1f}s")
    return 101 if nfailed or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
