"""What suites are made of: commands, parts that may be lacking, and commands of Cargo's."""

import os
from pathlib import Path

from tools import Missing, need

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "target"
LOGS = TARGET / "test-logs"
HOST = f"{os.uname().machine}-unknown-linux-gnu"


class Command:
    def __init__(self, *words, env=None, cwd=ROOT):
        self.words, self.env, self.cwd = list(words), env or {}, cwd


class Lacking:
    """A part of a suite that cannot run here, and why."""

    def __init__(self, name, reason):
        self.name, self.reason = name, reason


class Together:
    """Commands that run two at a time: many tests wait, and leave a core to others."""

    def __init__(self, *commands):
        self.commands = commands


def where_there(name, programs, command):
    """The command of a part that needs these programs."""
    try:
        need(*programs)
        return command
    except Missing as reason:
        return Lacking(name, reason)


def where_made(name, command):
    """The command that `command()` makes, of a part that may lack what it installs."""
    try:
        return command()
    except Missing as reason:
        return Lacking(name, reason)


def cargo(*words, target=None, **more):
    env = dict(more.pop("env", {}))
    if target:
        env["CARGO_TARGET_DIR"] = str(TARGET / target)
    return Command("cargo", *words, env=env, **more)


# Where integration tests are: those of the library, and those that run the programs.
TESTS = [ROOT / "tests", ROOT / "programs/tests"]


def tests_named(*names):
    """Arguments for these integration tests. One that is not there was renamed, or taken away: without
    an error its suite would go on without it."""
    words = []
    for name in names:
        places = [place for tests in TESTS for place in (tests / f"{name}.rs", tests / name / "main.rs")]
        if not any(place.exists() for place in places):
            raise FileNotFoundError(f"no test {name}: there is none of {', '.join(map(str, places))}")
        words += ["--test", name]
    return words
