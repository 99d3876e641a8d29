"""What `dist.shrink_group` makes of a Backend without some ranks: a whole group, as the first was.

torch makes a group of its own around the Backend, for one device, and calls it gloo's or NCCL's;
DistributedDataParallel then takes it for that and crashes. It also leaves the numbers of the ranks
as they were in the larger group. `prepare` puts ringcomm's answer in that place, for its own
Backends.
"""

from __future__ import annotations

from typing import Any, List, Mapping

import torch
from torch.distributed import distributed_c10d as dist
from torch._C._distributed_c10d import ProcessGroup

#: torch's function for it.
_MAKER = "_create_shrunk_process_group"


def global_ranks(backend: Any, excluded: List[int]) -> List[int]:
    """The numbers in the whole job of the ranks that are left of the Backend's group."""
    for group, ranks in dist._world.pg_group_ranks.items():
        if _is_of(group, backend):
            return [rank for rank, number in ranks.items() if number not in excluded]
    return []


def _is_of(group: Any, backend: Any) -> bool:
    inner = getattr(group, "_inner", None)
    if inner is not None:
        return inner is backend
    return any(group._get_backend(device) is backend for device in group._device_types)


def prepare(kind: Any) -> None:
    """Have torch make groups of Backends of this class as is said above."""
    torchs: Any = getattr(dist, _MAKER, None)
    if torchs is None:
        return  # a release without `shrink_group`

    def _create_shrunk_process_group(
        new_backend: Any, remaining_ranks: List[int], metadata: Any, is_default_group: bool
    ) -> Any:
        if not isinstance(new_backend, kind):
            return torchs(new_backend, remaining_ranks, metadata, is_default_group)
        kept = new_backend.__dict__.pop("_global_ranks", [])
        # In place: torch makes the table of the group's ranks of this list.
        remaining_ranks[:] = range(new_backend.size()) if is_default_group else kept
        return _named(new_backend, torchs, metadata, is_default_group)

    setattr(dist, _MAKER, _create_shrunk_process_group)


def _named(backend: Any, torchs: Any, metadata: Mapping[str, Any], is_default: bool) -> Any:
    group = backend.__dict__.pop("_whole_group", None)
    if group is None:
        # Of one device, beside others: torch's group, under the right name.
        group = torchs(backend, [], metadata, is_default)
        custom = ProcessGroup.BackendType.CUSTOM
        for device in group._device_types:
            group._register_backend(device, custom, backend)
        group._set_default_backend(custom)
        return group
    device = metadata.get("bound_device_id")
    if device is not None:
        group.bound_device_id = torch.device(device)
    group._set_group_name(metadata["new_group_name"])
    old = metadata["original_group_name"]
    group._set_group_desc("default:shrunken" if is_default else f"{old}:shrunk")
    return group
