"""CUDA tensors and streams for who has no GPU: torch makes neither without one.

What ringcomm asks of a tensor is here over memory of the driver's; `torch.cuda` is replaced where
it is asked for the current stream and for events.
"""

import driver
import numpy as np
import pytest
import torch


class Tensor:
    """A float32 tensor of a CUDA device, as far as ringcomm asks."""

    is_cpu, is_cuda, dtype, layout = False, True, torch.float32, torch.strided

    def __init__(self, values, device=0):
        self.array = driver.Array(np.asarray(values, np.float32), device)
        self.device, self.shape = torch.device("cuda", device), self.array.shape

    def data_ptr(self):
        return self.array.address

    def numel(self):
        return int(np.prod(self.shape))

    def is_contiguous(self):
        return True

    def is_neg(self):
        return False

    is_complex = is_neg

    def detach(self):
        return self

    contiguous = resolve_conj = resolve_neg = detach

    def new_empty(self, shape):
        return Tensor(np.zeros(shape), self.device.index)

    def get(self):
        return self.array.get()


class Streams:
    """A stream of each device, which torch takes for its current one."""

    def __init__(self, count):
        self.all = [driver.Stream(device) for device in range(count)]
        for stream in self.all:
            stream.cuda_stream = stream.ptr

    def __getitem__(self, device):
        return self.all[torch.device(device).index]


@pytest.fixture
def streams(monkeypatch, devices):
    """torch's current stream of each device, by `torch.device`."""
    made = Streams(devices)
    monkeypatch.setattr(torch.cuda, "current_stream", made.__getitem__)
    monkeypatch.setattr(torch.cuda, "Event", driver.Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return made


def empty_like(like, device=None):
    """torch's, for these tensors."""
    return Tensor(np.zeros(like.shape), torch.device(device or like.device).index)
