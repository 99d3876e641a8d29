"""How soon Horovod's elastic training goes on when a rank is killed: `python elastic.py`.

Three ranks train under `ringrun --min-np 2`, and one kills itself in backward. Prints the seconds
from then until the others have finished a step, and until three ranks have: with a spare that waits
already, and with the process that ringrun starts in the place of the dead one, which first has to
import torch.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KILL_IN_STEP = 20
MOST_SECONDS = 120


def rank(folder, wants_spare):
    """One of the ranks; rank 0 writes down when what happened."""
    import torch

    import ringcomm.horovod.torch as hvd

    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.01), named_parameters=model.named_parameters()
    )
    is_victim = os.environ["RANK"] == "1" and "RINGCOMM_ELASTIC_JOIN" not in os.environ

    def die(_):
        (folder / "killed").write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    @hvd.elastic.run
    def train(state):
        while len(state.done) <= KILL_IN_STEP or state.done[-1][1] < 3:
            if is_victim and len(state.done) == KILL_IN_STEP:
                while wants_spare and not list((folder / "meeting").glob("waiting.*")):
                    time.sleep(0.01)
                next(model.parameters()).register_hook(die)
            optimizer.zero_grad()
            model(torch.ones(16, 64)).square().mean().backward()
            optimizer.step()
            state.done = [*state.done, (time.time(), hvd.size())]
            state.commit()
        if hvd.rank() == 0:
            (folder / "done").write_text(json.dumps(state.done))

    train(hvd.elastic.TorchState(model, optimizer, done=[]))
    hvd.shutdown()


def measured(ringrun, wants_spare):
    """Seconds until the others have gone on, and until the third has."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "meeting").mkdir(mode=0o700)
        words = [sys.executable, __file__, "--rank", place, "--spare", str(int(wants_spare))]
        variables = {**os.environ, "RINGCOMM_ELASTIC": str(folder / "meeting"), "OMP_NUM_THREADS": "1"}
        limits = {"RINGCOMM_MIN_NP": "2", "RINGCOMM_MAX_NP": "3"}
        joining = {"RINGCOMM_ELASTIC_JOIN": "1", "RANK": "3", "RINGCOMM_RANK": "3"}
        start = [ringrun, "-np", "3", "--min-np", "2"]
        # What ringrun itself would start comes later than the spare, and is sent home.
        job = subprocess.Popen([*start, *words], env=variables, stderr=subprocess.DEVNULL)
        if wants_spare:
            spare = subprocess.Popen(words, env={**variables, **limits, **joining})
        job.wait(MOST_SECONDS)
        if wants_spare:
            spare.wait(MOST_SECONDS)
        killed = float((folder / "killed").read_text())
        later = [one for one in json.loads((folder / "done").read_text()) if one[0] > killed]
    return later[0][0] - killed, next(at for at, size in later if size == 3) - killed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ringrun", default="ringrun")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--spare", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank(options.rank, bool(options.spare))
        return
    print(f"{os.cpu_count()} cores; seconds from the kill, medians of {options.rounds}, and all")
    for name, wants_spare in (("a spare", True), ("started by ringrun", False)):
        both = [measured(options.ringrun, wants_spare) for _ in range(options.rounds)]
        for what, times in zip(("two ranks' next step", "three ranks' first step"), zip(*both)):
            listed = " ".join(f"{one:.3f}" for one in times)
            print(f"{name:20} {what:24} {statistics.median(times):.3f}   {listed}", flush=True)


if __name__ == "__main__":
    main()
