"""The device, from outside: what scripts say of GPUs does nothing where there is none.

torch calls `install` at the end of its import, as the `.dist-info` beside this file asks. It is all
that is changed for the scripts; the backend is not among it.
"""

import os

import torch


def install():
    """Let models and tensors stay where they are."""
    if torch.cuda.is_available():
        return

    def stay(self, *_, **__):
        return self

    torch.Tensor.cuda = torch.nn.Module.cuda = stay
    # Two objects: torch's compiler keeps a list of both names.
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None

    parallel = torch.nn.parallel.DistributedDataParallel
    plain = parallel.__init__

    def without_devices(self, module, device_ids=None, output_device=None, **more):
        plain(self, module, **more)

    parallel.__init__ = without_devices
    torch.nn.DataParallel = OnCPUDevices


class OnCPUDevices(torch.nn.DataParallel):
    """torch's class is a plain module without CUDA devices: ringcomm's, on as many as are said."""

    def __new__(cls, module):
        import ringcomm.torch

        return ringcomm.torch.DataParallel(module, ["cpu"] * int(os.environ["CPU_DEVICES"]))
