"""Handles of the asynchronous operations."""

from __future__ import annotations

from typing import Any, Callable, List, Union

from ..requests import Request


class Several:
    """The handle of several operations: what `result` makes when all are over."""

    def __init__(self, handles: List[Request], result: Callable[[List[Any]], Any]) -> None:
        self._handles, self._result = handles, result

    def is_completed(self) -> bool:
        """Whether all are over; does not wait."""
        return all(handle.is_completed() for handle in self._handles)

    def wait(self) -> Any:
        """Wait for all, and give the result."""
        return self._result([handle.wait() for handle in self._handles])

    #: As Horovod's handle of `sparse_allreduce_async`, which is called.
    __call__ = wait


Handle = Union[Request, Several]


def poll(handle: Handle) -> bool:
    """Whether an asynchronous operation is over: whether `synchronize` would return at once."""
    return handle.is_completed()


def synchronize(handle: Handle) -> Any:
    """The result of an asynchronous operation, when it is over."""
    return handle.wait()
