"""DistributedDataParallel under a launcher: a process for each rank, met through env://.

The launcher tells each process its rank; gradients are averaged in buckets while the backward pass
still runs.

    ringrun -np 2 python ddp.py
    torchrun --nproc-per-node 2 ddp.py
"""

import os

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import digits
import ringcomm.torch  # noqa: F401  it is the backend "ringcomm"


def main():
    """Meet the other ranks, train, part."""
    args = digits.options(__doc__.splitlines()[0]).parse_args()
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    device = digits.device(int(os.environ.get("LOCAL_RANK", "0")))
    network = digits.network(args).to(device)
    model = DistributedDataParallel(network)
    step = digits.optimizer(model, args)
    batches = digits.loader(digits.data(args)[0], args, rank, size)
    progress = digits.Progress("DDP", args, rank, size)
    for epoch in range(args.epochs):
        for x, y in progress.epoch(batches, epoch):
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            step.zero_grad()
            loss.backward()
            step.step()
            progress.loss = loss.detach()
    progress.done()
    digits.save(network, args, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
