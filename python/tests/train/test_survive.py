"""Training goes on when a rank is killed, to the weights of a run that lost the same samples."""

import re

import pytest
import torch
from torch import nn

import digits
from launching import EXAMPLES, MOST_SECONDS, ringrun, same_bits, started, weights
from ringcomm.torch import advice

pytestmark = pytest.mark.skipif(not advice.SHRINKS, reason="torch before 2.14 shrinks no group")

RANKS, KILLED_IN = 4, 20
#: Far more than it takes, which the page says: a test is no measurement.
BOUND_S = 10


def without(victim, joined, args):
    """In one process: what ranks do that lose the victim's samples of one step, and are one fewer
    until another joins."""
    network = digits.network(args)
    step, trained = digits.optimizer(network, args), digits.data(args)[0]
    sampler = torch.utils.data.distributed.DistributedSampler(trained, 1, 0, seed=2)
    steps = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        order = torch.tensor(list(sampler))
        for batch in order.split(args.batch):
            size = RANKS if steps <= KILLED_IN or steps >= joined else RANKS - 1
            parts = [batch[rank::size] for rank in range(size)]
            if steps == KILLED_IN:
                del parts[victim]
            step.zero_grad()
            total = [torch.zeros_like(parameter) for parameter in network.parameters()]
            for part in parts:
                x, y = trained[part]
                loss = nn.functional.cross_entropy(network(x), y)
                gradients = torch.autograd.grad(loss, list(network.parameters()))
                # As DistributedDataParallel divides.
                total = [sum_ + own * (1 / len(parts)) for sum_, own in zip(total, gradients)]
            for parameter, gradient in zip(network.parameters(), total):
                parameter.grad = gradient
            step.step()
            steps += 1
    return network


def run(folder, *words, nprocs, status):
    """The example's output; `status` is what ringrun ends with."""
    job = started(
        [*ringrun("-np", str(nprocs), "--keep-going", "--no-prefix"), EXAMPLES / "survive.py"]
        + ["--meet", folder, "--save", "w", *words],
        folder,
    )
    try:
        output = job.communicate(timeout=MOST_SECONDS)[0]
    finally:
        job.kill()
    assert job.returncode == status, output
    assert not list(folder.glob("survive-*")), "the store is left behind"
    return output


def seconds(output, which):
    """The seconds after the kill of the line that begins so, and the step in it."""
    found = re.search(rf"step (\d+) done by {which}.* (\d+\.\d+) s after the kill", output)
    assert found, output
    return int(found[1]), float(found[2])


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_is_killed_and_a_spare_takes_its_place(tmp_path, victim):
    words = ["--kill-in-step", str(KILLED_IN), "--victim", str(victim)]
    # 128 and the signal: of the one that was killed.
    output = run(tmp_path, *words, nprocs=RANKS + 1, status=137)
    step, finished = seconds(output, "3 ranks")
    joined, ready = seconds(output, "4 ranks again")
    assert step == KILLED_IN < joined
    assert finished < ready and finished < BOUND_S and ready < BOUND_S + 5
    assert same_bits(weights(tmp_path / "w"), without(victim, joined, settings()))
    # The samples of one rank in one step are no small thing for bits.
    whole = digits.alone(settings(), shards=RANKS)
    assert not same_bits(weights(tmp_path / "w"), whole)


def test_without_a_spare_three_go_on(tmp_path):
    words = ["--kill-in-step", str(KILLED_IN), "--victim", "1"]
    output = run(tmp_path, *words, nprocs=RANKS, status=137)
    assert seconds(output, "3 ranks")[0] == KILLED_IN
    assert "DDP that survives on 3 ranks" in output
    assert same_bits(weights(tmp_path / "w"), without(1, float("inf"), settings()))


def test_nobody_is_killed(tmp_path):
    output = run(tmp_path, nprocs=RANKS + 1, status=0)
    assert "after the kill" not in output
    assert same_bits(weights(tmp_path / "w"), digits.alone(settings(), shards=RANKS))


def settings():
    """The example's options, as it has them unasked."""
    return digits.options("").parse_args([])
