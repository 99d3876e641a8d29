"""How ranks come to be and find each other: `init` in a job, `spawn` from one process."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import pickle
import secrets
import signal
import tempfile
import time
import traceback
import warnings
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ._native import check, lib
from .communicator import Communicator
from .config import Config
from .errors import RingRemoteError


class Launcher(NamedTuple):
    """What the environment says of this process's place in a job."""

    rank: int
    nranks: int
    #: The rank among those of this machine; -1 where the launcher does not say it.
    local_rank: int
    #: All of it in a sentence, with who said it.
    text: str


def launcher() -> Launcher:
    """What `init` would find in the environment; joins nobody. Raises without a launcher."""
    rank, nranks, local = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    text = ctypes.create_string_buffer(1024)
    check(
        lib.ringLauncherInfo(
            ctypes.byref(rank), ctypes.byref(nranks), ctypes.byref(local), text, len(text)
        )
    )
    return Launcher(rank.value, nranks.value, local.value, text.value.decode(errors="replace"))


def init(
    url: Optional[str] = None, nranks: int = -1, rank: int = -1, config: Optional[Config] = None
) -> Communicator:
    """Join the job that this process is a rank of; returns when all ranks have come.

    Without arguments it believes what ringrun, torchrun, mpirun, horovodrun or srun set in the
    environment. `url` says where to meet instead: `tcp://host:port`, `file:///path`, `env://`,
    `slurm://`. `init(nranks=1)` is a job of one rank, which needs no launcher.
    """
    if url is None and nranks == 1 and rank in (-1, 0):
        url, rank = f"file://{tempfile.gettempdir()}/ringcomm-{secrets.token_hex(8)}", 0
    return Communicator.from_url(url, nranks, rank, config)


class SpawnError(RuntimeError):
    """A rank of `spawn` failed; the text is the first failure, `failures` has every rank's.

    Attributes:
        rank: the rank that failed first.
        failures: what became of each rank that failed: the text of its exception with its
            traceback, or how its process ended.
        exception: the first failure's exception, if it has one that can be pickled.
    """

    def __init__(
        self, rank: int, failures: Dict[int, str], exception: Optional[BaseException] = None
    ) -> None:
        others = [other for other in sorted(failures) if other != rank]
        more = f"\n(ranks {others} failed after it)" if others else ""
        super().__init__(f"rank {rank} failed first: {failures[rank]}{more}")
        self.rank = rank
        self.failures = failures
        self.exception = exception


#: Seconds that the other ranks get, after one has failed, to say how they fail: a death is known in
#: milliseconds, and what waits for a deadline instead is not waited for.
_GRACE = 5.0
#: Seconds that all ranks get, after the last has returned, for what a program does at its end: what
#: it has written and not flushed, its exit handlers, its threads. More than any of these takes, and
#: not the caller's whole day where a thread never ends.
_FAREWELL = 120.0
#: Seconds between two looks at whether a process has ended.
_GLANCE = 0.05


def spawn(
    function: Callable[..., Any],
    nprocs: int,
    args: Sequence[Any] = (),
    kwargs: Optional[Mapping[str, Any]] = None,
    *,
    config: Optional[Config] = None,
    env: Optional[Mapping[str, str]] = None,
) -> List[Any]:
    """Call `function(comm, *args, **kwargs)` in `nprocs` new processes; what each rank returned.

    `comm` is the rank's `Communicator`. The function has a name in a module (not a lambda), and a
    script that spawns does so under `if __name__ == "__main__":`, since the processes are started
    anew. Where a rank fails the others are ended, and `SpawnError` says which and why. Returns when
    all processes have ended; one that has not two minutes after the last rank's return is killed,
    with a warning.
    """
    if nprocs < 1:
        raise ValueError(f"{nprocs} processes cannot be started")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="ringcomm-") as folder:
        settings = {
            "RINGCOMM_ADDRESS": f"file://{folder}/meet",
            "RINGCOMM_NRANKS": str(nprocs),
            # Of this machine, too: a job around this one has told its own.
            "RINGCOMM_LOCAL_SIZE": str(nprocs),
            **(env or {}),
        }
        job = (function, tuple(args), dict(kwargs or {}), config)
        ranks: List[Any] = []
        pipes: List[Any] = []
        try:
            for rank in range(nprocs):
                here, there = context.Pipe(duplex=False)
                settings["RINGCOMM_RANK"] = settings["RINGCOMM_LOCAL_RANK"] = str(rank)
                process = context.Process(
                    target=_rank,
                    args=(there, dict(settings), *job),
                    name=f"rank {rank}",
                    daemon=False,
                )
                process.start()
                there.close()
                ranks.append(process)
                pipes.append(here)
            results = _collect(ranks, pipes)
            _see_off(ranks)
            return results
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()
                process.join()
            for pipe in pipes:
                pipe.close()


def _rank(
    pipe: Any,
    settings: Dict[str, str],
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Dict[str, Any],
    config: Optional[Config],
) -> None:
    """What a process of `spawn` does."""
    os.environ.update(settings)
    try:
        with init(config=config) as comm:
            result = function(comm, *args, **kwargs)
        pipe.send((True, result, None))
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()
        pipe.send((False, f"{_line(error)}\n{text}", _picklable(error)))
        raise SystemExit(1) from None


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _picklable(error: BaseException) -> Optional[BaseException]:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error


def _collect(ranks: List[Any], pipes: List[Any]) -> List[Any]:
    """Every rank's result, or the failure that came first."""
    results: Dict[int, Any] = {}
    failures: Dict[int, str] = {}
    exceptions: Dict[int, Optional[BaseException]] = {}
    died: List[int] = []
    deadline: Optional[float] = None
    open_pipes: Dict[Any, int] = {pipe: rank for rank, pipe in enumerate(pipes)}
    while open_pipes:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        ready = multiprocessing.connection.wait(list(open_pipes), left)
        if not ready:
            break
        pipe: Any
        for pipe in ready:
            rank = open_pipes.pop(pipe)
            good: bool
            value: Any
            error: Optional[BaseException]
            try:
                said = pipe.recv_bytes()
            except (EOFError, OSError):
                # Before it said anything, or in the middle of a long result.
                ranks[rank].join()
                good, value, error = False, _ending(ranks[rank].exitcode), None
                died.append(rank)
            else:
                good, value, error = _understood(rank, said)
            if good:
                results[rank] = value
            else:
                failures[rank], exceptions[rank] = value, error
                deadline = deadline or time.monotonic() + _GRACE
    if failures:
        # A process that died without a word is why the others failed, and so is one with an error
        # of its own, whoever was heard first.
        own = [rank for rank in failures if not isinstance(exceptions[rank], RingRemoteError)]
        first = [*died, *own, *failures][0]
        raise SpawnError(first, failures, exceptions[first]) from exceptions[first]
    return [results[rank] for rank in range(len(ranks))]


def _see_off(ranks: List[Any]) -> None:
    """Wait until processes that have succeeded have ended, too, with all that is the user's."""
    deadline = time.monotonic() + _FAREWELL
    for process in ranks:
        # `join` alone waits for a pipe that what the rank has started may hold open.
        while process.is_alive() and (left := deadline - time.monotonic()) > 0:
            process.join(min(left, _GLANCE))
    late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    if late:
        warnings.warn(
            f"spawn: ranks {late} returned, and their processes had not ended {_FAREWELL:g} s "
            "later, so that they are killed: end their threads, or make them daemons",
            RuntimeWarning,
            stacklevel=3,
        )


def _understood(rank: int, said: bytes) -> Tuple[bool, Any, Optional[BaseException]]:
    """What a rank has sent of its end."""
    try:
        good, value, error = pickle.loads(said)
    except Exception as why:
        return False, f"what it gave back cannot be unpickled here: {_line(why)}", why
    return good, value, error


def _ending(code: Optional[int]) -> str:
    if code is not None and code < 0:
        try:
            return f"its process was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"its process was killed by signal {-code}"
    return f"its process ended with status {code} before its function returned"
