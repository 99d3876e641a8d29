"""What ranks tell each other beside gradients: means of metrics, and Python objects.

Both go through memory, as every call does; nothing is written where other ranks would look for it.
"""

from __future__ import annotations

import zlib
from typing import Any, Dict, List, Mapping, Union

import torch

from .ranks import Group, ranks_of

Value = Union[int, float, torch.Tensor]


def reduce_mean(
    metrics: Mapping[str, Value], *, weight: float = 1.0, group: Group = None
) -> Dict[str, Any]:
    """The mean of each metric over all ranks: `reduce_mean({"loss": loss, "accuracy": 0.9})`.

    With `weight`, as the number of samples behind this rank's figures, it is the weighted mean,
    right for ranks that saw different numbers of samples. Numbers come back as floats, tensors as
    tensors. Means are taken in float64, in the order of ranks, and are the same bits on every rank.
    """
    ranks = ranks_of(group)
    parts: List[torch.Tensor] = []
    shapes: List[str] = []
    for name, value in metrics.items():
        figure = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu")
        parts.append(figure.detach().to(ranks.device).double().reshape(-1))
        shapes.append(f"{name} {tuple(figure.shape)}")
    names = ", ".join(shapes)
    head = torch.tensor([zlib.crc32(names.encode()), weight], dtype=torch.float64, device="cpu")
    # Two figures first: ranks with other metrics are found before their figures are mixed up.
    heads = ranks.all_gather(head.to(ranks.device)).cpu()
    others = (heads[:, 0] != heads[0, 0]).nonzero().flatten().tolist()
    if others:
        raise ValueError(
            f"reduce_mean: ranks disagree on the metrics; rank {others[0]} gives others than rank "
            f"0, and rank {ranks.rank} gives {names}; give the same names and shapes in the same "
            "order"
        )
    gathered = ranks.all_gather(torch.cat(parts)) if parts else None
    weights = heads[:, 1:].to(ranks.device)
    if not float(weights.sum()) > 0:
        raise ValueError(
            "reduce_mean: the weights of all ranks add up to nothing; give one rank a weight"
        )
    answer: Dict[str, Any] = {}
    offset = 0
    for (name, value), part in zip(metrics.items(), parts):
        assert gathered is not None
        rows = gathered[:, offset : offset + part.numel()]
        offset += part.numel()
        # A rank without samples may have no metric: 0/0.
        mean = torch.where(weights > 0, rows * weights, 0.0).sum(0) / weights.sum()
        answer[name] = _like(value, mean)
    return answer


def _like(value: Value, mean: torch.Tensor) -> Any:
    if not isinstance(value, torch.Tensor):
        return float(mean)
    kind = value.dtype if value.is_floating_point() else torch.float64
    return mean.reshape(value.shape).to(value.device, kind)


def all_gather_object(value: Any, group: Group = None) -> List[Any]:
    """Every rank's Python object, in the order of ranks. Objects may be large, and of any sizes.

    Loading a pickle runs what it says, so this is for ranks that trust each other.
    """
    return ranks_of(group).all_gather_object(value)


def broadcast_object(value: Any = None, root: int = 0, group: Group = None) -> Any:
    """The root's Python object, on every rank; on the root, the object itself."""
    return ranks_of(group).broadcast_object(value, root)
