"""SyncBatchNorm over ranks in threads, against one process's BatchNorm on the full batch."""

import copy

import pytest
import torch
from torch import nn

from ranks_in_threads import run
from ringcomm.torch.sync_batchnorm import SyncBatchNorm, convert_sync_batchnorm

SHAPES = {1: (5,), 2: (5, 3, 4), 3: (5, 2, 3, 2)}
KINDS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
# What float32 leaves of two orders of summing a hundred values of size 1, and of bf16's 8 bits.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def both(kind, sizes, dtype, **options):
    """(full batch, one process) and (its parts, ranks): module, output, gradients of input."""
    torch.manual_seed(5)
    plain = KINDS[kind](5, **options).to(dtype)
    if plain.affine:
        nn.init.normal_(plain.weight)
        nn.init.normal_(plain.bias)
    # A mean that is large beside the spread is where a sum of squares goes wrong.
    inputs = (torch.randn(sum(sizes), *SHAPES[kind], dtype=torch.float64) + 30).to(dtype)
    weights = torch.randn_like(inputs)
    models = [copy.deepcopy(plain) for _ in sizes]
    if dtype is torch.bfloat16:
        # torch's own arithmetic in bf16 is no closer to the truth than ours: compare with that.
        plain = plain.double()
    whole = inputs.to(plain.running_mean.dtype if plain.track_running_stats else dtype)
    whole = whole.clone().requires_grad_()
    output = plain(whole)
    (output * weights).sum().backward()
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]

    def rank(comm):
        cut = slice(starts[comm.rank], starts[comm.rank] + sizes[comm.rank])
        model = convert_sync_batchnorm(models[comm.rank], comm)
        part = inputs[cut].clone().requires_grad_()
        answer = model(part)
        (answer * weights[cut]).sum().backward()
        return model, answer, part.grad

    return (plain, output, whole.grad), run(len(sizes), rank)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("sizes", [(4, 4), (1, 6, 3), (5, 0, 2, 1)], ids=str)
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_forward_and_backward_are_those_of_the_full_batch(kind, sizes, dtype):
    (plain, output, grad), parts = both(kind, sizes, dtype)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    wide = torch.float64
    torch.testing.assert_close(
        torch.cat([part[1] for part in parts]).to(wide), output.to(wide), **close
    )
    torch.testing.assert_close(
        torch.cat([part[2] for part in parts]).to(wide), grad.to(wide), **close
    )
    total = {"rtol": 4 * TOLERANCE[dtype], "atol": 10 * TOLERANCE[dtype]}
    weight = sum(part[0].weight.grad.double() for part in parts)
    bias = sum(part[0].bias.grad.double() for part in parts)
    torch.testing.assert_close(weight, plain.weight.grad.double(), **total)
    torch.testing.assert_close(bias, plain.bias.grad.double(), **total)
    for model, _, _ in parts:
        for name in ("running_mean", "running_var"):
            mine, its = getattr(model, name).to(wide), getattr(plain, name).to(wide)
            torch.testing.assert_close(mine, its, **close)
        assert int(model.num_batches_tracked) == 1
        assert torch.equal(model.running_var, parts[0][0].running_var)


@pytest.mark.parametrize(
    "options",
    [{"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.5}],
    ids=str,
)
def test_every_option_means_the_same(options):
    (plain, output, grad), parts = both(2, (3, 2), torch.float64, **options)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), output)
    torch.testing.assert_close(torch.cat([part[2] for part in parts]), grad)
    for model, _, _ in parts:
        torch.testing.assert_close(model.running_var, plain.running_var)


def test_evaluation_asks_no_other_rank():
    def rank(comm):
        model = SyncBatchNorm(3, group=comm)
        model.running_mean.fill_(2.0)
        model.eval()
        # Rank 1 makes no call at all.
        return model(torch.full((4, 3), 2.0)) if comm.rank == 0 else None

    assert not run(2, rank)[0].any()


def test_one_value_over_all_ranks_is_refused():
    def rank(comm):
        return SyncBatchNorm(3, group=comm)(torch.ones(1 - comm.rank, 3))

    with pytest.raises(ValueError, match="more than 1 value per channel"):
        run(2, rank)


def test_a_model_is_converted_in_place_on_its_own_parameters():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sequential(nn.BatchNorm2d(4)), nn.SyncBatchNorm(4))
    model.eval()
    weight, mean = model[1][0].weight, model[1][0].running_mean
    converted = convert_sync_batchnorm(model)
    assert converted is model
    assert isinstance(model[1][0], SyncBatchNorm) and isinstance(model[2], SyncBatchNorm)
    assert model[1][0].weight is weight and model[1][0].running_mean is mean
    assert not model[1][0].training
    assert isinstance(convert_sync_batchnorm(nn.BatchNorm1d(3)), SyncBatchNorm)


def test_a_lazy_module_is_converted_after_its_first_batch():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Sequential(nn.LazyBatchNorm1d()))
    with pytest.raises(ValueError, match="'1.0' is a LazyBatchNorm1d .*; run one batch") as told:
        convert_sync_batchnorm(model)
    assert "\n" not in str(told.value)
    # Nothing was converted, so that the batch needs no ranks.
    assert type(model[0]) is nn.BatchNorm1d
    model(torch.ones(4, 3))
    convert_sync_batchnorm(model)
    assert isinstance(model[1][0], SyncBatchNorm) and model[1][0].num_features == 3
    with pytest.raises(ValueError, match="it is a LazyBatchNorm2d"):
        convert_sync_batchnorm(nn.LazyBatchNorm2d(affine=False))


def test_without_ranks_it_says_what_to_do():
    with pytest.raises(RuntimeError, match="init_process_group"):
        SyncBatchNorm(3)(torch.ones(4, 3))
