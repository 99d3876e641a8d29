"""Gradients on their way between ranks, while the backward pass still runs or at its end.

Buckets are sent in one order on every rank: that of the parameters backwards, in which a pass
usually reaches them. One that is complete earlier waits for those before it, and those that are
incomplete are sent at the end. So ranks may differ in which parameters they use.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch.autograd import Variable

from ...torch.buckets import Bucket, Parameters
from ...torch.ranks import Ranks

_task_of_thread: Callable[[], int] = getattr(torch._C, "_current_graph_task_id")


def cut(parameters: Parameters, message_size: int, triggers: Set[int]) -> Iterator[Parameters]:
    """Parameters whose gradients travel together: of one type and device, and as soon as they have
    so many elements; or, where there are triggers, up to each of these."""
    open_parts: Dict[Any, Parameters] = {}
    for parameter in parameters:
        key = (parameter.dtype, parameter.device)
        members = open_parts.setdefault(key, [])
        members.append(parameter)
        enough = sum(member.numel() for member in members) >= message_size
        if id(parameter) in triggers if triggers else enough:
            yield open_parts.pop(key)
    yield from open_parts.values()


def when_arrived(parameter: Any, function: Callable[[torch.Tensor], None]) -> Any:
    """Call this each time that a gradient of the parameter is complete; returns a handle."""
    return parameter.register_post_accumulate_grad_hook(function)


class Exchange:
    """The gradients of some parameters, once in every backward pass."""

    def __init__(self, buckets: List[Bucket], ranks: Sequence[Ranks], delayed: bool) -> None:
        self.buckets, self._ranks, self._delayed = buckets, ranks, delayed
        self.enabled = True
        #: What the last pass brought, for who retains it.
        self.received: List[torch.Tensor] = []
        self._bucket_of = {
            id(parameter): number
            for number, bucket in enumerate(buckets)
            for parameter in bucket.parameters
        }
        self._hooks = [
            when_arrived(parameter, self._arrived)
            for bucket in buckets
            for parameter in bucket.parameters
        ]
        self._task: Optional[int] = None
        self._begin()

    def close(self) -> None:
        """No further pass is looked at."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self) -> None:
        self._missing = [len(bucket.parameters) for bucket in self.buckets]
        self._sent = 0

    def _arrived(self, parameter: torch.Tensor) -> None:
        """This pass has added to the parameter's gradient."""
        if not self.enabled:
            return
        assert parameter.grad is not None, "the hook is called when there is one"
        if parameter.grad.layout is not torch.strided:
            raise ValueError(
                f"a gradient of shape {tuple(parameter.shape)} is sparse; make its layer with "
                "sparse=False"
            )
        task = _task_of_thread()
        if task != self._task:
            # What an earlier pass has sent that failed, and did not end, nobody waits for.
            self._begin()
            self._task = task
            Variable._execution_engine.queue_callback(self._end)
        if self._delayed:
            return
        self._missing[self._bucket_of[id(parameter)]] -= 1
        while self._sent < len(self.buckets) and self._missing[self._sent] <= 0:
            self._send_next()

    def _send_next(self) -> None:
        self.buckets[self._sent].start(self._ranks[self._sent % len(self._ranks)])
        self._sent += 1

    def _end(self) -> None:
        """The pass is over: send what is not sent, and wait for all of it. A pass within the pass
        has done that for both."""
        if self._task is None:
            return
        self._task = None
        while self._sent < len(self.buckets):
            self._send_next()
        self.received = [bucket.finish() for bucket in self.buckets]
        self._begin()
