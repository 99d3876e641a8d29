"""Mixed precision with apex's interface.

model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
optimizer.step()
"""

from __future__ import annotations

from typing import Any

from ..missing import missing
from .frontend import initialize, load_state_dict, master_params, state_dict
from .functions import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from .scaling import disable_casts, scale_loss
from .state import state as _amp_state

__all__ = [
    "_amp_state", "disable_casts", "float_function", "half_function", "initialize",
    "load_state_dict", "master_params", "promote_function", "register_float_function",
    "register_half_function", "register_promote_function", "scale_loss", "state_dict",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
