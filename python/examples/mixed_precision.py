"""Mixed precision, with everything that halves the traffic and batch normalization over all ranks.

The network runs in bf16 on the CPU, and in fp16 with loss scaling on a GPU. Gradients are exchanged
in one go after the whole backward pass (as `delay_allreduce`), rounded to the same type on their
way.

    ringrun -np 2 python mixed_precision.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn

import digits
from ringcomm.torch import (
    broadcast_parameters,
    convert_sync_batchnorm,
    reduce_gradients,
    reduce_mean,
)

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "none": None}


def main():
    """Meet the other ranks, train, part."""
    gpu = torch.cuda.is_available()
    parser = digits.options(__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=TYPES, default="fp16" if gpu else "bf16")
    parser.add_argument(
        "--overflow-at", type=int, metavar="STEP", help="let rank 0's loss overflow there, in fp16"
    )
    args = parser.parse_args()
    low = TYPES[args.precision]
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    device = digits.device(int(os.environ.get("LOCAL_RANK", "0")))
    model = convert_sync_batchnorm(digits.network(args, batchnorm=True)).to(device)
    broadcast_parameters(model)
    step = digits.optimizer(model, args)
    # fp16 has few small numbers: the loss is scaled up, and the scale halved when a gradient
    # overflows.
    scaler = torch.amp.GradScaler(device.type, enabled=low is torch.float16)
    batches = digits.loader(digits.data(args)[0], args, rank, size)
    progress = digits.Progress(f"mixed precision ({args.precision})", args, rank, size)
    skipped = 0
    for epoch in range(args.epochs):
        for number, (x, y) in enumerate(progress.epoch(batches, epoch), epoch * len(batches)):
            with torch.autocast(device.type, low, enabled=low is not None):
                loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            step.zero_grad()
            overflows = rank == 0 and number == args.overflow_at
            (scaler.scale(loss) * (float("inf") if overflows else 1)).backward()
            skipped += not reduce_gradients(model, compression=low)
            # An overflow on one rank is one on all of them by now: they skip the step together.
            scaler.step(step)
            scaler.update()
            progress.loss = reduce_mean({"loss": loss})["loss"]
    progress.done()
    if skipped:
        print(f"rank {rank} skipped {skipped} of {args.epochs * len(batches)} steps", flush=True)
    digits.save(model, args, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
