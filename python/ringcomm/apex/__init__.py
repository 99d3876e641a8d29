"""The interface of NVIDIA's apex on torch.amp and ringcomm, for scripts that were written for apex.

    from ringcomm.apex import amp                                # was: from apex import amp
    from ringcomm.apex.parallel import DistributedDataParallel   # was: from apex.parallel import

`amp`, `parallel`, `optimizers` and `fp16_utils` have apex's names, which mean the same. It runs on
CUDA devices, in float16, and on the CPU, in bfloat16.
"""

from __future__ import annotations

from typing import Any

from . import amp, fp16_utils, multi_tensor_apply, optimizers, parallel
from .missing import missing

__all__ = ["amp", "fp16_utils", "multi_tensor_apply", "optimizers", "parallel"]


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
