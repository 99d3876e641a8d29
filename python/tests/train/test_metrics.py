"""reduce_mean and objects, over ranks in threads."""

import math

import numpy
import pytest
import torch

from ranks_in_threads import run
from ringcomm.torch.metrics import all_gather_object, broadcast_object, reduce_mean


def test_means_of_numbers_and_tensors():
    def rank(comm):
        given = {
            "loss": torch.tensor(float(comm.rank)),
            "accuracy": comm.rank / 4,
            "by_class": torch.full((2, 3), comm.rank, dtype=torch.int64),
        }
        return reduce_mean(given, group=comm)

    for found in run(4, rank):
        assert found["loss"].shape == () and found["loss"].dtype == torch.float32
        assert found["loss"] == 1.5 and found["accuracy"] == 0.375
        assert torch.equal(found["by_class"], torch.full((2, 3), 1.5, dtype=torch.float64))


def test_weights_count_samples_and_a_rank_may_have_none():
    def rank(comm):
        weight = [3, 1, 0][comm.rank]
        mean = [1.0, 5.0, math.nan][comm.rank]
        return reduce_mean({"loss": mean}, weight=weight, group=comm)

    assert run(3, rank) == [{"loss": 2.0}] * 3


def test_other_metrics_on_another_rank_are_refused():
    def rank(comm):
        with pytest.raises(ValueError, match="rank 1 gives others than rank 0"):
            reduce_mean({"loss" if comm.rank != 1 else "lose": 1.0}, group=comm)

    run(3, rank)


def test_no_metrics_and_no_weight():
    assert run(2, lambda comm: reduce_mean({}, group=comm)) == [{}, {}]
    with pytest.raises(ValueError, match="add up to nothing"):
        run(2, lambda comm: reduce_mean({"loss": 1.0}, weight=0, group=comm))


def test_objects_of_any_size_go_through_memory():
    def rank(comm):
        mine = {"rank": comm.rank, "array": numpy.arange(comm.rank * 1_500_000)}
        everyone = all_gather_object(mine, group=comm)
        return [(one["rank"], int(one["array"].sum())) for one in everyone]

    expected = [(r, sum(range(r * 1_500_000))) for r in range(3)]
    assert run(3, rank) == [expected] * 3


def test_the_roots_object_reaches_everyone():
    def rank(comm):
        mine = {"weights": torch.arange(5), "epoch": 3} if comm.rank == 1 else None
        return broadcast_object(mine, root=1, group=comm)

    for found in run(3, rank):
        assert found["epoch"] == 3 and found["weights"].tolist() == [0, 1, 2, 3, 4]
