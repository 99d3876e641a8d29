"""DistributedDataParallel without a launcher: the program starts its ranks, met through tcp://.

python ddp_spawn.py --ranks 2
"""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import digits
import ringcomm.torch  # noqa: F401  it is the backend "ringcomm"
from ddp import train


def worker(rank, address, args):
    """One rank."""
    # A launcher would say so: as many threads as leaves each rank a core.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.ranks))
    dist.init_process_group(args.backend, init_method=address, rank=rank, world_size=args.ranks)
    train(args, "DDP by mp.spawn")
    dist.destroy_process_group()


def free_port():
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    """Start the ranks, and wait for them."""
    parser = digits.options(__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    mp.spawn(worker, (f"tcp://127.0.0.1:{free_port()}", args), nprocs=args.ranks)


if __name__ == "__main__":
    main()
