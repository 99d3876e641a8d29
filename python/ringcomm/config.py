"""The settings of a communicator, and the library's answer to how it would run a call."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Optional

from . import _native
from .integers import unusable


@dataclass
class Config:
    """Settings of one communicator; what is None comes from the environment, else the default.

    Every rank needs the same values, except of `spins`, `debug`, `interfaces`, `ports` and
    `device`.
    """

    #: Milliseconds that one operation waits for its peers before it fails.
    timeout_ms: Optional[int] = None
    #: Bytes of connection buffers of one rank, over all its peers.
    buff_size: Optional[int] = None
    #: Every result equals the serial loop over ranks 0, 1, 2, ... bit for bit.
    deterministic: Optional[bool] = None
    #: Polls before a waiting rank first yields its core.
    spins: Optional[int] = None
    #: 1 prints errors to standard error, 2 every call too.
    debug: Optional[int] = None
    #: What guards payloads between hosts.
    protection: Optional[_native.Protection] = None
    #: The algorithm to use where it exists for the collective.
    algorithm: Optional[str] = None
    #: A file with the cost model's constants.
    tuning_file: Optional[str] = None
    #: Network interfaces between hosts, in NCCL's syntax. In a split or a shrink, None: the parent's;
    #: between hosts no others are possible.
    interfaces: Optional[str] = None
    #: Ports to listen on, as `20000-20100`.
    ports: Optional[str] = None
    #: Sockets to each peer on another host, 1 to 16.
    nsocks: Optional[int] = None
    #: Whose memory calls of this rank may use beside the host's: that of the CUDA device with this
    #: number, or -1 for nobody's. None: that of the device which is current in the thread that
    #: makes the communicator, if the program uses CUDA.
    device: Optional[int] = None
    #: Milliseconds that making the communicator waits for its ranks. None: as `timeout_ms`.
    init_timeout_ms: Optional[int] = None
    #: What moves messages between hosts: "auto", "tcp", "ucx", "plugin" or "plugin:NAME".
    net: Optional[str] = None

    def native(self) -> Any:
        """The library's structure."""
        native = _native.new_config()
        for ours, theirs in _FIELDS.items():
            value = getattr(self, ours)
            if value is not None and not _taken(native, theirs, value):
                kind = "a text" if theirs in _TEXTS else "a number that fits there"
                raise unusable(value, f"Config.{ours}", f"{kind}, or None for what is usual")
        return native


_FIELDS = {
    "timeout_ms": "timeoutMs",
    "buff_size": "buffSize",
    "deterministic": "deterministic",
    "spins": "spins",
    "debug": "debug",
    "protection": "protection",
    "algorithm": "algorithm",
    "tuning_file": "tuningFile",
    "interfaces": "interfaces",
    "ports": "ports",
    "nsocks": "nsocks",
    "device": "device",
    "init_timeout_ms": "initTimeoutMs",
    "net": "net",
}


_TEXTS = {field[0] for field in _native.Config._fields_ if field[1] is ctypes.c_char_p}


def _taken(native: Any, name: str, value: Any) -> bool:
    """Give the structure a value; whether that is what it then has."""
    try:
        # A number in the place of a text would be read as an address.
        given = value.encode() if name in _TEXTS else int(value)
        setattr(native, name, given)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return False
    held = getattr(native, name)
    # ctypes cuts numbers to the field's bytes, texts end at a NUL, and one number means that
    # nothing is set.
    return bool(held == (given if name in _TEXTS else value)) and held != _native.UNDEFINED


def pointer(config: Optional[Config]) -> Any:
    """What a function of the library takes for a config, or None."""
    return None if config is None else ctypes.byref(config.native())


@dataclass(frozen=True)
class Explanation:
    """How a collective would run; the answer of `Communicator.explain`."""

    algorithm: str
    transport: str
    #: Parallel channels.
    channels: int
    #: Parts that the buffer is cut into.
    chunks: int
    #: Passes over the chunks, and most bytes that a chunk moves in one.
    slices: int
    slice_bytes: int
    #: The cost model's time.
    predicted_us: float
    #: What runs instead, if anything does: between processes where all buffers are memory that they
    #: share, between threads where no rank calls in place; whether also in place.
    direct_algorithm: str
    direct_predicted_us: float
    direct_in_place: bool

    @classmethod
    def of(cls, native: Any) -> "Explanation":
        """From the library's structure."""
        return cls(
            native.algorithm.decode(),
            native.transport.decode(),
            native.channels,
            native.chunks,
            native.slices,
            native.sliceBytes,
            native.predictedUs,
            native.directAlgorithm.decode(),
            native.directPredictedUs,
            bool(native.directInPlace),
        )
