"""A Horovod-style optimizer: gradients are averaged just before the step, whatever came before it.

Several backward passes may add up (`update_cycle`) before one exchange, which can be compressed.
All ranks begin with the parameters of rank 0.

    ringrun -np 2 python horovod_style.py --update-cycle 2 --compression fp16
"""

import torch
import torch.distributed as dist
from torch import nn

import digits
from ringcomm.torch import Compression, broadcast_parameters, reduce_gradients


class DistributedOptimizer:
    """Averages gradients over all ranks, then lets the optimizer step; all else is its own."""

    def __init__(self, optimizer, update_cycle=1, compression=Compression.none):
        self._optimizer = optimizer
        self._settings = {"update_cycle": update_cycle, "compression": compression}

    def step(self):
        """True where it stepped; where a gradient overflowed on any rank, none of them does."""
        parameters = [one for group in self._optimizer.param_groups for one in group["params"]]
        finite = reduce_gradients(parameters, **self._settings)
        if finite:
            self._optimizer.step()
        return finite

    def __getattr__(self, name):
        return getattr(self._optimizer, name)


def main():
    """Meet the other ranks, train, part."""
    parser = digits.options(__doc__.splitlines()[0])
    parser.add_argument("--update-cycle", type=int, default=2, help="backward passes of a step")
    parser.add_argument("--compression", choices=["none", "fp16", "bf16"], default="none")
    args = parser.parse_args()
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = digits.network(args)
    if rank != 0:
        # Other weights on purpose: those of rank 0 are to count.
        model.apply(
            lambda one: one.reset_parameters() if hasattr(one, "reset_parameters") else None
        )
    broadcast_parameters(model)
    compression = getattr(Compression, args.compression)
    step = DistributedOptimizer(digits.optimizer(model, args), args.update_cycle, compression)
    # A step of `--batch` samples is `update_cycle` passes on every rank.
    batches = digits.loader(digits.data(args)[0], args, rank, size, args.update_cycle)
    progress = digits.Progress("Horovod-style", args, rank, size)
    for epoch in range(args.epochs):
        for number, (x, y) in enumerate(progress.epoch(batches, epoch), 1):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()  # adds to the gradients of the passes before
            if number % args.update_cycle == 0:
                step.step()
                step.zero_grad()
            progress.loss = loss.detach()
    progress.done()
    digits.save(model, args, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
