"""Ranks that are processes, each with NCCL's library loaded by a client of its own."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import time
import traceback
from dataclasses import dataclass

_SPAWN = multiprocessing.get_context("spawn")


@dataclass
class Place:
    """Where a rank is, and its way to the test that started it."""

    rank: int
    nranks: int
    pipe: multiprocessing.connection.Connection

    def share(self, make, root=0):
        """What `make()` returns on the root, on every rank: as MPI's broadcast brings an id to all."""
        if self.rank == root:
            self.pipe.send(("shared", make()))
        return self.pipe.recv()

    def meet(self):
        """Wait until every rank is here: no rank's end comes before what others still do."""
        self.pipe.send(("met", None))
        return self.pipe.recv()

    def die(self, seconds):
        """Be killed in so many seconds, when the other ranks wait."""
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)


def _rank(work, place, arguments):
    try:
        place.pipe.send(("returned", work(place, *arguments)))
    except BaseException:
        place.pipe.send(("raised", traceback.format_exc()))


class _Outcomes:
    """What the ranks have said so far."""

    def __init__(self, pipes):
        self.open, self.returned, self.raised, self.met = dict(enumerate(pipes)), {}, {}, 0

    def hear(self, rank):
        """Take the next message of a rank; what is shared goes to all ranks that are there."""
        try:
            kind, value = self.open[rank].recv()
        except EOFError:
            del self.open[rank]
            return
        if kind == "shared":
            self._tell_all(value)
        elif kind == "met":
            self.met = (self.met + 1) % len(self.open)
            if self.met == 0:
                self._tell_all(None)
        elif kind == "returned":
            self.returned[rank] = value
        else:
            self.raised[rank] = value

    def _tell_all(self, value):
        for pipe in self.open.values():
            pipe.send(value)


def run(work, nranks, *arguments, seconds=120):
    """What `work(place, *arguments)` returns on each rank; None where a rank was killed."""
    ends = [_SPAWN.Pipe() for _ in range(nranks)]
    ranks = []
    for rank, (_, theirs) in enumerate(ends):
        ranks.append(_SPAWN.Process(target=_rank, args=(work, Place(rank, nranks, theirs), arguments)))
        ranks[-1].start()
        # The end of a rank shows here only when nobody else has its side of the pipe.
        theirs.close()
    outcomes, until = _Outcomes([ours for ours, _ in ends]), time.monotonic() + seconds
    try:
        while outcomes.open and not outcomes.raised:
            left = until - time.monotonic()
            assert left > 0, f"ranks {sorted(outcomes.open)} are not done after {seconds} s"
            for pipe in multiprocessing.connection.wait(outcomes.open.values(), left):
                outcomes.hear(next(rank for rank, one in outcomes.open.items() if one is pipe))
    finally:
        for rank in ranks:
            if outcomes.open:
                rank.kill()
            rank.join()
    assert not outcomes.raised, "".join(f"rank {rank}: {text}" for rank, text in outcomes.raised.items())
    died = [rank for rank, one in enumerate(ranks) if one.exitcode not in (0, -signal.SIGKILL)]
    assert not died, f"ranks {died} ended with {[ranks[rank].exitcode for rank in died]}"
    return [outcomes.returned.get(rank) for rank in range(nranks)]


def library():
    """The library of these tests, which the suite names."""
    return os.path.realpath(os.environ["RINGCOMM_NCCL_LIBRARY"])


def loaded():
    """Every file in this process's memory that may be NCCL's library, as the kernel tells it."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
    return {path for path in paths if os.path.basename(path).startswith(("libnccl", "libringcomm"))}


def assert_ours():
    """This process has loaded this library, and no other of that name."""
    found = loaded()
    assert found == {library()}, f"{found} are loaded, and not {library()} alone"
