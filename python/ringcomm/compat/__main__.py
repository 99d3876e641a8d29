"""`python -m ringcomm.compat`: a program that finds ringcomm where it imports Horovod or apex."""

from __future__ import annotations

import os
import sys
from typing import Dict, List, NoReturn

from ..nccl import interpreter_options
from . import path

USAGE = """\
usage: python -m ringcomm.compat [--local_rank] PROGRAM.py [ARGUMENT...]
       python -m ringcomm.compat [--local_rank] -m MODULE [ARGUMENT...]

Runs the program with ringcomm's packages `horovod` and `apex` in front of PYTHONPATH; Python
processes that it starts have them, too. With --local_rank the program gets an argument
--local_rank=N, of LOCAL_RANK, as torch.distributed.launch once gave it. With the variable
RINGCOMM_AS_BACKEND=nccl the backend nccl of torch.distributed is ringcomm, too.
"""


def environment() -> Dict[str, str]:
    """The environment, with the packages in front of PYTHONPATH."""
    package = os.path.dirname(os.path.dirname(path()))
    known = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    in_front = [place for place in (path(), package) if place not in known]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*in_front, *known])}


def with_local_rank(words: List[str]) -> List[str]:
    """The program's words, with the argument behind the program."""
    rank = os.environ.get("LOCAL_RANK")
    if rank is None:
        raise SystemExit(
            "python -m ringcomm.compat: LOCAL_RANK is not set; start it by ringrun or torchrun"
        )
    own = 2 if words[0] == "-m" else 1
    return [*words[:own], f"--local_rank={rank}", *words[own:]]


def main() -> NoReturn:
    """Become Python with the program's words."""
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        raise SystemExit(0)
    says_rank = words[:1] == ["--local_rank"]
    words = words[says_rank:]
    if not words or words == ["-m"]:
        print(USAGE, end="", file=sys.stderr)
        raise SystemExit(2)
    if says_rank:
        words = with_local_rank(words)
    own = interpreter_options(None if __spec__ is None else __spec__.parent)
    os.execve(sys.executable, [sys.executable, *own, *words], environment())


if __name__ == "__main__":
    main()
