"""`SyncBatchNorm`: batch normalization over the batches of all ranks, on the CPU as well.

Each rank's mean, spread and count travel once, forward; two sums per channel travel once, backward.
The ranks' figures are combined in the order of ranks, so every rank normalizes with the same bits:

    count = sum n_r   mean = sum n_r mean_r / count   spread = sum spread_r + n_r (mean_r - mean)^2

which is what one process finds on the whole batch, without the cancellation of a sum of squares.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from .ranks import Group, Ranks, ranks_of


class SyncBatchNorm(_BatchNorm):
    """Batch normalization of (N, C, ...) inputs over the batches of all ranks.

    Equal to `torch.nn.BatchNorm*d` in one process on the full batch, forward and backward; ranks'
    batches may differ in size and be empty. In evaluation it is `BatchNorm*d`. Affine parameters
    get this rank's part of their gradient, as all parameters do: DistributedDataParallel or
    `reduce_gradients` averages it.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: Optional[float] = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        group: Group = None,
        **more: Any,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **more)
        self.group = group

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, got {input.dim()}")

    def _ranks(self) -> Optional[Ranks]:
        """Those whose batches are one; None is this rank alone."""
        return ranks_of(self.group)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize; in training this is a call that every rank makes."""
        self._check_input_dim(input)
        ranks = self._ranks() if self.training else None
        if ranks is None or ranks.size == 1:
            return super().forward(input)
        output: torch.Tensor
        output, mean, variance, count = _Normalize.apply(
            input, self.weight, self.bias, self.eps, ranks
        )
        self._track(mean, variance * (count / (count - 1)))
        return output

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Let the running statistics follow; they are None where they are not wanted."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        for running, now in ((self.running_mean, mean), (self.running_var, variance)):
            running.mul_(1 - momentum).add_(now.to(running.dtype), alpha=momentum)


def convert_sync_batchnorm(module: torch.nn.Module, group: Group = None) -> torch.nn.Module:
    """The module, with each BatchNorm and torch SyncBatchNorm in it ours, on the same parameters.

    As with torch's own, before the module is handed to DistributedDataParallel. A lazy BatchNorm,
    which learns its size from its first batch, is refused until it has had one.
    """
    return convert(module, group, SyncBatchNorm)


def convert(module: torch.nn.Module, group: Group, make: Callable[..., Any]) -> torch.nn.Module:
    """As `convert_sync_batchnorm`, with what `make` makes of SyncBatchNorm's arguments."""
    # Before anything is changed.
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and isinstance(part, LazyModuleMixin):
            where = f"its module {name!r}" if name else "it"
            raise ValueError(
                f"convert_sync_batchnorm: {where} is a {type(part).__name__} and does not know how "
                "many features it has; run one batch through the model first, then convert it"
            )
    return _with_ours(module, group, make)


def _with_ours(module: torch.nn.Module, group: Group, make: Callable[..., Any]) -> torch.nn.Module:
    if isinstance(module, _BatchNorm):
        return _converted(module, group, make)
    for name, child in module.named_children():
        setattr(module, name, _with_ours(child, group, make))
    return module


def _converted(old: _BatchNorm, group: Group, make: Callable[..., Any]) -> SyncBatchNorm:
    group = group or getattr(old, "process_group", None)
    new: SyncBatchNorm = make(
        old.num_features, old.eps, old.momentum, old.affine, old.track_running_stats, group
    )
    new.weight, new.bias = old.weight, old.bias
    new.running_mean, new.running_var = old.running_mean, old.running_var
    new.num_batches_tracked = old.num_batches_tracked
    new.training = old.training
    return new


def _by_channel(tensor: torch.Tensor) -> torch.Tensor:
    """As (C, everything else)."""
    return tensor.transpose(0, 1).reshape(tensor.shape[1], -1)


def _along(channels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A vector over channels, to be broadcast against (N, C, ...)."""
    return channels.view(1, -1, *([1] * (like.dim() - 2)))


def _together(rows: torch.Tensor, ranks: Ranks) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean, variance and count over all ranks, from this rank's (C, n) values."""
    features, here = rows.shape
    # Few figures, so in float64: what one process adds up in one go loses nothing by being cut.
    facts = rows.new_zeros(2 * features + 1, dtype=torch.float64)
    facts[-1] = here
    if here:
        variance, mean = torch.var_mean(rows, dim=1, correction=0)
        facts[:features], facts[features:-1] = mean, variance.double() * here
    gathered = ranks.all_gather(facts)
    means, spreads, counts = gathered[:, :features], gathered[:, features:-1], gathered[:, -1:]
    count = counts.sum()
    if count < 2:
        raise ValueError("more than 1 value per channel, over all ranks, is needed in training")
    mean = (means * counts).sum(0) / count
    spread = (spreads + counts * (means - mean) ** 2).sum(0)
    return mean.to(rows.dtype), (spread / count).to(rows.dtype), count


class _Normalize(torch.autograd.Function):
    """The normalization, and its gradient with respect to every rank's input."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: Optional[torch.Tensor],
        bias: Optional[torch.Tensor],
        eps: float,
        ranks: Ranks,
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        # Half types are summed in float32, as torch does; double stays double.
        wide = torch.promote_types(input.dtype, torch.float32)
        mean, variance, count = _together(_by_channel(input.to(wide)), ranks)
        scale = torch.rsqrt(variance + eps)
        normal = (input.to(wide) - _along(mean, input)) * _along(scale, input)
        output = normal if weight is None else normal * _along(weight.to(wide), input)
        if bias is not None:
            output = output + _along(bias.to(wide), input)
        ctx.ranks, ctx.affine = ranks, (weight is not None, bias is not None)
        ctx.save_for_backward(input, weight, mean, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Tuple[Any, ...]:
        input, weight, mean, scale, count = ctx.saved_tensors
        wide = mean.dtype
        normal = (input.to(wide) - _along(mean, input)) * _along(scale, input)
        rows = _by_channel(grad.to(wide))
        sums = torch.stack([rows.sum(1), (rows * _by_channel(normal)).sum(1)])
        weight_grad = sums[1].to(weight.dtype) if ctx.affine[0] else None
        bias_grad = sums[0].to(grad.dtype if weight is None else weight.dtype)
        input_grad = None
        if ctx.needs_input_grad[0]:
            totals = sums.to(torch.float64, copy=True)
            ctx.ranks.all_reduce(totals)
            means = (totals / count).to(wide)
            factor = scale if weight is None else scale * weight.to(wide)
            centred = grad.to(wide) - _along(means[0], input) - normal * _along(means[1], input)
            input_grad = (centred * _along(factor, input)).to(input.dtype)
        return input_grad, weight_grad, bias_grad if ctx.affine[1] else None, None, None
