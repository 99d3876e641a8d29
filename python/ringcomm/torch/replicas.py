"""Copies of a module, one for each device, and running them at once.

A replica is a shallow copy whose parameters are outputs of `moves.Broadcast`, so gradients flow
through it to the module. Rank 0's replica has the module's own buffers: what it writes there
(running statistics) stays; what the others write is lost, as under torch.nn.DataParallel.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import Any, Dict, List, Sequence, Tuple

import torch

from . import moves


def replicate(
    module: torch.nn.Module, ranks: moves.Ranks, devices: moves.Devices
) -> List[torch.nn.Module]:
    """A replica of the module on each device."""
    parameters = list(module.parameters())
    flat = moves.Broadcast.apply(ranks, devices, *parameters) if parameters else ()
    placed = {}
    for index, parameter in enumerate(parameters):
        placed[id(parameter)] = flat[index :: len(parameters)]
    buffers = list(module.buffers())
    for buffer, copies in zip(buffers, moves.copies_of(buffers, ranks, devices)):
        placed[id(buffer)] = copies
    originals = list(module.modules())
    return [_assembled(originals, placed, rank) for rank in range(len(ranks))]


def _assembled(originals: List[torch.nn.Module], placed: Any, rank: int) -> torch.nn.Module:
    copies: Dict[int, torch.nn.Module] = {
        id(one): one._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        for one in originals
    }
    for original in originals:
        copy = copies[id(original)]
        for name, child in original._modules.items():
            copy._modules[name] = None if child is None else copies[id(child)]
        for name, parameter in original._parameters.items():
            if parameter is None:
                copy._parameters[name] = None
            else:
                # No leaf of the graph any more, and so no Parameter.
                setattr(copy, name, placed[id(parameter)][rank])
        for name, buffer in original._buffers.items():
            copy._buffers[name] = None if buffer is None else placed[id(buffer)][rank]
    return copies[id(originals[0])]


class Workers:
    """A thread for each replica, which stay from one batch to the next."""

    def __init__(self, devices: moves.Devices) -> None:
        self._devices = devices
        self._pool = ThreadPoolExecutor(len(devices), "ringcomm-replica")
        total = torch.get_num_threads()
        # Replicas on the CPU share its cores: each takes its part of torch's threads.
        each = max(1, total // len(devices)) if devices[0].type == "cpu" else total
        everyone = threading.Barrier(len(devices))
        wait([self._pool.submit(_take_threads, everyone, each) for _ in devices])
        # The workers' number became also that of threads to come.
        torch.set_num_threads(total)

    def apply(
        self, copies: Sequence[torch.nn.Module], pieces: Sequence[Tuple[Tuple[Any, ...], Any]]
    ) -> List[Any]:
        """Run each replica on its piece, all at once; the first error is raised."""
        settings = Settings(self._devices[0].type)
        started = [
            self._pool.submit(settings.run, copy, args, kwargs, device)
            for copy, (args, kwargs), device in zip(copies, pieces, self._devices)
        ]
        wait(started)
        return [one.result() for one in started]


def _take_threads(everyone: threading.Barrier, count: int) -> None:
    """The number of threads that operations of this thread use; each worker does it once."""
    everyone.wait()
    torch.set_num_threads(count)


class Settings:
    """What holds in the calling thread only, for the threads of the replicas."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._grad = torch.is_grad_enabled()
        self._autocast = torch.is_autocast_enabled(kind)
        self._type = torch.get_autocast_dtype(kind)

    def run(self, module: torch.nn.Module, args: Any, kwargs: Any, device: torch.device) -> Any:
        """Run the replica in this thread."""
        where: Any = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with where, torch.set_grad_enabled(self._grad):
            with torch.autocast(self._kind, self._type, enabled=self._autocast):
                return module(*args, **kwargs)
