"""Horovod's SyncBatchNorm outside of training: it needs no ranks, and keeps none."""

import copy
import io
import pickle

import pytest
import torch

import ringcomm.horovod.torch as hvd
from ranks_in_processes import run


def evaluated():
    """Without `init`, as a program does that only uses a model."""
    layer = hvd.SyncBatchNorm(3).eval()
    layer.running_mean.fill_(2.0)
    assert not layer(torch.full((4, 3), 2.0)).any()
    with pytest.raises(ValueError, match="call init"):
        layer.train()(torch.ones(4, 3))


def evaluated_by_one():
    """Rank 0 alone, the first that it does with tensors: nobody else comes to a meeting."""
    hvd.init()
    if hvd.rank() == 0:
        assert hvd.SyncBatchNorm(3).eval()(torch.zeros(4, 3)).shape == (4, 3)
    hvd.shutdown()


def kept():
    """A model is copied and saved between two steps, and trained and used when the job is over."""
    hvd.init()
    torch.manual_seed(hvd.rank())
    layer = hvd.SyncBatchNorm(3)
    layer(torch.randn(4, 3)).sum().backward()
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    copies = [
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(saved, weights_only=False),
    ]
    batch = torch.randn(4, 3)
    outputs = [each(batch) for each in [layer, *copies]]
    hvd.shutdown()
    assert all(torch.equal(output, outputs[0]) for output in outputs)
    assert torch.equal(layer.eval()(batch), copies[0].eval()(batch))
    return layer.running_mean.tolist()


@pytest.mark.parametrize("body", [evaluated, evaluated_by_one], ids=lambda body: body.__name__)
def test_evaluation(body):
    run(2, body)


def test_it_is_copied_and_saved():
    first, second = run(2, kept)
    assert first == second
