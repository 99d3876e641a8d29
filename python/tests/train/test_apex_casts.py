"""What `ringcomm.apex.amp` casts, and how what it changed goes on: copies, schedulers, groups."""

import copy
import io
import math
import types
import warnings
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ringcomm.apex
from ringcomm.apex import amp, fp16_utils, multi_tensor_apply, parallel
from ringcomm.apex.parallel.LARC import LARC
from ringcomm.torch import DataParallel
from test_apex_amp import (
    HALF,
    LEVELS,
    Network,
    backward,
    batch,
    begun,
    loss_of,
    same,
    stepped,
    weights,
)

Pair = namedtuple("Pair", "left right")


class Batch:
    """What a script's own class of batches is to amp: something with a `to`."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, dtype):
        return Batch(self.tensor.to(dtype))


class Sees(nn.Module):
    """Returns what it is given, and notes it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, *args, **kwargs):
        self.args, self.kwargs = args, kwargs
        return args, kwargs


def test_tensors_are_found_in_what_a_model_takes_and_gives():
    model = amp.initialize(Sees(), opt_level="O2", verbosity=0)
    one, number = torch.ones(2), torch.arange(2)
    given = (one, [one, "word", None], Pair(one, number), Batch(one), {"a": {"b": one}}, 3)
    answer, named = model(*given, mask=OrderedDict(x=one), flag=True)
    for (tensor, listed, pair, own, nested, three), more, dtype in (
        (model.args, model.kwargs, HALF), (answer, named, torch.float32)
    ):  # fmt: skip
        assert tensor.dtype == listed[0].dtype == pair.left.dtype == own.tensor.dtype == dtype
        assert nested["a"]["b"].dtype == more["mask"]["x"].dtype == dtype
        assert listed[1:] == ["word", None] and three == 3 and more["flag"] is True
        assert isinstance(pair, Pair) and pair.right is number
        assert isinstance(more["mask"], OrderedDict)
    # What the script holds stays as it was.
    assert one.dtype == torch.float32 and given[4]["a"]["b"] is one


def test_outputs_under_o1_are_float32_where_they_were_half():
    class Gives(nn.Module):
        def forward(self, x):
            return {"low": F.linear(x, x), "wide": x.double(), "whole": torch.arange(2)}

    model = amp.initialize(Gives(), opt_level="O1", verbosity=0)
    output = model(torch.ones(2, 2))
    assert [one.dtype for one in output.values()] == [torch.float32, torch.float64, torch.int64]
    assert not torch.is_autocast_enabled("cpu")
    with amp.disable_casts():
        third = torch.full((2, 2), 1 / 3)
        assert torch.equal(model(third)["low"], F.linear(third, third))
    assert not torch.equal(model(third)["low"], F.linear(third, third))


@pytest.mark.parametrize("level", LEVELS)
def test_copies_cast_as_the_model_does(level):
    model, optimizer = begun(level)
    stepped(model, optimizer)
    model.eval()
    x, expected = batch()[0], model(batch()[0])
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert type(other).__name__ == "Network" and isinstance(other, Network)
        assert torch.equal(other(x), expected)
        # A copy has weights of its own, and does not run on the model's.
        with torch.no_grad():
            other.last.weight.zero_()
        assert not torch.equal(other(x), expected) and torch.equal(model(x), expected)
    assert torch.equal(DataParallel(model, ["cpu"] * 2)(x), expected)
    # A script that does not know amp loads the weights as any others.
    Network().load_state_dict(model.state_dict())


def test_a_model_with_a_forward_pass_of_its_own():
    model = Network()
    inner = model.forward
    model.forward = lambda x: inner(x) + 1
    model, _ = amp.initialize(
        model, torch.optim.SGD(model.parameters(), 0.1), opt_level="O2", verbosity=0
    )
    output = model(batch()[0])
    assert model.seen[0] == HALF and output.dtype == torch.float32
    assert torch.equal(output, (inner(batch()[0].to(HALF)) + 1).float())


def test_functions_are_cast_under_o1_alone():
    seen = []

    def see(*tensors):
        seen.append([one.dtype for one in tensors if isinstance(one, torch.Tensor)])
        return tensors[0]

    half, wide = amp.half_function(see), amp.float_function(see)
    widest = amp.promote_function(see)
    low, high, whole = torch.ones(2, dtype=HALF), torch.ones(2), torch.arange(2)

    def run():
        seen.clear()
        half(low, high, whole)
        wide(low, high, 1.0)
        widest(low, high)
        half(whole)
        return list(seen)

    plain = [[HALF, torch.float32, torch.int64], [HALF, torch.float32], [HALF, torch.float32]]
    begun("O2")
    assert run() == [*plain, [torch.int64]]
    begun("O1")
    full = torch.float32
    cast = [[HALF, HALF, torch.int64], [full, full], [full, full], [torch.int64]]
    assert run() == cast
    with amp.disable_casts():
        assert run() == [*plain, [torch.int64]]
    assert run() == cast
    gradient = torch.ones(2, requires_grad=True)
    half(gradient).sum().backward()
    assert gradient.grad.dtype == torch.float32


def test_functions_that_are_registered():
    module = types.SimpleNamespace(
        product=lambda x, y: x @ y, square=lambda x: x @ x, mse_loss=F.mse_loss
    )
    with pytest.raises(ValueError, match="no function missing"):
        amp.register_half_function(module, "missing")
    amp.register_half_function(module, "product")
    amp.register_float_function(module, "square")
    amp.register_half_function(module, "mse_loss")
    x = torch.ones(2, 2)

    class Calls(nn.Module):
        def forward(self, x):
            parts = (module.product(x, x), module.square(x), module.mse_loss(x, x))
            self.seen = [part.dtype for part in parts]
            return parts[0]

    begun("O2")
    assert module.product(x, x).dtype == torch.float32
    model = amp.initialize(Calls(), opt_level="O1", verbosity=0)
    model(x)
    # Without the registration autocast has the square in half precision, and the loss in float32.
    assert model.seen == [HALF, torch.float32, HALF]
    assert module.product(x, x).dtype == HALF


@pytest.mark.parametrize("level", LEVELS)
def test_groups_that_come_later(level):
    torch.manual_seed(0)
    model = nn.ModuleDict({"early": nn.Linear(4, 4), "late": nn.Linear(4, 2)})

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model

        def forward(self, x):
            return self.parts["late"](self.parts["early"](x))

    both = Both()
    optimizer = torch.optim.SGD(model["early"].parameters(), 0.5)
    both, optimizer = amp.initialize(both, optimizer, opt_level=level, verbosity=0)
    optimizer.add_param_group({"params": list(model["late"].parameters()), "lr": 0.25})
    late, x = optimizer.param_groups[1]["params"], torch.ones(3, 4)
    assert {one.dtype for one in late} == {HALF if level == "O3" else torch.float32}
    twin = copy.deepcopy(both)
    twin(x).square().mean().backward()
    slopes = [one.grad.to(late[0].dtype) for one in twin.parts["late"].parameters()]
    expected = [one.detach() - 0.25 * slope for one, slope in zip(late, slopes)]
    backward(both(x).square().mean(), optimizer)
    optimizer.step()
    for one, value in zip(late, expected):
        torch.testing.assert_close(one.detach(), value)
    halves = [one.to(model["late"].weight.dtype) for one in late]
    assert same(model["late"].parameters(), halves)


@pytest.mark.parametrize("early", [True, False])
def test_schedulers(early):
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if early else None
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with warnings.catch_warnings():
        # torch warns of a scheduler whose optimizer has not stepped.
        warnings.simplefilter("error")
        stepped(model, optimizer)
        scheduler.step()
        before = weights(model)
        stepped(model, optimizer, factor=math.inf)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.025 and same(before, weights(model))


def test_closures():
    for level, more in (("O2", {}), ("O1", {})):
        model, optimizer = begun(level, **more)
        with pytest.raises(RuntimeError, match="no closure"):
            optimizer.step(lambda: loss_of(model))
    model, optimizer = begun("O1", loss_scale=4.0)
    twin = copy.deepcopy(model)
    loss_of(twin).backward()

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        backward(loss, optimizer)
        return loss

    assert float(optimizer.step(closure)) == float(loss_of(twin))
    for mine, its in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(mine, its - 0.1 * its.grad)


def test_zero_grad_reaches_weights_and_masters():
    model, optimizer = begun("O2")
    for zero in (model.zero_grad, optimizer.zero_grad):
        backward(loss_of(model), optimizer)
        optimizer.step()
        zero()
        assert all(one.grad is None for one in [*model.parameters(), *amp.master_params(optimizer)])
    for level in LEVELS:
        # Some scripts call it just before backward.
        model, optimizer = begun(level, loss_scale=4.0)
        backward(loss_of(model), optimizer)
        twin = copy.deepcopy(model)
        loss_of(twin, 1).backward()
        with amp.scale_loss(loss_of(model, 1), optimizer) as scaled_loss:
            optimizer.zero_grad()
            scaled_loss.backward()
        for one, its in zip(amp.master_params(optimizer), twin.parameters()):
            torch.testing.assert_close(one.grad, its.grad.to(one.dtype))
    model, optimizer = begun("O2")
    backward(loss_of(model), optimizer)
    optimizer.zero_grad(set_to_none=False)
    assert all(not one.grad.any() for one in model.parameters())


def test_sparse_gradients():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(4, 2, sparse=True)

        def forward(self, x):
            return 2 * self.table(x)

    for level in ("O1", "O2"):
        torch.manual_seed(0)
        model = Looks()
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        before = next(amp.master_params(optimizer)).detach().clone()
        for _ in range(2):
            backward(model(torch.tensor([1, 1, 3])).sum(), optimizer)
        optimizer.step()
        moved = before - next(amp.master_params(optimizer))
        expected = torch.tensor([[0.0, 0], [4, 4], [0, 0], [2, 2]])
        torch.testing.assert_close(moved, expected)


def test_larc_under_amp():
    torch.manual_seed(0)
    model = Network()
    inner = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.5)
    model, optimizer = amp.initialize(model, LARC(inner), opt_level="O2", verbosity=0)
    weight = next(amp.master_params(optimizer))
    optimizer.zero_grad()
    backward(loss_of(model), optimizer)
    before, gradient = weight.detach().clone(), weight.grad.clone()
    own = 0.02 * before.norm() / (gradient.norm() + 0.5 * before.norm() + 1e-8)
    optimizer.step()
    factor = min(float(own) / 0.1, 1.0)
    torch.testing.assert_close(weight, before - 0.1 * factor * (gradient + 0.5 * before))
    assert torch.equal(model.first.weight, weight.to(HALF)) and factor < 1
    assert inner.param_groups[0]["weight_decay"] == 0.5


def test_tools_for_half_precision():
    model = fp16_utils.convert_network(Network(), torch.float64)
    assert model.first.weight.dtype == torch.float64 and model.norm.weight.dtype == torch.float32
    network = fp16_utils.network_to_half(Network())
    assert network[1].first.weight.dtype == torch.float16
    assert network[1].norm.running_mean.dtype == torch.float32
    wrapped = fp16_utils.FP16Model(nn.Linear(2, 2))
    assert wrapped(torch.ones(1, 2)).dtype == torch.float16
    for flat in (False, True):
        model = nn.Linear(3, 2).to(HALF)
        models, masters = fp16_utils.prep_param_lists(model, flat)
        assert len(masters) == (1 if flat else 2) and masters[0].dtype == torch.float32
        model(torch.ones(1, 3, dtype=HALF)).sum().backward()
        fp16_utils.model_grads_to_master_grads(models, masters, flat)
        torch.optim.SGD(masters, 1.0).step()
        expected = [one.detach() - one.grad for one in models]
        fp16_utils.master_params_to_model_params(models, masters, flat)
        assert same(models, expected)
    assert fp16_utils.to_python_float(torch.tensor([2.5])) == 2.5
    assert fp16_utils.clip_grad_norm is nn.utils.clip_grad_norm_
    assert not multi_tensor_apply.multi_tensor_applier.available


@pytest.mark.parametrize(
    "module,name,instead",
    [
        (fp16_utils, "FP16_Optimizer", 'opt_level="O2"'),
        (amp, "init", "amp.initialize"),
        (ringcomm.apex, "normalization", "torch.nn.LayerNorm"),
        (ringcomm.apex, "transformer", "from-apex.md"),
        (parallel, "bottleneck", "from-apex.md"),
    ],
)
def test_what_is_not_there_says_what_is(module, name, instead):
    with pytest.raises(AttributeError, match=f"{name}.*{instead}"):
        getattr(module, name)
