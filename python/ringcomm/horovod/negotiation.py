"""Which operations all ranks have asked for, and in which of them they differ.

Every rank keeps the same state from the same words, so that all come to the same answers, in the
same order, without one that decides.
"""

from __future__ import annotations

import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from .requests import Signature

Known = Tuple[str, Signature]


class Ready(NamedTuple):
    """An operation that all ranks have asked for; some have joined if `joined`."""

    name: str
    signature: Signature
    joined: bool


class Refused(NamedTuple):
    """An operation that cannot be done, and why."""

    name: str
    why: str


class Answers(NamedTuple):
    """What a round has brought: what can be done now, what never can, and who joined last where
    all have joined."""

    ready: List[Ready]
    refused: List[Refused]
    last_joined: Optional[int]


class _Open:
    """An operation that some ranks have asked for."""

    __slots__ = ("numbers", "since", "warned")

    def __init__(self) -> None:
        self.numbers: Dict[int, int] = {}
        self.since = self.warned = time.monotonic()


class Negotiation:
    """What ranks have asked for that is not done."""

    def __init__(self, nranks: int) -> None:
        self._nranks = nranks
        self._open: Dict[str, _Open] = {}
        #: Ranks that have joined, in the order in which they have.
        self._joined: List[int] = []
        #: Names and signatures by their numbers, as all ranks know them.
        self.known: Dict[int, Known] = {}

    def is_idle(self) -> bool:
        """Whether no rank waits for another."""
        return not self._open and not self._joined

    def forget(self) -> None:
        """Begin to learn names anew, but for those of open operations."""
        needed = {number for one in self._open.values() for number in one.numbers.values()}
        self.known = {number: self.known[number] for number in needed}

    def take(self, asked: Sequence[Iterable[int]], joining: Iterable[int]) -> Answers:
        """Every rank's new requests by their numbers, and the ranks that join."""
        touched: Dict[str, None] = {}
        for rank, numbers in enumerate(asked):
            for number in numbers:
                name = self.known[number][0]
                one = self._open.get(name)
                if one is None:
                    one = self._open[name] = _Open()
                one.numbers[rank] = number
                touched[name] = None
        before = len(self._joined)
        self._joined += joining
        last = self._joined[-1] if len(self._joined) == self._nranks else None
        if len(self._joined) > before:
            # Whoever has joined asks for everything that the others ask for.
            touched = dict.fromkeys(self._open)
        answers = Answers([], [], last)
        for name in touched:
            self._look(name, answers)
        if last is not None:
            self._joined.clear()
        return answers

    def _look(self, name: str, answers: Answers) -> None:
        numbers = self._open[name].numbers
        joined = [rank for rank in self._joined if rank not in numbers]
        if len(numbers) + len(joined) < self._nranks:
            return
        del self._open[name]
        signature = self.known[next(iter(numbers.values()))][1]
        if len(set(numbers.values())) > 1:
            answers.refused.append(Refused(name, self._differing(name, numbers)))
        elif joined and signature.kind != "allreduce":
            answers.refused.append(
                Refused(
                    name,
                    f"{signature} '{name}': ranks {_listed(joined)} have joined; only allreduce "
                    "goes on without them",
                )
            )
        else:
            answers.ready.append(Ready(name, signature, bool(joined)))

    def _differing(self, name: str, numbers: Dict[int, int]) -> str:
        sides: Dict[int, List[int]] = {}
        for rank in sorted(numbers):
            sides.setdefault(numbers[rank], []).append(rank)
        said = "; ".join(
            f"rank{'s' * (len(ranks) > 1)} {_listed(ranks)}: {self.known[number][1]}"
            for number, ranks in sides.items()
        )
        return f"'{name}' is not the same operation on all ranks: {said}"

    def stalled(self, seconds: float, again: bool = False) -> List[Tuple[str, Set[int]]]:
        """Operations that have waited for so long, and the ranks that they wait for; `again`: also
        those that were told less than so long ago."""
        now = time.monotonic()
        found = []
        for name, one in self._open.items():
            if now - (one.since if again else one.warned) >= seconds:
                one.warned = now
                missing = set(range(self._nranks)) - set(one.numbers) - set(self._joined)
                found.append((name, missing))
        return found


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
