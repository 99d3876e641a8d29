"""Batch normalization with the statistics of all ranks' batches."""

from __future__ import annotations

from typing import Any, Tuple

import tensorflow as tf

from ..operations import Sum
from ..process_sets import ProcessSet, global_process_set
from .calls import allreduce

_BatchNormalization: Any = tf.keras.layers.BatchNormalization


class SyncBatchNormalization(_BatchNormalization):  # type: ignore[misc, unused-ignore]
    """Keras's `BatchNormalization`, over the batches of all ranks while it trains.

    Ranks' batches may differ in size; each counts by its rows.
    """

    def __init__(
        self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any
    ) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization is never fused; leave fused=False")
        super().__init__(**kwargs)
        self._process_set = process_set
        # Ranks talk outside of XLA.
        self.supports_jit = False

    def _moments(self, inputs: Any, mask: Any) -> Tuple[Any, Any]:
        mean, variance = super()._moments(inputs, mask)
        if self._process_set.size() == 1:
            return mean, variance
        rows = tf.cast(tf.size(inputs) / tf.size(mean), mean.dtype)
        if mask is not None:
            each = tf.cast(tf.size(inputs) / tf.size(mask), mean.dtype) / tf.cast(
                tf.size(mean), mean.dtype
            )
            rows = tf.reduce_sum(tf.cast(mask, mean.dtype)) * each
        every = self._sum(tf.stack([tf.fill(tf.shape(mean), rows), rows * mean]))
        common = every[1] / every[0]
        # Not the mean of squares less the square of the mean, which are nearly equal.
        apart = self._sum(rows * (variance + tf.square(mean - common)))
        return common, apart / every[0]

    def _sum(self, tensor: Any) -> Any:
        return allreduce(tensor, op=Sum, process_set=self._process_set)
