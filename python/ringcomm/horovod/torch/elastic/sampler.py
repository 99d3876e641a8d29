"""A sampler that shares what is left of an epoch among the ranks that are left."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Sized

import torch

from ...job import rank, size

if TYPE_CHECKING:
    _Sampler = torch.utils.data.Sampler[int]
else:
    _Sampler = torch.utils.data.Sampler


class ElasticSampler(_Sampler):
    """The part of a dataset that is this rank's, without what the ranks have done in this epoch.

    Give it to the `TorchState`; call `record_batch` after every batch, and `set_epoch` at the end
    of every epoch. Where the samples that are left do not divide, the first are given again.

    Args:
        dataset: what has a length that does not change.
        shuffle: draw an order for every epoch, the same on all ranks.
        seed: of which it is drawn.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, of which nothing is done."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has done a batch of this size."""
        self.processed_num += batch_size * self.num_replicas

    def get_indices(self, batch_idx: int, batch_size: int) -> List[int]:
        """The samples of this batch of this rank, counted since the ranks changed last."""
        return self._mine()[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> Dict[str, Any]:
        """How far the ranks have come."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Go on from there, with the ranks that there are now."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Share what is left among the ranks that there are now."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def _mine(self) -> List[int]:
        left = self.remaining_indices
        if not left:
            return []
        # A dataset may be shorter than there are ranks.
        padded = left * (1 + self.num_replicas // len(left) if len(left) < self.num_replicas else 2)
        return padded[self.rank : self.total_size : self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self._mine())

    def __len__(self) -> int:
        return self.num_samples
