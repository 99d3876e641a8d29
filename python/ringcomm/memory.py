"""Memory that other ranks reach directly, and reductions with a factor of each rank's own."""

from __future__ import annotations

import ctypes
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Optional, Type

from ._native import DataType, Residence, check, lib
from .buffers import CPU, source, target
from .collectives import wrong
from .integers import SIZE_MOST, integer

if TYPE_CHECKING:
    from .communicator import Communicator


class Memory:
    """Bytes that other processes of the machine reach directly: collectives on them copy less.

    `numpy.asarray(memory).view(numpy.float32)`, `torch.from_numpy(...)` of that, and
    `memory.view("f")` use them as they are. They go when nothing uses them any more.
    """

    def __init__(self, nbytes: int) -> None:
        """Allocate; the bytes are zero."""
        nbytes = integer(nbytes, "nbytes", "a number of bytes", 0, SIZE_MOST)
        address = ctypes.c_void_p()
        check(lib.ringMemAlloc(ctypes.byref(address), nbytes))
        self.address: int = address.value or 0
        self.nbytes = nbytes
        self._end = weakref.finalize(self, _free_quietly, self.address)
        # A call that is under way when the program ends uses it to the end of the process.
        self._end.atexit = False  # type: ignore[misc,unused-ignore]

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        return {
            "version": 3,
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
        }

    def view(self, format: str = "B") -> memoryview:
        """The same bytes as a memoryview of a format of the struct module."""
        raw = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        raw.owner = self  # type: ignore[attr-defined]
        shaped: Any = memoryview(raw).cast("B")
        view: memoryview = shaped.cast(format)
        return view

    def __len__(self) -> int:
        return self.nbytes


def _free_quietly(address: int) -> None:
    lib.ringMemFree(address)


class Registration:
    """A buffer that a communicator was told about; ends with `close`, or as a context manager."""

    def __init__(self, comm: "Communicator", buffer: Any) -> None:
        address, count, datatype, _, owner = target(buffer)
        handle = ctypes.c_void_p()
        check(
            lib.ringCommRegister(
                comm.handle, address, count * datatype.itemsize, ctypes.byref(handle)
            ),
            comm.rank,
        )
        self._comm = comm
        self._handle = handle.value
        # The library knows the memory until it is told otherwise: a registration that is dropped
        # lets go of nothing.
        comm._registered[self._handle] = owner

    def close(self) -> None:
        """Take it back. A second time, and where the communicator has ended, it does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None and self._comm.handle is not None:
            check(lib.ringCommDeregister(self._comm.handle, handle), self._comm.rank)
            self._comm._registered.pop(handle, None)

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_C_TYPES: Dict[DataType, Any] = {
    DataType.INT8: ctypes.c_int8,
    DataType.UINT8: ctypes.c_uint8,
    DataType.INT16: ctypes.c_int16,
    DataType.UINT16: ctypes.c_uint16,
    DataType.INT32: ctypes.c_int32,
    DataType.UINT32: ctypes.c_uint32,
    DataType.INT64: ctypes.c_int64,
    DataType.UINT64: ctypes.c_uint64,
    DataType.FLOAT32: ctypes.c_float,
    DataType.FLOAT64: ctypes.c_double,
}


class PreMulSum:
    """A sum in which each rank's input is multiplied by a factor of that rank first.

    Made by `Communicator.pre_mul_sum`; pass it as `op`. It goes with that communicator and type.
    """

    def __init__(self, comm: "Communicator", factor: Any, datatype: DataType) -> None:
        if isinstance(factor, (int, float)):
            if datatype not in _C_TYPES:
                raise wrong(
                    f"a factor of type {datatype.name.lower()} is given as an array of one element"
                )
            scalar = _C_TYPES[datatype](factor)
            address = ctypes.addressof(scalar)
        else:
            address, count, kind, device, scalar = source(factor)
            if count != 1 or kind is not datatype or device != CPU:
                raise wrong(f"the factor is one {datatype.name.lower()} on the CPU")
        number = ctypes.c_int()
        check(
            lib.ringRedOpCreatePreMulSum(
                ctypes.byref(number), address, datatype, Residence.HOST_IMMEDIATE, comm.handle
            ),
            comm.rank,
        )
        del scalar  # read before the call returned
        self._comm = comm
        self._number: Optional[int] = number.value

    @property
    def _as_parameter_(self) -> int:
        if self._number is None:
            raise wrong("this pre-multiplied sum was destroyed")
        return self._number

    def close(self) -> None:
        """Destroy it. A second time, and where the communicator has ended, it does nothing."""
        number, self._number = self._number, None
        if number is not None and self._comm.handle is not None:
            check(lib.ringRedOpDestroy(number, self._comm.handle), self._comm.rank)

    def __enter__(self) -> "PreMulSum":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()
