"""Futures of operations: what their callbacks may do, and how a failure comes out of them.

Callbacks run in the order of the operations on every rank, but at any moment relative to the
program that made those: on the thread that completes futures, or at once where the future is
complete. So operations that callbacks start have a level of their own, with a communicator of its
own; on one communicator their order would differ from rank to rank.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, List

import torch


class Level(threading.local):
    """How deep in callbacks this thread is."""

    depth = 0


level = Level()


class Failure:
    """The value of a future whose operation failed: raises the error wherever it is looked at.

    torch's C++ code takes a future's value apart by pickling it, or says what it cannot convert by
    its `str`, so that the error comes out there as what it is.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self.error

    def __str__(self) -> str:
        raise self.error

    def __getitem__(self, index: Any) -> Any:
        raise self.error

    def __iter__(self) -> Any:
        raise self.error


def _raise_failure(value: Any) -> None:
    if isinstance(value, Failure):
        raise value.error


class Future(torch.futures.Future):  # type: ignore[type-arg]
    """A future of the tensors of an operation."""

    def __init__(self, tensors: List[torch.Tensor], depth: int) -> None:
        devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
        super().__init__(devices=sorted(devices, key=str))
        self._set_unwrap_func(_raise_failure)
        self._tensors, self._depth = tensors, depth

    def then(self, callback: Callable[[Any], Any]) -> "Future":
        """A future of what the callback returns."""
        made = Future(self._tensors, self._depth)

        def run(done: Any) -> None:
            try:
                value = callback(self)
            except BaseException as error:  # whoever waits for the callback's result gets it
                value = Failure(error)
            made.set_result(value)

        self.add_done_callback(run)
        return made

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back when the future is complete."""

        def run(done: Any) -> None:
            before, level.depth = level.depth, self._depth + 1
            try:
                callback(self)
            finally:
                level.depth = before

        super().add_done_callback(run)

    def settle(self, error: Any) -> None:
        """The operation is done: with its tensors, or with this error."""
        self.set_result(self._tensors if error is None else Failure(error))
