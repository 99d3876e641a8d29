"""The coordinator: ranks submit operations in any order, and do them in one.

In a round every rank says which operations have been submitted to it since the last, by numbers:
hashes of their names, types and shapes. Where all say the same, that is all: the operations are
done in that order. Else every rank works out alike what all have asked for (`negotiation`).

A rank enters a round when it has something to say or something of its own is open; it then waits
for the others, which enter at least once in `TICK_S`. So a round brings news, or shows who is
late. The rounds and what they lead to are made by one thread at a time: one that waits for a
result, or the coordinator's own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from array import array
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..communicator import Communicator
from ..errors import RingError
from .exceptions import HorovodInternalError
from .fusion import Fusion, Zeros
from .negotiation import Negotiation, Ready
from .requests import Request, Signature, failed, internal, number_of
from .settings import Settings
from .timeline import Timeline

#: A rank without anything to do enters a round so often: others learn by it that it lives.
TICK_S = 1.0
#: Ranks that all wait for other operations than those that the others have look again after at
#: most so long.
MOST_PAUSE_S = 0.05
#: A wait by someone who has other ways to wait.
BRIEF_S = 0.001
#: Cycles for which operations are collected while more come.
MOST_CYCLES = 8
#: Longer than a rank that computes is without a tick.
MOST_GOODBYE_S = 30.0
#: Numbers that a round's first message carries: it has 256 bytes with what is before them.
NUMBERS = 29
#: Flags of a round's first message.
SHUTDOWN, JOIN, UNKNOWN, STALLED = 1, 2, 4, 8

#: Numbers that are remembered; new names come with every call of a program that gives none.
MOST_NUMBERS = 1 << 15

_log = logging.getLogger("ringcomm.horovod")


class Coordinator:
    """The operations of a set of ranks. Its communicator is for nothing else."""

    def __init__(
        self, comm: Communicator, ranks: Sequence[int], settings: Settings, timeline: Timeline
    ) -> None:
        self.comm, self.ranks, self.timeline = comm, list(ranks), timeline
        # Ranks must pack the same tensors together.
        self._settings: Settings = comm.broadcast_object(settings)
        self._negotiation = Negotiation(comm.nranks)
        self._fusion = Fusion(comm, self._settings.fusion_bytes, self._settings.packed_bytes)
        #: Guards what follows; the two wake those who wait for a result, and the own thread.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake = threading.Condition(self._lock)
        self._new: List[Request] = []
        self._mine: Dict[str, Request] = {}
        self._joining: Optional[Request] = None
        #: What makes this rank's part of operations on other devices, once it has joined.
        self._zeros: Zeros = None
        self._driving, self._waiting = False, 0
        self._closing = self._stalled = False
        #: Why nothing can be submitted any more.
        self._ended: Optional[BaseException] = None
        self._pause_s = 0.0
        self._last_round = time.monotonic()
        self._numbers: Dict[Tuple[str, Signature], int] = {}
        #: Operations without a name since all ranks have joined, and how often they have.
        self._counts: Dict[str, int] = {}
        self._joins = 0
        self._header = array("q", bytes(8 * (3 + NUMBERS)))
        self._headers = array("q", bytes(8 * (3 + NUMBERS) * comm.nranks))
        #: What a framework has for as long as the coordinator lasts, to be shut down with it.
        self.of_framework: Dict[str, Any] = {}
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="ringcomm hvd", daemon=True)
        self._thread.start()

    @property
    def rank(self) -> int:
        """This rank in the set."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """The number of ranks of the set."""
        return self.comm.nranks

    def name(self, kind: str, given: Optional[str]) -> str:
        """The name of an operation: the program's, or the next of this kind."""
        if given:
            return f"{kind}.{given}"
        with self._lock:
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            since = f"{self._joins}." if self._joins else ""
        return f"{kind}.noname.{since}{number}"

    def submit(self, request: Request, soon: bool = False) -> Request:
        """Take an operation on; `soon`: its caller is about to wait for it."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "this process is a fork of a rank of Horovod's job: make operations in the parent"
            )
        request.coordinator = self
        key = (request.name, request.signature)
        number = self._numbers.get(key) or number_of(*key)
        request.number = number
        with self._lock:
            if self._ended is not None:
                raise self._ended
            if self._joining is not None:
                raise ValueError(f"'{request.name}': this rank has joined, and submits no more")
            self.refuse_twice(request.name)
            if len(self._numbers) > MOST_NUMBERS:
                self._numbers.clear()
            self._numbers[key] = number
            self._mine[request.name] = request
            self._new.append(request)
            # The thread is told of the first, and looks itself whether more come.
            if not soon and not self._driving and len(self._new) == 1:
                self._wake.notify()
                if self._pause_s and self._waiting:
                    self._changed.notify_all()
        if self.timeline.on:
            self.timeline.begin(request.name, f"NEGOTIATE_{request.signature.kind.upper()}")
        return request

    def refuse_twice(self, name: str) -> None:
        """Refuse a name that is under way."""
        if name in self._mine:
            raise ValueError(
                f"'{name}' has been submitted already and is not done: give each operation that "
                "is under way a name of its own"
            )

    def join(self, zeros: Zeros, answer: Callable[[int], Any] = int) -> Request:
        """Say that this rank submits no more; its result is what `answer` makes of the rank that
        said it last."""
        request = Request("join", Signature.of("join"), lambda: answer(request.keep))
        request.coordinator = self
        with self._lock:
            if self._ended is not None:
                raise self._ended
            if self._joining is not None:
                raise ValueError("join() runs already in another thread of this rank")
            self._joining, self._zeros = request, zeros
            self._new.append(request)
        return request

    def wait(self, request: Request, briefly: bool = False) -> None:
        """Return when the operation is done; make the rounds meanwhile, if nobody does. `briefly`:
        after at most one of them."""
        with self._lock:
            self._waiting += 1
            try:
                while not request.settled:
                    if self._ended is not None:
                        failed([request], self._ended)
                    elif briefly and (self._driving or self._rest_s() > 0):
                        self._changed.wait(BRIEF_S)
                    elif self._driving:
                        self._changed.wait()
                    else:
                        self._drive()
                    if briefly:
                        break
            finally:
                self._waiting -= 1
                if self._waiting:
                    self._changed.notify_all()
                elif self._new or self._mine:
                    self._wake.notify()

    def begin_close(self) -> None:
        """Tell the other ranks that this one goes; what is open then fails everywhere."""
        with self._lock:
            self._closing = True
            self._wake.notify()

    def close(self) -> None:
        """Both."""
        self.begin_close()
        self.finish_close()

    def finish_close(self) -> None:
        """End the communicator when all ranks know it; one that does not answer is not waited for
        without end."""
        self._thread.join(MOST_GOODBYE_S)
        late = self._thread.is_alive()
        for one in self.of_framework.values():
            one.abort() if late else one.shutdown()
        self.comm.abort() if late else self.comm.destroy()

    def stop(self, broken: bool) -> None:
        """End the rounds after `begin_close` and leave the communicator, for a job that goes on
        with other ranks."""
        self._thread.join(MOST_GOODBYE_S)
        late = self._thread.is_alive()
        for one in self.of_framework.values():
            one.abort() if late or broken else one.shutdown()
        if late:
            raise HorovodInternalError(
                f"rank {self.rank}: the other ranks have not answered within {MOST_GOODBYE_S:g} s"
            )

    def _serve(self) -> None:
        with self._lock:
            while self._ended is None:
                if self._driving or self._waiting:
                    self._wake.wait(TICK_S)
                elif self._closing or self._joining is not None:
                    self._drive()
                elif self._new:
                    self._collect()
                    if not self._driving and not self._waiting and not self._closing:
                        self._drive()
                elif self._mine or time.monotonic() - self._last_round >= TICK_S:
                    self._drive()
                else:
                    self._wake.wait(TICK_S)

    def _collect(self) -> None:
        """Wait until no more comes, for a few cycles: what comes together goes together."""
        for _ in range(MOST_CYCLES):
            before = len(self._new)
            self._wake.wait(self._settings.cycle_s)
            if len(self._new) == before or self._waiting or self._closing:
                return

    def _rest_s(self) -> float:
        """How long not to ask again, as nothing has come of it; the lock is held."""
        if not self._pause_s or self._new or self._closing:
            return 0.0
        return self._last_round + self._pause_s - time.monotonic()

    def _drive(self) -> None:
        """One round, in this thread; the lock is held, but not while ranks talk."""
        rest_s = self._rest_s()
        if rest_s > 0:
            (self._changed if self._waiting else self._wake).wait(rest_s)
            if self._driving or self._ended is not None:
                return
        self._driving = True
        news, self._new = self._new, []
        closing = self._closing
        self._lock.release()
        error: Optional[BaseException] = None
        try:
            self._round(news, closing)
        except BaseException as problem:
            error = problem
        while True:
            try:
                self._lock.acquire()
                break
            except BaseException as problem:  # a signal's, while it waited
                error = problem
        self._driving = False
        self._last_round = time.monotonic()
        if error is not None:
            self._end(internal(error))
            if not isinstance(error, RingError):
                # The others know nothing of it, and would wait for this rank's next round.
                self.comm.abort()
        if self._waiting > 1 or (self._waiting and threading.current_thread() is self._thread):
            self._changed.notify_all()
        if error is not None and not isinstance(error, Exception):
            raise error

    def _end(self, error: BaseException) -> None:
        """Nothing can be done any more; the lock is held."""
        if self._ended is None:
            self._ended = error if isinstance(error, Exception) else HorovodInternalError(
                "the call was interrupted, and ranks may wait for different things: shut down"
            )  # fmt: skip
        open_ = [one for one in self._mine.values() if not one.settled]
        if self._joining is not None:
            open_.append(self._joining)
        failed(open_, self._ended)
        self._mine.clear()
        self._joining = None
        self._new.clear()
        self._changed.notify_all()
        self._wake.notify()

    def _round(self, news: List[Request], closing: bool) -> None:
        joins = any(request is self._joining for request in news)
        numbers = array("q", [one.number for one in news if one is not self._joining])
        known, header = self._negotiation.known, self._header
        unknown = [number for number in numbers if number not in known]
        flags = closing * SHUTDOWN | self._stalled * STALLED | joins * JOIN | bool(unknown) * UNKNOWN
        header[0], header[1] = flags, len(numbers)
        first = numbers[:NUMBERS]
        # All of it: what an earlier round has left may differ from rank to rank.
        header[3:] = first + array("q", bytes(8 * (NUMBERS - len(first))))
        digest = hashlib.blake2b(numbers.tobytes(), digest_size=8).digest()
        header[2] = int.from_bytes(digest, "little", signed=True)
        self.timeline.cycle()
        self.comm.all_gather(header, self._headers)
        same = self._headers.tobytes() == header.tobytes() * self.size
        if same and not closing and not joins and self._negotiation.is_idle():
            if numbers:
                self._learn(news, unknown)
                self._do([Ready(one.name, one.signature, False) for one in news])
            self._pause_s = 0.0
        else:
            self._differ(news, numbers, unknown)

    def _learn(self, news: List[Request], unknown: List[int]) -> None:
        """All ranks have these, and so know them from now on."""
        if not unknown or not self._settings.cache_capacity:
            return
        needed = set(unknown)
        self._remember(
            {one.number: (one.name, one.signature) for one in news if one.number in needed}
        )

    def _remember(self, names: Dict[int, Tuple[str, Signature]]) -> None:
        self._negotiation.known.update(names)
        if len(self._negotiation.known) > self._settings.cache_capacity:
            self._negotiation.forget()

    def _differ(self, news: List[Request], numbers: "array[int]", unknown: List[int]) -> None:
        """A round in which ranks have said different things, or some wait for others."""
        width = 3 + NUMBERS
        rows = [self._headers[at : at + width] for at in range(0, len(self._headers), width)]
        counts = [row[1] for row in rows]
        asked = [row[3 : 3 + min(row[1], NUMBERS)] for row in rows]
        more = [max(0, count - NUMBERS) for count in counts]
        if any(more):
            rest = array("q", bytes(8 * sum(more)))
            self.comm.all_gather_v(numbers[NUMBERS:], rest, more)
            for rank, count in enumerate(more):
                asked[rank], rest = asked[rank] + rest[:count], rest[count:]
        if any(row[0] & UNKNOWN for row in rows):
            names = {one.number: (one.name, one.signature.parts()) for one in news}
            for each in self.comm.all_gather_object({number: names[number] for number in unknown}):
                for number, (name, parts) in each.items():
                    self._negotiation.known[number] = name, Signature.of(*parts)
        joining = [rank for rank, row in enumerate(rows) if row[0] & JOIN]
        answers = self._negotiation.take(asked, joining)
        self._remember({})
        for name, why in answers.refused:
            self._refuse(name, why)
        self._do(answers.ready)
        if answers.last_joined is not None:
            self._all_joined(self.ranks[answers.last_joined])
        self._look_for_stalls()
        leaving = [rank for rank, row in enumerate(rows) if row[0] & SHUTDOWN]
        if leaving:
            with self._lock:
                self._end(self._left(leaving, any(row[0] & STALLED for row in rows)))
        quiet = not any(counts) and not joining
        self._pause_s = min(MOST_PAUSE_S, max(self._settings.cycle_s, 2 * self._pause_s)) * quiet
        if not quiet or self._negotiation.is_idle():
            self._pause_s = 0.0

    def _in_job(self, why: str) -> str:
        if self.ranks == list(range(self.size)):
            return why
        return f"{why} (ranks of the process set {self.ranks}, by their places in it)"

    def _left(self, leaving: List[int], stalled: bool) -> HorovodInternalError:
        who = ", ".join(str(self.ranks[rank]) for rank in leaving)
        why = (
            "an operation has waited for HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
            if stalled
            else "it has called shutdown() or has come to its end"
        )
        return HorovodInternalError(f"Horovod has been shut down by rank {who}: {why}")

    def _refuse(self, name: str, why: str) -> None:
        with self._lock:
            request = self._mine.pop(name, None)
        if request is not None:
            failed([request], HorovodInternalError(self._in_job(why)))
            if self.timeline.on:
                self.timeline.end(name)

    def _all_joined(self, last: int) -> None:
        with self._lock:
            request, self._joining, self._zeros = self._joining, None, None
            # Ranks have made different numbers of operations without names.
            self._joins += 1
            self._counts.clear()
        if request is not None:
            request.keep, request.settled = last, True

    def _do(self, ready: Sequence[Ready]) -> None:
        """Do these in this order; small reductions together."""
        together: Dict[int, List[Ready]] = {}
        with self._lock:
            found = {one.name: self._mine.get(one.name) for one in ready}
        for one in ready:
            if one.signature.pieces:
                together.setdefault(one.signature.reduction, []).append(one)
        for reduction, members in together.items():
            wanted = [(one.signature, found[one.name]) for one in members]
            self._timed(members, lambda: self._fusion.reduce(reduction, wanted))
        for one in ready:
            if not one.signature.pieces:
                request = found[one.name]
                if request is not None:
                    self._timed([one], request.run)
                elif self._zeros is not None:
                    self._zeros(one.signature)

    def _timed(self, members: Sequence[Ready], run: Optional[Callable[[], Any]]) -> None:
        """Do it, and settle its requests."""
        if self.timeline.on:
            for one in members:
                self.timeline.end(one.name)
                self.timeline.begin(one.name, one.signature.kind.upper())
        error: Optional[BaseException] = None
        work: Any = None
        try:
            work = None if run is None else run()
        except RingError as problem:
            if self.comm.handle is None or self.comm.error() is not None:
                raise
            # Refused on every rank, as all ask for the same.
            error = internal(problem)
        except Exception as problem:
            error = problem
        with self._lock:
            for one in members:
                request = self._mine.get(one.name)
                if request is not None:
                    request.work, request.error = work, error
                    request.settled = True
                    del self._mine[one.name]
        if self.timeline.on:
            for one in members:
                self.timeline.end(one.name)

    def _look_for_stalls(self) -> None:
        warn, end = self._settings.stall_warning_s, self._settings.stall_shutdown_s
        if self.rank != 0:
            return
        stalled = self._negotiation.stalled(warn) if warn else []
        if stalled:
            _log.warning(
                "operations that some ranks have submitted wait for others, for more than %g s. "
                "Ranks may have submitted different operations, or some ranks none: %s",
                warn,
                "; ".join(
                    f"{name} waits for rank{'s' * (len(ranks) > 1)} "
                    + ", ".join(str(self.ranks[rank]) for rank in sorted(ranks))
                    for name, ranks in stalled
                ),
            )
        if end and self._negotiation.stalled(end, again=True):
            with self._lock:
                self._closing = self._stalled = True
