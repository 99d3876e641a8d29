"""`python -m ringcomm.apex.parallel.multiproc SCRIPT [ARGUMENT...]`: a process for each device.

Each gets the script's arguments and `--world-size N --rank R`. N is the number of CUDA devices, or
what `--world-size N` among the arguments, or the variable WORLD_SIZE, says. Beside that, each has
the variables that `init_method="env://"` reads. What ranks other than 0 print goes to GPU_R.log.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Dict, List, Optional

import torch

#: How often somebody looks whether a process has ended.
_LOOK_S = 0.05
#: How long a process may take to end when it is asked to.
_GRACE_S = 5.0


def _option(words: List[str], name: str) -> Optional[str]:
    """What the words say for an option, as `--name value` or `--name=value`."""
    for number, word in enumerate(words):
        if word == name and number + 1 < len(words):
            return words[number + 1]
        if word.startswith(f"{name}="):
            return word[len(name) + 1 :]
    return None


def _with(words: List[str], name: str, value: int) -> List[str]:
    """The words, in which the option has this value."""
    changed: List[str] = []
    rest = iter(words)
    for word in rest:
        if word == name:
            next(rest, None)
        elif not word.startswith(f"{name}="):
            changed.append(word)
    return [*changed, name, str(value)]


def _size(words: List[str]) -> int:
    said = _option(words, "--world-size") or os.environ.get("WORLD_SIZE")
    if said is None:
        devices = torch.cuda.device_count()
        if not devices:
            raise SystemExit(
                "multiproc: there is no CUDA device to count: give the number of processes, as "
                "--world-size 2 behind the script, or in the variable WORLD_SIZE"
            )
        return devices
    if not said.isdigit() or int(said) < 1:
        raise SystemExit(f"multiproc: the number of processes is 1 or more; got {said}")
    return int(said)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _environment(size: int) -> Dict[str, str]:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return {**place, **os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}


def main(words: List[str]) -> int:
    """Start the processes, and wait; where one fails, end the others, and return its status."""
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    size = _size(words)
    words = _with(words, "--world-size", size)
    variables = _environment(size)
    with ExitStack() as open_files:
        processes: List["subprocess.Popen[bytes]"] = []
        for rank in range(size):
            log = None if rank == 0 else open_files.enter_context(open(f"GPU_{rank}.log", "w"))
            mine = {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, *_with(words, "--rank", rank)]
            processes.append(subprocess.Popen(command, stdout=log, env=mine))
        try:
            return _wait(processes)
        finally:
            _end(processes)


def _wait(processes: List["subprocess.Popen[bytes]"]) -> int:
    while True:
        statuses = [process.poll() for process in processes]
        for rank, status in enumerate(statuses):
            if status:
                print(f"multiproc: rank {rank} ended with status {status}", file=sys.stderr)
                return status if status > 0 else 128 - status
        if None not in statuses:
            return 0
        time.sleep(_LOOK_S)


def _end(processes: List["subprocess.Popen[bytes]"]) -> None:
    """End what still runs, by asking first."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    end = time.monotonic() + _GRACE_S
    for process in running:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
