"""What is said of a name of apex that is not here."""

from __future__ import annotations

from typing import Dict

_PAGE = "what of apex is here, and what takes the place of the rest, is in docs/python/from-apex.md"

#: What takes the place of names that old scripts ask for.
_INSTEAD: Dict[str, str] = {
    "FP16_Optimizer": 'use amp.initialize(model, optimizer, opt_level="O2")',
    "LossScaler": "amp.initialize has its loss_scale, a number",
    "DynamicLossScaler": 'amp.initialize has loss_scale="dynamic"',
    "init": "use amp.initialize(model, optimizer) and amp.scale_loss",
    "normalization": "torch.nn.LayerNorm and torch.nn.RMSNorm take the place of its layers",
    "FusedMixedPrecisionLamb": 'use FusedLAMB with amp.initialize(opt_level="O2")',
}


def missing(module: str, name: str) -> AttributeError:
    """The error for this name of a module of apex."""
    instead = _INSTEAD.get(name)
    return AttributeError(f"{module} has no {name}: {f'{instead}; ' if instead else ''}{_PAGE}")
