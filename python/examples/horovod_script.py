"""A script that was written for Horovod: only the import is another.

All else is as in Horovod's own examples: the job is joined, the optimizer is wrapped, and everyone
begins with what rank 0 has.

    ringrun -np 2 python horovod_script.py                  # was: horovodrun -np 2 python ...
"""

import torch
from torch import nn

import digits
import ringcomm.horovod.torch as hvd  # was: import horovod.torch as hvd


def accuracy(model, dataset):
    """Over all test digits, of which each rank counts its own share."""
    x, y = dataset[hvd.rank() :: hvd.size()]
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum()
    counts = torch.stack([right, torch.tensor(len(y))])
    right, count = hvd.allreduce(counts, name="accuracy", op=hvd.Sum).tolist()
    assert count == len(dataset)
    return right / count


def main():
    """Join the others, train, part."""
    # Horovod's interface is ringcomm's own, whatever torch.distributed has.
    parser = digits.options(__doc__.splitlines()[0], without=["backend"])
    parser.add_argument("--batches-per-allreduce", type=int, default=1)
    parser.add_argument("--fp16-allreduce", action="store_true")
    args = parser.parse_args()
    hvd.init()
    passes = args.batches_per_allreduce
    model = digits.network(args)
    trained, tested = digits.data(args)
    optimizer = hvd.DistributedOptimizer(
        digits.optimizer(model, args),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=passes,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    batches = digits.loader(trained, args, hvd.rank(), hvd.size(), passes)
    progress = digits.Progress("Horovod's script", args, hvd.rank(), hvd.size())
    for epoch in range(args.epochs):
        for number, (x, y) in enumerate(progress.epoch(batches, epoch), 1):
            loss = nn.functional.cross_entropy(model(x), y)
            (loss / passes).backward()
            if number % passes == 0:
                optimizer.step()
                optimizer.zero_grad()
            progress.loss = loss.detach()
    progress.done()
    right = accuracy(model, tested)
    if hvd.rank() == 0:
        print(f"accuracy {right:.4f}", flush=True)
    digits.save(model, args, hvd.rank())
    hvd.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
