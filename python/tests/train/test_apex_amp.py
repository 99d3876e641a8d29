"""`ringcomm.apex.amp`, called as scripts for apex call it; on the CPU, in bfloat16."""

import copy
import io
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ringcomm.apex import amp

LEVELS = ("O0", "O1", "O2", "O3")
HALF = torch.bfloat16


class Network(nn.Module):
    """Notes which types its parts see."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        middle = self.norm(self.first(x))
        self.seen = (x.dtype, middle.dtype)
        return self.last(torch.relu(middle))


def begun(level, seed=0, rate=0.1, network=Network, **more):
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **more)


def batch(number=0):
    torch.manual_seed(100 + number)
    return torch.randn(16, 6), torch.randn(16, 3)


def loss_of(model, number=0):
    x, y = batch(number)
    return F.mse_loss(model(x), y)


def backward(loss, optimizer, **more):
    with amp.scale_loss(loss, optimizer, **more) as scaled_loss:
        scaled_loss.backward()


def stepped(model, optimizer, number=0, factor=1.0):
    optimizer.zero_grad()
    backward(loss_of(model, number) * factor, optimizer)
    optimizer.step()


def scale(number=0):
    return amp._amp_state.loss_scalers[number].loss_scale()


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others))


#: Of a level: its weights, those of batch normalization, what the optimizer steps, what the model
#: sees and what batch normalization gives, and the first scale.
EXPECTED = {
    "O0": (torch.float32, torch.float32, torch.float32, (torch.float32, torch.float32), 1.0),
    "O1": (torch.float32, torch.float32, torch.float32, (torch.float32, HALF), 2.0**16),
    "O2": (HALF, torch.float32, torch.float32, (HALF, HALF), 2.0**16),
    "O3": (HALF, HALF, HALF, (HALF, HALF), 1.0),
}


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_level_stands_for(level):
    model, optimizer = begun(level)
    output = model(batch()[0])
    wide, norm, stepping, seen, first = EXPECTED[level]
    assert model.first.weight.dtype == model.last.bias.dtype == wide
    assert model.norm.weight.dtype == model.norm.running_var.dtype == norm
    assert {one.dtype for one in amp.master_params(optimizer)} == {stepping}
    assert model.seen == seen and output.dtype == torch.float32 and scale() == first
    assert all(value.dtype in (torch.float32, torch.int64) for value in model.state_dict().values())
    before = model.last.weight.detach().clone()
    for number in range(3):
        stepped(model, optimizer, number)
    assert not torch.equal(before, model.last.weight)


def test_properties_can_be_overridden():
    model, _ = begun("O2", keep_batchnorm_fp32="False", loss_scale="128.0")
    assert model.norm.weight.dtype == HALF and scale() == 128
    model, _ = begun("O3", keep_batchnorm_fp32="True", loss_scale="dynamic")
    assert model.norm.weight.dtype == torch.float32 and scale() == 2**16
    model, optimizer = begun("O3", keep_batchnorm_fp32=True, master_weights=True, loss_scale=4)
    assert {one.dtype for one in amp.master_params(optimizer)} == {torch.float32}
    model, _ = begun("O0", cast_model_type=torch.float64)
    assert model.first.weight.dtype == torch.float64 and model(batch()[0]).dtype == torch.float32
    model, _ = begun("O2", cast_model_type=torch.float16)
    assert model.first.weight.dtype == torch.float16
    model, _ = begun("O2", cast_model_type=False)
    assert model.first.weight.dtype == torch.float32
    for level in LEVELS:
        model, _ = begun(level, cast_model_outputs=torch.float16)
        assert model(batch()[0]).dtype == torch.float16


@pytest.mark.parametrize(
    "level,given,words",
    [
        ("O1", {"cast_model_type": torch.float16}, "cast_model_type.*O1"),
        ("O1", {"keep_batchnorm_fp32": True}, "keep_batchnorm_fp32.*O1"),
        ("O1", {"master_weights": True}, "master_weights.*O1"),
        ("O2", {"patch_torch_functions": True}, "patch_torch_functions.*O2"),
        ("O2", {"keep_batchnorm_fp32": "yes"}, "one of these words; got 'yes'"),
        ("O2", {"cast_model_type": "half"}, "a torch.dtype or False"),
        ("O2", {"loss_scale": "large"}, "large"),
        ("02", {}, "the letter O"),
    ],
)
def test_what_makes_no_sense_is_refused(level, given, words):
    with pytest.raises((RuntimeError, ValueError, TypeError), match=words):
        begun(level, **given)


def test_masters_are_what_the_optimizer_steps():
    """Bit for bit as a loop by hand: masters in float32, gradients in half precision over them."""
    torch.manual_seed(0)
    model = Network()
    hand = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    other = torch.optim.SGD(hand.parameters(), 0.1, momentum=0.9)
    for one, step in ((model, optimizer), (hand, other)):
        loss_of(one).backward()
        step.step()
    groups, parameters = optimizer.param_groups, optimizer.param_groups[0]["params"]
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    assert optimizer.param_groups is groups and groups[0]["params"] is parameters
    halves, masters = list(model.parameters()), list(amp.master_params(optimizer))
    for half, master in zip(halves, masters):
        kept = half.dtype == torch.float32
        assert (master is half) == kept and torch.equal(master, half.float())
        # What the optimizer has learned before goes on.
        assert torch.equal(
            optimizer.state[master]["momentum_buffer"],
            other.state[dict(zip(masters, hand.parameters()))[master]]["momentum_buffer"],
        )
    momenta = [other.state[one]["momentum_buffer"] for one in hand.parameters()]
    expected = [master.detach().clone() for master in masters]
    for number in range(4):
        twin = copy.deepcopy(model)
        (loss_of(twin, number) * scale()).backward()
        for weight, momentum, one in zip(expected, momenta, twin.parameters()):
            momentum.mul_(0.9).add_(one.grad.float() / scale())
            weight.sub_(momentum, alpha=0.1)
        stepped(model, optimizer, number)
        assert same(masters, expected)
        assert same(halves, [one.to(half.dtype) for one, half in zip(expected, halves)])


def test_steps_too_small_for_half_precision_add_up_in_masters():
    moved = {}
    for level in ("O2", "O3"):
        model, optimizer = begun(level, rate=1e-5)
        before = model.first.weight.clone()
        for _ in range(60):
            stepped(model, optimizer)
        moved[level] = int((model.first.weight != before).sum())
    assert moved["O3"] < moved["O2"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("given", [128.0, "dynamic"])
def test_gradients_of_master_params_have_no_scale(level, given):
    model, optimizer = begun(level, loss_scale=given)
    twin = copy.deepcopy(model)
    loss_of(twin).backward()
    backward(loss_of(model), optimizer)
    gradients = [one.grad for one in amp.master_params(optimizer)]
    for mine, its in zip(gradients, twin.parameters()):
        # A scale that is a power of two changes no digit of a gradient in half precision.
        torch.testing.assert_close(mine.float(), its.grad.float(), rtol=1e-6, atol=1e-12)
    norm = math.sqrt(sum(float(one.float().square().sum()) for one in gradients))
    found = nn.utils.clip_grad_norm_(amp.master_params(optimizer), norm / 3)
    assert float(found) == pytest.approx(norm, rel=1e-2)
    clipped = math.sqrt(sum(float(one.float().square().sum()) for one in gradients))
    assert clipped == pytest.approx(norm / 3, rel=1e-2)


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize("delays", [(1, 1, 0), (0, 0, 0), (0, 1, 0), (1, 0, 0)])
def test_passes_add_up(level, delays):
    """With delay_unscale in any of them, gradients are the sum of all passes'."""
    model, optimizer = begun(level, loss_scale=128.0)
    expected = [torch.zeros_like(one, dtype=torch.float32) for one in model.parameters()]
    for number, delay in enumerate(delays):
        twin = copy.deepcopy(model)
        loss_of(twin, number).backward()
        for total, one in zip(expected, twin.parameters()):
            total += one.grad.float()
        backward(loss_of(model, number), optimizer, delay_unscale=bool(delay))
    # Passes in half precision add up in it until they are unscaled: 2^-8 of each of two sums.
    tolerance = 2e-2 if level == "O2" else 1e-5
    for one, total in zip(amp.master_params(optimizer), expected):
        torch.testing.assert_close(one.grad, total, rtol=tolerance, atol=tolerance / 10)


def test_no_step_before_gradients_are_unscaled():
    model, optimizer = begun("O1")
    backward(loss_of(model), optimizer, delay_unscale=True)
    with pytest.raises(RuntimeError, match="leave delay_unscale away"):
        optimizer.step()
    # What is thrown away is gone: gradients, those put aside before them, and their scale.
    optimizer.zero_grad()
    optimizer.step()
    twin = copy.deepcopy(model)
    loss_of(twin, 2).backward()
    backward(loss_of(model), optimizer)
    backward(loss_of(model, 1), optimizer, delay_unscale=True)
    optimizer.zero_grad()
    backward(loss_of(model, 2), optimizer)
    for one, its in zip(amp.master_params(optimizer), twin.parameters()):
        torch.testing.assert_close(one.grad, its.grad)


def test_delayed_gradients_of_two_scales():
    """Of two losses with different scales, each is unscaled by its own."""
    model, optimizer = begun("O1", num_losses=2)
    amp._amp_state.loss_scalers[1]._loss_scale = 4.0
    twin = copy.deepcopy(model)
    (loss_of(twin, 0) + loss_of(twin, 1)).backward()
    backward(loss_of(model, 0), optimizer, loss_id=0, delay_unscale=True)
    backward(loss_of(model, 1), optimizer, loss_id=1)
    for one, its in zip(amp.master_params(optimizer), twin.parameters()):
        torch.testing.assert_close(one.grad, its.grad, rtol=1e-4, atol=1e-6)


def test_an_overflow_is_its_loss_and_its_optimizers(capsys):
    torch.manual_seed(3)
    models = [Network(), Network()]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    given = (models, optimizers)
    answer = amp.initialize(*given, opt_level="O2", num_losses=3, verbosity=1)
    assert answer[0] == models and answer[1] == optimizers
    capsys.readouterr()
    before = [weights(model) for model in models]
    backward(loss_of(models[0]), optimizers[0], loss_id=0)
    backward(loss_of(models[1]), optimizers[1], loss_id=1)
    backward(loss_of(models[0], 1) * math.inf, optimizers[0], loss_id=2)
    assert [scale(number) for number in range(3)] == [2**16, 2**16, 2**15]
    for optimizer in optimizers:
        optimizer.step()
    said = capsys.readouterr().out
    assert said.count("Gradient overflow") == 1 and "loss 2 has the scale 32768.0" in said
    assert same(weights(models[0]), before[0])
    assert not same(weights(models[1]), before[1])
    # Of the pass that overflowed nothing is left.
    for model, optimizer in zip(models, optimizers):
        model.zero_grad()
        backward(loss_of(model), optimizer, loss_id=0)
        optimizer.step()
        assert all(one.isfinite().all() for one in weights(model))
    assert not same(weights(models[0]), before[0])
    # A loss of both.
    before = [weights(model) for model in models]
    backward((loss_of(models[0]) + loss_of(models[1])) * math.nan, optimizers, loss_id=1)
    for optimizer in optimizers:
        optimizer.step()
    assert all(same(weights(model), kept) for model, kept in zip(models, before))
    assert [scale(number) for number in range(3)] == [2**16, 2**15, 2**15]


def test_a_scale_grows_and_ends():
    model, optimizer = begun("O1", min_loss_scale=2.0**15, max_loss_scale=2.0**17)
    scaler = amp._amp_state.loss_scalers[0]
    for expected in (2**17, 2**17):
        scaler._unskipped = 1998
        stepped(model, optimizer)
        stepped(model, optimizer)
        assert scale() == expected and scaler._unskipped == 0
    for expected in (2**16, 2**15, 2**15):
        stepped(model, optimizer, factor=math.inf)
        assert scale() == expected and scaler._unskipped == 0


def test_a_fixed_scale_looks_at_nothing():
    model, optimizer = begun("O1", loss_scale=128.0)
    stepped(model, optimizer, factor=math.inf)
    assert scale() == 128 and not model.first.weight.isfinite().all()


def test_a_pass_that_fails_leaves_the_gradients_of_those_before():
    model, optimizer = begun("O2")
    backward(loss_of(model), optimizer)
    before = [one.grad.clone() for one in amp.master_params(optimizer)]
    with pytest.raises(KeyError), amp.scale_loss(loss_of(model, 1), optimizer):
        raise KeyError
    backward(loss_of(model, 1) * 0, optimizer)
    assert same(before, [one.grad for one in amp.master_params(optimizer)])


def test_scales_in_a_checkpoint():
    model, optimizer = begun("O1", num_losses=2)
    stepped(model, optimizer)
    backward(loss_of(model) * math.inf, optimizer, loss_id=1)
    saved = amp.state_dict()
    assert saved == {
        "loss_scaler0": {"loss_scale": 2.0**16, "unskipped": 1},
        "loss_scaler1": {"loss_scale": 2.0**15, "unskipped": 0},
    }
    begun("O1", num_losses=2)
    assert amp.state_dict() != saved
    amp.load_state_dict(saved)
    assert amp.state_dict() == saved and [scale(0), scale(1)] == [2**16, 2**15]
    begun("O1")
    with pytest.warns(UserWarning, match="2 loss scales for 1 losses"):
        amp.load_state_dict(saved)
    with pytest.raises(RuntimeError, match="unexpected keys model"):
        amp.load_state_dict({"model": 1})


@pytest.mark.parametrize("level", LEVELS)
def test_training_goes_on_from_a_checkpoint_bit_for_bit(level):
    model, optimizer = begun(level, loss_scale="dynamic")
    for number in range(3):
        stepped(model, optimizer, number, factor=math.inf if number == 1 else 1.0)
    kept = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "amp": amp.state_dict(),
    }
    file = io.BytesIO()
    torch.save(kept, file)
    for number in range(3, 6):
        stepped(model, optimizer, number)
    expected, scales = model.state_dict(), amp.state_dict()
    file.seek(0)
    kept = torch.load(file)
    model, optimizer = begun(level, seed=9, loss_scale="dynamic")
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    amp.load_state_dict(kept["amp"])
    for number in range(3, 6):
        stepped(model, optimizer, number)
    found = model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert amp.state_dict() == scales


def test_weights_that_are_changed_before_the_first_step_count():
    """As by DistributedDataParallel, which sends rank 0's."""
    model, optimizer = begun("O2")
    with torch.no_grad():
        model.first.weight.fill_(0.5)
    stepped(model, optimizer)
    assert (next(amp.master_params(optimizer)) - 0.5).abs().max() < 0.2
    # What is changed later is what a checkpoint says, too.
    with torch.no_grad():
        model.first.weight.fill_(3.0)
    assert (model.state_dict()["first.weight"] == 3).all()


def test_disabled_it_does_nothing():
    torch.manual_seed(0)
    model, loss = Network(), torch.ones((), requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = (type(model), optimizer.step)
    assert amp.initialize(model, optimizer, enabled=False, opt_level="O2") == (model, optimizer)
    assert amp.initialize(model, enabled=False) is model
    assert (type(model), optimizer.step) == before
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss
    assert model(batch()[0]).dtype == torch.float32 and model.seen[1] == torch.float32
    assert amp.state_dict() == {}
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0}})


def test_lists_come_where_lists_went():
    def parts(count):
        models = [Network() for _ in range(count)]
        return models, [torch.optim.SGD(model.parameters(), 0.1) for model in models]

    for level in LEVELS:
        (model,), (optimizer,) = parts(1)
        assert amp.initialize(model, opt_level=level, verbosity=0) is model
        (model,), (optimizer,) = parts(1)
        assert amp.initialize([model], opt_level=level, verbosity=0) == [model]
        (model,), (optimizer,) = parts(1)
        answer = amp.initialize(model, [optimizer], opt_level=level, verbosity=0)
        assert answer == (model, [optimizer])
        models, optimizers = parts(2)
        answer = amp.initialize(models, optimizers[0], opt_level=level, verbosity=0)
        assert answer == (models, optimizers[0])


def test_calls_in_the_wrong_order(monkeypatch):
    model, optimizer = begun("O1")
    with pytest.raises(RuntimeError, match="SGD has been through amp.initialize before"):
        amp.initialize(Network(), optimizer)
    with pytest.raises(RuntimeError, match="Network has been through amp.initialize before"):
        amp.initialize(model)
    with pytest.raises(RuntimeError, match="SGD has not been through amp.initialize"):
        backward(loss_of(model), torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match="num_losses"):
        backward(loss_of(model), optimizer, loss_id=1)
    with pytest.raises(RuntimeError, match="DataParallel already; call amp.initialize first"):
        amp.initialize(nn.DataParallel(Network()))
    with pytest.raises(
        RuntimeError, match="first.weight of a model is torch.float16: give amp.init"
    ):
        amp.initialize(Network().half())
    with pytest.raises(TypeError, match="before torch.jit"):
        amp.initialize(torch.jit.script(nn.Linear(2, 2)))
    for models, optimizers in (((Network(),), None), (Network(), (1,)), (Network(), "SGD")):
        with pytest.raises(TypeError, match="or a list of them"):
            amp.initialize(models, optimizers)
    monkeypatch.setattr(amp._amp_state, "opt_properties", None)
    for call in (
        lambda: backward(loss_of(model), optimizer),
        amp.state_dict,
        lambda: amp.load_state_dict({}),
    ):
        with pytest.raises(RuntimeError, match="amp.initialize first|before amp.initialize"):
            call()


def test_what_it_says(capsys):
    amp.initialize(Network(), opt_level="O2", loss_scale=128.0)
    said = capsys.readouterr().out
    assert "level O2" in said and "loss_scale            : 128.0" in said
    amp.initialize(Network(), opt_level="O2", verbosity=0)
    model, optimizer = begun("O2")
    stepped(model, optimizer, factor=math.inf)
    assert capsys.readouterr().out == ""
