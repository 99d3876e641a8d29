"""`python -m ringcomm.nccl`: run a Python program that is built for NCCL on ringcomm.

    torchrun --nproc-per-node 2 -m ringcomm.nccl train.py
    mpirun -np 2 python -m ringcomm.nccl -m package.module --option

Behind `ringcomm.nccl` stands what stands behind `python`: a script, `-m MODULE` or `-c CODE`, with
its arguments. The interpreter starts once more with these, and with `LD_PRELOAD` and
`LD_LIBRARY_PATH` that begin with ringcomm's `libnccl.so.2`. The loader gives this one to everybody
who asks for NCCL by that name, also in the processes that the program starts.

`library()` is the path of that file, for programs that want one (`VLLM_NCCL_SO_PATH`). To go back
to NCCL, leave `-m ringcomm.nccl` away.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Dict, List, NoReturn, Optional

#: Where the package lies. Nothing else of it is imported, so that this file runs as a script, too.
HERE = Path(__file__).resolve().parent
#: ringrun reads the same variable.
VARIABLE = "RINGCOMM_NCCL_LIBRARY"
#: What the loader ends a name at, in one of its two variables.
SEPARATORS = "[ :;]"

USAGE = """\
usage: python -m ringcomm.nccl SCRIPT [ARGUMENT...]
       python -m ringcomm.nccl -m MODULE [ARGUMENT...]
       python -m ringcomm.nccl -c CODE [ARGUMENT...]

Runs Python with ringcomm's libnccl.so.2 in the place of NCCL's, as in

  torchrun --nproc-per-node 2 -m ringcomm.nccl train.py
"""


def library() -> str:
    """The absolute path of ringcomm's libnccl.so.2; FileNotFoundError says where it was looked for.

    RINGCOMM_NCCL_LIBRARY names it. Otherwise it is the package's own, or lies beside the
    libringcomm.so that RINGCOMM_LIBRARY names.
    """
    named = os.environ.get(VARIABLE)
    if named:
        path = os.path.abspath(named)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"{VARIABLE} names {path}, which is not there")
        return path
    # As the wheel and `make install` have it.
    folders = [HERE / "lib" / "ringcomm"]
    beside = os.environ.get("RINGCOMM_LIBRARY")
    if beside:
        folder = Path(beside).resolve().parent
        # The first as cargo has it.
        folders += [folder / "nccl", folder / "ringcomm"]
    places = [str(folder / "libnccl.so.2") for folder in folders]
    for place in places:
        if os.path.isfile(place):
            return place
    raise FileNotFoundError(
        f"ringcomm's libnccl.so.2 is not at {' or '.join(places)}: reinstall with `pip install "
        f"./python`, or say where it is with {VARIABLE}"
    )


def environment() -> Dict[str, str]:
    """This process's environment, and in it what gives programs ringcomm where they load NCCL."""
    path = library()
    if re.search(SEPARATORS, path):
        raise ValueError(
            f"LD_PRELOAD cannot name {path}: put it where the path has no space, colon or "
            f"semicolon, and say where with {VARIABLE}"
        )
    changed = dict(os.environ)
    for name, entry in (("LD_PRELOAD", path), ("LD_LIBRARY_PATH", os.path.dirname(path))):
        others = changed.get(name, "")
        # What runs so may start another that is to run so.
        if re.split(SEPARATORS, others)[0] != entry:
            changed[name] = f"{entry}:{others}" if others else entry
    return changed


def _original_words() -> List[str]:
    """What this interpreter was started with."""
    known: List[str] = getattr(sys, "orig_argv", [])
    # Python 3.9 does not say it, and the kernel does.
    return known or os.fsdecode(Path("/proc/self/cmdline").read_bytes()).split("\0")[:-1]


def interpreter_options(module: Optional[str]) -> List[str]:
    """What stands before `-m MODULE`, or, where it is None, before the path of the program."""
    words = _original_words()
    own = words[1 : len(words) - len(sys.argv) + 1]
    last = own.pop() if own else ""
    if module is None:
        return own
    if not last.endswith(module):
        # Somebody else's program runs this module.
        return []
    # Python takes `-m NAME`, `-mNAME` and `-Bm NAME`.
    option = last[: -len(module)] or own.pop()
    return own if option == "-m" else [*own, option[:-1]]


def main() -> NoReturn:
    """Become Python with the words behind `ringcomm.nccl`, in the environment that they need."""
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        raise SystemExit(0)
    if not words:
        print(USAGE, end="", file=sys.stderr)
        raise SystemExit(2)
    try:
        changed = environment()
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"python -m ringcomm.nccl: {error}") from None
    own = None if __spec__ is None else __spec__.name
    os.execve(sys.executable, [sys.executable, *interpreter_options(own), *words], changed)


if __name__ == "__main__":
    main()
