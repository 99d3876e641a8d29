"""Python objects: through memory, of any length, different on every rank."""

import pytest
import ranks as processes
from conftest import on_threads

import ringcomm

VALUES = [None, "text", {"a": [1, 2.5]}, b"x" * 100_000, list(range(10_000)), KeyError("e")]


def test_all_kinds(ranks):
    def work(comm):
        rank, n = comm.rank, comm.nranks
        for value in VALUES:
            got = comm.all_gather_object((rank, value))
            assert [other for other, _ in got] == [0, 1, 2]
            assert all(repr(one) == repr(value) for _, one in got)
            for root in range(n):
                assert repr(comm.broadcast_object(value if rank == root else "no", root)) == repr(
                    value
                )
                got = comm.gather_object((rank, repr(value)), root)
                everything = [(other, repr(value)) for other in range(n)]
                assert got == (everything if rank == root else None)
                listed = [(other, root, "y" * 1000 * other) for other in range(n)]
                mine = comm.scatter_object(listed if rank == root else None, root)
                assert mine == (rank, root, "y" * 1000 * rank)
        got = comm.all_to_all_object([(rank, other) for other in range(n)])
        assert got == [(other, rank) for other in range(n)]
        if rank == 0:
            comm.send_object({"to": 2}, 2)
        elif rank == 2:
            assert comm.recv_object(0) == {"to": 2}

    on_threads(ranks(3), work)


@pytest.mark.parametrize("call", [
    lambda comm: comm.all_gather_object(1),
    lambda comm: comm.broadcast_object(1),
    lambda comm: comm.gather_object(1),
    lambda comm: comm.scatter_object([1, 2]),
    lambda comm: comm.all_to_all_object([1, 2]),
    lambda comm: comm.send_object(1, 1),
    lambda comm: comm.recv_object(1),
])  # fmt: skip
def test_groups_take_no_objects(ranks, call):
    comms = ranks(2)
    with pytest.raises(ringcomm.RingUsageError, match="_object cannot be called inside"):
        with ringcomm.group():
            call(comms[0])
    # In another thread's group it is not.
    ringcomm.group_start()
    assert on_threads(comms, lambda comm: comm.all_gather_object(comm.rank)) == [[0, 1]] * 2
    ringcomm.group_end()


def test_what_cannot_be_pickled(ranks):
    with pytest.raises(Exception, match="pickle|local object"):
        ranks(1)[0].all_gather_object(lambda: None)


def test_between_processes():
    for names, lengths, big in ringcomm.spawn(processes.objects, 3):
        assert (names, lengths, big) == ([0, 1, 2], [0, 1000, 2000], 3_000_000)
