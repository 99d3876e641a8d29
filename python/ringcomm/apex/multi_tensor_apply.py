"""Where scripts ask whether apex's kernels are there. They are not; torch's take their place."""

from __future__ import annotations

from typing import Any

from .missing import missing


class MultiTensorApply:
    """What says that no kernel of apex can be called."""

    available = False

    def __call__(self, op: Any, *arguments: Any) -> Any:
        """Refused: there is no kernel to be called."""
        raise missing(__name__, "kernel")


multi_tensor_applier = MultiTensorApply()
