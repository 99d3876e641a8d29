"""`ringcomm.apex.parallel` on several ranks: what each argument does."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from apex_ranks import everyone
from ringcomm.apex.parallel import (
    DistributedDataParallel,
    Reducer,
    SyncBatchNorm,
    convert_syncbn_model,
    create_syncbn_process_group,
)
from ringcomm.apex.parallel.exchange import cut
from ringcomm.torch import SyncBatchNorm as Base


def network(dtype=torch.float64):
    torch.manual_seed(5)
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)]
    return nn.Sequential(*layers).to(dtype)


def inputs(rank, dtype=torch.float64):
    torch.manual_seed(30 + rank)
    return torch.randn(3, 4, dtype=torch.float64).to(dtype)


def loss_of(model, rank):
    return model(inputs(rank, next(model.parameters()).dtype)).square().mean()


def gradients(model):
    return [None if one.grad is None else one.grad.clone() for one in model.parameters()]


def averages(ranks, make=network):
    """What one process finds on every rank's inputs."""
    model = make()
    sum(loss_of(model, rank) for rank in range(ranks)).div(ranks).backward()
    return gradients(model)


def close(found, expected, tolerance=1e-12):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def spied(body):
    """What travels while the body runs: types and sizes, in order."""
    seen, inner = [], dist.all_reduce

    def all_reduce(tensor, *arguments, **named):
        seen.append((tensor.dtype, tensor.numel()))
        return inner(tensor, *arguments, **named)

    dist.all_reduce = all_reduce
    try:
        body()
    finally:
        dist.all_reduce = inner
    return seen


def reduced(settings, triggers=()):
    model = network()
    more = {"allreduce_trigger_params": [model[number].weight for number in triggers]}
    model = DistributedDataParallel(model, **settings, **(more if triggers else {}))
    seen = spied(lambda: loss_of(model, dist.get_rank()).backward())
    return gradients(model), seen


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("message_size", [1, 21, 10**7])
def test_gradients_are_averages(ranks, delay, message_size):
    settings = {"delay_allreduce": delay, "message_size": message_size}
    for found, seen in everyone(ranks, reduced, settings):
        close(found, averages(ranks))
        # From the last layer to the first, each bucket with a mark for each parameter.
        expected = {1: [2, 5, 5, 17, 5, 17], 21: [25 + 4, 20 + 2], 10**7: [45 + 6]}[message_size]
        assert [count for _, count in seen] == expected


def test_triggers_end_buckets():
    for found, seen in everyone(2, reduced, {"message_size": 1}, (2, 0)):
        close(found, averages(2))
        assert [count for _, count in seen] == [1 + 4 + 4 + 16 + 4, 4 + 16 + 2]


def test_where_buckets_end():
    def parts(sizes, message_size, triggers=()):
        held = [nn.Parameter(torch.zeros(size)) for size in sizes]
        found = cut(held, message_size, {id(held[number]) for number in triggers})
        return [[len(one) for one in part] for part in found]

    assert parts([5, 1, 3, 3, 9], 6) == [[5, 1], [3, 3], [9]]
    assert parts([5, 1, 3], 100) == [[5, 1, 3]]
    assert parts([5, 1, 3, 2], 1, [1, 2]) == [[5, 1], [3], [2]]
    low = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    mixed = [nn.Parameter(torch.zeros(2)), low, nn.Parameter(torch.zeros(2))]
    assert [len(part) for part in cut(mixed, 4, set())] == [2, 1]


def when(delay):
    """How many buckets are on their way when the first layer's gradients come."""
    model = DistributedDataParallel(network(), message_size=1, delay_allreduce=delay)
    counts = []
    model.module[0].bias.register_hook(lambda _: counts.append(model._exchange._sent))
    loss_of(model, dist.get_rank()).backward()
    return counts


def test_buckets_travel_while_the_pass_runs_unless_delayed():
    assert everyone(2, when, False) == [[4], [4]] and everyone(2, when, True) == [[0], [0]]


def large(dtype, settings):
    """Gradients of 40000, of which two are more than float16 has."""
    weight = nn.Linear(1, 3, bias=False)
    weight.weight.data = torch.zeros(3, 1, dtype=dtype)
    model = DistributedDataParallel(weight, **settings)
    seen = spied(lambda: model(torch.full((1, 1), 4e4, dtype=dtype)).sum().backward())
    return weight.weight.grad.flatten().tolist(), seen[0][0], weight.weight.grad.dtype


@pytest.mark.parametrize(
    "settings,value,wire",
    [
        ({}, math.inf, torch.float16),
        ({"gradient_predivide_factor": 2.0}, 4e4, torch.float16),
        ({"gradient_predivide_factor": 4.0}, 4e4, torch.float16),
        ({"allreduce_always_fp32": True}, 4e4, torch.float32),
        ({"allreduce_always_fp32": True, "gradient_predivide_factor": 3.0}, 4e4, torch.float32),
        ({"gradient_average": False, "gradient_predivide_factor": 4.0}, 2e4, torch.float16),
        ({"gradient_average": False}, math.inf, torch.float16),
    ],
    ids=str,
)
def test_what_keeps_float16_from_overflowing(settings, value, wire):
    for found, travelled, kind in everyone(2, large, torch.float16, settings):
        assert found == [value] * 3 and travelled == wire and kind == torch.float16


def small(settings):
    """A gradient that is the least that float16 has."""
    weight = nn.Linear(1, 1, bias=False).half()
    model = DistributedDataParallel(weight, gradient_predivide_factor=4.0, **settings)
    model(torch.full((1, 1), 2.0**-24, dtype=torch.float16)).sum().backward()
    return weight.weight.grad.item()


def test_float32_begins_before_gradients_are_divided():
    assert everyone(2, small, {}) == [0, 0]
    assert everyone(2, small, {"allreduce_always_fp32": True}) == [2.0**-24] * 2


def test_other_types_travel_as_they_are():
    for settings, value in (
        ({"allreduce_always_fp32": True}, 4e4),
        ({"gradient_average": False}, 8e4),
        ({"gradient_average": False, "gradient_predivide_factor": 8.0}, 1e4),
    ):
        for found, travelled, kind in everyone(2, large, torch.float64, settings):
            assert found == [value] * 3 and travelled == kind == torch.float64


def rank_0s_weights():
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(dist.get_rank())
    DistributedDataParallel(model)
    return list(model.state_dict().values())


def test_everyone_begins_with_rank_0s_weights():
    torch.manual_seed(0)
    expected = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).state_dict().values()
    for found in everyone(2, rank_0s_weights):
        assert all(map(torch.equal, found, expected))


class Branches(nn.Module):
    """Ranks use different parts of it, and one part is nobody's."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(4)])

    def forward(self, used):
        return sum((number + 1) * self.parts[number].sum() for number in used)


def unlike(settings):
    model, rank = DistributedDataParallel(Branches(), **settings), dist.get_rank()
    model([0, 3] if rank == 0 else [1, 3]).backward()
    found = gradients(model)
    # The next pass uses others.
    model.zero_grad()
    model([2] if rank == 0 else [3]).backward()
    return found, gradients(model)


@pytest.mark.parametrize("settings", [{}, {"message_size": 1}, {"delay_allreduce": True}], ids=str)
def test_ranks_that_use_different_parameters(settings):
    for first, second in everyone(2, unlike, settings):
        assert [one if one is None else one.tolist() for one in first] == [
            [0.5, 0.5], [1, 1], None, [4, 4],
        ]  # fmt: skip
        assert [one if one is None else one.tolist() for one in second] == [
            None, None, [1.5, 1.5], [2, 2],
        ]  # fmt: skip


def switched():
    model, rank = DistributedDataParallel(network()), dist.get_rank()
    own = network()
    for one in (model, own):
        if one is model:
            one.disable_allreduce()
        loss_of(one, rank).backward()
    close(gradients(model), gradients(own), 0)
    model.enable_allreduce()
    model.zero_grad()
    loss_of(model, rank).backward()
    close(gradients(model), averages(2))
    # What has been averaged stays so when more is added.
    loss_of(model, rank).backward()
    close(gradients(model), [2 * one for one in averages(2)])


def frozen():
    """Parameters that need gradients later, or no longer."""
    rank, inner = dist.get_rank(), network()
    first = inner[0]
    first.requires_grad_(False)
    model = DistributedDataParallel(inner, message_size=1)
    for needs in (True, False, True):
        first.requires_grad_(needs)
        model.zero_grad()
        # Who no longer knows a parameter sends nothing for it, and nothing twice.
        loss = loss_of(model, rank)
        assert len(spied(loss.backward)) == (6 if needs else 4)
        expected = averages(2)
        close(gradients(model)[2:], expected[2:])
        if needs:
            close(gradients(model)[:2], expected[:2])
        else:
            assert first.weight.grad is None


def retained():
    model = DistributedDataParallel(network(), message_size=21, retain_allreduce_buffers=True)
    for _ in range(2):
        model.zero_grad()
        loss_of(model, dist.get_rank()).backward()
        close(gradients(model), averages(2))
        assert [one.numel() for one in model.allreduce_buffers] == [25, 20]
        model.allreduce_buffers[1].fill_(7.0)
        assert (model.module[0].weight.grad == 7).all() and (model.module[0].bias.grad == 7).all()
    wide = DistributedDataParallel(
        network(torch.bfloat16), retain_allreduce_buffers=True, allreduce_always_fp32=True
    )
    loss_of(wide, dist.get_rank()).backward()
    (buffer,) = wide.allreduce_buffers
    assert buffer.dtype == torch.bfloat16 and torch.equal(buffer[:1], wide.module[4].bias.grad)
    assert DistributedDataParallel(network()).allreduce_buffers == []


def several_groups():
    rank = dist.get_rank()
    groups = [dist.new_group() for _ in range(3)]
    for more in ({}, {"allreduce_communicators": (groups, [None] * 3)}):
        model = DistributedDataParallel(network(), 1, num_allreduce_streams=3, **more)
        assert len({id(ranks._group) for ranks in model._ranks}) == 3
        for _ in range(2):
            model.zero_grad()
            loss_of(model, rank).backward()
            close(gradients(model), averages(2))
    with pytest.raises(ValueError, match="3 groups, and num_allreduce_streams is 2"):
        DistributedDataParallel(
            network(), num_allreduce_streams=2, allreduce_communicators=(groups, groups)
        )


def after_a_failure():
    """A backward pass that fails on all ranks, in the middle."""
    model, rank = DistributedDataParallel(network(), message_size=1), dist.get_rank()
    hook = model.module[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(model, rank).backward()
    hook.remove()
    for _ in range(2):
        model.zero_grad()
        loss_of(model, rank).backward()
        close(gradients(model), averages(2))


def checkpointed():
    """Passes within a pass, as torch's older checkpoints make them."""
    model, rank = DistributedDataParallel(network(), message_size=1), dist.get_rank()
    x = inputs(rank).requires_grad_()
    model._take_in()
    middle = checkpoint(model.module[:2], x, use_reentrant=True)
    middle = checkpoint(model.module[2:4], middle, use_reentrant=True)
    # The last layer's, and then everything for each pass within; the outer one sends no more.
    assert len(spied(model.module[4](middle).square().mean().backward)) == 2 + 2 * 6
    close(gradients(model), averages(2))


def sparse():
    model = DistributedDataParallel(nn.Embedding(3, 2, sparse=True))
    with pytest.raises(ValueError, match="sparse=False"):
        (2 * model(torch.tensor([0]))).sum().backward()


def complex_numbers():
    weight = nn.Module()
    weight.one = nn.Parameter(torch.ones(2, dtype=torch.complex128))
    weight.forward = lambda x: (weight.one * x).real.sum()
    for retain in (False, True):
        weight.one.grad = None
        model = DistributedDataParallel(weight, retain_allreduce_buffers=retain)
        model(1 + 2j * dist.get_rank()).backward()
        assert weight.one.grad.tolist() == [1 - 1j, 1 - 1j]


def profiled():
    model = DistributedDataParallel(network(), prof=True)
    loss = loss_of(model, dist.get_rank())
    with torch.profiler.profile() as profile:
        loss.backward()
    names = {event.key for event in profile.key_averages()}
    assert {"ringcomm.apex: start a bucket", "ringcomm.apex: finish a bucket"} <= names


def refused():
    for given, words in (
        ({"shared_param": True}, "delay_allreduce=True"),
        ({"gradient_average_split_factor": 2.0}, "gradient_predivide_factor"),
        ({"delay_allreduce": True, "allreduce_trigger_params": []}, "leave delay_allreduce away"),
        ({"delay_allreduce": True, "num_allreduce_streams": 2}, "leave delay_allreduce away"),
    ):
        with pytest.raises(ValueError, match=words):
            DistributedDataParallel(network(), **given)


def on_request():
    """`Reducer` averages when it is called, and not before."""
    rank = dist.get_rank()
    torch.manual_seed(5 + rank)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    reducer = Reducer(model)
    torch.manual_seed(5)
    other = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    for _ in range(2):
        loss_of(model, rank).backward()
        loss_of(other, rank).backward()
    close(gradients(model), gradients(other), 0)
    reducer.reduce()
    both = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    both.load_state_dict(other.state_dict())
    sum(loss_of(both, one) for one in range(2)).backward()
    close(gradients(model), gradients(both))
    loose = [
        torch.full((2,), rank + 1.0),
        [torch.full((3, 1), 10.0 * rank), torch.ones(1).double()],
    ]
    Reducer(loose).reduce()
    assert loose[0].tolist() == [1.5, 1.5] and loose[1][0].flatten().tolist() == [5, 5, 5]
    assert loose[1][1].tolist() == [1]
    with pytest.raises(TypeError, match="tensors in lists"):
        Reducer([3])


def normalized():
    rank = dist.get_rank()
    torch.manual_seed(1)
    whole = torch.randn(6, 4, 3, dtype=torch.float64) + 5
    plain = nn.BatchNorm1d(4).double()
    nn.init.normal_(plain.weight)
    part, expected = whole[3 * rank :][:3], plain(whole)[3 * rank :][:3]
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Sequential(nn.InstanceNorm1d(4))).double()
    model[0].weight.data.copy_(plain.weight.data)
    held = model[0].weight
    assert convert_syncbn_model(model) is model and model[0].weight is held
    assert isinstance(model[0], SyncBatchNorm) and isinstance(model[0], Base)
    assert isinstance(model[1][0], nn.InstanceNorm1d)
    torch.testing.assert_close(model[0](part), expected)
    torch.testing.assert_close(model[0].running_var, plain.running_var)
    last = convert_syncbn_model(nn.BatchNorm1d(4).double(), channel_last=True)
    last.weight.data.copy_(plain.weight.data)
    output = last(part.transpose(1, 2))
    torch.testing.assert_close(output.transpose(1, 2), expected)
    assert last.channel_last and not model[0].channel_last
    fused = SyncBatchNorm(4, fuse_relu=True).double()
    fused.weight.data.copy_(plain.weight.data)
    torch.testing.assert_close(fused(part, part), torch.relu(expected + part))
    last.eval()
    flat = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(last(flat), plain.eval()(flat))


def groups_of_two():
    rank = dist.get_rank()
    assert create_syncbn_process_group(0) is None
    group = create_syncbn_process_group(2)
    assert dist.get_process_group_ranks(group) == [rank // 2 * 2, rank // 2 * 2 + 1]
    layer = SyncBatchNorm(1, affine=False, momentum=1.0, process_group=group)
    assert layer.process_group is group
    layer(torch.full((2, 1), float(rank)))
    assert layer.running_mean.item() == (0.5, 2.5)[rank // 2]
    everyones = SyncBatchNorm(1, affine=False, momentum=1.0)
    everyones(torch.full((2, 1), float(rank)))
    assert everyones.running_mean.item() == 1.5
    with pytest.raises(ValueError, match="4 ranks do not make groups of 3"):
        create_syncbn_process_group(3)


@pytest.mark.parametrize("backend", ["ringcomm", "gloo"])
@pytest.mark.parametrize(
    "body",
    [
        switched, frozen, retained, several_groups, after_a_failure, checkpointed, sparse,
        complex_numbers, profiled, refused, on_request, normalized,
    ],
    ids=lambda body: body.__name__,
)  # fmt: skip
def test_on_two_ranks(body, backend):
    everyone(2, body, backend=backend)


def test_groups_of_ranks():
    everyone(4, groups_of_two)


def test_without_a_process_group_it_is_said_what_to_do():
    for kind in (DistributedDataParallel, Reducer):
        with pytest.raises(RuntimeError, match="init_process_group"):
            kind(nn.Linear(2, 2))
