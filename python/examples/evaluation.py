"""Training that is evaluated by all ranks, seen in TensorBoard, and goes on after a crash.

After every epoch each rank evaluates its own share of the test digits, which are not a multiple of
the ranks; sums and counts are added up, so that every digit counts once. Rank 0 writes
TensorBoard's file and a checkpoint. When a rank dies, ringrun starts the job anew, and it goes on
from there:

    ringrun -np 2 --max-restarts 1 python evaluation.py --kill-in-epoch 2
    tensorboard --logdir runs
"""

import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler
from torch.utils.tensorboard import SummaryWriter

import digits
import ringcomm.torch  # noqa: F401  it is the backend "ringcomm"


class Share(Sampler):
    """Every `size`-th sample from `rank`: some ranks have one more, and no sample comes twice."""

    def __init__(self, dataset, rank, size):
        self._indices = range(rank, len(dataset), size)

    def __iter__(self):
        return iter(self._indices)

    def __len__(self):
        return len(self._indices)


def evaluate(network, dataset, rank, size):
    """Mean loss and accuracy over the whole dataset, on every rank."""
    totals = torch.zeros(3, dtype=torch.float64)
    network.eval()
    with torch.no_grad():
        for x, y in DataLoader(dataset, 64, sampler=Share(dataset, rank, size)):
            output = network(x)
            loss = nn.functional.cross_entropy(output, y, reduction="sum")
            totals += torch.tensor([loss, (output.argmax(1) == y).sum(), len(y)])
    network.train()
    dist.all_reduce(totals)
    loss, right, count = totals.tolist()
    assert count == len(dataset)
    return loss / count, right / count


def write_checkpoint(path, network, step, epoch, rank):
    """The checkpoint appears whole or not at all, and everyone knows of it."""
    if rank == 0:
        state = {"network": network.state_dict(), "step": step.state_dict(), "epoch": epoch}
        torch.save(state, f"{path}.part")
        os.replace(f"{path}.part", path)
    dist.barrier()


def read_checkpoint(path, network, step):
    """Go on where the checkpoint ends; returns the epoch to begin with."""
    if not os.path.exists(path):
        return 0
    state = torch.load(path, weights_only=True)
    network.load_state_dict(state["network"])
    step.load_state_dict(state["step"])
    return state["epoch"] + 1


def main():
    """Meet the other ranks, train and evaluate, part."""
    parser = digits.options(__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", metavar="FILE", default="digits.checkpoint")
    parser.add_argument("--logs", metavar="FOLDER", default="runs/digits", help="for TensorBoard")
    parser.add_argument(
        "--kill-in-epoch", type=int, metavar="N", help="the last rank dies there, once"
    )
    args = parser.parse_args()
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    network = digits.network(args)
    step = digits.optimizer(network, args)
    begin = read_checkpoint(args.checkpoint, network, step)
    model = DistributedDataParallel(network)
    trained, tested = digits.data(args)
    batches = digits.loader(trained, args, rank, size)
    progress = digits.Progress("DDP with evaluation", args, rank, size)
    # What a crashed run wrote of the epoch that is trained again is dropped.
    board = SummaryWriter(args.logs, purge_step=begin) if rank == 0 else None
    # ringrun says how often the job was started again.
    dying = rank == size - 1 and os.environ.get("RINGCOMM_RESTART", "0") == "0"
    for epoch in range(begin, args.epochs):
        for number, (x, y) in enumerate(progress.epoch(batches, epoch)):
            if dying and epoch + 1 == args.kill_in_epoch and number == len(batches) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = nn.functional.cross_entropy(model(x), y)
            step.zero_grad()
            loss.backward()
            step.step()
            progress.loss = loss.detach()
        test_loss, accuracy = evaluate(network, tested, rank, size)
        if board:
            board.add_scalar("loss/test", test_loss, epoch)
            board.add_scalar("accuracy/test", accuracy, epoch)
            print(f"epoch {epoch + 1}: loss {test_loss:.6f}, accuracy {accuracy:.4f}", flush=True)
        write_checkpoint(args.checkpoint, network, step, epoch, rank)
    if board:
        board.close()
    progress.done()
    digits.save(network, args, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
