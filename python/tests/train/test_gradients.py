"""reduce_gradients and its relatives over ranks in threads, against sums in one thread."""

import copy

import pytest
import torch
from torch import nn

from ranks_in_threads import run
from ringcomm.torch.gradients import Compression, broadcast_parameters, reduce_gradients

SIZES = (6, 10, 4)


def model_of(dtype=torch.float64):
    torch.manual_seed(7)
    layers = [nn.Linear(a, b) for a, b in zip(SIZES, SIZES[1:])]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1]).to(dtype)


def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("bucket_bytes", [1, 600, 25 << 20])
@pytest.mark.parametrize("update_cycle", [1, 3])
@pytest.mark.parametrize("nranks", [1, 2, 4])
def test_they_are_those_of_the_full_batch(nranks, update_cycle, bucket_bytes):
    model, each = model_of(), 5
    x = torch.randn(nranks * update_cycle * each, SIZES[0], dtype=torch.float64)
    copies = [copy.deepcopy(model) for _ in range(nranks)]
    model(x).square().mean().backward()
    parts = x.split(each)

    def rank(comm):
        mine = copies[comm.rank]
        for cycle in range(update_cycle):
            mine(parts[comm.rank * update_cycle + cycle]).square().mean().backward()
        finite = reduce_gradients(
            mine, update_cycle=update_cycle, bucket_bytes=bucket_bytes, group=comm
        )
        return finite, gradients(mine)

    for finite, found in run(nranks, rank):
        assert finite is True
        torch.testing.assert_close(found, gradients(model))


@pytest.mark.parametrize("compression", [None, Compression.fp16, Compression.bf16], ids=str)
def test_every_rank_gets_the_same_bits(compression):
    def rank(comm):
        torch.manual_seed(comm.rank)
        weight = nn.Parameter(torch.empty(1003))
        weight.grad = torch.randn(1003)
        mine = weight.grad.clone()
        reduce_gradients([weight], compression=compression, group=comm)
        return mine, weight.grad

    answers = run(3, rank)
    mean = sum(mine.double() for mine, _ in answers) / 3
    # Three roundings and one of the sum, relative to values of size 1.
    tolerance = {None: 1e-6, Compression.fp16: 2e-3, Compression.bf16: 2e-2}[compression]
    for _, found in answers:
        assert torch.equal(found, answers[0][1])
        torch.testing.assert_close(found.double(), mean, rtol=tolerance, atol=tolerance)
    if compression is not None:
        assert not torch.equal(answers[0][1].double(), mean.float().double())


def test_a_compressed_sum_overflows_no_sooner_than_its_average():
    def rank(comm):
        weight = nn.Parameter(torch.zeros(4))
        weight.grad = torch.full((4,), 40000.0)
        return reduce_gradients([weight], compression=Compression.fp16, group=comm), weight.grad

    for finite, found in run(4, rank):
        assert finite and (found == 40000.0).all()


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("compression", [None, Compression.fp16], ids=str)
def test_an_overflow_anywhere_is_known_everywhere(bad, compression):
    def rank(comm):
        weights = [nn.Parameter(torch.zeros(8)) for _ in range(3)]
        for weight in weights:
            weight.grad = torch.ones(8)
        if comm.rank == 1:
            weights[1].grad[5] = bad
        return reduce_gradients(weights, compression=compression, bucket_bytes=1, group=comm)

    assert run(3, rank) == [False, False, False]


@pytest.mark.parametrize("unscale", [False, True])
def test_scalers_skip_together(unscale):
    def rank(comm):
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        found = []
        for step in range(3):
            weight.grad = scaler.scale(torch.full((4,), 2.0))
            if step == 1 and comm.rank == 2:
                weight.grad[0] = float("inf")
            if unscale:
                scaler.unscale_(optimizer)
            found.append(reduce_gradients([weight], scaler=scaler, group=comm))
            scaler.step(optimizer)
            scaler.update()
        return found, weight.tolist(), scaler.get_scale()

    for answer in run(3, rank):
        assert answer == ([True, False, True], [-1.0] * 4, 512.0)


def test_a_scaler_learns_of_an_overflow_on_the_way():
    """What was finite when it was unscaled is too large for the type that it travels in."""

    def rank(comm):
        weights = [nn.Parameter(torch.ones(4)) for _ in range(2)]
        optimizers = [torch.optim.SGD([weight], 0.5) for weight in weights]
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        for weight, optimizer in zip(weights, optimizers):
            weight.grad = scaler.scale(torch.full((4,), 1e5))
            scaler.unscale_(optimizer)
        finite = reduce_gradients(weights, compression=Compression.fp16, scaler=scaler, group=comm)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return finite, [weight.tolist() for weight in weights], scaler.get_scale()

    assert run(2, rank) == [(False, [[1.0] * 4] * 2, 0.5)] * 2


@pytest.mark.parametrize("overflow", [False, True])
def test_scalers_of_ranks_without_gradients(overflow):
    def rank(comm):
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        loss = scaler.scale(torch.full((4,), 2.0))
        if comm.rank == 0:
            weight.grad = loss
            weight.grad[0] *= float("inf") if overflow else 1
        scaler.unscale_(optimizer)
        finite = reduce_gradients([weight], scaler=scaler, group=comm)
        scaler.step(optimizer)
        scaler.update()
        return finite, weight.tolist(), scaler.get_scale()

    expected = (False, [1.0] * 4, 1.0) if overflow else (True, [0.5] * 4, 2.0)
    assert run(2, rank) == [expected] * 2


def test_a_scaler_that_is_not_enabled():
    def rank(comm):
        weight = nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        return reduce_gradients([weight], scaler=scaler, group=comm)

    assert run(2, rank) == [True, True]


def test_what_some_or_no_ranks_used():
    def rank(comm):
        some, nobody, frozen = (nn.Parameter(torch.zeros(2)) for _ in range(3))
        frozen.requires_grad_(False)
        if comm.rank == 0:
            some.grad = torch.tensor([4.0, 8.0])
        reduce_gradients([some, nobody, frozen], group=comm)
        return some.grad.tolist(), nobody.grad, frozen.grad

    assert run(2, rank) == [([2.0, 4.0], None, None)] * 2


def test_types_may_be_mixed_and_sums_asked_for():
    def rank(comm):
        parameters = [
            nn.Parameter(torch.zeros(3, dtype=dtype).t())
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32)
        ]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        reduce_gradients(parameters, average=False, group=comm)
        return [parameter.grad.sum().item() for parameter in parameters]

    assert run(4, rank) == [[12.0] * 4] * 4


@pytest.mark.parametrize("compression", [None, Compression.fp16], ids=str)
def test_complex_gradients(compression):
    def rank(comm):
        weights = [nn.Parameter(torch.zeros(2, dtype=torch.complex64)) for _ in range(3)]
        weights[0].grad = torch.tensor([1 + 2j, 3 - 4j]) * (comm.rank + 1)
        # A view that only shows the conjugate of what lies there.
        weights[1].grad = (torch.tensor([1 - 2j, 0.5j]) * (comm.rank + 1)).conj()
        if comm.rank == 1:
            weights[2].grad = torch.tensor([0, 8j])
        finite = reduce_gradients(weights, compression=compression, group=comm)
        found = [weight.grad.tolist() for weight in weights]
        weights[0].grad[1] = complex(1, float("inf")) if comm.rank == 0 else 1
        return finite, found, reduce_gradients(weights, compression=compression, group=comm)

    means = [[2 + 4j, 6 - 8j], [2 + 4j, -1j], [0, 8j / 3]]
    for finite, found, after in run(3, rank):
        assert finite and not after
        for values, expected in zip(found, means):
            assert values == pytest.approx(expected, rel=1e-3)


def test_sparse_gradients_are_refused():
    layer = nn.Embedding(4, 2, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        run(1, lambda comm: reduce_gradients(layer, group=comm))


def test_everyone_starts_from_the_roots_parameters():
    def rank(comm):
        torch.manual_seed(comm.rank)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        model[0].weight.data = torch.randn(3, 4).t()
        model[1].running_mean.normal_()
        model.register_buffer("phase", torch.randn(3, dtype=torch.complex64).conj())
        kept = copy.deepcopy(model.state_dict())
        broadcast_parameters(model, root=1, group=comm)
        return kept, model.state_dict()

    answers = run(3, rank)
    for _, found in answers:
        for name, value in answers[1][0].items():
            assert torch.equal(found[name], value)
