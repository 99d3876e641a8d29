"""Python objects between the ranks of a process set."""

from __future__ import annotations

import io
import pickle
from typing import Any, List, Optional

from .process_sets import ProcessSet, global_process_set, place_of
from .requests import Request, Signature

try:
    # What was defined in a program's main file, and lambdas, travel by what they are.
    from cloudpickle import dumps as _dumps  # type: ignore[import,unused-ignore]
except ImportError:
    _dumps = pickle.dumps


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's Python object, on every rank."""
    coordinator = process_set.coordinator
    root = place_of(root_rank, process_set)
    mine = _dumps(obj) if coordinator.rank == root else b""
    got: List[bytes] = []
    request = Request(
        coordinator.name("broadcast_object", name),
        Signature.of("broadcast_object", (), (("root_rank", root_rank),)),
        lambda: obj if coordinator.rank == root else pickle.load(io.BytesIO(got[0])),
        lambda: got.append(coordinator.comm.broadcast_object(mine, root)),
    )
    return coordinator.submit(request, soon=True).wait()


def allgather_object(
    obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[Any]:
    """Every rank's Python object, in the order of ranks."""
    coordinator = process_set.coordinator
    mine = _dumps(obj)
    got: List[bytes] = []
    request = Request(
        coordinator.name("allgather_object", name),
        Signature.of("allgather_object"),
        lambda: [pickle.loads(one) for one in got],
        lambda: got.extend(coordinator.comm.all_gather_object(mine)),
    )
    gathered: List[Any] = coordinator.submit(request, soon=True).wait()
    return gathered
