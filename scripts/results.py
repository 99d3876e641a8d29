"""How the output of tests is counted: lines of logs become passes and failures.

A command that fails without a counted failure counts as one.
"""

import re

# What a line of a log counts as: the summaries of libtest and unittest, and the one-line results of
# the scripts.
SUMMARY = re.compile(r"^test result: \S+ (\d+) passed; (\d+) failed;")
KILLED = re.compile(r"^  process didn't exit successfully: .* \(signal: ")
RESULT = re.compile(r"^(ok|FAILED): ")
UNITTEST = re.compile(r"^Ran (\d+) tests? in ")
UNITTEST_FAILED = re.compile(r"^FAILED \((?:(?:failures|errors)=\d+(?:, )?)+")
PYTEST = re.compile(r"^(?:=+ )?\d+ (?:passed|failed|skipped|errors?)\b.* in [\d.]+s")
SKIPPED = re.compile(r"^skipped: (.*)")
UNDER = re.compile(r"^under Python 3.*")
# Of a test that has nothing to do on this machine; the harness counts it as passed, and where it runs
# one test at a time has begun the line.
IDLE = re.compile(r"^(?:test \S+ \.\.\. )?skipped: \w+::[\w:]+: ")
SANITIZER = re.compile(r"(WARNING: ThreadSanitizer|ERROR: (Address|Leak)Sanitizer)")

# Lines that say what failed, or what was running when a suite was killed.
FAILING = re.compile(r"^(test (?!result).*(FAILED|has been running)|error|FAILED:? "
                     r"|(ERROR|FAIL): test"
                     r"|thread '.*panicked at|SUMMARY: )"
                     f"|{SANITIZER.pattern}|^    #[0-9]+ (?!.*/rustc/).*/(src|tests)/")


def count(text):
    passed = failed = idle = reports = 0
    notes = []
    for line in text.splitlines():
        if match := SUMMARY.match(line):
            passed, failed = passed + int(match[1]), failed + int(match[2])
        elif KILLED.match(line):
            # A test program that died said nothing of its tests.
            failed += 1
        elif match := RESULT.match(line):
            passed, failed = passed + (match[1] == "ok"), failed + (match[1] != "ok")
        elif match := UNITTEST.match(line):
            passed += int(match[1])
        elif match := UNITTEST_FAILED.match(line):
            bad = sum(map(int, re.findall(r"\d+", match[0])))
            passed, failed = passed - bad, failed + bad
        elif PYTEST.match(line):
            for number, what in re.findall(r"(\d+) (passed|failed|error)", line):
                passed += int(number) * (what == "passed")
                failed += int(number) * (what != "passed")
        elif IDLE.match(line):
            idle += 1
        elif match := SKIPPED.match(line) or UNDER.match(line):
            notes.append(match[0])
        reports += bool(SANITIZER.search(line))
    return passed, failed + reports, notes, idle


def outcome(words, code, passed, failed):
    """What a command of these words counts as that ended with `code` after so many results."""
    runs_tests = words[:2] == ["cargo", "test"] or "pytest" in words
    if code != 0:
        return passed, failed or 1
    if passed or failed or "build" in words:
        return passed, failed
    # A command that has no tests to count is one itself; of tests that nobody ran none passed.
    return (0, 1) if runs_tests else (1, 0)
