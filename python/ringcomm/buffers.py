"""Where a user's buffer lies, how long it is and what is in it, without importing whose it is.

Anything will do that has `data_ptr` (PyTorch), `__array_interface__` (NumPy),
`__cuda_array_interface__` (CuPy, Numba), the buffer protocol (bytearray, array, memoryview, ctypes)
or `__dlpack__` (JAX): nothing is copied. Which of these a type speaks is found out once and
remembered by type, until an instance of it speaks another, as one on another device may.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, Optional, Set, Tuple

from . import dlpack
from ._native import DataType, Result
from .errors import RingArgumentError

#: The device of ordinary memory; others are CUDA's numbers.
CPU = -1


#: What the library needs to know of a buffer: address, elements, their type, device, and what must
#: stay alive for as long as the memory is used. A plain tuple, since it is made for every call.
Buffer = Tuple[int, int, DataType, int, Any]


_D = DataType
#: By the names of NumPy, PyTorch and ml_dtypes.
NAMES: Dict[str, DataType] = {
    "int8": _D.INT8,
    "uint8": _D.UINT8,
    "int16": _D.INT16,
    "uint16": _D.UINT16,
    "int32": _D.INT32,
    "uint32": _D.UINT32,
    "int64": _D.INT64,
    "uint64": _D.UINT64,
    "float16": _D.FLOAT16,
    "float32": _D.FLOAT32,
    "float64": _D.FLOAT64,
    "bfloat16": _D.BFLOAT16,
    "bool": _D.BOOL,
    "half": _D.FLOAT16,
    "float": _D.FLOAT32,
    "double": _D.FLOAT64,
    "float8_e4m3fn": _D.FLOAT8E4M3,
    "float8_e5m2": _D.FLOAT8E5M2,
}
#: By kind and bytes, as in `__array_interface__`'s typestr.
KINDS: Dict[str, DataType] = {
    "i1": _D.INT8, "u1": _D.UINT8, "i2": _D.INT16, "u2": _D.UINT16, "i4": _D.INT32,
    "u4": _D.UINT32, "i8": _D.INT64, "u8": _D.UINT64, "f2": _D.FLOAT16, "f4": _D.FLOAT32,
    "f8": _D.FLOAT64, "b1": _D.BOOL,
}  # fmt: skip
#: By the letters of the struct module, of which some have the C compiler's size.
_LETTERS = {
    "b": "i",
    "h": "i",
    "i": "i",
    "l": "i",
    "q": "i",
    "B": "u",
    "H": "u",
    "I": "u",
    "L": "u",
    "Q": "u",
    "c": "u",
    "e": "f",
    "f": "f",
    "d": "f",
    "?": "b",
}

_HAS = [kind.name.lower() for kind in DataType]

_Reader = Callable[[Any, bool], Buffer]
#: How a type is read, for those that were seen.
readers: Dict[type, _Reader] = {}
#: Types whose instances are not all read in one way: each is looked at.
_various: Set[type] = set()
_from_buffer = ctypes.c_char.from_buffer
_address = ctypes.addressof


def source(buffer: Any) -> Buffer:
    """A buffer that is read."""
    reader = readers.get(type(buffer)) or reader_for(buffer)
    return reader(buffer, False)


def target(buffer: Any) -> Buffer:
    """A buffer that is written."""
    reader = readers.get(type(buffer)) or reader_for(buffer)
    return reader(buffer, True)


def pair(send: Any, recv: Any) -> Tuple[int, int, int, DataType, int, Any]:
    """Two buffers that belong together: both addresses, elements, type, device, owners."""
    # What training calls most, written out, since a call of Python's costs as much as the rest.
    kind = type(send)
    reader = readers.get(kind) if kind is type(recv) else None
    if reader is _ndarray:
        try:
            dtype, count = send.dtype, send.size
            if recv.dtype is dtype and recv.size == count:
                out, into = _address(_from_buffer(send)), _address(_from_buffer(recv))
                return (out, into, count, _types[dtype], CPU, (send, recv))
        except (KeyError, TypeError, ValueError, BufferError):
            pass
    elif reader is _tensor and send.is_cpu and recv.is_cpu:
        dtype, count = send.dtype, send.numel()
        datatype = _types.get(dtype)
        if datatype is not None and recv.dtype is dtype and recv.numel() == count:
            try:
                plain = not (send.is_neg() or recv.is_neg())
                if plain and send.is_contiguous() and recv.is_contiguous():
                    return (send.data_ptr(), recv.data_ptr(), count, datatype, CPU, (send, recv))
            except RuntimeError:
                pass  # one is sparse
    one, other = source(send), target(recv)
    belong(one, other)
    if other[1] != one[1]:
        raise unfit(recv, f"it has {other[1]} elements, and send has {one[1]}; give both the same")
    return (one[0], other[0], one[1], one[2], one[3], (one[4], other[4]))


def belong(send: Buffer, recv: Buffer) -> None:
    """Refuse two buffers of one call that differ in type or device."""
    for index, kind in ((2, "type"), (3, "device")):
        if send[index] != recv[index]:
            named = (
                place(side[3]) if index == 3 else side[2].name.lower() for side in (send, recv)
            )
            raise RingArgumentError(
                "send is {} and recv is {}; use one {}".format(*named, kind),
                Result.INVALID_ARGUMENT,
            )


def place(device: int) -> str:
    """A device's name."""
    return "on the CPU" if device == CPU else f"on CUDA device {device}"


def unfit(buffer: Any, why: str) -> RingArgumentError:
    """The error for a buffer that cannot be used."""
    kind = type(buffer)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return RingArgumentError(
        f"this {name} cannot be used as a buffer: {why}", Result.INVALID_ARGUMENT
    )


def reader_for(buffer: Any) -> _Reader:
    """How this buffer is read; found out once for its type."""
    kind = type(buffer)
    reader: _Reader
    if hasattr(kind, "data_ptr") and hasattr(kind, "is_contiguous"):
        reader = _tensor
    elif hasattr(kind, "__array_struct__") and hasattr(kind, "flags"):
        reader = _ndarray
    elif hasattr(buffer, "__cuda_array_interface__"):
        reader = _cuda_interface
    elif hasattr(buffer, "__array_interface__"):
        reader = _interface
    elif _has_buffer(buffer):
        reader = _memory
    elif hasattr(kind, "__dlpack__"):
        reader = _dlpack
    else:
        raise unfit(
            buffer,
            "it has none of the buffer protocol, __array_interface__, __cuda_array_interface__ and "
            "__dlpack__; make an array of it (numpy.asarray), or use the ..._object methods",
        )
    if kind not in _various:
        readers[kind] = reader
    return reader


def _unlike_others(buffer: Any, write: bool) -> Buffer:
    """Read a buffer that has not the interface which another of its type had."""
    kind = type(buffer)
    _various.add(kind)
    readers.pop(kind, None)
    return reader_for(buffer)(buffer, write)


def _has_buffer(buffer: Any) -> bool:
    try:
        memoryview(buffer).release()
    except (TypeError, BufferError):
        return False
    return True


# NumPy's and PyTorch's own type objects, so that no text is looked at twice.
_types: Dict[Any, DataType] = {}


def _type_of(buffer: Any, dtype: Any) -> DataType:
    """The type behind NumPy's, PyTorch's or ml_dtypes' type object."""
    name = getattr(dtype, "name", None) or str(dtype)
    found = NAMES.get(name.rpartition(".")[2])
    if found is None:
        raise unfit(buffer, f"ringcomm has no type {dtype}; it has {', '.join(_HAS)}")
    if getattr(dtype, "isnative", True) is False:
        raise unfit(
            buffer,
            f"its bytes are in foreign order ({dtype}); use .astype(dtype.newbyteorder('='))",
        )
    _types[dtype] = found
    return found


def _ndarray(array: Any, write: bool) -> Buffer:
    try:
        # Refused for what is read-only, empty, not contiguous, or of a type that only ml_dtypes
        # has.
        return (_address(_from_buffer(array)), array.size, _types[array.dtype], CPU, array)
    except (KeyError, TypeError, ValueError, BufferError):
        pass
    datatype = _types.get(array.dtype) or _type_of(array, array.dtype)
    flags = array.flags
    if not flags.c_contiguous:
        raise unfit(array, NOT_CONTIGUOUS.format("numpy.ascontiguousarray(...)"))
    if write and not flags.writeable:
        raise unfit(array, READ_ONLY)
    # A scalar makes an array each time that it is asked where it lies: of this one, which is kept.
    array = array.__array__()
    return (array.__array_interface__["data"][0], array.size, datatype, CPU, array)


NOT_CONTIGUOUS = (
    "its elements do not lie one after the other (a slice or a transpose); use {} first"
)
READ_ONLY = "it is read-only, and the result is written there; use a copy"


def _tensor(tensor: Any, write: bool) -> Buffer:
    datatype = _types.get(tensor.dtype)
    if datatype is None:
        datatype = _type_of(tensor, tensor.dtype)
    try:
        contiguous = tensor.is_contiguous()
    except RuntimeError:
        contiguous = False  # of some sparse layouts torch does not answer that
    if not contiguous:
        layout = str(getattr(tensor, "layout", ""))
        if "sparse" in layout:
            raise unfit(tensor, f"it is sparse ({layout}), not one block; use .to_dense() first")
        raise unfit(tensor, NOT_CONTIGUOUS.format(".contiguous()"))
    if tensor.is_neg():
        raise unfit(
            tensor, "it is the negative of what lies in its memory; use .resolve_neg() first"
        )
    device = CPU if tensor.is_cpu else _cuda_index(tensor)
    return (tensor.data_ptr(), tensor.numel(), datatype, device, tensor)


def _cuda_index(tensor: Any) -> int:
    device = tensor.device
    if device.type == "meta":
        raise unfit(
            tensor,
            "it is on the meta device, and has a shape but no data; make one that has, as "
            'torch.empty_like(tensor, device="cpu")',
        )
    if device.type != "cuda":
        raise unfit(
            tensor, f"it lies on {device}, and ringcomm knows cpu and cuda; use .cpu() first"
        )
    return int(device.index or 0)


def _interface(array: Any, write: bool) -> Buffer:
    try:
        fields = array.__array_interface__
    except AttributeError:
        return _unlike_others(array, write)
    return _described(array, fields, CPU, write)


def _cuda_interface(array: Any, write: bool) -> Buffer:
    try:
        fields = array.__cuda_array_interface__
    except AttributeError:
        return _unlike_others(array, write)
    device = getattr(array, "device", 0)
    return _described(array, fields, int(getattr(device, "id", 0)), write)


def _described(array: Any, fields: Dict[str, Any], device: int, write: bool) -> Buffer:
    typestr = fields["typestr"]
    datatype = KINDS.get(typestr[1:])
    if datatype is None and hasattr(array, "dtype"):
        datatype = _types.get(array.dtype) or _type_of(array, array.dtype)
    if datatype is None or (typestr[0] == ">" and datatype.itemsize > 1):
        raise unfit(array, f"ringcomm has no type {typestr}")
    count = 1
    for length in fields["shape"]:
        count *= length
    if not _contiguous(fields["shape"], fields.get("strides"), datatype.itemsize):
        raise unfit(array, NOT_CONTIGUOUS.format("a contiguous copy"))
    address, read_only = fields.get("data") or (None, False)
    if address is None:
        raise unfit(array, "its interface says no address")
    if write and read_only:
        raise unfit(array, READ_ONLY)
    return (address, count, datatype, device, array)


def _contiguous(shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], itemsize: int) -> bool:
    if strides is None or 0 in shape:
        return True
    step = itemsize
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != step:
            return False
        step *= length
    return True


def _memory(buffer: Any, write: bool) -> Buffer:
    try:
        view = memoryview(buffer)
    except BufferError as why:
        # JAX has the protocol, but not for types that it has no letter for, as bfloat16.
        if hasattr(buffer, "__dlpack__"):
            return _dlpack(buffer, write)
        raise unfit(buffer, str(why)) from None
    if not view.c_contiguous:
        raise unfit(buffer, NOT_CONTIGUOUS.format("bytes(...) or a copy"))
    if write and view.readonly:
        raise unfit(buffer, READ_ONLY)
    letters = view.format.lstrip("<=@|") or "B"
    kind = _LETTERS.get(letters)
    datatype = KINDS.get(f"{kind}{view.itemsize}")
    if datatype is None:
        raise unfit(buffer, f"ringcomm has no type for the format {view.format!r}")
    count = view.nbytes // view.itemsize
    if count == 0:
        return (0, 0, datatype, CPU, view)
    if view.readonly:
        return (_read_only_address(view), count, datatype, CPU, view)
    return (_address(_from_buffer(view)), count, datatype, CPU, view)


class _PyBuffer(ctypes.Structure):
    """The beginning of CPython's `Py_buffer`, with room for the rest of it."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("rest", ctypes.c_byte * 128)]


# Of one's own: types that are said of the attribute hold for everybody in the process.
_get_buffer = ctypes.pythonapi["PyObject_GetBuffer"]
_release_buffer = ctypes.pythonapi["PyBuffer_Release"]


def _read_only_address(view: memoryview) -> int:
    """ctypes takes writable buffers only: ask CPython itself."""
    raw = _PyBuffer()
    _get_buffer(ctypes.py_object(view), ctypes.byref(raw), 0)
    _release_buffer(ctypes.byref(raw))
    return int(raw.buf)


def _dlpack(array: Any, write: bool) -> Buffer:
    try:
        found = dlpack.read(array)
    except dlpack.Unfit as why:
        raise unfit(array, str(why)) from None
    datatype = KINDS.get(found.kind) or NAMES.get(found.kind)
    if datatype is None:
        raise unfit(array, f"ringcomm has no type {found.kind}")
    strides = found.strides and tuple(step * datatype.itemsize for step in found.strides)
    if not _contiguous(found.shape, strides, datatype.itemsize):
        raise unfit(array, NOT_CONTIGUOUS.format("a contiguous copy"))
    if write and found.read_only:
        raise unfit(array, READ_ONLY)
    count = 1
    for length in found.shape:
        count *= length
    return (found.address, count, datatype, found.device, found.owner)
