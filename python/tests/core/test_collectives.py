"""Every collective against NumPy: types, operations, ranks, in place and not, odd counts."""

import functools

import numpy as np
import pytest
from conftest import on_threads

import ringcomm
from ringcomm import AVG, BAND, BOR, BXOR, MAX, MIN, PROD, SUM

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]
TYPES = INTEGERS + FLOATS + ["bool"]
SIZES = [1, 2, 3, 4]
COUNT = 37


def data(rank, count, dtype, seed=7):
    """The same values wherever they are asked for, small enough for every sum to be exact."""
    values = np.random.default_rng([seed, rank]).integers(0, 4, count)
    return (values % 2 if dtype == "bool" else values).astype(dtype)


def everybody(nranks, count, dtype):
    return [data(rank, count, dtype) for rank in range(nranks)]


ORACLES = {
    SUM: np.add,
    PROD: np.multiply,
    MAX: np.maximum,
    MIN: np.minimum,
    BAND: np.bitwise_and,
    BOR: np.bitwise_or,
    BXOR: np.bitwise_xor,
}


def reduced(parts, op):
    dtype = parts[0].dtype
    if op == AVG:
        total = functools.reduce(np.add, [part.astype("float64") for part in parts])
        return (total / len(parts)).astype(dtype)
    return functools.reduce(ORACLES[op], parts).astype(dtype)


def every_pair():
    for dtype in TYPES:
        for op in [*ORACLES, AVG]:
            bitwise = op in (BAND, BOR, BXOR)
            if (bitwise and dtype in FLOATS) or (dtype == "bool" and op in (SUM, PROD, AVG)):
                continue
            yield dtype, op


@pytest.mark.parametrize("dtype,op", list(every_pair()), ids=str)
def test_all_reduce(ranks, dtype, op):
    for nranks in SIZES:
        parts = everybody(nranks, COUNT, dtype)
        expected = reduced(parts, op)

        def work(comm):
            mine, out = parts[comm.rank].copy(), np.zeros(COUNT, dtype)
            comm.all_reduce(mine, out, op)
            comm.all_reduce(mine, op=op)
            return out, mine

        for out, inside in on_threads(ranks(nranks), work):
            np.testing.assert_array_equal(out, expected)
            np.testing.assert_array_equal(inside, expected)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("nranks", SIZES)
def test_every_other_collective(ranks, dtype, nranks):
    op = MAX if dtype == "bool" else SUM
    root = nranks - 1
    blocks = everybody(nranks, COUNT, dtype)
    wholes = [data(rank, nranks * COUNT, dtype, seed=8) for rank in range(nranks)]
    cut = [whole.reshape(nranks, COUNT) for whole in wholes]

    def work(comm):
        rank, at_root = comm.rank, comm.rank == root

        def empty(count):
            return np.zeros(count, dtype)

        def check(got, expected):
            np.testing.assert_array_equal(
                got.ravel(),
                np.concatenate(expected) if isinstance(expected, list) else expected.ravel(),
            )

        block, whole = empty(COUNT), empty(nranks * COUNT)
        comm.broadcast(blocks[rank].copy() if at_root else None, block, root)
        check(block, blocks[root])
        block = blocks[rank].copy()
        comm.broadcast(block, root=root)
        check(block, blocks[root])

        comm.reduce(blocks[rank].copy(), block, op, root)
        check(block, reduced(blocks, op) if at_root else blocks[root])
        block = blocks[rank].copy()
        comm.reduce(block, op=op, root=root)
        check(block, reduced(blocks, op) if at_root else blocks[rank])

        comm.all_gather(blocks[rank].copy(), whole)
        check(whole, blocks)
        whole = empty(nranks * COUNT)
        whole[rank * COUNT : (rank + 1) * COUNT] = blocks[rank]
        comm.all_gather(None, whole)
        check(whole, blocks)

        comm.reduce_scatter(wholes[rank].copy(), block, op)
        check(block, reduced(wholes, op)[rank * COUNT : (rank + 1) * COUNT])
        whole = wholes[rank].copy()
        comm.reduce_scatter(whole, op=op)
        check(
            whole[rank * COUNT : (rank + 1) * COUNT],
            reduced(wholes, op)[rank * COUNT : (rank + 1) * COUNT],
        )

        comm.all_to_all(wholes[rank].copy(), whole)
        check(whole, [cut[other][rank] for other in range(nranks)])
        whole = wholes[rank].copy()
        comm.all_to_all(whole)
        check(whole, [cut[other][rank] for other in range(nranks)])

        whole = empty(nranks * COUNT)
        comm.gather(blocks[rank].copy(), whole if at_root else None, root)
        check(whole, blocks if at_root else empty(nranks * COUNT))
        if at_root:
            whole[: root * COUNT] = 0
        comm.gather(None if at_root else blocks[rank].copy(), whole, root)
        check(whole, blocks if at_root else empty(nranks * COUNT))

        comm.scatter(wholes[root].copy() if at_root else None, block, root)
        check(block, cut[root][rank])
        whole = wholes[root].copy()
        comm.scatter(whole if at_root else None, None if at_root else block, root)
        check(whole if at_root else block, wholes[root] if at_root else cut[root][rank])
        comm.barrier()

    on_threads(ranks(nranks), work)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("nranks", SIZES)
def test_blocks_of_different_lengths(ranks, dtype, nranks):
    counts = [(3 * rank + 1) % 5 for rank in range(nranks)]
    starts = [7 * rank for rank in range(nranks)]
    root = 0
    parts = [data(rank, counts[rank], dtype) for rank in range(nranks)]
    wholes = [data(rank, sum(counts), dtype, seed=9) for rank in range(nranks)]
    cuts = [np.split(whole, np.cumsum(counts)[:-1]) for whole in wholes]

    def work(comm):
        rank, at_root = comm.rank, comm.rank == root
        packed = np.zeros(sum(counts), dtype)
        comm.all_gather_v(parts[rank], packed, counts)
        np.testing.assert_array_equal(packed, np.concatenate(parts))
        spread = np.zeros(7 * nranks, dtype)
        comm.all_gather_v(parts[rank], spread, counts, starts)
        for other in range(nranks):
            np.testing.assert_array_equal(spread[starts[other] :][: counts[other]], parts[other])
        spread[starts[rank] :][: counts[rank]] = parts[rank]
        comm.all_gather_v(None, spread, counts, starts)

        mine = np.zeros(counts[rank], dtype)
        comm.reduce_scatter_v(wholes[rank], mine, counts)
        np.testing.assert_array_equal(mine, reduced([cut[rank] for cut in cuts], SUM))

        # Rank r sends block d of its cut to rank d: counts[d] elements from everybody.
        back = np.zeros(counts[rank] * nranks, dtype)
        comm.all_to_all_v(wholes[rank], counts, back, [counts[rank]] * nranks)
        np.testing.assert_array_equal(back, np.concatenate([cut[rank] for cut in cuts]))

        packed[:] = 0
        comm.gather_v(
            parts[rank], packed if at_root else None, counts if at_root else None, root=root
        )
        if at_root:
            np.testing.assert_array_equal(packed, np.concatenate(parts))
        comm.scatter_v(
            wholes[root] if at_root else None, mine, counts if at_root else None, root=root
        )
        np.testing.assert_array_equal(mine, cuts[root][rank])

    on_threads(ranks(nranks), work)


@pytest.mark.parametrize("count", [0, 1, 5, 1009, 300_007])
def test_counts(ranks, count):
    def work(comm):
        array = np.full(count, comm.rank + 1.0)
        comm.all_reduce(array)
        return array

    for array in on_threads(ranks(3), work):
        np.testing.assert_array_equal(array, np.full(count, 6.0))


def test_messages(ranks):
    def work(comm):
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        got = np.zeros(100)
        with ringcomm.group():
            comm.send(np.full(100, float(comm.rank)), right)
            comm.recv(got, left)
        assert (got == left).all()
        if comm.rank == 0:
            comm.send(b"hello", 2)
        elif comm.rank == 2:
            text = bytearray(5)
            comm.recv(text, 0)
            assert text == b"hello"

    on_threads(ranks(3), work)


def test_one_thread_makes_the_calls_of_all_ranks(ranks):
    comms = ranks(3)
    arrays = [np.full(10, float(rank)) for rank in range(3)]
    with ringcomm.group():
        for comm, array in zip(comms, arrays):
            comm.all_reduce(array)
    assert all((array == 3).all() for array in arrays)


def test_an_exception_drops_the_calls_of_its_group(ranks):
    comms = ranks(2)
    arrays = [np.ones(10), np.ones(10)]
    with pytest.raises(KeyError, match="in the middle"):
        with ringcomm.group():
            with ringcomm.group():
                comms[0].all_reduce(arrays[0])
                raise KeyError("in the middle")
    assert all((array == 1).all() for array in arrays)
    with ringcomm.group():
        for comm, array in zip(comms, arrays):
            comm.all_reduce(array)
    assert all((array == 2).all() for array in arrays)


def test_a_group_says_which_exception_in_it_dropped_its_calls(ranks):
    comms = ranks(2)
    array = np.ones(10)
    defect = KeyError("in the middle")
    with pytest.raises(ringcomm.RingUsageError, match="calls of this group .*by KeyError") as told:
        with ringcomm.group():
            comms[0].all_reduce(array)
            for cause in (defect, ValueError("another")):
                with pytest.raises(type(cause)), ringcomm.group():
                    raise cause
            handle = comms[1].all_reduce(array, async_op=True)
    assert told.value.__cause__ is defect
    with pytest.raises(ringcomm.RingUsageError, match="the call was dropped with .*by KeyError"):
        handle.wait()
    assert (array == 1).all()
    # What was dropped is not remembered: the next group has an error of its own.
    with pytest.raises(ringcomm.RingArgumentError, match="root 7"):
        with ringcomm.group():
            with pytest.raises(ringcomm.RingArgumentError, match="root 7"):
                comms[0].broadcast(array, root=7)


def test_pre_multiplied_sum(ranks):
    def work(comm):
        array = np.ones(5, np.float32)
        with comm.pre_mul_sum(comm.rank + 0.5) as op:
            comm.all_reduce(array, op=op)
        half = np.ones(5, np.float16)
        with comm.pre_mul_sum(np.full(1, 2, np.float16), ringcomm.DataType.FLOAT16) as op:
            comm.all_reduce(half, op=op)
        # Nothing is written to a factor: it may be a scalar, or read-only.
        factor = np.full(1, 3, np.float32)
        factor.flags.writeable = False
        read_only = [np.ones(5, np.float32), np.ones(5, np.float32)]
        for given, into in zip((np.float32(3), factor), read_only):
            with comm.pre_mul_sum(given) as op:
                comm.all_reduce(into, op=op)
        return array, half, read_only

    for array, half, read_only in on_threads(ranks(3), work):
        assert (array == 0.5 + 1.5 + 2.5).all()
        assert (half == 6).all()
        assert np.equal(read_only, 9).all()


def test_same_bits_on_every_rank_and_as_the_serial_loop(ranks):
    parts = [np.random.default_rng(rank).standard_normal(5000).astype("f4") for rank in range(4)]

    def work(comm):
        out = np.zeros(5000, "f4")
        comm.all_reduce(parts[comm.rank], out)
        return out.tobytes()

    assert set(on_threads(ranks(4, deterministic=True), work)) == {reduced(parts, SUM).tobytes()}
