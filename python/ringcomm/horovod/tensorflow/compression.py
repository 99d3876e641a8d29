"""What tensors are made of on their way: Horovod's `Compression`, and programs' own."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import tensorflow as tf


class Compressor:
    """A compression of one's own is a class with these two."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """The tensor as it travels, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor as it was before, from what came."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Tensors travel as they are. Those that round have another `dtype`."""

    dtype: Optional[tf.DType] = None

    @classmethod
    def compress(cls, tensor: Any) -> Tuple[Any, Any]:
        low = cls.dtype is not None and tensor.dtype.is_floating
        return (tf.cast(tensor, cls.dtype) if low else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


class FP16Compressor(NoneCompressor):
    """Floating point numbers travel as float16."""

    dtype = tf.float16


class BF16Compressor(NoneCompressor):
    """Floating point numbers travel as bfloat16."""

    dtype = tf.bfloat16


class Compression:
    """What tensors are rounded to on their way."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
