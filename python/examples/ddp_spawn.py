"""DistributedDataParallel without a launcher: the program starts its ranks, who meet at tcp://.

python ddp_spawn.py --ranks 2
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import digits
import ringcomm.torch  # noqa: F401  it is the backend "ringcomm"


def worker(rank, port, args):
    """One rank: meet the others, train, part."""
    # A launcher would say so: as many threads as leaves each rank a core.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.ranks))
    url = f"tcp://127.0.0.1:{port}"
    size = args.ranks
    dist.init_process_group(args.backend, init_method=url, rank=rank, world_size=size)
    device = digits.device(rank)
    network = digits.network(args).to(device)
    model = DistributedDataParallel(network)
    step = digits.optimizer(model, args)
    batches = digits.loader(digits.data(args)[0], args, rank, size)
    progress = digits.Progress("DDP by mp.spawn", args, rank, size)
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


def main():
    """Start the ranks, and wait for them."""
    parser = digits.options(__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--port", type=int, default=29500, help="where rank 0 listens")
    args = parser.parse_args()
    mp.spawn(worker, (args.port, args), nprocs=args.ranks)


if __name__ == "__main__":
    main()
