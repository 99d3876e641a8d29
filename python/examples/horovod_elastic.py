"""Horovod's elastic training: ranks may die and others may come, and nobody is started again.

    ringrun -np 4 --min-np 2 python horovod_elastic.py

With `--kill-in-step 20` a rank is killed there. The others go back to the last commit and go on,
and the process that ringrun starts in its place joins them at a commit. It loads torch first, which
takes seconds: `--wait-in-step 30` has the others wait for it there.
"""

import os
import signal
import time

import torch
from torch import nn

import digits
import ringcomm.horovod.torch as hvd  # was: import horovod.torch as hvd


def die_once(args, state):
    """In backward, so that the others wait for gradients that do not come."""
    is_first = os.environ.get("RINGCOMM_ELASTIC_JOIN") is None
    # The launcher's number: that of the job is another's when a rank has gone.
    if is_first and state.step == args.kill_in_step and int(os.environ["RANK"]) == args.victim:
        parameter = next(state.model.parameters())
        parameter.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))


@hvd.elastic.run
def train(state, args, dataset):
    """From what the state says, to the end: it is called again when ranks have changed."""
    x, y = dataset[:]
    each = args.batch // hvd.size()
    while state.sampler.epoch < args.epochs:
        mine = list(state.sampler)
        for number, first in enumerate(range(0, len(mine), each)):
            die_once(args, state)
            batch = mine[first : first + each]
            state.optimizer.zero_grad()
            nn.functional.cross_entropy(state.model(x[batch]), y[batch]).backward()
            state.optimizer.step()
            state.sampler.record_batch(number, len(batch))
            state.step += 1
            state.sizes = [*state.sizes, hvd.size()]
            state.commit()
            while state.step == args.wait_in_step and hvd.size() < args.ranks:
                time.sleep(0.05)
                state.check_host_updates()
        state.sampler.set_epoch(state.sampler.epoch + 1)
        state.commit()


def main():
    """Join the others, at whatever time; train; part."""
    parser = digits.options(__doc__.splitlines()[0], without=["backend"])
    parser.add_argument("--kill-in-step", type=int, metavar="N", help="a rank dies there")
    parser.add_argument("--victim", type=int, default=1, metavar="RANK", help="which one")
    parser.add_argument("--wait-in-step", type=int, metavar="N", help="for others to come")
    parser.add_argument("--ranks", type=int, default=4, help="until there are so many")
    args = parser.parse_args()
    hvd.init()
    model = digits.network(args)
    dataset = digits.data(args)[0]
    optimizer = hvd.DistributedOptimizer(
        digits.optimizer(model, args), named_parameters=model.named_parameters()
    )
    sampler = hvd.elastic.ElasticSampler(dataset)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0, sizes=[])
    state.register_reset_callbacks([lambda: print(f"{hvd.size()} ranks", flush=True)])
    train(state, args, dataset)
    if hvd.rank() == 0:
        runs = [str(state.sizes[0])]
        runs += [str(now) for now, was in zip(state.sizes[1:], state.sizes) if now != was]
        print(f"{state.step} steps, by {' then '.join(runs)} ranks", flush=True)
    digits.save(model, args, hvd.rank())
    hvd.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
