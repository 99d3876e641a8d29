"""Handles of the asynchronous operations."""

from __future__ import annotations

from typing import Any, Callable, List


class Pending:
    """An operation that is on its way."""

    def __init__(self, work: Any, result: Callable[[], Any]) -> None:
        self._work, self._result = work, result
        self._answer: Any = None

    def is_completed(self) -> bool:
        """Whether it is over; does not wait. As torch's works have it: one may be behind this."""
        done: bool = self._work is None or self._work.is_completed()
        return done

    def wait(self) -> Any:
        """Wait, and give the result; again the same if asked again."""
        if self._work is not None:
            self._work.wait()
            self._work, self._answer = None, self._result()
        return self._answer


class _Several:
    """Operations as one that torch's works are like."""

    def __init__(self, handles: List[Pending]) -> None:
        self._handles = handles

    def is_completed(self) -> bool:
        return all(handle.is_completed() for handle in self._handles)

    def wait(self) -> None:
        for handle in self._handles:
            handle.wait()


def together(handles: List[Pending]) -> Pending:
    """A handle of several operations, whose result is a list of theirs."""
    return Pending(_Several(handles), lambda: [handle.wait() for handle in handles])


def poll(handle: Pending) -> bool:
    """Whether an asynchronous operation is over: whether `synchronize` would return at once."""
    return handle.is_completed()


def synchronize(handle: Pending) -> Any:
    """The result of an asynchronous operation, when it is over."""
    return handle.wait()
