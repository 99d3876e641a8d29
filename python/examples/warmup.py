"""More ranks, larger batches: the learning rate grows with them, after a warm-up.

Each rank keeps its batch, so a step sees as many times more samples as there are ranks; the rate is
multiplied by the same, and reached in a straight line over the first steps, during which so large a
rate would do harm.

    ringrun -np 2 python warmup.py
"""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import digits
import ringcomm.torch  # noqa: F401  it is the backend "ringcomm"


def rate_at(step, rate, size, warmup):
    """The learning rate of a step: from `rate` to `size * rate` in `warmup` steps."""
    return rate * (1 + (size - 1) * min(1, step / warmup))


def main():
    """Meet the other ranks, train, part."""
    # The batch is what the ranks have together.
    parser = digits.options(__doc__.splitlines()[0], without=["batch"], rate=0.05)
    parser.add_argument("--per-rank", type=int, default=32, help="samples of a step on each rank")
    parser.add_argument("--warmup", type=int, default=20, help="steps")
    args = parser.parse_args()
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    args.batch = args.per_rank * size
    network = digits.network(args)
    model = DistributedDataParallel(network)
    step = digits.optimizer(model, args)
    batches = digits.loader(digits.data(args)[0], args, rank, size)
    progress = digits.Progress("DDP with warm-up", args, rank, size)
    for epoch in range(args.epochs):
        for number, (x, y) in enumerate(progress.epoch(batches, epoch)):
            for group in step.param_groups:
                group["lr"] = rate_at(epoch * len(batches) + number, args.rate, size, args.warmup)
            loss = nn.functional.cross_entropy(model(x), y)
            step.zero_grad()
            loss.backward()
            step.step()
            progress.loss = loss.detach()
    progress.done()
    digits.save(network, args, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
