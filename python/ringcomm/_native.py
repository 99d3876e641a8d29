"""The C interface of libringcomm, through ctypes: the only file that knows its numbers, its
structures and its prototypes.

Everything else sees names (`Result`, `DataType`, `ReduceOp`, `Collective`), structures (`Config`,
`Explain`, `UniqueId`), the functions of the header as attributes of `lib`, and `check`, which turns
a result into an exception. ctypes releases the GIL around each of these functions.
"""

from __future__ import annotations

import ctypes
import os
from enum import IntEnum
from pathlib import Path
from typing import Any, Dict, Optional, Tuple, Type

from .errors import (
    RingAbortedError,
    RingArgumentError,
    RingError,
    RingRemoteError,
    RingSystemError,
    RingTimeoutError,
    RingUsageError,
    error_of,
)

#: The release of `ringcomm.h` that this file was written for: major, minor.
HEADER_VERSION = (0, 1)

UNIQUE_ID_BYTES = 128
MAGIC = 0x72696E67  # "ring"
UNDEFINED = -2147483647 - 1
SPLIT_NOCOLOR = -1
SHRINK_DEFAULT = 0
SHRINK_ABORT = 1
NAME_BYTES = 32
#: Where the libraries and programs of the package lie.
HERE = Path(__file__).resolve().parent


class Result(IntEnum):
    """What a function of the library answers; values below 64 are NCCL's."""

    SUCCESS = 0
    UNHANDLED_CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7
    TIMEOUT = 8
    ABORTED = 64


#: The exception of each result that has one of its own.
_ERRORS: Dict[int, Type[RingError]] = {
    Result.SYSTEM_ERROR: RingSystemError,
    Result.INVALID_ARGUMENT: RingArgumentError,
    Result.INVALID_USAGE: RingUsageError,
    Result.REMOTE_ERROR: RingRemoteError,
    Result.TIMEOUT: RingTimeoutError,
    Result.ABORTED: RingAbortedError,
}


class DataType(IntEnum):
    """The type of one element; values below 64 are NCCL's."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10
    FLOAT8E5M2 = 11
    INT16 = 64
    UINT16 = 65
    BOOL = 66

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {
    0: 1,
    1: 1,
    2: 4,
    3: 4,
    4: 8,
    5: 8,
    6: 2,
    7: 4,
    8: 8,
    9: 2,
    10: 1,
    11: 1,
    64: 2,
    65: 2,
    66: 1,
}


class ReduceOp(IntEnum):
    """A reduction; values below 64 are NCCL's. Integers wrap, NaN wins in MAX and MIN."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4
    BAND = 64
    BOR = 65
    BXOR = 66


class Collective(IntEnum):
    """The collectives, for `Communicator.explain`."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    ALL_GATHER = 2
    BROADCAST = 3
    REDUCE = 4
    ALL_TO_ALL = 5
    GATHER = 6
    SCATTER = 7
    BARRIER = 8


class Protection(IntEnum):
    """What guards payloads between hosts."""

    CLEAR = 0
    CHECKSUM = 1
    ENCRYPTED = 2


class Residence(IntEnum):
    """When the factor of a pre-multiplied sum is read."""

    DEVICE = 0
    HOST_IMMEDIATE = 1


class UniqueId(ctypes.Structure):
    """`ringUniqueId`: 128 bytes that lead the ranks of one communicator together."""

    _fields_ = [("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES)]


class Config(ctypes.Structure):
    """`ringConfig_t`."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("timeoutMs", ctypes.c_int64),
        ("buffSize", ctypes.c_int64),
        ("deterministic", ctypes.c_int),
        ("spins", ctypes.c_int),
        ("debug", ctypes.c_int),
        ("protection", ctypes.c_int),
        ("algorithm", ctypes.c_char_p),
        ("tuningFile", ctypes.c_char_p),
        ("interfaces", ctypes.c_char_p),
        ("ports", ctypes.c_char_p),
        ("nsocks", ctypes.c_int),
        ("device", ctypes.c_int),
        ("initTimeoutMs", ctypes.c_int64),
        ("net", ctypes.c_char_p),
    ]


class Explain(ctypes.Structure):
    """`ringExplain_t`."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("algorithm", ctypes.c_char * NAME_BYTES),
        ("transport", ctypes.c_char * NAME_BYTES),
        ("channels", ctypes.c_size_t),
        ("chunks", ctypes.c_size_t),
        ("slices", ctypes.c_size_t),
        ("sliceBytes", ctypes.c_size_t),
        ("predictedUs", ctypes.c_double),
        ("directAlgorithm", ctypes.c_char * NAME_BYTES),
        ("directPredictedUs", ctypes.c_double),
        ("directInPlace", ctypes.c_size_t),
    ]


def new_config() -> Config:
    """A `Config` in which nothing is set."""
    u = UNDEFINED
    return Config(
        ctypes.sizeof(Config),
        MAGIC,
        _version_code(),
        u,
        u,
        u,
        u,
        u,
        u,
        None,
        None,
        None,
        None,
        u,
        u,
        u,
    )


def new_explain() -> Explain:
    """An `Explain` for `ringCommExplain` to fill."""
    return Explain(size=ctypes.sizeof(Explain), magic=MAGIC, version=_version_code())


def _version_code() -> int:
    return HEADER_VERSION[0] * 10000 + HEADER_VERSION[1] * 100


_P = ctypes.c_void_p  # buffers, communicators and streams: addresses and handles as Python ints
_N = ctypes.c_size_t
_I = ctypes.c_int
_COUNTS = ctypes.POINTER(ctypes.c_size_t)
OUT = ctypes.POINTER(ctypes.c_void_p)
_INT_OUT = ctypes.POINTER(ctypes.c_int)
_SIZE_OUT = ctypes.POINTER(ctypes.c_size_t)
_CONFIG = ctypes.POINTER(Config)
_TEXT = ctypes.c_char_p

#: Arguments of every function of the header. All return a ringResult_t but the two in _TEXTS.
SIGNATURES: Dict[str, Tuple[Any, ...]] = {
    "ringGetVersion": (_INT_OUT,),
    "ringGetErrorString": (_I,),
    "ringGetLastError": (_P,),
    "ringCommCount": (_P, _INT_OUT),
    "ringCommUserRank": (_P, _INT_OUT),
    "ringCommCuDevice": (_P, _INT_OUT),
    "ringGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ringCommGetUniqueId": (_P, _INT_OUT, _I, ctypes.POINTER(UniqueId)),
    "ringFreeUniqueId": (UniqueId,),
    "ringCommInitRank": (OUT, _I, UniqueId, _I),
    "ringCommInitRankConfig": (OUT, _I, UniqueId, _I, _CONFIG),
    "ringCommInitAll": (OUT, _I, _INT_OUT),
    "ringCommSplit": (_P, _I, _I, OUT, _CONFIG),
    "ringCommShrink": (_P, _INT_OUT, _I, OUT, _CONFIG, _I),
    "ringCommFinalize": (_P,),
    "ringCommDestroy": (_P,),
    "ringCommAbort": (_P,),
    "ringCommGetAsyncError": (_P, _INT_OUT),
    "ringCommInitUrl": (OUT, _TEXT, _I, _I, _CONFIG),
    "ringLauncherInfo": (_INT_OUT, _INT_OUT, _INT_OUT, _TEXT, _N),
    "ringGroupStart": (),
    "ringGroupEnd": (),
    "ringAllReduce": (_P, _P, _N, _I, _I, _P, _P),
    "ringReduceScatter": (_P, _P, _N, _I, _I, _P, _P),
    "ringAllGather": (_P, _P, _N, _I, _P, _P),
    "ringBroadcast": (_P, _P, _N, _I, _I, _P, _P),
    "ringReduce": (_P, _P, _N, _I, _I, _I, _P, _P),
    "ringAllToAll": (_P, _P, _N, _I, _P, _P),
    "ringGather": (_P, _P, _N, _I, _I, _P, _P),
    "ringScatter": (_P, _P, _N, _I, _I, _P, _P),
    "ringBarrier": (_P, _P),
    "ringSend": (_P, _N, _I, _I, _P, _P),
    "ringRecv": (_P, _N, _I, _I, _P, _P),
    "ringProbe": (_I, ctypes.c_int64, _P),
    "ringTrySend": (_P, _N, _I, _I, _P),
    "ringAllGatherv": (_P, _N, _P, _COUNTS, _COUNTS, _I, _P, _P),
    "ringReduceScatterv": (_P, _P, _COUNTS, _I, _I, _P, _P),
    "ringAllToAllv": (_P, _COUNTS, _COUNTS, _P, _COUNTS, _COUNTS, _I, _P, _P),
    "ringGatherv": (_P, _N, _P, _COUNTS, _COUNTS, _I, _I, _P, _P),
    "ringScatterv": (_P, _COUNTS, _COUNTS, _P, _N, _I, _I, _P, _P),
    "ringStreamCreate": (OUT,),
    "ringStreamSynchronize": (_P,),
    "ringStreamQuery": (_P,),
    "ringStreamMark": (_P, ctypes.POINTER(ctypes.c_uint64)),
    "ringStreamReached": (_P, ctypes.c_uint64, ctypes.c_int64),
    "ringStreamDestroy": (_P,),
    "ringMemAlloc": (OUT, _N),
    "ringMemFree": (_P,),
    "ringCommRegister": (_P, _P, _N, OUT),
    "ringCommDeregister": (_P, _P),
    "ringRedOpCreatePreMulSum": (_INT_OUT, _P, _I, _I, _P),
    "ringRedOpDestroy": (_I, _P),
    "ringCommExplain": (_P, _I, _N, _I, _I, _I, ctypes.POINTER(Explain)),
    "ringCommDump": (_P, _TEXT, _N, _SIZE_OUT),
    "ringCommTrace": (_P, _TEXT, _N, _SIZE_OUT),
}
_TEXTS = ("ringGetErrorString", "ringGetLastError")


def library_path() -> str:
    """Where the library is: `RINGCOMM_LIBRARY`, else the one that came with this package."""
    named = os.environ.get("RINGCOMM_LIBRARY")
    path = Path(named) if named else HERE / "lib" / "libringcomm.so"
    if not path.exists():
        said = "RINGCOMM_LIBRARY names" if named else "this package should have"
        raise ImportError(
            f"{said} {path}, which is not there: reinstall with `pip install ./python` (needs "
            "Rust), or set RINGCOMM_LIBRARY to a libringcomm.so"
        )
    # A name without a slash is a file here, and would be looked for in the system's folders.
    return os.path.abspath(path)


def suits(library: Tuple[int, int], header: Tuple[int, int]) -> bool:
    """Whether a library of this release is what a header of that one describes."""
    # Nothing is promised between minor releases before 1.0; afterwards they only add.
    return library == header if header[0] == 0 else library[0] == header[0] and library >= header


def load() -> ctypes.CDLL:
    """Open the library, check its version, and say what its functions take."""
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
        loaded.ringGetVersion.argtypes = SIGNATURES["ringGetVersion"]
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"{path} is not a libringcomm.so that loads here ({error}): reinstall with `pip "
            "install ./python`, or set RINGCOMM_LIBRARY to another"
        ) from None
    code = ctypes.c_int()
    loaded.ringGetVersion(ctypes.byref(code))
    version = divmod(code.value, 10000)[0], code.value % 10000 // 100
    if not suits(version, HEADER_VERSION):
        major, minor = HEADER_VERSION
        needed = f"{major}.{minor}" + (f" or a later {major}.x" if major else "")
        raise ImportError(
            f"{path} is release {version[0]}.{version[1]}, and this package needs {needed}: "
            "reinstall with `pip install ./python`, or set RINGCOMM_LIBRARY to that release's "
            "libringcomm.so"
        )
    for name, arguments in SIGNATURES.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise ImportError(
                f"{path} has no {name}: reinstall with `pip install ./python`"
            ) from None
        function.argtypes = arguments
        function.restype = ctypes.c_char_p if name in _TEXTS else ctypes.c_int
    return loaded


#: The loaded library: `lib.ringAllReduce(...)` and so on, as in the header; results are ints.
lib = load()

#: `ringAllReduce` for who counts nanoseconds and knows what it passes: ctypes looks only at the
#: types of the addresses and the count. Type and operation must be ints, the communicator a
#: `c_void_p` (as a number it would be cut to 32 bits), the stream None.
quick_all_reduce = lib["ringAllReduce"]
quick_all_reduce.argtypes, quick_all_reduce.restype = (_P, _P, _N), _I


def version() -> Tuple[int, int, int]:
    """The library's release: major, minor, patch."""
    code = ctypes.c_int()
    check(lib.ringGetVersion(ctypes.byref(code)))
    return code.value // 10000, code.value // 100 % 100, code.value % 100


def last_error(comm: Optional[int] = None) -> str:
    """What went wrong last: on this communicator, or in this thread."""
    text: bytes = lib.ringGetLastError(comm)
    return text.decode(errors="replace")


def check(result: int, rank: Optional[int] = None) -> None:
    """Raise what `result`, of this thread's last call, means; nothing for success."""
    if result:
        raise failure(result, last_error(), rank)


def failure(result: int, text: str, rank: Optional[int] = None) -> RingError:
    """The exception for a result and its text."""
    if not text:
        text = lib.ringGetErrorString(result).decode()
    try:
        known: int = Result(result)
    except ValueError:
        known = result
    return error_of(_ERRORS.get(known, RingError), known, text, rank)


def unique_id_of(data: bytes) -> UniqueId:
    """The library's structure for the bytes of a unique id."""
    if len(data) != UNIQUE_ID_BYTES:
        raise ValueError(f"a unique id has {UNIQUE_ID_BYTES} bytes, and this has {len(data)}")
    return UniqueId.from_buffer_copy(data)


def counts_array(values: Any) -> Any:
    """A C array of `size_t` with these counts or displacements."""
    return (ctypes.c_size_t * len(values))(*values)


def text_of(function: Any, comm: Optional[int]) -> str:
    """What a function says that writes a text of unknown length (`ringCommDump`)."""
    needed = ctypes.c_size_t()
    check(function(comm, None, 0, ctypes.byref(needed)))
    while True:
        # The record grows while calls run: room for a sixteenth more, and again where that was
        # short.
        room = needed.value + needed.value // 16 + 256
        text = ctypes.create_string_buffer(room)
        check(function(comm, text, room, ctypes.byref(needed)))
        if needed.value <= room:
            return text.value.decode(errors="replace")


__all__ = [
    "Collective",
    "Config",
    "DataType",
    "Explain",
    "Protection",
    "ReduceOp",
    "Residence",
    "Result",
    "SIGNATURES",
    "UniqueId",
    "check",
    "counts_array",
    "failure",
    "last_error",
    "lib",
    "load",
    "new_config",
    "new_explain",
    "quick_all_reduce",
    "text_of",
    "version",
]
