"""Optimizers of apex's names, against torch's where torch has them, and else against formulas."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn

from ringcomm.apex import amp, optimizers

STEPS = 6


def parameters(seed=1):
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(size, dtype=torch.float64)) for size in ((3, 2), (4,), (1, 5))]


def gradients(step):
    torch.manual_seed(50 + step)
    return [torch.randn(size, dtype=torch.float64) for size in ((3, 2), (4,), (1, 5))]


def after(make):
    """The parameters after some steps, in the middle of which the optimizer is copied."""
    held = parameters()
    optimizer = make(held)
    for step in range(STEPS):
        for one, gradient in zip(held, gradients(step)):
            one.grad = gradient
        optimizer.step()
        if step == 2:
            held = [nn.Parameter(one.detach().clone()) for one in held]
            state, optimizer = copy.deepcopy(optimizer.state_dict()), make(held)
            optimizer.load_state_dict(state)
    return held


def check(make, other):
    for mine, its in zip(after(make), after(other)):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-12)


DECAY = {"weight_decay": 0.1}


@pytest.mark.parametrize(
    "make,other",
    [
        (lambda p: optimizers.FusedAdam(p), lambda p: torch.optim.AdamW(p, weight_decay=0)),
        (
            lambda p: optimizers.FusedAdam(p, 0.02, betas=(0.8, 0.9), eps=1e-3, **DECAY),
            lambda p: torch.optim.AdamW(p, 0.02, (0.8, 0.9), 1e-3, 0.1),
        ),
        (
            lambda p: optimizers.FusedAdam(p, 0.02, adam_w_mode=False, **DECAY),
            lambda p: torch.optim.Adam(p, 0.02, weight_decay=0.1),
        ),
        (
            lambda p: optimizers.FusedSGD(p, 0.02, 0.9, nesterov=True, **DECAY),
            lambda p: torch.optim.SGD(p, 0.02, 0.9, nesterov=True, weight_decay=0.1),
        ),
        (
            lambda p: optimizers.FusedSGD(p, 0.02, 0.9, 0.5),
            lambda p: torch.optim.SGD(p, 0.02, 0.9, 0.5),
        ),
        (
            lambda p: optimizers.FusedAdagrad(p, **DECAY),
            lambda p: torch.optim.Adagrad(p, 1e-2, weight_decay=0.1),
        ),
    ],
)
def test_those_that_torch_has(make, other):
    check(make, other)


class Formula:
    """An optimizer by a formula for one parameter: `update(weight, gradient, slots, step)`."""

    def __init__(self, held, update, cut=None):
        self.held, self.update, self.cut, self.count = held, update, cut, 0
        self.slots = [{} for _ in held]

    def step(self):
        self.count += 1
        found = [one.grad for one in self.held]
        norm = math.sqrt(sum(float(one.square().sum()) for one in found))
        factor = 1.0 if self.cut is None else max(1.0, norm / self.cut)
        for one, gradient, slots in zip(self.held, found, self.slots):
            one.data = self.update(one.detach(), gradient / factor, slots, self.count)

    def state_dict(self):
        return {"count": self.count, "slots": self.slots}

    def load_state_dict(self, state):
        self.count, self.slots = state["count"], state["slots"]


def averages(slots, gradient, betas, first=None):
    """Adam's two, as they are kept."""
    mean = betas[0] * slots.get("m", 0) + (1 - betas[0] if first is None else first) * gradient
    square = betas[1] * slots.get("v", 0) + (1 - betas[1]) * gradient**2
    slots.update(m=mean, v=square)
    return mean, square


def uncorrected(weight, gradient, slots, step):
    mean, square = averages(slots, gradient, (0.9, 0.999))
    return weight - 0.02 * (mean / (square.sqrt() + 1e-8) + 0.1 * weight)


def decayed_sgd(weight, gradient, slots, step):
    slots["m"] = gradient if step == 1 else 0.9 * slots["m"] + gradient
    return weight - 0.02 * (slots["m"] + 0.1 * weight)


def decayed_adagrad(weight, gradient, slots, step):
    slots["h"] = slots.get("h", 0) + gradient**2
    return weight - 0.02 * (gradient / (slots["h"].sqrt() + 1e-10) + 0.1 * weight)


def test_what_torch_has_not_of_them():
    check(
        lambda p: optimizers.FusedAdam(p, 0.02, bias_correction=False, **DECAY),
        lambda p: Formula(p, uncorrected),
    )
    check(
        lambda p: optimizers.FusedSGD(p, 0.02, 0.9, wd_after_momentum=True, **DECAY),
        lambda p: Formula(p, decayed_sgd),
    )
    check(
        lambda p: optimizers.FusedAdagrad(p, 0.02, adagrad_w_mode=True, **DECAY),
        lambda p: Formula(p, decayed_adagrad),
    )


def lamb(decay=0.01, apart=True, averaging=True, corrects=True, everywhere=False):
    def update(weight, gradient, slots, step):
        gradient = gradient if apart else gradient + decay * weight
        mean, square = averages(slots, gradient, (0.9, 0.999), None if averaging else 1.0)
        if corrects:
            mean, square = mean / (1 - 0.9**step), square / (1 - 0.999**step)
        change = mean / (square.sqrt() + 1e-6) + (decay * weight if apart else 0)
        ratio = float(weight.norm() / change.norm()) if decay or everywhere else 1.0
        return weight - 0.02 * ratio * change

    return update


@pytest.mark.parametrize(
    "given,formula",
    [
        ({}, {}),
        ({"weight_decay": 0.0}, {"decay": 0.0}),
        ({"weight_decay": 0.0, "use_nvlamb": True}, {"decay": 0.0, "everywhere": True}),
        ({"adam_w_mode": False, "bias_correction": False}, {"apart": False, "corrects": False}),
        ({"grad_averaging": False}, {"averaging": False}),
    ],
)
@pytest.mark.parametrize("cut", [1.0, 100.0])
def test_lamb(given, formula, cut):
    check(
        lambda p: optimizers.FusedLAMB(p, 0.02, max_grad_norm=cut, **given),
        lambda p: Formula(p, lamb(**formula), cut),
    )


def novograd(inside=False, averaging=True, kind=2, zero=False, corrects=True):
    def update(weight, gradient, slots, step):
        norm = float(gradient.norm() if kind == 2 else gradient.abs().max())
        kept = slots.setdefault("n", 0.0 if zero else norm)
        if kind == 2:
            kept = math.sqrt(0.98 * kept**2 + 0.02 * norm**2)
        else:
            kept = 0.98 * kept + 0.02 * norm
        slots["n"] = kept
        size = kept / (math.sqrt(1 - 0.98**step) if corrects else 1) + 1e-8
        if inside:
            gradient = gradient / size + 0.1 * weight
        slots["m"] = 0.95 * slots.get("m", 0) + (0.05 if averaging else 1.0) * gradient
        mean = slots["m"] / (1 - 0.95**step if corrects else 1)
        return weight - 0.02 * (mean if inside else mean / size + 0.1 * weight)

    return update


@pytest.mark.parametrize(
    "given,formula",
    [
        ({}, {}),
        ({"reg_inside_moment": True}, {"inside": True}),
        ({"grad_averaging": False}, {"averaging": False}),
        ({"norm_type": 0}, {"kind": 0}),
        ({"init_zero": True}, {"zero": True}),
        ({"bias_correction": False}, {"corrects": False}),
    ],
)
def test_novograd(given, formula):
    check(
        lambda p: optimizers.FusedNovoGrad(p, 0.02, betas=(0.95, 0.98), **DECAY, **given),
        lambda p: Formula(p, novograd(**formula)),
    )


ALL = [getattr(optimizers, name) for name in optimizers.__all__]


@pytest.mark.parametrize("kind", ALL)
def test_zero_grad(kind):
    for given, expected in (({}, kind is not optimizers.FusedSGD), ({"set_grad_none": True}, True)):
        held = parameters()
        optimizer = copy.deepcopy(kind(held, lr=0.1, **given))
        held = optimizer.param_groups[0]["params"]
        for one in held:
            one.grad = torch.ones_like(one)
        optimizer.zero_grad()
        assert all((one.grad is None) == expected for one in held)
        assert expected or not any(one.grad.any() for one in held)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_they_train_under_amp(kind, level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
    # NovoGrad's steps are small: it averages what is divided by a norm.
    optimizer = kind(model.parameters(), lr=0.2 if kind is optimizers.FusedNovoGrad else 0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    x, losses = torch.randn(32, 5), []
    for step in range(60):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss * (math.inf if step == 3 else 1), optimizer) as scaled_loss:
            # O0 and O3 have no scale, so that nobody looks there.
            if step != 3 or level in ("O1", "O2"):
                scaled_loss.backward()
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_refusals():
    held = parameters()
    for kind in (optimizers.FusedAdam, optimizers.FusedLAMB, optimizers.FusedNovoGrad):
        with pytest.raises(RuntimeError, match=f"{kind.__name__} has no AMSGrad"):
            kind(held, amsgrad=True)
    with pytest.raises(RuntimeError, match='opt_level="O2"'):
        optimizers.FusedAdam(held, master_weights=True)
    with pytest.raises(RuntimeError, match="a closure, or nothing"):
        optimizers.FusedAdam(held).step(scale=2.0)
    with pytest.raises(RuntimeError, match="norm_type"):
        optimizers.FusedNovoGrad(held, norm_type=1)
    with pytest.raises(ValueError, match="learning rate"):
        optimizers.FusedSGD(held)
    assert optimizers.FusedSGD([{"params": held, "lr": 0.5}]).param_groups[0]["lr"] == 0.5
    with pytest.raises(AttributeError, match="FusedMixedPrecisionLamb: use FusedLAMB"):
        optimizers.FusedMixedPrecisionLamb
    table = nn.Embedding(3, 2, sparse=True)
    for kind in (optimizers.FusedLAMB, optimizers.FusedNovoGrad):
        optimizer = kind(table.parameters())
        (2 * table(torch.tensor([1]))).sum().backward()
        with pytest.raises(RuntimeError, match="sparse"):
            optimizer.step()


def test_closures():
    for kind in ALL:
        held = parameters()
        optimizer = kind(held, lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = sum(one.square().sum() for one in held)
            loss.backward()
            return loss

        expected = sum(one.detach().square().sum() for one in held)
        assert torch.equal(optimizer.step(closure).detach(), expected)
        assert sum(one.detach().square().sum() for one in held) < expected
