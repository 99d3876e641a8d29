"""How many of PyTorch's own tests have to pass."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import distributed_suite
import pytest
import torch

from ringcomm.torch import core

RELEASE = ".".join(torch.__version__.split(".")[:2])
LINE = (
    "DistributedTest of torch 9.9, Python 3.11.7, on gloo, 2 ranks: 87 passed, 1 failed, 5 skipped"
)


@pytest.fixture
def floor(monkeypatch):
    """The floor for these options, with what gloo's run said, and the words that started it."""
    started = []

    def of(*words, said=LINE):
        def run(command, **more):
            started.append(command)
            return subprocess.CompletedProcess(command, 0, f"ok: one\n{said}\nmore\n", "a reason")

        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(sys, "argv", ["distributed_suite.py", *words])
        return distributed_suite.least(distributed_suite.options()), started

    return of


def test_what_is_known_is_not_run_again(floor, monkeypatch):
    monkeypatch.setattr(distributed_suite, "PASSED", {RELEASE: {2: 90}})
    assert floor() == (90, [])


def test_gloo_says_it_for_other_releases(floor, monkeypatch):
    monkeypatch.setattr(distributed_suite, "PASSED", {"0.1": {2: 90}, RELEASE: {3: 90}})
    least, started = floor()
    assert least == 87 and started[0][2:] == ["--backend", "gloo", "--ranks", "2"]


def test_and_for_some_of_the_tests(floor):
    least, started = floor("--ranks", "3", "broadcast")
    assert least == 87 and started[0][2:] == ["--backend", "gloo", "--ranks", "3", "broadcast"]


def test_without_gloos_word_it_fails(floor):
    with pytest.raises(SystemExit, match="FAILED: gloo, .*\n?a reason"):
        floor("broadcast", said="Segmentation fault")


class Asked:
    """A work that counts how often it is asked for its future."""

    def __init__(self):
        self.times, self.future = 0, torch.futures.Future()

    def result(self):
        return []

    def get_future(self):
        self.times += 1
        return self.future


def test_futures_are_asked_for_under_a_profiler_only(monkeypatch):
    """The profiler's end waits for them; without one, tests see works whose future nobody has."""
    # What the suite puts in their place is to end with this test.
    monkeypatch.setattr(core, "track", core.track)
    monkeypatch.setattr(torch.autograd.profiler, "profile", torch.autograd.profiler.profile)
    lists = {f"{which}PROFILING_SUPPORTED_BACKENDS": [] for which in ("", "CUDA_", "SEND_RECV_")}
    distributed_suite.show_events(SimpleNamespace(**lists, get_profiling_event=None))
    work = Asked()
    core.track("all_reduce", work)
    assert work.times == 0
    with torch.autograd.profiler.profile() as profile:
        core.track("all_reduce", work)
        assert work.times == 2
        threading.Timer(0.2, work.future.set_result, [None]).start()
    assert work.future.done()
    assert "ringcomm:all_reduce" in [event.name for event in profile.function_events]
