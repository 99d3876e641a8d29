"""Groups: calls that a thread collects, and that start together at the end.

The library has the calls until then; here is kept what they use, and which handles wait for them.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Dict, List, Optional, Tuple, Type

from ._native import Result, check, failure, last_error, lib
from .errors import RingError, RingUsageError
from .streams import Given, Handle, Stream


class _Groups(threading.local):
    """The groups that are open in this thread."""

    depth = 0

    def __init__(self) -> None:
        #: What the calls use, the host streams to which they go, and the communicators.
        self.calls: List[Tuple[Any, Optional[Stream], Any]] = []
        self.handles: List[Handle] = []
        #: The exception by which one of them ended, which drops the calls of all.
        self.dropped: Optional[BaseException] = None


here = _Groups()
#: How many groups are open in all threads: while none is, calls need not look for theirs.
open_groups = 0
_opening = threading.Lock()


def group_start() -> None:
    """Open a group in this thread; see `group`."""
    global open_groups
    check(lib.ringGroupStart())
    with _opening:
        open_groups += 1
    here.depth += 1


def group_end() -> None:
    """Close the innermost group; the outermost runs what it holds."""
    global open_groups
    with _opening:
        open_groups -= here.depth > 0
    here.depth = max(here.depth - 1, 0)
    if here.depth:
        check(lib.ringGroupEnd())
        return
    handles, cause = here.handles, here.dropped
    given = _given_by_group()
    error: Optional[RingError] = None
    try:
        result = lib.ringGroupEnd()
        error = failure(result, last_error()) if result else None
    finally:
        for stream, each in given.items():
            if not stream.began(each) and error is not None:
                stream.refused(each, error if cause is None else _dropped("the call was", cause))
        for handle in handles:
            handle.grouped(given)
        here.calls, here.handles, here.dropped = [], [], None
    if error is not None and cause is not None:
        # The library knows only of the call by which it was told to drop them.
        raise _dropped("the calls of this group were", cause) from cause
    if error is not None:
        raise error


def _dropped(calls: str, cause: BaseException) -> RingUsageError:
    return RingUsageError(
        f"{calls} dropped with a group that ended by {type(cause).__name__}: make all calls of the "
        "outermost group again where the program goes on",
        Result.INVALID_USAGE,
    )


def _given_by_group() -> Dict[Stream, Given]:
    """What the end of this thread's group gives to each host stream."""
    given: Dict[Stream, Given] = {}
    for stream in {stream: None for _, stream, _ in here.calls if stream is not None}:
        its = [call for call in here.calls if call[1] is stream]
        comms = list({id(comm): comm for _, _, comm in its}.values())
        given[stream] = Given([owners for owners, _, _ in its], comms)
        stream.begin(given[stream])
    return given


class group:
    """`with ringcomm.group():` the calls in it start together at its end.

    Needed where one thread makes the calls of several ranks, and for sends and receives that wait
    for each other. The buffers of the calls are left alone until the end. An exception on the way
    there drops the calls: some of them may be missing, for which the others would wait. So it does
    those of the groups around it: where it goes no further than into one of them, that raises
    `RingUsageError` at its end.
    """

    def __enter__(self) -> "group":
        group_start()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if kind is None:
            group_end()
            return
        # None of the calls of a group runs where one of them is refused.
        lib.ringBarrier(None, None)
        here.dropped = here.dropped or value
        with suppress(RingError):
            group_end()
