"""What gradients are made of on their way: Horovod's `Compression`, and programs' own."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch


class Compressor:
    """A compression of one's own is a class with these two."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        """The tensor as it travels, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor as it was before, from what came."""
        raise NotImplementedError


class _Rounded(Compressor):
    """Floating point numbers travel as `dtype`."""

    dtype: Optional[torch.dtype] = None

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        low = cls.dtype is not None and tensor.is_floating_point()
        return (tensor.to(cls.dtype) if low else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class NoneCompressor(_Rounded):
    """Tensors travel as they are."""


class FP16Compressor(_Rounded):
    """Floating point numbers travel as float16."""

    dtype = torch.float16


class BF16Compressor(_Rounded):
    """Floating point numbers travel as bfloat16."""

    dtype = torch.bfloat16


class Compression:
    """What gradients are rounded to on their way."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def rounded_to(compression: Any) -> Tuple[bool, Optional[torch.dtype]]:
    """Whether a compression only rounds, and to which type."""
    if compression is None or isinstance(compression, torch.dtype):
        return True, compression
    if isinstance(compression, type) and issubclass(compression, _Rounded):
        return True, compression.dtype
    return False, None


def compress(compression: Any, tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
    """A tensor as a compression has it: a class or object of Horovod's form, or a type."""
    if compression is None:
        return tensor, tensor.dtype
    if isinstance(compression, torch.dtype):
        return (tensor.to(compression) if tensor.is_floating_point() else tensor), tensor.dtype
    made: Tuple[torch.Tensor, Any] = compression.compress(tensor)
    return made


def decompress(compression: Any, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
    """The tensor as it was before `compress`."""
    if compression is None or isinstance(compression, torch.dtype):
        return tensor.to(ctx)
    made: torch.Tensor = compression.decompress(tensor, ctx)
    return made
