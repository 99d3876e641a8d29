"""The properties that an `opt_level` stands for, and what a script may change about them."""

from __future__ import annotations

from typing import Any, Dict, Union

import torch

#: Stands for float16 on CUDA devices and for bfloat16 on the CPU.
_HALF = "half"

LEVELS: Dict[str, Dict[str, Any]] = {
    "O0": {
        "cast_model_type": torch.float32,
        "patch_torch_functions": False,
        "keep_batchnorm_fp32": None,
        "master_weights": False,
        "loss_scale": 1.0,
    },
    "O1": {
        "cast_model_type": None,
        "patch_torch_functions": True,
        "keep_batchnorm_fp32": None,
        "master_weights": None,
        "loss_scale": "dynamic",
    },
    "O2": {
        "cast_model_type": _HALF,
        "patch_torch_functions": False,
        "keep_batchnorm_fp32": True,
        "master_weights": True,
        "loss_scale": "dynamic",
    },
    "O3": {
        "cast_model_type": _HALF,
        "patch_torch_functions": False,
        "keep_batchnorm_fp32": False,
        "master_weights": False,
        "loss_scale": 1.0,
    },
}

_WORDS = {"True": True, "False": False}


class Properties:
    """How a script trains."""

    def __init__(self, opt_level: str, half: torch.dtype) -> None:
        if opt_level not in LEVELS:
            raise RuntimeError(
                f"opt_level {opt_level!r} is none of 'O0', 'O1', 'O2' and 'O3', which begin with "
                "the letter O"
            )
        level = LEVELS[opt_level]
        kind = level["cast_model_type"]
        self.enabled = True
        self.opt_level = opt_level
        #: False, as None, leaves models as they are.
        self.cast_model_type: Union[None, bool, torch.dtype] = half if kind == _HALF else kind
        self.patch_torch_functions: bool = level["patch_torch_functions"]
        self.keep_batchnorm_fp32: Union[None, bool] = level["keep_batchnorm_fp32"]
        self.master_weights: Union[None, bool] = level["master_weights"]
        self.loss_scale: Union[str, float] = level["loss_scale"]

    @property
    def options(self) -> Dict[str, Any]:
        """All of them by name."""
        return dict(vars(self))

    def override(self, **given: Any) -> None:
        """Change what is not None. What makes no sense at this level is refused."""
        for name, value in given.items():
            if value is not None:
                setattr(self, name, getattr(self, f"_checked_{name}")(value))

    def _checked_cast_model_type(self, value: Any) -> Any:
        if self.opt_level == "O1" and value not in (False, torch.float32):
            raise RuntimeError(
                f"cast_model_type={value} with O1, which leaves a model's weights in float32 and "
                'casts what functions take; use opt_level="O2" or "O3" to cast the model'
            )
        if value is not False and not isinstance(value, torch.dtype):
            raise TypeError(f"cast_model_type is a torch.dtype or False; got {value!r}")
        return value

    def _checked_patch_torch_functions(self, value: bool) -> bool:
        if value and self.opt_level != "O1":
            raise RuntimeError(
                f"patch_torch_functions=True with {self.opt_level}; it comes with "
                'opt_level="O1" alone'
            )
        return bool(value)

    def _checked_keep_batchnorm_fp32(self, value: Union[bool, str]) -> bool:
        if self.opt_level == "O1":
            raise RuntimeError(
                f"keep_batchnorm_fp32={value} with O1, which runs batch normalization in float32 "
                "in any case; leave the argument away"
            )
        kept = _WORDS.get(value) if isinstance(value, str) else value
        if not isinstance(kept, bool):
            raise ValueError(
                f"keep_batchnorm_fp32 is True, False or one of these words; got {value!r}"
            )
        return kept

    def _checked_master_weights(self, value: bool) -> bool:
        if self.opt_level == "O1":
            raise RuntimeError(
                f"master_weights={value} with O1, whose weights are in float32 themselves; leave "
                'the argument away, or use opt_level="O2"'
            )
        return bool(value)

    def _checked_loss_scale(self, value: Union[str, float]) -> Union[str, float]:
        return "dynamic" if value == "dynamic" else float(value)
