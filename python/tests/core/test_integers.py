"""Integers that C has no room for, and what is no integer, are refused: ctypes would cut them."""

import numpy as np
import pytest
from conftest import on_threads

import ringcomm
from ringcomm import Collective, Communicator, Config, RingArgumentError

#: Cut to 32 bits, and to 64, it is rank 0.
WIDE, WIDER = 2**32, 2**64
A = np.ones(2)

ROOTED = {
    "broadcast": lambda comm, root: comm.broadcast(A, root=root),
    "reduce": lambda comm, root: comm.reduce(A, root=root),
    "gather": lambda comm, root: comm.gather(A, np.ones(2), root=root),
    "scatter": lambda comm, root: comm.scatter(A, np.ones(2), root=root),
    "gather_v": lambda comm, root: comm.gather_v(A, np.ones(2), [2], root=root),
    "scatter_v": lambda comm, root: comm.scatter_v(A, np.ones(2), [2], root=root),
    "broadcast_object": lambda comm, root: comm.broadcast_object(1, root),
    "gather_object": lambda comm, root: comm.gather_object(1, root),
    "scatter_object": lambda comm, root: comm.scatter_object([1], root),
    "explain": lambda comm, root: comm.explain(Collective.BROADCAST, 2, root=root),
}


@pytest.mark.parametrize("name", ROOTED)
def test_roots(one, name):
    for root in (WIDE, -WIDE, None, "0", 0.0, A):
        with pytest.raises(
            RingArgumentError, match="root is .*; give the number of a rank"
        ) as said:
            ROOTED[name](one, root)
        assert "\n" not in str(said.value)
    for root in (0, np.int64(0), False):
        ROOTED[name](one, root)
    with pytest.raises(RingArgumentError, match="root 1 "):
        ROOTED[name](one, 1)


def test_peers(ranks):
    def work(comm):
        for peer in (WIDE, WIDE + 1, None, "1"):
            for call in (comm.send, comm.recv):
                with pytest.raises(RingArgumentError, match="peer is .*; give the number of"):
                    call(np.ones(1), peer)

    on_threads(ranks(2), work)


def test_operations(one):
    calls = [
        lambda op: one.all_reduce(A, op=op),
        lambda op: one.reduce(A, op=op),
        lambda op: one.reduce_scatter(A, op=op),
        lambda op: one.reduce_scatter_v(A, None, [2], op=op),
        lambda op: one.explain(Collective.ALL_REDUCE, 2, op=op),
    ]
    for call in calls:
        for op in (WIDE, "sum", None, 0.0):
            with pytest.raises(RingArgumentError, match="op is .*; give SUM, PROD, .*pre_mul_sum"):
                call(op)
        with pytest.raises(RingArgumentError, match="7 is no reduction"):
            call(7)
        for op in (ringcomm.SUM, 0, np.int32(0)):
            call(op)
    with one.pre_mul_sum(3.0, ringcomm.DataType.FLOAT64) as op:
        one.all_reduce(values := np.ones(2), op=op)
        assert (values == 3).all()
    with pytest.raises(RingArgumentError, match="was destroyed"):
        one.all_reduce(A, op=op)


def test_colors_and_keys(one):
    for color in (WIDE + 7, WIDE - 1, "7"):
        with pytest.raises(RingArgumentError, match="color is .*; give a number from 0"):
            one.split(color)
    for key in (WIDE, None):
        with pytest.raises(RingArgumentError, match="key is .*; give a number from -2147483648"):
            one.split(0, key)
    # The C interface's way to say that a rank joins none.
    assert one.split(None) is None and one.split(-1) is None
    assert one.split(2**31 - 1, -(2**31)).size == 1


def test_who_is_excluded(ranks):
    def work(comm):
        for rank in (WIDE + 1, "1"):
            with pytest.raises(RingArgumentError, match="a rank to exclude is .*; give the number"):
                comm.shrink([rank])

    on_threads(ranks(2), work)


def test_communicators_of_so_many_ranks(tmp_path):
    unique = ringcomm.get_unique_id()
    for nranks in (WIDE + 1, None, 1.0):
        for make in (
            lambda: Communicator.all(nranks),
            lambda: Communicator.init(nranks, 0, unique),
            lambda: Communicator.from_url(f"file://{tmp_path}/meet", nranks, 0),
        ):
            with pytest.raises(RingArgumentError, match="nranks is .*; give how many"):
                make()
    for make in (
        lambda: Communicator.init(1, WIDE, unique),
        lambda: Communicator.from_url(f"file://{tmp_path}/meet", 1, WIDE),
    ):
        with pytest.raises(RingArgumentError, match="rank is 4294967296; give"):
            make()
    for config in (None, Config()):
        with pytest.raises(RingArgumentError, match="a device is 4294967295; give"):
            Communicator.all(1, [WIDE - 1], config)


def test_what_is_explained(one):
    for count in (WIDER + 5, -1, 1.0):
        with pytest.raises(RingArgumentError, match="count is .*; give a number of elements"):
            one.explain(Collective.ALL_REDUCE, count)
    with pytest.raises(RingArgumentError, match="collective is 'all'"):
        one.explain("all", 5)
    with pytest.raises(RingArgumentError, match="datatype is 'float32'"):
        one.explain(Collective.ALL_REDUCE, 5, "float32")


@pytest.mark.parametrize(
    "setting,value",
    [
        ("nsocks", WIDE + 1),
        ("timeout_ms", WIDER + 5),
        ("init_timeout_ms", -WIDER + 5),
        ("device", WIDE - 1),
        ("spins", 1.5),
        ("spins", float("inf")),
        ("debug", "1"),
        # The number that says that nothing was set.
        ("timeout_ms", -(2**31)),
        # An address, as far as ctypes knows.
        ("algorithm", 5),
        ("interfaces", "eth0\0eth1"),
    ],
)
def test_settings(setting, value):
    with pytest.raises(RingArgumentError, match=rf"Config\.{setting} is .*; give a (text|number)"):
        ringcomm.init(nranks=1, config=Config(**{setting: value}))


def test_settings_that_fit():
    settings = Config(
        timeout_ms=2**62, deterministic=True, spins=np.int32(3), nsocks=2.0, algorithm="ring"
    )
    native = settings.native()
    held = native.timeoutMs, native.deterministic, native.spins, native.nsocks, native.algorithm
    assert held == (2**62, 1, 3, 2, b"ring")


def test_memory():
    for nbytes in (WIDER + 8, -1, 8.0, None):
        with pytest.raises(RingArgumentError, match="nbytes is .*; give a number of bytes"):
            ringcomm.Memory(nbytes)
    assert len(ringcomm.Memory(np.int64(8))) == 8
