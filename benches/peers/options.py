"""The command line of compare.py: what may be asked, and what was probably meant."""

import argparse
import difflib
import os
import shlex
from pathlib import Path

import launch
import systems

ABOUT = "Compare ringcomm with the libraries that a user can install, in one run, as ratios."
ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = [
    "all_reduce",
    "all_reduce:in",
    "all_gather",
    "reduce_scatter",
    "broadcast:in",
    "send_recv",
    "ping_pong",
]
ALSO = ["all_to_all", "all_gather:in", "reduce_scatter:in"]
SIZES = "8,64,1K,8K,64K,1M,16M,64M,256M"
# From here on a call takes some libraries a second, and buffers of gigabytes as long to fill. Unasked
# only these run it, in a start of their own: two or three seconds for each system.
LARGE = 256 << 20
LARGE_OPERATIONS = ["all_reduce"]
# Milliseconds for each cell: seven rows of eight sizes stay near three seconds a start.
CELL_MS = 25
OWN_MODES = ("processes", "registered", "threads")
TCP_OPERATIONS = ["all_reduce", "send_recv", "ping_pong"]
TCP_SIZES = "8,64,1K,8K,64K,1M,16M,64M,256M"
NAMES = ["ringcomm", *(peer.key for peer in systems.PEERS)]


class Parser(argparse.ArgumentParser):
    """Says what was probably meant, and exits 2."""

    def error(self, message):
        known = [option for action in self._actions for option in action.option_strings]
        for word in message.split() if "unrecognized" in message else []:
            near = difflib.get_close_matches(word.partition("=")[0], known, 1, 0.5)
            message += f"; did you mean {near[0]}?" if near else ""
        self.exit(2, f"compare.py: {message}\n")


def size(word):
    letters = {"K": 10, "M": 20, "G": 30}
    shift = letters.get(word[-1:].upper(), 0)
    digits = word[:-1] if shift else word
    if not digits.isdigit() or int(digits) << shift < 4:
        raise argparse.ArgumentTypeError(
            f"{word!r} is not a size of at least 4 bytes: write 8, 64K or 16M"
        )
    return int(digits) << shift


def list_of(one):
    def each(words):
        found = list(dict.fromkeys(one(word) for word in words.split(",") if word))
        if not found:
            raise argparse.ArgumentTypeError("an empty list leaves nothing to run")
        return found

    return each


def choice(known):
    def known_word(word):
        if word in known:
            return word
        near = difflib.get_close_matches(word, known, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else f"known: {' '.join(known)}"
        raise argparse.ArgumentTypeError(f"there is no {word!r}; {hint}")

    return known_word


def at_least(least):
    def number(word):
        if not word.isdigit() or int(word) < least:
            raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at least {least}")
        return int(word)

    return number


def scans(chosen, sizes):
    """What a system starts for: lists of operations and of their sizes."""
    large = [one for one in sizes if one >= LARGE and chosen.large_ops != chosen.ops]
    usual = [one for one in sizes if one not in large]
    return [
        (operations, some)
        for operations, some in ((chosen.ops, usual), (chosen.large_ops, large))
        if operations and some
    ]


def parser_of_options():
    parser = Parser(description=ABOUT, allow_abbrev=False)
    add = parser.add_argument
    operation = choice(OPERATIONS + ALSO)
    add(
        "--tcp",
        action="store_true",
        help="over loopback TCP, ringcomm under every protection: by default 2 ranks, "
        f"{','.join(TCP_OPERATIONS)}, {TCP_SIZES}",
    )
    add(
        "--ops",
        type=list_of(operation),
        help="with :in for in place; " + ",".join(OPERATIONS + ALSO),
    )
    add("--ranks", type=list_of(at_least(2)), help="numbers of ranks (default 2,4)")
    add(
        "--sizes",
        type=list_of(size),
        help=f"in bytes (default {SIZES}, the last for {' '.join(LARGE_OPERATIONS)} only)",
    )
    add("--rounds", type=at_least(1), default=5, help="default 5")
    add(
        "--time-budget",
        type=at_least(10),
        default=780,
        metavar="SECONDS",
        help="start no round past it (default 780)",
    )
    add(
        "--cell-budget",
        type=at_least(1),
        default=CELL_MS,
        metavar="MS",
        help=f"per size and round (default {CELL_MS})",
    )
    add("--only", type=list_of(choice(NAMES)), default=NAMES, help="of " + ",".join(NAMES))
    add(
        "--ringcomm",
        type=shlex.split,
        metavar="COMMAND",
        help="instead of target/release/ring-perf",
    )
    add(
        "--rewrite",
        action="store_true",
        help="have all write their inputs anew before every block of calls, outside the times, as "
        "a program does that computes them; without, they stay in the caches that they came to",
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringcomm-peers"
    add(
        "--cache",
        type=Path,
        default=cache,
        help="where the peers are installed (default ~/.cache/ringcomm-peers)",
    )
    add("--torch", action="store_true", help="install torch for its gloo (5.4 GB)")
    add("--out", type=Path, default=ROOT / "benches/results", help="folder of the results")
    add(
        "--list",
        action="store_true",
        help="install and build what is wanted, name it, measure nothing",
    )
    return parser


def parse(arguments):
    chosen = parser_of_options().parse_args(arguments)
    chosen.modes = launch.TCP_MODES if chosen.tcp else OWN_MODES
    chosen.ops = chosen.ops or (TCP_OPERATIONS if chosen.tcp else OPERATIONS)
    is_asked = chosen.sizes or chosen.tcp
    chosen.large_ops = [one for one in chosen.ops if is_asked or one in LARGE_OPERATIONS]
    chosen.ranks = chosen.ranks or ([2] if chosen.tcp else [2, 4])
    chosen.sizes = chosen.sizes or list_of(size)(TCP_SIZES if chosen.tcp else SIZES)
    return chosen
