"""DistributedDataParallel under Slurm: ranks from its variables, met through a shared file.

srun -n 2 python slurm_file.py --meet /shared/folder
"""

import os

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import digits
import ringcomm.torch  # noqa: F401  it is the backend "ringcomm"


def main():
    """Meet the other ranks, train, part."""
    parser = digits.options(__doc__.splitlines()[0])
    parser.add_argument("--meet", default=os.getcwd(), help="a folder that every node sees")
    args = parser.parse_args()
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    # A file for each step: what an earlier job left behind must not be taken for this one's.
    step = f"{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_STEP_ID', '0')}"
    place = os.path.join(os.path.abspath(args.meet), f"ringcomm-{step}")
    dist.init_process_group(args.backend, init_method=f"file://{place}", rank=rank, world_size=size)
    device = digits.device(int(os.environ.get("SLURM_LOCALID", "0")))
    network = digits.network(args).to(device)
    model = DistributedDataParallel(network)
    step = digits.optimizer(model, args)
    batches = digits.loader(digits.data(args)[0], args, rank, size)
    progress = digits.Progress("DDP under Slurm", args, rank, size)
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
