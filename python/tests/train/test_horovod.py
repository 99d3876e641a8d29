"""`ringcomm.horovod.torch`, called as programs that were written for Horovod call it."""

import copy
import inspect
import subprocess
import sys

import pytest
import torch
from torch import nn

import launching
import ringcomm.horovod.torch as hvd
from ranks_in_processes import run

RANKS = 3


def model_of(seed=7):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()


def batch_of(rank, number=0):
    torch.manual_seed(100 + 10 * number + rank)
    return torch.randn(5, 6, dtype=torch.float64)


def loss_of(model, rank, number=0):
    return model(batch_of(rank, number)).square().mean()


def joined(body):
    """What a rank does between `init` and `shutdown`."""
    hvd.init()
    hvd.init()
    try:
        return body()
    finally:
        hvd.shutdown()


def everyone(body):
    return run(RANKS, joined, body)


def places():
    assert hvd.is_initialized() and hvd.is_homogeneous()
    assert hvd.local_rank() == hvd.rank() and hvd.local_size() == hvd.size() == RANKS
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    return hvd.rank()


def test_who_is_where():
    assert everyone(places) == [0, 1, 2]
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="call init"):
        hvd.rank()


def elsewhere():
    """What the calls make is as the program's tensors, whatever torch's default device."""
    each = torch.arange(RANKS)
    with torch.device("meta"):
        rows = each.new_full((hvd.rank() + 1, 2), hvd.rank())
        gathered = hvd.allgather(rows)
        got = hvd.alltoall(each)
        split, came = hvd.alltoall(each, [1] * RANKS)
    assert gathered[:, 0].tolist() == [0, 1, 1, 2, 2, 2]
    assert got.tolist() == split.tolist() == [hvd.rank()] * RANKS
    assert came.tolist() == [1] * RANKS


def test_a_default_device_is_for_tensors_of_the_program():
    everyone(elsewhere)


def reductions():
    mine = torch.full((2, 3), hvd.rank() + 1.0)
    assert (hvd.allreduce(mine, name="it") == 2).all()
    assert (hvd.allreduce(mine, average=False) == 6).all()
    for op, expected in ((hvd.Sum, 6), (hvd.Product, 6), (hvd.Min, 1), (hvd.Max, 3)):
        assert (hvd.allreduce(mine, op=op) == expected).all()
    assert (mine == hvd.rank() + 1).all()
    assert (hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4) == 12).all()
    low = hvd.allreduce(mine + 2**-20, compression=hvd.Compression.fp16)
    assert low.dtype == torch.float32 and (low == 2).all()
    half = hvd.allreduce(torch.tensor([3]), op=hvd.Sum, prescale_factor=0.5, postscale_factor=1.5)
    assert half.tolist() == [4]  # Integers are rounded towards zero: 3 times 1, times 1.5.
    whole = hvd.allreduce(torch.tensor([hvd.rank(), 5]), op=hvd.Sum)
    assert whole.tolist() == [3, 15] and whole.dtype == torch.int64
    handle = hvd.allreduce_async_(mine.t(), op=hvd.Sum)
    assert hvd.synchronize(handle).data_ptr() == mine.data_ptr() and hvd.poll(handle)
    assert (mine == 6).all()
    assert (hvd.synchronize(hvd.allreduce_async(mine)) == 6).all()
    assert hvd.allreduce_(mine, op=hvd.Sum) is mine and (mine == 18).all()
    first, second = hvd.grouped_allreduce([mine, torch.tensor([1.5 * hvd.rank()])])
    assert (first == 18).all() and second.item() == 1.5
    assert (hvd.grouped_allreduce_([mine], op=hvd.Sum)[0] == 54).all() and (mine == 54).all()


def moves():
    rank = hvd.rank()
    mine = torch.full((rank, 2), float(rank))
    assert hvd.allgather(mine).tolist() == [[1, 1], [2, 2], [2, 2]]
    assert hvd.synchronize(hvd.allgather_async(torch.tensor([rank]))).tolist() == [0, 1, 2]
    assert hvd.broadcast(torch.tensor(rank), root_rank=1).item() == 1
    there = torch.full((2,), rank)
    assert hvd.broadcast_(there, 2) is there and there.tolist() == [2, 2]
    sent = hvd.alltoall(torch.arange(3) + 10 * rank)
    assert sent.tolist() == [rank, 10 + rank, 20 + rank]
    rows, counts = hvd.alltoall(torch.arange(3) + 10 * rank, splits=[0, 1, 2])
    assert counts.tolist() == [rank] * 3
    assert rows.tolist() == [
        10 * one + each for one in range(3) for each in ([], [0], [1, 2])[rank]
    ]
    part = hvd.reducescatter(torch.arange(8.0).view(4, 2), op=hvd.Sum)
    assert part.tolist() == [[[0, 3], [6, 9]], [[12, 15]], [[18, 21]]][rank]
    scales = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    assert hvd.reducescatter(torch.ones(3), op=hvd.Sum, **scales).tolist() == [6]
    with pytest.raises(ValueError, match="do not divide"):
        hvd.alltoall(torch.ones(4))
    hvd.barrier()
    assert hvd.allgather_object({"rank": rank})[2] == {"rank": 2}
    assert hvd.broadcast_object(["it", rank], root_rank=2) == ["it", 2]


def later():
    """The asynchronous and grouped forms give what the others do."""
    rows = torch.arange(6.0).view(3, 2) + 10 * hvd.rank()
    for more in ([], [[0, 1, 2]]):
        got, want = hvd.synchronize(hvd.alltoall_async(rows, *more)), hvd.alltoall(rows, *more)
        assert all(map(torch.equal, got, want)) if more else torch.equal(got, want)
    for single in (hvd.allgather, hvd.reducescatter, hvd.allreduce):
        want = [single(rows), single(2 * rows)]
        begun = getattr(hvd, f"{single.__name__}_async")(rows)
        assert torch.equal(hvd.synchronize(begun), want[0])
        grouped = getattr(hvd, f"grouped_{single.__name__}")
        begun = getattr(hvd, f"{grouped.__name__}_async")([rows, 2 * rows])
        for got in (grouped([rows, 2 * rows]), hvd.synchronize(begun)):
            assert all(map(torch.equal, got, want))
    scaled = hvd.grouped_allreduce_async([rows], op=hvd.Sum, postscale_factor=2.0)
    assert hvd.synchronize(scaled)[0][0].tolist() == [60, 66]
    assert rows[0].tolist() == [10 * hvd.rank(), 10 * hvd.rank() + 1]
    there = hvd.synchronize(hvd.grouped_allreduce_async_([rows], op=hvd.Sum))
    assert there[0] is rows and rows[0].tolist() == [30, 33]


def refusals():
    with pytest.raises(AttributeError, match="from-horovod"):
        hvd.no_such_name
    tensor = torch.ones(1)
    assert hvd.allreduce.__doc__ and "tensor" in inspect.signature(hvd.allreduce).parameters
    with pytest.raises(ValueError, match="neither"):
        hvd.DistributedOptimizer(torch.optim.SGD([nn.Parameter(tensor)], 1.0), op=hvd.Max)
    with pytest.raises(ValueError, match="op alone"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="root_rank 3 is none of the ranks"):
        hvd.broadcast(tensor, 3)
    with pytest.raises(ValueError, match="together at most 1"):
        hvd.alltoall(tensor, [1, 1, 0])
    with pytest.raises(ValueError, match="splits are integers"):
        hvd.alltoall(tensor, [0.5, 0.5, 0])
    with pytest.raises(RuntimeError, match="no Adasum"):
        hvd.reducescatter(tensor, op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="power of two of ranks; there are 3"):
        hvd.allreduce(tensor, op=hvd.Adasum)
    assert not hvd.nccl_built() and not hvd.mpi_enabled() and hvd.gloo_enabled()


@pytest.mark.parametrize("body", [reductions, moves, later, refusals], ids=lambda body: body.__name__)
def test_calls(body):
    everyone(body)


def begun(model, **settings):
    """A model and its optimizer, as a Horovod script begins with them."""
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **settings)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return optimizer


def alone(steps, passes=1, decay=1.0):
    """The weights of one process that sees every rank's batches."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, decay)
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(step * passes, (step + 1) * passes):
            sum(loss_of(model, rank, number) for rank in range(RANKS)).div(RANKS).backward()
        optimizer.step()
        scheduler.step()
    return model.state_dict()


def same(found, expected, tolerance=1e-12):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance)


def trained(bucket_bytes, passes, settings):
    from ringcomm.horovod.torch import exchange as module

    module.BUCKET_BYTES = bucket_bytes
    model = model_of(7 + hvd.rank())
    optimizer = begun(model, backward_passes_per_step=passes, **settings)
    assert isinstance(optimizer, torch.optim.SGD)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    for step in range(4):
        optimizer.zero_grad()
        for number in range(step * passes, (step + 1) * passes):
            loss_of(model, hvd.rank(), number).backward()
        optimizer.step()
        scheduler.step()
    return model.state_dict()


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("bucket_bytes", [1, 300, 4 << 20])
def test_it_trains_as_one_process_does(bucket_bytes, passes):
    for found in run(RANKS, joined_with, trained, bucket_bytes, passes, {}):
        same(found, alone(4, passes))


def test_compressed_gradients():
    settings = {"compression": hvd.Compression.fp16}
    answers = run(RANKS, joined_with, trained, 300, 1, settings)
    # fp16 has 11 bits, and four steps of 0.2 with momentum go over each gradient.
    same(answers[0], alone(4), 2e-2)
    assert not all(torch.equal(answers[0][name], one) for name, one in alone(4).items())
    for found in answers:
        same(found, answers[0], 0)


def joined_with(body, *arguments):
    return joined(lambda: body(*arguments))


def early():
    """Buckets leave while the backward pass runs."""
    from ringcomm.horovod.torch import exchange as module

    module.BUCKET_BYTES = 1
    model = model_of()
    optimizer = begun(model)
    seen = []
    model[0].register_full_backward_hook(lambda *_: seen.append(list(optimizer._exchange._sent)))
    loss_of(model, hvd.rank()).backward()
    assert seen == [[True, True, False, False]], "the last layer's two gradients are under way before the first's"
    with pytest.raises(AssertionError, match="under way"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
    assert not optimizer._exchange.under_way


def clipped():
    """As Horovod's page on gradient clipping does it."""
    model = model_of()
    optimizer = begun(model)
    loss_of(model, hvd.rank()).backward()
    optimizer.synchronize()
    expected = model_of()
    sum(loss_of(expected, rank) for rank in range(RANKS)).div(RANKS).backward()
    for mine, its in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(mine.grad, its.grad)
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    short = [parameter.grad.clone() for parameter in model.parameters()]
    with optimizer.skip_synchronize():
        optimizer.step()
    assert all(torch.equal(one.grad, kept) for one, kept in zip(model.parameters(), short))
    # Without skip_synchronize, what is averaged already is averaged again.
    loss_of(model, hvd.rank()).backward()
    optimizer.synchronize()
    for parameter in model.parameters():
        parameter.grad.fill_(hvd.rank())
    optimizer.step()
    assert all((one.grad == 1).all() for one in model.parameters())
    # Ranks without gradients take part in the step after one that was clipped.
    optimizer.zero_grad()
    if hvd.rank() == 0:
        loss_of(model, 0).backward()
    optimizer.step()
    assert all(one.grad.any() for one in model.parameters())


def unused():
    """Ranks that use different parameters, or none at all."""
    one, other = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([one, other], 1.0), op=hvd.Sum)
    if hvd.rank() == 0:
        one.sum().backward()
    if hvd.rank() == 1:
        (2 * other).sum().backward()
    optimizer.step()
    assert one.tolist() == [-1, -1] and other.tolist() == [-2, -2]


def too_often():
    weight = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0), backward_passes_per_step=2)
    for _ in range(2):
        weight.sum().backward()
    with pytest.raises(RuntimeError, match="backward_passes_per_step"):
        weight.sum().backward()
    optimizer.synchronize()


def skipped():
    """A pass is thrown away, of two that would have been summed."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0), backward_passes_per_step=2)
    weight.sum().backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="load_state_dict"):
        optimizer.load_state_dict(optimizer.state_dict())
    optimizer.synchronize()
    optimizer.zero_grad()
    for _ in range(2):
        weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [-2, -2]


def with_closure():
    weight = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS([weight], 0.1, max_iter=1))

    def closure():
        optimizer.zero_grad()
        loss = (weight * (hvd.rank() + 1)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert weight.grad.tolist() == [2, 2]
    return weight.tolist()


def scaled():
    """torch.amp: an overflow on one rank makes all of them skip."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor in (float("inf") if hvd.rank() == 1 else 1.0, float(hvd.rank())):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    assert weight.tolist() == [0, 0] and scaler.get_scale() == 2


def sparse():
    layer = nn.Embedding(4, 1, sparse=True)
    nn.init.zeros_(layer.weight)
    step = torch.optim.SGD(layer.parameters(), 1.0)
    optimizer = hvd.DistributedOptimizer(step, sparse_as_dense=True, op=hvd.Sum)
    # Times two: torch loses the gradient of a bare sum, which is one value spread by strides.
    (2 * layer(torch.tensor([hvd.rank()]))).sum().backward()
    optimizer.step()
    assert layer.weight.flatten().tolist() == [-2, -2, -2, 0]
    assert layer.weight.grad.is_sparse


def states():
    """A root that resumed from a checkpoint tells the others what was in it."""
    model = model_of(hvd.rank())
    step = torch.optim.Adam(model.parameters(), 0.1 / (hvd.rank() + 1))
    if hvd.rank() == 1:
        loss_of(model, 1).backward()
        step.step()
    optimizer = hvd.DistributedOptimizer(step, model.named_parameters())
    hvd.broadcast_parameters(model.named_parameters(), root_rank=1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    state = copy.deepcopy(optimizer.state_dict())
    assert state["param_groups"][0]["lr"] == 0.05 and state["state"][0]["step"] == 1
    return model.state_dict(), state["state"][0]["exp_avg"]


def bare():
    """Parameters without names, and what is no tensor."""
    model = model_of(hvd.rank())
    hvd.broadcast_parameters(list(model.parameters()), root_rank=1)
    same(model.state_dict(), model_of(1).state_dict(), 0)
    with pytest.raises(ValueError, match="broadcast_object"):
        hvd.broadcast_parameters({"epoch": 3}, root_rank=0)


def scheduled():
    """A scheduler that was made before the optimizer was wrapped."""
    model = model_of(7 + hvd.rank())
    step = torch.optim.SGD(model.parameters(), 0.2 / (1 + hvd.rank()), momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(step, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(step)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for number in range(4):
        if number == 2:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), number).backward()
        optimizer.step()
        scheduler.step()
    return model.state_dict()


def test_a_scheduler_made_before_reaches_every_rank():
    for found in everyone(scheduled):
        same(found, alone(4, decay=0.5))


def normalized():
    torch.manual_seed(1)
    whole = torch.randn(6, 4, dtype=torch.float64)
    layer = hvd.SyncBatchNorm(4).double()
    torch.testing.assert_close(
        layer(whole[2 * hvd.rank() :][:2]),
        nn.BatchNorm1d(4).double()(whole)[2 * hvd.rank() :][:2],
    )


@pytest.mark.parametrize(
    "body",
    [early, clipped, unused, too_often, skipped, with_closure, scaled, sparse, bare, normalized],
    ids=lambda body: body.__name__,
)
def test_optimizers(body):
    answers = everyone(body)
    assert all(answer == answers[0] for answer in answers)


def test_everyone_has_the_roots_state():
    answers = everyone(states)
    for weights, average in answers:
        same(weights, answers[1][0], 0)
        assert torch.equal(average, answers[1][1])


PROGRAM = """
import os, torch, ringcomm.horovod.torch as hvd
hvd.init()
assert hvd.size() == hvd.local_size() == 2 and hvd.local_rank() == hvd.rank()
assert hvd.allreduce(torch.tensor([float(hvd.rank())])).tolist() == [0.5]
# In one write: the other rank writes to the same pipe.
os.write(1, f"rank {hvd.rank()} of {hvd.size()}\\n".encode())
hvd.shutdown()
"""


def test_under_torchrun(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    said, _ = launching.run([sys.executable, *torchrun, written(tmp_path)], tmp_path)
    assert "rank 0 of 2" in said and "rank 1 of 2" in said


def test_with_the_variables_of_horovodrun(tmp_path):
    ranks = []
    for rank in ("0", "1"):
        job = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": str(tmp_path), "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
        place = {"HOROVOD_RANK": rank, "HOROVOD_LOCAL_RANK": rank}
        counts = {"HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": "2"}
        words = [sys.executable, written(tmp_path)]
        ranks.append(launching.started(words, tmp_path, **place, **counts, **job))
    for rank, process in enumerate(ranks):
        said, _ = process.communicate(timeout=launching.MOST_SECONDS)
        assert process.returncode == 0 and f"rank {rank} of 2" in said, said


def written(folder):
    (folder / "program.py").write_text(PROGRAM)
    return folder / "program.py"


def test_without_a_launcher_it_is_one_rank():
    program = (
        "import torch, ringcomm.horovod.torch as hvd\n"
        "hvd.init()\n"
        "assert (hvd.rank(), hvd.size(), hvd.local_rank()) == (0, 1, 0)\n"
        "assert hvd.allreduce(torch.ones(2)).tolist() == [1, 1]\n"
        "hvd.shutdown(); hvd.init(); assert hvd.size() == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
