"""Tensors whose sizes or types do not fit are refused before anything reads or writes past them."""

import re
import warnings

import pytest
import torch
import torch.distributed as dist
from ranks import run
from torch._C._distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

import ringcomm

#: How every refusal ends; the last one is the library's own.
WHAT_TO_DO = re.compile(r"; ((give|use|convert|move|copy) [^;]+|[^;]+ must be equal)$")
f32, f64, i8 = torch.float32, torch.float64, torch.int8


def zeros(*sizes, dtype=f32):
    return [torch.zeros(size, dtype=dtype) for size in sizes]


def at(options, root):
    options.rootRank = root
    return options


def all_gathers(group, rank):
    # A part of a longer tensor: what lies behind it must not be sent.
    yield lambda: group.allgather([zeros(8, 8)], [torch.ones(16)[:4]])
    yield lambda: group.allgather([zeros(2, 2)], zeros(4))
    yield lambda: group.allgather([zeros(4, 4)], zeros(4, 4))
    yield lambda: group.allgather([zeros(4, 4, dtype=f64)], zeros(4))
    yield lambda: group.allgather_coalesced([zeros(4), zeros(4, dtype=f64)], zeros(4))
    yield lambda: group.allgather_coalesced([zeros(4), zeros(4)], zeros(4, 4))
    yield lambda: group.allgather_coalesced([zeros(4), zeros(9)], zeros(8 - 4 * rank))
    yield lambda: group.all_gather_single(torch.zeros(8, dtype=f64), torch.zeros(4))
    yield lambda: group.all_gather_single_coalesced(zeros(8), zeros(4, 4))


def reduce_scatters(group, rank):
    options = ReduceScatterOptions()
    yield lambda: group.reduce_scatter(zeros(2), [zeros(64, 64)], options)
    yield lambda: group.reduce_scatter(zeros(64), [zeros(2, 2)], options)
    yield lambda: group.reduce_scatter(zeros(4), [zeros(4, 4, dtype=f64)], options)
    yield lambda: group.reduce_scatter(zeros(4, dtype=f64), [zeros(4, 4)], options)
    yield lambda: group.reduce_scatter(zeros(4, 4), [zeros(4, 4)], options)
    yield lambda: group.reduce_scatter_single(torch.zeros(4), torch.zeros(9), options)


def rooted(group, rank):
    """Only the root has a list, and sees that it does not fit."""
    gather, scatter = at(GatherOptions(), rank), at(ScatterOptions(), rank)
    yield lambda: group.gather([zeros(4, 8)], zeros(4), gather)
    yield lambda: group.gather([zeros(4, 4, dtype=i8)], zeros(4), gather)
    yield lambda: group.gather([zeros(4, 4)], zeros(4, 4), gather)
    yield lambda: group.gather_single(torch.zeros(4), torch.zeros(4), gather)
    yield lambda: group.gather_single(torch.zeros(8, dtype=i8), torch.zeros(4), gather)
    yield lambda: group.scatter(zeros(4), [zeros(4, 2)], scatter)
    yield lambda: group.scatter(zeros(4), [zeros(4, 4, dtype=i8)], scatter)
    yield lambda: group.scatter(zeros(4), [zeros(4) + zeros(4, dtype=i8)], scatter)


def exchanges(group, rank):
    yield lambda: group.alltoall(zeros(4, 4), zeros(4, 4, dtype=i8))
    yield lambda: group.alltoall(zeros(4) + zeros(4, dtype=i8), zeros(4, 4))
    yield lambda: group.alltoall(zeros(64, 64), zeros(2, 2))
    single, long = torch.zeros(4, dtype=f64), torch.zeros(4)
    yield lambda: group.alltoall_base(single, long, None, None)
    yield lambda: group.alltoall_base(long, long.clone(), [2, 2], [-1, 5])
    one = torch.zeros(1, dtype=torch.complex64)
    yield lambda: group.alltoall_base(one, one.clone(), None, None)
    yield lambda: group.alltoall_base(torch.zeros(3), long, [3, 0], None)
    yield lambda: group.alltoall(zeros(4), zeros(4, 4))


def other_tensors(group, rank):
    """What is refused whatever the collective."""
    meta, sparse = torch.zeros(2, device="meta"), torch.eye(2).to_sparse()
    complex_, total = torch.zeros(2, dtype=torch.complex64), AllreduceOptions()
    yield lambda: group.broadcast([meta], at(BroadcastOptions(), 0))
    yield lambda: group.broadcast([sparse], at(BroadcastOptions(), 0))
    yield lambda: group.broadcast(["text"], at(BroadcastOptions(), 0))
    yield lambda: group.allreduce([sparse, torch.ones(2)], total)
    total.reduceOp = dist.ReduceOp.MAX
    yield lambda: group.allreduce([complex_], total)
    yield lambda: group.allreduce([sparse], total)
    yield lambda: group.recv(zeros(1, 1), 0)


def nobody(group, rank):
    """Ranks that are not there; the last are rank 0 where they are cut to 32 bits."""
    for peer in (9, 2, -1):
        yield lambda: group.send(zeros(1), peer)
        yield lambda: group.recv(zeros(1), peer)
        yield lambda: dist.send(torch.zeros(1), peer)
        yield lambda: dist.isend(torch.zeros(1), peer)
    far = 2**32
    yield lambda: dist.broadcast(torch.zeros(1), far)
    yield lambda: dist.reduce(torch.zeros(1), far)
    yield lambda: group.gather([], zeros(4), at(GatherOptions(), far))
    yield lambda: group.gather_single(torch.zeros(8), torch.zeros(4), at(GatherOptions(), far))
    yield lambda: group.scatter(zeros(4), [], at(ScatterOptions(), far))


def refused(rank, cases):
    group = dist.group.WORLD
    for number, call in enumerate(cases(group, rank)):
        try:
            with pytest.raises((ValueError, TypeError)) as told:
                call()
        except BaseException as error:
            raise AssertionError(f"case {number} of {cases.__name__}") from error
        text = str(told.value)
        assert "\n" not in text and WHAT_TO_DO.search(text), text
    # Nothing of it reached the other rank.
    total = torch.ones(2)
    dist.all_reduce(total)
    assert total.tolist() == [2, 2]


@pytest.mark.parametrize(
    "cases",
    [all_gathers, reduce_scatters, rooted, exchanges, other_tensors, nobody],
    ids=lambda cases: cases.__name__,
)
def test_refused(cases):
    run(2, refused, cases)


def made_sparse(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some layouts are in beta state
        return torch.eye(2).to_sparse(layout=layout)


SPARSE = {f"sparse_{each}": getattr(torch, f"sparse_{each}") for each in ("coo", "csr", "csc")}


@pytest.mark.parametrize("name", SPARSE)
def test_a_communicator_says_how_a_sparse_tensor_becomes_a_buffer(one, name):
    tensor, dense = made_sparse(SPARSE[name]), torch.ones(2, 2)
    for call in (
        lambda: one.all_reduce(tensor),
        lambda: one.all_reduce(tensor, dense),
        lambda: one.all_reduce(dense, tensor),
        lambda: one.broadcast(tensor, root=0),
    ):
        with pytest.raises(ringcomm.RingArgumentError) as told:
            call()
        assert re.search(rf"{name}.*; use \.to_dense\(\) first$", str(told.value)), told.value
    one.all_reduce(tensor.to_dense(), dense)
    assert torch.equal(dense, torch.eye(2))


def test_a_communicator_says_that_a_tensor_has_no_data(one):
    tensor = torch.ones(2, device="meta")
    with pytest.raises(ringcomm.RingArgumentError, match="no data; make one that has") as told:
        one.all_reduce(tensor)
    # What it says to do can be done.
    advice = str(told.value).rpartition(", as ")[2]
    one.all_reduce(eval(advice, {"torch": torch, "tensor": tensor}))
