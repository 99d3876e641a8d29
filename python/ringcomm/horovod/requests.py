"""What a rank asks for: a named operation, and its handle."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from ..errors import RingError
from .exceptions import HorovodInternalError

if TYPE_CHECKING:
    from .coordinator import Coordinator

#: A tensor's type and shape; None stands for a dimension in which ranks may differ.
Described = Tuple[str, Tuple[Optional[int], ...]]
#: Elements that are reduced in host memory: the library's type, how many, and their bytes.
Piece = Tuple[int, int, int]
#: Interned signatures before they are forgotten: those of programs that make new shapes for ever.
MOST_SIGNATURES = 1 << 16


class Signature:
    """In which ranks have to agree, beside the name. Equal ones are one object."""

    __slots__ = ("device", "how", "kind", "packed", "pieces", "reduction", "tensors")

    def __init__(
        self,
        kind: str,
        tensors: Tuple[Described, ...] = (),
        how: Tuple[Tuple[str, Any], ...] = (),
        device: str = "cpu",
        reduction: int = -1,
        pieces: Tuple[Piece, ...] = (),
    ) -> None:
        self.kind, self.tensors, self.how, self.device = kind, tensors, how, device
        #: The library's number of the reduction, and what is reduced in host memory.
        self.reduction, self.pieces = reduction, pieces
        self.packed = repr(self.parts()).encode()

    def parts(self) -> Tuple[Any, ...]:
        """What it was made of."""
        return self.kind, self.tensors, self.how, self.device, self.reduction, self.pieces

    @classmethod
    def of(cls, *parts: Any) -> "Signature":
        """The one with these parts."""
        found = _interned.get(parts)
        if found is None:
            if len(_interned) >= MOST_SIGNATURES:
                _interned.clear()
            found = _interned[parts] = cls(*parts)
        return found

    def __str__(self) -> str:
        of = ", ".join(f"{dtype} {_shape(shape)}" for dtype, shape in self.tensors[:4])
        more = len(self.tensors) - 4
        with_ = ", ".join(f"{name} {value}" for name, value in self.how)
        return "".join((
            self.kind,
            f" of {of}" if of else "",
            f" and {more} more" if more > 0 else "",
            f" ({with_})" if with_ else "",
            "" if self.device == "cpu" else f" on {self.device}",
        ))  # fmt: skip


_interned: Dict[Tuple[Any, ...], Signature] = {}


def _shape(shape: Tuple[Optional[int], ...]) -> str:
    return "x".join("*" if one is None else str(one) for one in shape) if shape else "scalar"


def number_of(name: str, signature: Signature) -> int:
    """The number by which ranks speak of an operation: 63 bits of a hash."""
    digest = hashlib.blake2b(name.encode() + b"\0" + signature.packed, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Request:
    """An operation that this rank has asked for, and the handle that its caller holds.

    `run` does it, on every rank at the same place in the order; it may return a work to be waited
    for. `places` are addresses in place of it, of what `signature.pieces` tells. `result` makes
    the caller's answer from what has been done.
    """

    __slots__ = ("_answer", "_result", "coordinator", "error", "keep", "name", "number", "places",
                 "run", "settled", "signature", "work")  # fmt: skip

    def __init__(
        self,
        name: str,
        signature: Signature,
        result: Callable[[], Any],
        run: Optional[Callable[[], Any]] = None,
        places: Tuple[int, ...] = (),
        keep: Any = None,
    ) -> None:
        self.name, self.signature, self.run, self.places = name, signature, run, places
        #: What must not be freed before the operation is done.
        self.keep = keep
        self.number = 0
        self.coordinator: Optional["Coordinator"] = None
        self.settled = False
        self.error: Optional[BaseException] = None
        self.work: Any = None
        self._result: Optional[Callable[[], Any]] = result
        self._answer: Any = None

    def is_completed(self) -> bool:
        """Whether it is over; does not wait."""
        return self.settled and (self.work is None or bool(self.work.is_completed()))

    def wait_briefly(self) -> bool:
        """Wait for a round at most; whether it is done or has failed."""
        if not self.settled:
            assert self.coordinator is not None, "it was not submitted"
            self.coordinator.wait(self, briefly=True)
        return self.settled

    def wait(self) -> Any:
        """Wait until it is over, and give the result; again the same if asked again."""
        if not self.settled:
            assert self.coordinator is not None, "it was not submitted"
            self.coordinator.wait(self)
        if self.work is not None:
            work, self.work = self.work, None
            try:
                work.wait()
            except RingError as error:
                self.error = internal(error)
        if self.error is not None:
            raise self.error
        if self._result is not None:
            result, self._result = self._result, None
            self._answer, self.keep = result(), None
        return self._answer


def internal(error: BaseException) -> BaseException:
    """An error of the library, as Horovod's; others stay as they are."""
    if not isinstance(error, RingError):
        return error
    made = HorovodInternalError(str(error))
    made.__cause__ = error
    return made


def failed(requests: List[Request], error: BaseException) -> None:
    """These are over, by an error."""
    for request in requests:
        request.error, request.settled = error, True
