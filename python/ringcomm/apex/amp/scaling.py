"""`scale_loss`: the backward pass of a scaled loss, after which gradients have no scale."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Union

import torch

from .optimizer import AmpStash, stash_of
from .state import state


@contextmanager
def scale_loss(
    loss: torch.Tensor,
    optimizers: Any,
    loss_id: int = 0,
    model: Optional[torch.nn.Module] = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[torch.Tensor]:
    """Within it is the scaled loss, whose `backward` the script calls.

    Args:
        optimizers: the one, or a list of those, whose parameters get gradients from this loss.
        loss_id: which of the scales is this loss's, of the `num_losses` that `initialize` made.
        model: not needed.
        delay_unscale: gradients keep their scale until a pass without this; no step comes between.
        delay_overflow_check: gradients are unscaled, and nobody looks whether they overflowed.
    """
    properties = state.known("amp.scale_loss")
    if not properties.enabled:
        yield loss
        return
    if not 0 <= loss_id < len(state.loss_scalers):
        raise ValueError(
            f"amp.scale_loss: loss_id={loss_id}, and there are {len(state.loss_scalers)} loss "
            "scales; give amp.initialize as many as there are losses, as num_losses"
        )
    scaler = state.loss_scalers[loss_id]
    wide = loss if loss.dtype == torch.float64 else loss.float()
    if not (properties.master_weights or scaler.dynamic or scaler.loss_scale() != 1.0):
        yield wide
        return
    given: Union[Any, List[Any]] = optimizers
    stashes = [stash_of(one) for one in (given if isinstance(given, list) else [given])]
    for stash in stashes:
        stash.begin(scaler)
    try:
        yield wide * scaler.loss_scale()
    except BaseException:
        for stash in stashes:
            stash.drop()
        raise
    if delay_unscale:
        for stash in stashes:
            stash.hold(scaler)
    else:
        AmpStash.end(scaler, stashes, delay_overflow_check)


@contextmanager
def disable_casts() -> Iterator[None]:
    """Within it O1 casts nothing."""
    state.disabled += 1
    try:
        yield
    finally:
        state.disabled -= 1
