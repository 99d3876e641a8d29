"""`DataParallel`, not DistributedDataParallel: one process, a thread and a copy of the module for each device.

    inputs -- scatter --> pieces -- replicas, in parallel --> outputs -- gather --> output
                 parameters -- broadcast --> replicas; gradients -- reduce --> parameters

The devices are the ranks of one communicator in this process. Each move is an autograd function
whose backward is the opposite move, so the gradients come back to the module's own parameters by
themselves.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Union

import torch

from ..communicator import Communicator
from . import moves, replicas

Device = Union[int, str, torch.device]


class DataParallel(torch.nn.Module):
    """Runs a module on several devices: as `torch.nn.DataParallel`, and on CPU "devices" as well.

    Args:
        module: its parameters lie on the first device; where that is the only one, they are moved
            there.
        device_ids: a device for each replica: CUDA devices, each once, or `"cpu"` as often as
            replicas are wanted, as `["cpu"] * 4`. None is every CUDA device, and where there is
            none, a replica for each thread that torch uses.
        output_device: where the outputs come together, one of the devices; None is the first.
        dim: the dimension along which tensors of the inputs are cut.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Optional[Sequence[Device]] = None,
        output_device: Optional[Device] = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        self.module = module
        self.dim = dim
        self.devices = _devices(device_ids)
        self.device_ids = [-1 if one.type == "cpu" else one.index for one in self.devices]
        output = self.devices[0] if output_device is None else _device(output_device)
        if output not in self.devices:
            raise ValueError(
                f"output_device {output} is not among {self.devices}; give one of these"
            )
        self._root = self.devices.index(output)
        if len(self.devices) == 1:
            # As torch does, which leaves the module of several devices to its owner.
            module.to(self.devices[0])
        self._ranks: List[Communicator] = []
        self._workers: Optional[replicas.Workers] = None

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module on pieces of the inputs, and put its outputs together."""
        self._check_places()
        if len(self.devices) == 1:
            args, options = moves.placed((inputs, kwargs), self.devices[0])
            return self.module(*args, **options)
        pieces = moves.scatter((inputs, kwargs), self._communicators(), self.devices, self.dim)
        if len(pieces) == 1:
            # The module itself lies where the only replica would. Its output is gathered as those
            # of several are: programs see the same shapes whatever is left of a batch.
            settings = replicas.Settings(self.devices[0].type)
            args, options = pieces[0]
            outputs = [settings.run(self.module, args, options, self.devices[0])]
        else:
            copies = replicas.replicate(self.module, self._communicators(), self.devices)
            if self._workers is None:
                self._workers = replicas.Workers(self.devices)
            outputs = self._workers.apply(copies[: len(pieces)], pieces)
        return moves.gather(outputs, self._communicators(), self.devices, self._root, self.dim)

    def _communicators(self) -> List[Communicator]:
        if not self._ranks:
            self._ranks = Communicator.all(len(self.devices), self.device_ids)
        return self._ranks

    def _check_places(self) -> None:
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            if tensor.device != self.devices[0]:
                raise RuntimeError(
                    f"the module's parameters and buffers must be on {self.devices[0]}, the first "
                    f"device, and one is on {tensor.device}; move the module there first"
                )

    def __getstate__(self) -> Dict[str, Any]:
        # Communicators and threads belong to this object and process; a copy makes its own.
        return {**self.__dict__, "_ranks": [], "_workers": None}


def _devices(given: Optional[Sequence[Device]]) -> List[torch.device]:
    if given is None:
        if torch.cuda.is_available():
            given = list(range(torch.cuda.device_count()))
        else:
            given = ["cpu"] * torch.get_num_threads()
    devices = [_device(one) for one in given]
    kinds = {one.type for one in devices}
    if kinds not in ({"cpu"}, {"cuda"}):
        named = ", ".join(map(str, devices)) or "none"
        raise ValueError(f"device_ids must be CUDA devices, or the CPU several times; got {named}")
    if kinds == {"cuda"} and len(set(devices)) != len(devices):
        raise ValueError(f"device_ids names a CUDA device twice: {devices}; give each once")
    return devices


def _device(given: Device) -> torch.device:
    if isinstance(given, int):
        return torch.device("cpu") if given < 0 else torch.device("cuda", given)
    device = torch.device(given)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if device.type == "cpu" else device
