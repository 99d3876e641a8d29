"""DataParallel over CPU devices, against the plain module."""

import copy

import pytest
import torch
from torch import nn

from ringcomm.torch import moves
from ringcomm.torch.data_parallel import DataParallel

BATCHES = [1, 2, 7, 12]


class Branches(nn.Module):
    """Shared parts, an unused part, a buffer, keyword arguments, and outputs in a dict."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.shared = nn.Linear(8, 8)
        self.again = self.shared
        self.unused = nn.Linear(2, 2)
        self.register_buffer("offset", torch.arange(8.0, dtype=torch.float64))

    def forward(self, x, *, factor=1.0, mask=None):
        hidden = torch.tanh(self.again(torch.tanh(self.shared(self.first(x))))) + self.offset
        if mask is not None:
            hidden = hidden * mask
        return {"hidden": hidden * factor, "pair": (hidden.sum(1), [x * 2])}


def model_of(kind):
    torch.manual_seed(3)
    if kind == "plain":
        return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.Flatten()).double()


@pytest.mark.parametrize("kind", ["plain", "convolution"])
@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", BATCHES)
def test_outputs_and_gradients_are_those_of_the_module(kind, devices, batch):
    plain = model_of(kind)
    parallel = DataParallel(copy.deepcopy(plain), ["cpu"] * devices)
    given = torch.randn(batch, 6, dtype=torch.float64)
    one, other = given.clone().requires_grad_(), given.clone().requires_grad_()
    expected, found = plain(one), parallel(other)
    torch.testing.assert_close(found, expected)
    expected.square().mean().backward()
    found.square().mean().backward()
    torch.testing.assert_close(other.grad, one.grad)
    for mine, its in zip(parallel.module.parameters(), plain.parameters()):
        torch.testing.assert_close(mine.grad, its.grad)


@pytest.mark.parametrize("kind", ["plain", "convolution"])
@pytest.mark.parametrize("output_device", [0, 1])
def test_gradients_of_gradients_are_those_of_the_module(kind, output_device):
    """As a gradient penalty takes them, with respect to the input and to the parameters."""
    plain = model_of(kind)
    parallel = DataParallel(copy.deepcopy(plain), ["cpu"] * 3)
    parallel._root = output_device
    given = torch.randn(7, 6, dtype=torch.float64)
    leaves = []
    for module in (parallel, plain):
        leaves.append([given.clone().requires_grad_(), *module.parameters()])
        loss = module(leaves[-1][0]).pow(3).mean()
        first = torch.autograd.grad(loss, leaves[-1], create_graph=True)
        sum(gradient.square().sum() for gradient in first).backward()
    for mine, its in zip(*leaves):
        assert its.grad.any()
        torch.testing.assert_close(mine.grad, its.grad)


class Waves(nn.Module):
    """A complex parameter, buffer, input and output; its gradient is a lazy conjugate."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex128))
        self.register_buffer("phase", torch.randn(3, dtype=torch.complex128))

    def forward(self, x):
        return (x @ self.weight.conj()) * self.phase


def test_complex_numbers():
    torch.manual_seed(3)
    plain = Waves()
    parallel = DataParallel(copy.deepcopy(plain), ["cpu"] * 3)
    x = torch.randn(7, 6, dtype=torch.complex128)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, found = plain(one.conj()), parallel(other.conj())
    torch.testing.assert_close(found, expected)
    expected.abs().square().sum().backward()
    found.abs().square().sum().backward()
    torch.testing.assert_close(other.grad, one.grad)
    torch.testing.assert_close(parallel.module.weight.grad, plain.weight.grad)


def test_arguments_and_outputs_may_be_nested():
    torch.manual_seed(3)
    plain = Branches().double()
    parallel = DataParallel(copy.deepcopy(plain), ["cpu"] * 3)
    x, mask = torch.randn(8, 6, dtype=torch.float64), torch.rand(8, 8) > 0.5
    expected, found = plain(x, factor=2.5, mask=mask), parallel(x, factor=2.5, mask=mask)
    torch.testing.assert_close(found["hidden"], expected["hidden"])
    torch.testing.assert_close(found["pair"][0], expected["pair"][0])
    torch.testing.assert_close(found["pair"][1][0], expected["pair"][1][0])
    expected["hidden"].sum().backward()
    found["hidden"].sum().backward()
    torch.testing.assert_close(parallel.module.shared.weight.grad, plain.shared.weight.grad)
    # As under torch.nn.DataParallel, what nobody used has a gradient of zeros.
    assert not parallel.module.unused.weight.grad.any()


def test_losses_come_back_as_a_vector():
    class Loss(nn.Module):
        def forward(self, x):
            return x.sum()

    found = DataParallel(Loss(), ["cpu"] * 2)(torch.ones(5, 2))
    assert found.tolist() == [6.0, 4.0]


class Loss(nn.Module):
    """An output for each of the kinds that are gathered."""

    def forward(self, x):
        return {"loss": x.square().mean(), "parts": (x.sum(1), None)}


@pytest.mark.parametrize("output_device", [0, 1])
def test_a_batch_of_one_is_gathered_as_any_other(monkeypatch, output_device):
    """As torch.nn.DataParallel does with it: the loss is a vector, and the outputs, and their
    gradients, go by way of the device that is named."""
    parallel = DataParallel(Loss(), ["cpu"] * 2)
    parallel._root = output_device
    went, exchange = [], moves._exchange

    def watched(given):
        given = list(given)
        went.extend((one[0].rank, one[1].rank) for one in given)
        exchange(given)

    monkeypatch.setattr(moves, "_exchange", watched)
    x = torch.tensor([[1.0, 3.0]], requires_grad=True)
    found = parallel(x)
    assert found["loss"].tolist() == [5.0] and found["parts"][0].tolist() == [4.0]
    assert found["parts"][1] is None
    # The input to the first device, and each output from there.
    assert went == [(0, 0)] + [(0, output_device)] * 2
    found["loss"].sum().backward()
    assert x.grad.tolist() == [[1.0, 3.0]] and went[3:] == [(output_device, 0), (0, 0)]
    with pytest.raises(TypeError, match="only tensors"):
        DataParallel(nn.Identity(), ["cpu"] * 2)((torch.ones(1, 1), "text"))


def test_one_device_returns_what_the_module_does():
    """Also a scalar, and what cannot be gathered: with one device, torch only moves."""
    x = torch.ones(1, 2)
    assert DataParallel(Loss(), ["cpu"])(x)["loss"].shape == ()
    same, text = DataParallel(nn.Identity(), ["cpu"])((x, "text"))
    assert same is x and text == "text"


def test_one_device_has_the_module_and_its_inputs():
    module = nn.Linear(2, 2, device="cpu")
    parallel = DataParallel(module, ["cpu"])
    module.to("meta")
    with pytest.raises(RuntimeError, match="must be on cpu, the first device, and one is on meta"):
        parallel(torch.ones(1, 2))
    # A device that has a name and no memory stands for another than the CPU.
    parallel.devices = [torch.device("meta")]
    assert parallel(torch.ones(1, 2)).shape == (1, 2)
    moved = []
    watched = nn.Linear(2, 2)
    watched.to = moved.append
    DataParallel(watched, ["cpu"])
    DataParallel(watched, ["cpu"] * 2)
    assert moved == [torch.device("cpu")]


def test_the_first_replica_keeps_running_statistics():
    plain = nn.BatchNorm1d(4)
    parallel = DataParallel(copy.deepcopy(plain), ["cpu"] * 2)
    x = torch.randn(8, 4)
    parallel(x)
    plain(x[:4])
    torch.testing.assert_close(parallel.module.running_mean, plain.running_mean)
    assert int(parallel.module.num_batches_tracked) == 1


def test_it_trains_as_the_module_does():
    plain = model_of("plain")
    parallel = DataParallel(copy.deepcopy(plain), ["cpu"] * 4)
    ours = torch.optim.SGD(parallel.parameters(), 0.1, momentum=0.9)
    theirs = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    for _ in range(5):
        x = torch.randn(10, 6, dtype=torch.float64)
        for module, optimizer in ((parallel, ours), (plain, theirs)):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    for mine, its in zip(parallel.module.parameters(), plain.parameters()):
        torch.testing.assert_close(mine, its)


class Witness(nn.Module):
    """Notes what each replica sees."""

    seen = []

    def forward(self, x):
        mode = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        self.seen.append((len(x), torch.is_grad_enabled(), mode))
        return x


def witnessed(module, x):
    Witness.seen.clear()
    module(x)
    return sorted(Witness.seen, key=str)


def test_the_callers_modes_hold_in_the_replicas():
    parallel, x = DataParallel(Witness(), ["cpu"] * 2), torch.ones(4, 3)
    assert witnessed(parallel, x) == [(2, True, False)] * 2
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert witnessed(parallel, x) == [(2, False, torch.bfloat16)] * 2


def test_no_replica_runs_on_nothing():
    parallel = DataParallel(Witness(), ["cpu"] * 4)
    sizes = [[one[0] for one in witnessed(parallel, torch.ones(n, 3))] for n in (1, 5, 6)]
    assert sizes == [[1], [1, 2, 2], [2, 2, 2]]


def test_copies_and_states():
    parallel = DataParallel(nn.Linear(3, 2), ["cpu"] * 2)
    x = torch.ones(4, 3)
    expected = parallel(x)
    twin = copy.deepcopy(parallel)
    torch.testing.assert_close(twin(x), expected)
    assert list(parallel.state_dict()) == ["module.weight", "module.bias"]


def test_an_error_in_a_replica_is_raised():
    class Picky(nn.Module):
        def forward(self, x):
            if x.shape[0] < 4:
                raise LookupError("too few")
            return x

    parallel = DataParallel(Picky(), ["cpu"] * 2)
    with pytest.raises(LookupError, match="too few"):
        parallel(torch.ones(7, 2))
    assert parallel(torch.ones(8, 2)).shape == (8, 2)


def test_sparse_gradients_are_refused():
    layer = DataParallel(nn.Embedding(4, 2, sparse=True), ["cpu"] * 2)
    with pytest.raises(ValueError, match="sparse=False"):
        layer(torch.tensor([1, 3])).sum().backward()


def test_one_replica_runs_without_tensors():
    class Given(nn.Module):
        def forward(self, count):
            return torch.ones(count)

    assert DataParallel(Given(), ["cpu"] * 2)(3).tolist() == [1, 1, 1]


def test_wrong_devices_are_refused():
    with pytest.raises(ValueError, match="CUDA devices, or the CPU"):
        DataParallel(nn.Linear(1, 1), ["cpu", 0])
    with pytest.raises(ValueError, match="output_device"):
        DataParallel(nn.Linear(1, 1), ["cpu"] * 2, output_device="cuda:0")
    with pytest.raises(TypeError, match="only tensors"):
        DataParallel(nn.Identity(), ["cpu"] * 2)((torch.ones(4, 1), "text"))
