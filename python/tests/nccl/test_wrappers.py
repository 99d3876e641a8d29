"""vLLM's and SGLang's wrappers, unmodified: every call and type that they have, with ranks as processes."""

import ctypes
import time
from types import SimpleNamespace

import numpy as np
import processes
import pytest
import wrappers
from values import OPERATIONS, check, contribution
from wrappers import address

CLIENTS = pytest.mark.parametrize("client", wrappers.CLIENTS)
#: NCCL's flag of a window that collectives use, and of what a suspended communicator gives up.
SYMMETRIC, SUSPEND_MEMORY = 1, 1
#: CUDA's default stream, on which the clients' calls are where there is no other.
STREAM = None


def _reductions(bound, comm, place):
    for dtype in bound.types():
        for operation in OPERATIONS:
            for count in (1, 1000):
                arguments = (count, bound.of(dtype), bound.operation(operation))
                sent, received = contribution(place.rank, count, dtype), np.zeros(count, dtype)
                bound.nccl.ncclAllReduce(address(sent), address(received), *arguments, comm, STREAM)
                check(received, operation, place.nranks, "by all-reduce")
                bound.nccl.ncclAllReduce(address(sent), address(sent), *arguments, comm, STREAM)
                check(sent, operation, place.nranks, "in place")


def _scattered(bound, comm, place):
    """A reduce-scatter leaves each rank its part of what a reduction would have left on all."""
    for dtype in bound.types():
        whole = contribution(place.rank, 7 * place.nranks, dtype)
        part = np.zeros(7, dtype)
        arguments = (7, bound.of(dtype), bound.operation("SUM"))
        bound.nccl.ncclReduceScatter(address(whole), address(part), *arguments, comm, STREAM)
        everything = np.zeros(7 * place.nranks, dtype)
        bound.nccl.ncclAllGather(address(part), address(everything), 7, bound.of(dtype), comm, STREAM)
        check(everything, "SUM", place.nranks, "by reduce-scatter and all-gather")


def _rooted(bound, comm, place):
    for root in range(place.nranks):
        for dtype in bound.types():
            sent, received = contribution(place.rank, 100, dtype), np.zeros(100, dtype)
            if hasattr(bound.nccl, "ncclReduce"):
                arguments = (100, bound.of(dtype), bound.operation("SUM"), root)
                bound.nccl.ncclReduce(address(sent), address(received), *arguments, comm, STREAM)
                if place.rank == root:
                    check(received, "SUM", place.nranks, "by reduce")
            bound.nccl.ncclBroadcast(
                address(sent), address(received), 100, bound.of(dtype), root, comm, STREAM)
            assert (received == contribution(root, 100, dtype)).all()


def _messages(bound, comm, place):
    """A message to every rank, itself included, in a group; then one that goes from rank 0 to rank 1."""
    for dtype in bound.types():
        sent = [contribution(place.rank + peer, 50, dtype) for peer in range(place.nranks)]
        received = [np.zeros(50, dtype) for _ in sent]
        bound.nccl.ncclGroupStart()
        for peer in range(place.nranks):
            bound.nccl.ncclSend(address(sent[peer]), 50, bound.of(dtype), peer, comm, STREAM)
            bound.nccl.ncclRecv(address(received[peer]), 50, bound.of(dtype), peer, comm, STREAM)
        bound.nccl.ncclGroupEnd()
        for peer, got in enumerate(received):
            assert (got == contribution(place.rank + peer, 50, dtype)).all()
    alone = np.full(3, place.rank, np.float32)
    if place.rank == 0:
        bound.nccl.ncclSend(address(alone), 3, bound.of(alone.dtype), 1, comm, STREAM)
    elif place.rank == 1:
        bound.nccl.ncclRecv(address(alone), 3, bound.of(alone.dtype), 0, comm, STREAM)
        assert (alone == 0).all()


def _uneven(bound, comm, place):
    """Parts of unlike lengths, gathered by a group of broadcasts, as vLLM gathers them."""
    lengths = [5 + 3 * rank for rank in range(place.nranks)]
    mine = np.full(lengths[place.rank], place.rank, np.int64)
    everything = np.zeros(sum(lengths), np.int64)
    bound.nccl.ncclGroupStart()
    for root, end in enumerate(np.cumsum(lengths)):
        part = everything[end - lengths[root]:end]
        bound.nccl.ncclBroadcast(
            address(mine), address(part), lengths[root], bound.of(mine.dtype), root, comm, STREAM)
    bound.nccl.ncclGroupEnd()
    assert (everything == np.repeat(np.arange(place.nranks), lengths)).all()


def _windows(bound, comm, place):
    """Reductions in memory that was registered as a window, and in NCCL's own where the wrapper has that."""
    own = np.zeros(4096, np.float32)
    places = {address(own).value: lambda: None}
    if hasattr(bound.nccl, "ncclMemAlloc"):
        allocated = bound.nccl.ncclMemAlloc(own.nbytes)
        places[allocated] = lambda: bound.nccl.ncclMemFree(allocated)
    for at, free in places.items():
        window = bound.nccl.ncclCommWindowRegister(comm, at, own.nbytes, SYMMETRIC)
        assert window.value
        memory = np.ctypeslib.as_array((ctypes.c_float * len(own)).from_address(at))
        memory[:] = contribution(place.rank, len(own), np.float32)
        bound.nccl.ncclAllReduce(
            at, at, len(own), bound.of(own.dtype), bound.operation("SUM"), comm, STREAM)
        check(memory, "SUM", place.nranks, "in a window")
        bound.nccl.ncclCommWindowDeregister(comm, window)
        free()


def _of_vllm_alone(bound, comm, place):
    """What only vLLM's wrapper has: properties, suspending, and NCCL's own text in its errors."""
    properties = bound.module.ncclCommProperties()
    properties.size = ctypes.sizeof(properties)
    properties.magic = 0xCAFEBEEF
    known = bound.module.NCCL_COMM_PROPERTIES_LAYOUT_VERSION
    properties.version = min(bound.nccl.ncclGetRawVersion(), known)
    asked = bound.nccl._funcs["ncclCommQueryProperties"]
    bound.nccl.NCCL_CHECK(asked(comm, ctypes.byref(properties)))
    assert (properties.rank, properties.nRanks) == (place.rank, place.nranks)
    assert not properties.deviceApiSupport and not any(properties.ginSupport)
    bound.nccl.ncclCommSuspend(comm, SUSPEND_MEMORY)
    value = np.ones(1, np.int32)
    arguments = (address(value), address(value), 1, bound.of(value.dtype), bound.operation("SUM"))
    with pytest.raises(RuntimeError, match="(?s)invalid usage.*Last error.*suspended"):
        bound.nccl.ncclAllReduce(*arguments, comm, STREAM)
    bound.nccl.ncclCommResume(comm)
    bound.nccl.ncclAllReduce(*arguments, comm, STREAM)
    assert value == place.nranks


def _configured(bound, comm, place):
    """SGLang's configuration: its own defaults, and one that asks for what only GPUs have."""
    bound.nccl.ncclCommDestroy(comm)
    for policy in (None, bound.module.NCCL_CTA_POLICY_ZERO):
        data = place.share(lambda: bytes(bound.nccl.ncclGetUniqueId().internal))
        config = bound.module.ncclConfig_t.create()
        if policy is not None:
            config.CTAPolicy = policy
        unique_id = bound.module.ncclUniqueId.from_buffer_copy(data)
        made = bound.nccl.ncclCommInitRankConfig(
            place.nranks, unique_id, place.rank, None if policy is None else config)
        _uneven(bound, made, place)
        bound.nccl.ncclCommDestroy(made)


def _refused(bound, comm, place):
    """A call that no communicator can make raises the wrapper's error, and the communicator goes on."""
    value = np.ones(1, np.float32)
    with pytest.raises(RuntimeError, match="NCCL error: invalid argument"):
        bound.nccl.ncclBroadcast(
            address(value), address(value), 1, bound.of(value.dtype), place.nranks, comm, STREAM)
    assert f"root {place.nranks}" in bound.last_error(comm)


def _every_call(place, client):
    bound = wrappers.Bound(client)
    processes.assert_ours()
    assert bound.nccl.ncclGetVersion().startswith("2.")
    comm = bound.join(place)
    for part in (_reductions, _scattered, _rooted, _messages, _uneven, _refused):
        part(bound, comm, place)
    if hasattr(bound.nccl, "ncclCommWindowRegister"):
        _windows(bound, comm, place)
    if client == "vllm":
        _of_vllm_alone(bound, comm, place)
    if hasattr(bound.module, "ncclConfig_t"):
        _configured(bound, comm, place)
    else:
        bound.nccl.ncclCommDestroy(comm)
    if hasattr(bound.nccl, "ncclCommAbort"):
        comm = bound.join(place)
        place.meet()
        bound.nccl.ncclCommAbort(comm)
    return set(bound.nccl._funcs), bound.called


@CLIENTS
@pytest.mark.parametrize("nranks", [2, 3, 4])
def test_every_call(client, nranks):
    for rank, (asked, called) in enumerate(processes.run(_every_call, nranks, client)):
        # Rank 0 alone makes the ids.
        assert asked - called <= ({"ncclGetUniqueId"} if rank else set())


def _until_a_rank_dies(place, client):
    bound = wrappers.Bound(client)
    comm = bound.join(place)
    value = np.ones(1 << 20, np.float32)
    arguments = (address(value), address(value), len(value), bound.of(value.dtype), bound.operation("SUM"))
    bound.nccl.ncclAllReduce(*arguments, comm, STREAM)
    if place.rank == 1:
        place.die(1)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="NCCL error: remote process") as raised:
        bound.nccl.ncclAllReduce(*arguments, comm, STREAM)
    took = time.monotonic() - begun
    texts = str(raised.value), bound.last_error(comm)
    getattr(bound.nccl, "ncclCommAbort", bound.nccl.ncclCommDestroy)(comm)
    return *texts, took, time.monotonic() - begun


@CLIENTS
def test_a_rank_that_dies_is_named_on_the_others(client):
    first, died, last = processes.run(_until_a_rank_dies, 3, client)
    assert died is None
    for text, error, took, ended in (first, last):
        assert "rank 1" in error
        # SGLang asks for no more than the code's own text.
        assert "rank 1" in text or client != "vllm"
        # It waits for the second after which the rank dies.
        assert took < 20 and ended < 30


def _by_path(place, variable):
    bound = wrappers.Bound(place.share(lambda: "vllm" if variable.startswith("VLLM") else "sglang"))
    processes.assert_ours()
    return bound.nccl.ncclGetVersion()


@pytest.mark.parametrize("variable", ["VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH"])
def test_the_variable_of_the_client_leads_to_the_library(variable, monkeypatch):
    monkeypatch.setenv(variable, processes.library())
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert len(processes.run(_by_path, 1, variable)) == 1


def _what_vllm_asks_elsewhere(place):
    bound = wrappers.Bound("vllm")
    from vllm.utils import nccl
    comm = bound.join(place)
    backend = SimpleNamespace(_comm_ptr=lambda: comm.value)
    group = SimpleNamespace(_get_backend=lambda _device: backend)
    found = nccl.find_nccl_library(), nccl.query_nccl_gin_type(group), nccl._nccl_has_no_cache()
    bound.nccl.ncclCommDestroy(comm)
    return found


def test_what_vllm_asks_the_library_elsewhere():
    # No network of a GPU's own, and a library that reads its variables anew.
    assert processes.run(_what_vllm_asks_elsewhere, 2) == [("libnccl.so.2", 0, True)] * 2
