"""Every collective of c10d against what it should give, with lists, single tensors and odd
layouts."""

import threading

import pytest
import torch
import torch.distributed as dist
from ranks import run
from torch._C._distributed_c10d import BroadcastOptions
from torch.distributed import ReduceOp

from ringcomm.torch import core

RANKS = 3
TYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
]
OPS = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]


def values(rank, count, dtype):
    return (torch.arange(count) % 3 + rank % 2 + 1).to(dtype)


def expected(op, count, dtype):
    rows = torch.stack([values(rank, count, dtype).double() for rank in range(RANKS)])
    if op == ReduceOp.SUM:
        return rows.sum(0).to(dtype)
    if op == ReduceOp.PRODUCT:
        return rows.prod(0).to(dtype)
    return (rows.min(0) if op == ReduceOp.MIN else rows.max(0)).values.to(dtype)


def reductions(rank):
    for dtype in TYPES:
        for op in OPS:
            for count in (0, 1, 7, 70_001):
                want = expected(op, count, dtype)
                tensor = values(rank, count, dtype)
                dist.all_reduce(tensor, op)
                assert torch.equal(tensor, want), (dtype, op, count)
                tensor = values(rank, count, dtype)
                dist.reduce(tensor, 1, op)
                assert rank != 1 or torch.equal(tensor, want), (dtype, op, count)


def other_reductions(rank):
    tensor = torch.full((5,), float(rank))
    dist.all_reduce(tensor, ReduceOp.AVG)
    assert torch.equal(tensor, torch.ones(5))
    bits = torch.tensor([1 << rank, 7])
    for op, want in [(ReduceOp.BOR, [7, 7]), (ReduceOp.BAND, [0, 7]), (ReduceOp.BXOR, [7, 7])]:
        tensor = bits.clone()
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == want, op
    flag = torch.tensor([rank == 1, False])
    dist.all_reduce(flag, ReduceOp.MAX)
    assert flag.tolist() == [True, False]
    number = torch.tensor([1 + 2j * rank], dtype=torch.complex64)
    dist.all_reduce(number)
    assert number.item() == 3 + 6j
    scaled = torch.full((4,), float(rank + 1))
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    assert torch.equal(scaled, torch.full((4,), 3.0))
    with pytest.raises(TypeError, match="does not reduce"):
        dist.all_reduce(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8))


def scaled_in_two_threads(rank):
    """Another thread makes a call between a sum that is scaled and the call that it is for."""
    made = core.Core._scaled_sum

    def interrupted(self, op, tensor):
        number = made(self, op, tensor)
        thread = threading.Thread(target=dist.barrier)
        thread.start()
        thread.join()
        return number

    core.Core._scaled_sum = interrupted
    tensor = torch.ones(4)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    assert torch.equal(tensor, torch.full((4,), 0.5))


def test_scaled_sums_of_threads():
    run(1, scaled_in_two_threads)


def conjugate(values, lazily):
    """The same numbers; where `lazily`, in memory that holds their conjugates."""
    return values.conj().resolve_conj().conj() if lazily else values.clone()


def negative(values, lazily):
    """The same numbers; where `lazily`, in memory that holds their negatives."""
    return torch._neg_view(-values) if lazily else values.clone()


def views(rank):
    """What only shows the conjugate, or the negative, of what lies there, on one of the ranks.
    Through the group's own methods, since torch's functions resolve some of them."""
    group, numbers, at_1 = dist.group.WORLD, torch.tensor([1 + 2j, 3 - 4j]), BroadcastOptions()
    at_1.rootRank = 1
    every = torch.cat([numbers * (source + 1) for source in range(RANKS)])
    for lazy in range(RANKS):
        here = rank == lazy
        mine = conjugate(numbers * (rank + 1), here)
        assert mine.is_conj() == here and mine.is_contiguous()
        # Parts of one block, which is used as it is where it can be.
        gathered = conjugate(torch.zeros_like(every), here)
        group.allgather([list(gathered.split(2))], [mine]).wait()
        assert torch.equal(gathered, every), lazy
        came = conjugate(torch.zeros_like(every), here)
        sent = conjugate(numbers.repeat(RANKS) * (rank + 1), here)
        group.alltoall(list(came.split(2)), list(sent.split(2))).wait()
        assert torch.equal(came, every), lazy
        group.broadcast([mine], at_1).wait()
        assert torch.equal(mine, 2 * numbers), lazy
        greatest = negative(torch.tensor([1.0, -2.0]) * (rank + 1), here)
        assert greatest.is_neg() == here and greatest.is_contiguous()
        dist.all_reduce(greatest, ReduceOp.MAX)
        assert greatest.tolist() == [3, -2], lazy


def layouts(rank):
    """What is not contiguous comes back where it was."""
    whole = torch.zeros(4, 6)
    part = whole[:, 1:4]
    part.copy_(torch.full((4, 3), float(rank)))
    dist.all_reduce(part)
    assert torch.equal(part, torch.full((4, 3), 3.0)) and whole[:, 4:].sum() == 0
    image = torch.full((2, 3, 4, 4), float(rank)).to(memory_format=torch.channels_last)
    dist.broadcast(image, 2)
    assert torch.equal(image, torch.full((2, 3, 4, 4), 2.0))
    turned = torch.zeros(3, 2).t()
    dist.all_gather(
        [turned] + [torch.zeros(2, 3) for _ in range(2)], torch.full((2, 3), float(rank))
    )
    assert torch.equal(turned, torch.zeros(2, 3))


def gathers(rank):
    mine = torch.full((2, 3), float(rank))
    rows = [torch.zeros(2, 3) for _ in range(RANKS)]
    dist.all_gather(rows, mine)
    assert [row[0, 0].item() for row in rows] == [0, 1, 2]
    block = torch.zeros(RANKS * 2, 3)
    dist.all_gather_into_tensor(block, mine)
    assert torch.equal(block, torch.cat(rows))
    uneven = [torch.zeros(size + 1) for size in range(RANKS)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    assert [len(row) for row in uneven] == [1, 2, 3] and uneven[2].tolist() == [2, 2, 2]
    rows = [torch.zeros(2, 3) for _ in range(RANKS)] if rank == 1 else None
    dist.gather(mine, rows, dst=1)
    assert rank != 1 or torch.equal(torch.cat(rows), block)
    out = torch.zeros(2)
    dist.scatter(
        out, [torch.full((2,), 10.0 + r) for r in range(RANKS)] if rank == 2 else None, src=2
    )
    assert out.tolist() == [10.0 + rank] * 2
    strange = torch.full((3,), rank, dtype=torch.int64).view(torch.uint8)
    dist.broadcast(strange, 1)
    assert strange.view(torch.int64).tolist() == [1, 1, 1]


def scattered_reductions(rank):
    rows = [torch.full((3,), float(r + rank)) for r in range(RANKS)]
    out = torch.zeros(3)
    dist.reduce_scatter(out, rows)
    assert out.tolist() == [3.0 + 3 * rank] * 3
    dist.reduce_scatter_tensor(out, torch.cat(rows), ReduceOp.MAX)
    assert out.tolist() == [2.0 + rank] * 3
    uneven = torch.zeros(rank + 1)
    dist.reduce_scatter(uneven, [torch.ones(r + 1) for r in range(RANKS)])
    assert torch.equal(uneven, torch.full((rank + 1,), 3.0))


def exchanges(rank):
    out = torch.zeros(RANKS, 2)
    dist.all_to_all_single(out, torch.full((RANKS, 2), float(rank)))
    assert out[:, 0].tolist() == [0, 1, 2]
    got = [torch.zeros(other + 1) for other in range(RANKS)]
    dist.all_to_all(got, [torch.full((rank + 1,), float(10 * rank + to)) for to in range(RANKS)])
    assert [row[-1].item() for row in got] == [10 * other + rank for other in range(RANKS)]
    out = torch.zeros(6, 2)
    sent = torch.full((3 * (rank + 1), 2), float(rank))
    dist.all_to_all_single(out, sent, [1, 2, 3], [rank + 1] * 3)
    assert out[:, 1].tolist() == [0, 1, 1, 2, 2, 2]
    with pytest.raises(ValueError, match="split sizes|divide"):
        dist.all_to_all_single(torch.zeros(4), torch.zeros(4))


def exchanges_told_by_some(rank):
    """Who has equal blocks may leave their sizes out, whatever the others say and have."""
    for table in ([[2, 2, 2]] * RANKS, [[2, 2, 2], [2, 1, 3], [2, 3, 1]]):
        sent, got = table[rank], [row[rank] for row in table]
        source = torch.tensor([10 * rank + to for to in range(RANKS) for _ in range(sent[to])])
        expected = [10 * other + rank for other in range(RANKS) for _ in range(got[other])]
        quiet = ((None, None), (None, sent), (got, None), ([], []))
        for splits in quiet if rank == 0 else [(got, sent)] * len(quiet):
            out = torch.zeros(sum(got), 2, dtype=torch.int64)
            dist.all_to_all_single(out, source[:, None].expand(-1, 2), *splits)
            assert out[:, 0].tolist() == out[:, 1].tolist() == expected


def exchanges_of_whole_rows(rank):
    """Blocks are rows, and no row is cut, even where the elements would divide."""
    for output, source in (((4, 3), (4, 3)), ((1, 12), (3, 4)), ((6, 2), (4, 3)), ((2, 6), (12,))):
        with pytest.raises(ValueError, match="rows of the (input|output) do not divide"):
            dist.all_to_all_single(torch.zeros(output), torch.zeros(source))
    with pytest.raises(ValueError, match="do not fill"):
        dist.all_to_all_single(torch.zeros(6), torch.zeros(3))
    # Rows may have another shape where they come.
    out = torch.zeros(RANKS * 4)
    dist.all_to_all_single(out, torch.full((RANKS, 4), float(rank)))
    assert out[::4].tolist() == [0, 1, 2]


def exchanges_in_place(rank):
    tensor = torch.arange(RANKS) + 10 * rank
    for splits in ((None, None), ([1] * RANKS, [1] * RANKS)):
        dist.all_to_all_single(tensor, tensor, *splits)
    assert tensor.tolist() == [10 * rank + other for other in range(RANKS)]
    dist.all_to_all_single(tensor, tensor, async_op=True).wait()
    assert tensor.tolist() == [10 * other + rank for other in range(RANKS)]


def coalesced(rank):
    tensors = [torch.full((size,), float(rank)) for size in (1, 5, 3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [tensor[0].item() for tensor in tensors] == [3, 3, 3]
    outs = [torch.zeros(RANKS), torch.zeros(2 * RANKS)]
    with dist._coalescing_manager(async_ops=True) as works:
        dist.all_gather_into_tensor(outs[0], torch.full((1,), float(rank)))
        dist.all_gather_into_tensor(outs[1], torch.full((2,), float(rank)))
    works.wait()
    assert outs[0].tolist() == [0, 1, 2] and outs[1].tolist() == [0, 0, 1, 1, 2, 2]
    group = dist.group.WORLD
    group._start_coalescing(torch.device("cpu"))
    dist.all_reduce(tensors[0], async_op=True)
    dist.broadcast(tensors[1], 0, async_op=True)
    work = group._end_coalescing(torch.device("cpu"))
    assert work.wait() and tensors[0].item() == 9


def sparse(rank):
    tensor = torch.sparse_coo_tensor([[0, rank]], [1.0, 2.0], (4,))
    dense = torch.zeros(4)
    for other in range(RANKS):
        dense += torch.sparse_coo_tensor([[0, other]], [1.0, 2.0], (4,)).to_dense()
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), dense)


def functional(rank):
    import torch.distributed._functional_collectives as funcol

    world = list(range(RANKS))
    total = funcol.all_reduce(torch.ones(4) * rank, "sum", world)
    assert torch.equal(funcol.wait_tensor(total), torch.full((4,), 3.0))
    every = funcol.all_gather_tensor(torch.full((2,), float(rank)), 0, world)
    assert every.tolist() == [0, 0, 1, 1, 2, 2]
    mine = funcol.reduce_scatter_tensor(torch.ones(6), "sum", 0, world)
    assert mine.tolist() == [3, 3]
    assert funcol.broadcast(torch.full((2,), float(rank)), 1, world).tolist() == [1, 1]
    turned = funcol.all_to_all_single(torch.full((3,), float(rank)), None, None, world)
    assert turned.tolist() == [0, 1, 2]
    both = funcol.all_reduce_coalesced([torch.ones(2), torch.ones(3) * rank], "sum", world)
    assert [tensor[0].item() for tensor in both] == [3, 3]


@pytest.mark.parametrize(
    "function",
    [
        reductions,
        other_reductions,
        views,
        layouts,
        gathers,
        scattered_reductions,
        exchanges,
        exchanges_told_by_some,
        exchanges_of_whole_rows,
        exchanges_in_place,
        coalesced,
        sparse,
        functional,
    ],
    ids=lambda function: function.__name__,
)
def test_against_what_it_should_give(function):
    run(RANKS, function)


def objects(rank):
    everyone = [None] * RANKS
    dist.all_gather_object(everyone, {"rank": rank, "data": "x" * 1000 * rank})
    assert [each["rank"] for each in everyone] == [0, 1, 2]
    told = [None, None] if rank else ["hello", {1: 2}]
    dist.broadcast_object_list(told, src=0)
    assert told == ["hello", {1: 2}]
    got = [None]
    dist.scatter_object_list(got, [f"to {r}" for r in range(RANKS)] if rank == 1 else None, src=1)
    assert got == [f"to {rank}"]
    collected = [None] * RANKS if rank == 2 else None
    dist.gather_object(rank * 11, collected, dst=2)
    assert rank != 2 or collected == [0, 11, 22]
    if rank == 0:
        dist.send_object_list([[1, 2], "three"], dst=1)
    elif rank == 1:
        heard = [None, None]
        dist.recv_object_list(heard, src=0)
        assert heard == [[1, 2], "three"]


def test_objects():
    run(RANKS, objects)
