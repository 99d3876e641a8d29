"""What a DLPack capsule says: the structures of DLPack 0.8 and 1.0, read through ctypes."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional, Tuple


class Unfit(Exception):
    """Why an array's capsule cannot be used."""


class Tensor(NamedTuple):
    """What a capsule holds."""

    address: int
    shape: Tuple[int, ...]
    #: In elements; None where the elements lie one after the other.
    strides: Optional[Tuple[int, ...]]
    #: Kind and bytes as in `__array_interface__`, or the type's name.
    kind: str
    #: -1 on the CPU, else CUDA's number.
    device: int
    read_only: bool
    owner: Any


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned; before 1.0 a managed tensor began with the DLTensor itself."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_CODES = {0: "i", 1: "u", 2: "f", 6: "b"}
# kDLCPU, kDLCUDAHost, kDLROCMHost: ordinary memory; kDLCUDA, kDLCUDAManaged: a CUDA device.
_HOST, _CUDA = (1, 3, 11), (2, 13)

# Of one's own, since types that are said of the attribute hold for everybody in the process.
_pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_valid = ctypes.pythonapi["PyCapsule_IsValid"]
_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def read(array: Any) -> Tensor:
    """What the capsule of `array` says. The capsule is not consumed: it goes with `owner`."""
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = array.__dlpack__()
    if _valid(capsule, b"dltensor_versioned"):
        address = _pointer(capsule, b"dltensor_versioned")
        versioned = _Versioned.from_address(address)
        if versioned.major != 1:
            raise Unfit(f"its DLPack is version {versioned.major}, and ringcomm knows 1")
        tensor, read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    else:
        # Without the flag nobody says that it may be written (JAX's may not).
        tensor, read_only = _DLTensor.from_address(_pointer(capsule, b"dltensor")), True
    if tensor.device_type in _HOST:
        device = -1
    elif tensor.device_type in _CUDA:
        device = tensor.device_id
    else:
        raise Unfit(
            f"it lies on a device of DLPack's type {tensor.device_type}; move it to the CPU"
        )
    if tensor.lanes != 1:
        raise Unfit("its elements are vectors")
    if tensor.code == 4 and tensor.bits == 16:
        kind = "bfloat16"
    else:
        kind = f"{_CODES.get(tensor.code, '?')}{tensor.bits // 8}"
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides and tensor.ndim else None
    return Tensor(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        kind,
        device,
        read_only,
        (array, capsule),
    )
