"""What is said under a release of PyTorch that is too old, and what 2.6 needs."""

import subprocess
import sys
import weakref

import pytest
import torch

from ringcomm.torch import older
from ringcomm.torch.work import Done

PROGRAM = """
import torch
torch.__version__ = {version!r}
import ringcomm.torch
"""


def imported(version):
    program = PROGRAM.format(version=version)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_an_old_release_is_refused_with_what_to_do():
    done = imported("2.5.1+cpu")
    assert done.returncode == 1
    assert "ringcomm.torch needs PyTorch 2.6 or later, and this is 2.5.1+cpu" in done.stderr
    assert imported("2.7.0a0+git").returncode == 0


@pytest.mark.skipif(not older.OLD, reason="this torch keeps the Python half of a work")
def test_a_work_lives_on_while_its_other_half_is_held():
    tensor = torch.ones(3)
    works = [Done([tensor]) for _ in range(50)]
    kept = [weakref.ref(work) for work in works]
    held = [work.boxed() for work in works]
    del works
    assert all(work() is not None and older.holders(work()) == 2 for work in kept)
    del held[1:]
    back = kept[0]()
    del held[:]
    for _ in range(50):
        Done([])
    assert back.result()[0] is tensor and all(work() is None for work in kept[1:])
    # What Python has had again in between lives on a second time.
    held.append(back.boxed())
    del back
    assert kept[0]() is not None
    held.clear()
    Done([])
    assert kept[0]() is None


@pytest.mark.skipif(not older.OLD, reason="only for the releases whose memory is looked into")
def test_an_unknown_build_is_refused(monkeypatch):
    monkeypatch.setattr(older, "holders", lambda work: 1)
    with pytest.raises(ImportError, match="does not know this build of PyTorch .*use 2.7"):
        older.prepare(Done)
