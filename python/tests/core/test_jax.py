"""JAX's own arrays as inputs: they are read where they lie, and never written."""

import numpy as np
import pytest
from conftest import on_threads

import ringcomm
from ringcomm import buffers

jax = pytest.importorskip("jax")


def test_arrays_are_read_where_they_lie(one):
    given = jax.numpy.arange(1000, dtype=jax.numpy.float32)
    address, count, kind = buffers.source(given)[:3]
    assert (address, count) == (given.unsafe_buffer_pointer(), 1000)
    assert kind is ringcomm.DataType.FLOAT32


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "uint8", "bool"])
def test_collectives(ranks, dtype):
    def work(comm):
        given = jax.numpy.full((3, 4), comm.rank + 1).astype(dtype)
        everyone = np.empty((3, 3, 4), given.dtype)
        comm.all_gather(given, everyone)
        largest = np.empty((3, 4), given.dtype)
        comm.all_reduce(given, largest, ringcomm.MAX)
        return everyone, largest

    for everyone, largest in on_threads(ranks(3), work):
        one, two, three = (np.full((3, 4), rank + 1).astype(largest.dtype) for rank in range(3))
        assert (everyone == np.stack([one, two, three])).all()
        assert (largest == three).all()


def test_arrays_are_not_written(one):
    given = jax.numpy.ones(3)
    with pytest.raises(ringcomm.RingArgumentError, match="read-only"):
        one.all_reduce(given)
    with pytest.raises(ringcomm.RingArgumentError, match="read-only"):
        one.all_reduce(np.ones(3, np.float32), given)
