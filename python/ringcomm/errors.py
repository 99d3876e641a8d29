"""What is raised when a call fails: `RingError`, with the facts of the failure as attributes.

The library says in one sentence who, what, which rank, which operation, and what to do. The
sentence is the exception's text; the facts in it are its attributes, so that a program can act on
them.
"""

from __future__ import annotations

import re
from typing import Any, List, NamedTuple, Optional, Tuple, Type


class RingError(RuntimeError):
    """A call of ringcomm failed; the text says what happened and what to do about it.

    Attributes:
        result: the library's result (a `ringcomm.Result`).
        message: its sentence.
        rank: this rank in the communicator, where it is known.
        peer: the rank at fault, as far as one is: it died, did not come, or disagreed.
        operation: the call that failed, as `AllReduce(count=8, type=float, op=sum)`.
        sequence: that call's number on the communicator, from 0.
        missing: the ranks that had not arrived, where a communicator could not be made.
    """

    def __init__(
        self,
        message: str,
        result: int,
        *,
        rank: Optional[int] = None,
        peer: Optional[int] = None,
        operation: Optional[str] = None,
        sequence: Optional[int] = None,
        missing: Optional[List[int]] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.result = result
        self.rank = rank
        self.peer = peer
        self.operation = operation
        self.sequence = sequence
        self.missing = missing or []

    def __reduce__(self) -> Tuple[Any, ...]:
        facts = (self.message, self.result, self.rank, self.peer, self.operation, self.sequence)
        return _restored, (type(self), facts, self.missing)


class RingArgumentError(RingError, ValueError):
    """An argument that can never be right."""


class RingUsageError(RingError):
    """A call that is right by itself but not here: ranks that disagree, a failed communicator."""


class RingRemoteError(RingError, ConnectionError):
    """Another rank died or failed; `peer` names it."""


class RingTimeoutError(RingError, TimeoutError):
    """A rank did not come in time; `peer` (or `missing`) names it."""


class RingAbortedError(RingError):
    """`Communicator.abort` was called on this rank."""


class RingSystemError(RingError):
    """The operating system refused something."""


class Facts(NamedTuple):
    """What a sentence of the library names."""

    rank: Optional[int] = None
    peer: Optional[int] = None
    operation: Optional[str] = None
    sequence: Optional[int] = None
    missing: Optional[List[int]] = None


_CALL = r"(?P<call>[\w/]+(?:\([^#]*?\))?) #(?P<number>\d+)"
_WHO = r"rank (?P<peer>\d+)(?: \([^)]*\))?"
# One for each sentence in which the library names ranks; `rank` is this one, `peer` the one at
# fault.
_SENTENCES = [
    re.compile(rf"ranks disagree: rank (?P<rank>\d+) called {_CALL} but {_WHO} called"),
    re.compile(
        rf"{_WHO} died(?: or cannot be reached)?: rank (?P<rank>\d+) cannot go on(?: in {_CALL})?"
    ),
    re.compile(rf"timeout: rank (?P<rank>\d+) waited \d+ ms for {_WHO}(?: in {_CALL})?"),
    re.compile(r"rank (?P<rank>\d+) expected message .* from rank (?P<peer>\d+) but got"),
    re.compile(rf"the connection (?:of rank (?P<rank>\d+) )?to {_WHO} broke(?: in {_CALL})?"),
    re.compile(rf"the communicator of rank (?P<rank>\d+) was aborted(?: in {_CALL})?"),
    re.compile(r"only \d+ of \d+ ranks had arrived; missing: \[(?P<missing>[\d, ]*)\]"),
    re.compile(r"only \d+ of them had met there; missing: \[(?P<missing>[\d, ]*)\]"),
    re.compile(
        r"the ranks had not met \((?:rank (?P<rank>\d+) of )?.*\): "
        r"missing of \d+ ranks: \[(?P<missing>[\d, ]*)\]"
    ),
]
_REMOTE = re.compile(
    rf"{_WHO} failed and rank (?P<rank>\d+) cannot go on(?: in {_CALL})?: (?P<text>.*)",
    re.S,
)


def facts_of(text: str) -> Facts:
    """The facts in one of the library's sentences."""
    remote = _REMOTE.search(text)
    if remote:
        outer, inner = _named(remote), facts_of(remote["text"])
        # Who told us may only have been the first to notice: the rank at fault is the one it names,
        # unless that is this rank.
        peer = inner.peer if inner.peer is not None and inner.peer != outer.rank else outer.peer
        return outer._replace(peer=peer)
    for sentence in _SENTENCES:
        match = sentence.search(text)
        if match:
            return _named(match)
    return Facts()


def _named(match: "re.Match[str]") -> Facts:
    found = match.groupdict()

    def number(name: str) -> Optional[int]:
        return int(found[name]) if found.get(name) else None

    missing = [int(rank) for rank in re.findall(r"\d+", found.get("missing") or "")]
    return Facts(
        number("rank"), number("peer"), found.get("call"), number("number"), missing or None
    )


def error_of(
    kind: Type[RingError], result: int, text: str, rank: Optional[int] = None
) -> RingError:
    """The exception, of this kind, for a result of the library and its sentence."""
    facts = facts_of(text)
    return kind(
        text,
        result,
        rank=facts.rank if rank is None else rank,
        peer=facts.peer,
        operation=facts.operation,
        sequence=facts.sequence,
        missing=facts.missing,
    )


def _restored(kind: Type[RingError], facts: Tuple[Any, ...], missing: List[int]) -> RingError:
    message, result, rank, peer, operation, sequence = facts
    return kind(
        message,
        result,
        rank=rank,
        peer=peer,
        operation=operation,
        sequence=sequence,
        missing=missing,
    )
