"""What `initialize` has decided, for everything that is called after it. There is one of it, as in
apex: a script has one."""

from __future__ import annotations

from typing import List, Optional

import torch.distributed as dist

from .properties import Properties
from .scaler import LossScaler


class State:
    """What holds for the whole script."""

    def __init__(self) -> None:
        self.verbosity = 1
        self.opt_properties: Optional[Properties] = None
        self.loss_scalers: List[LossScaler] = []
        #: Whether `initialize` takes models that are not in float32.
        self.allow_incoming_model_not_fp32 = False
        #: How many `disable_casts` are open.
        self.disabled = 0

    @property
    def casts_functions(self) -> bool:
        """Whether functions are cast, as O1 does."""
        properties = self.opt_properties
        if properties is None or self.disabled:
            return False
        return properties.enabled and properties.patch_torch_functions

    def known(self, call: str) -> Properties:
        """What `initialize` has decided; says of a call before it what to do."""
        if self.opt_properties is None:
            raise RuntimeError(
                f"{call} before amp.initialize: call model, optimizer = amp.initialize(model, "
                "optimizer, opt_level=...) first"
            )
        return self.opt_properties


state = State()


def maybe_print(msg: str, rank0: bool = False) -> None:
    """Say it, unless `verbosity` is 0; with `rank0` on that rank alone."""
    if state.verbosity <= 0:
        return
    if rank0 and dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
        return
    print(msg, flush=True)
