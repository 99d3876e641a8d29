"""The job that the examples share: scikit-learn's digits, and training on them in one process.

An example of training trains this network on these batches in its own way, and comes to the weights
that `alone` comes to. Run it to see the plain job: `python digits.py`.
"""

import argparse
import sys
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

#: Of the 1797 digits; the others are for tests. It divides by 96 and by most numbers of ranks, so
#: that no sample counts twice; those for tests do not divide, as data seldom does.
TRAINED_ON = 1440
MOMENTUM = 0.9


#: The options that examples share.
OPTIONS = {
    "epochs": {"type": int, "default": 3},
    "batch": {"type": int, "default": 96, "help": "samples of a step, over all ranks"},
    "rate": {"type": float, "default": 0.1, "help": "learning rate"},
    "hidden": {"type": int, "default": 64, "help": "width of the network"},
    "backend": {"default": "ringcomm", "help": "of torch.distributed"},
    "double": {"action": "store_true", "help": "train in float64"},
    "save": {"metavar": "FILE", "help": "write the trained weights, on rank 0"},
}


def options(description, without=(), **defaults):
    """The command line of an example, without those options that would change nothing there."""
    parser = argparse.ArgumentParser(description=description)
    for name, settings in OPTIONS.items():
        if name not in without:
            parser.add_argument(f"--{name}", **settings)
    parser.set_defaults(**defaults)
    return parser


def device(number):
    """Where the rank of this number on its machine trains: on a GPU, where there are some."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.device("cuda", number % gpus) if gpus else torch.device("cpu")


def data(args):
    """What is trained on and what is tested on."""
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x / 16, dtype=torch.float64 if args.double else torch.float32)
    y = torch.tensor(y)
    return TensorDataset(x[:TRAINED_ON], y[:TRAINED_ON]), TensorDataset(
        x[TRAINED_ON:], y[TRAINED_ON:]
    )


def network(args, batchnorm=False):
    """The same first weights on every call."""
    torch.manual_seed(1)
    middle = [nn.BatchNorm1d(args.hidden)] if batchnorm else []
    model = nn.Sequential(
        nn.Linear(64, args.hidden), *middle, nn.Tanh(), nn.Linear(args.hidden, 10)
    )
    return model.double() if args.double else model


def loader(dataset, args, rank=0, size=1, passes=1):
    """This rank's part of every batch, or of every pass of one, in an order of each epoch's own."""
    sampler = DistributedSampler(dataset, size, rank, seed=2)
    return DataLoader(dataset, args.batch // size // passes, sampler=sampler, drop_last=True)


def optimizer(model, args):
    """Stochastic gradient descent with momentum."""
    return torch.optim.SGD(model.parameters(), args.rate, momentum=MOMENTUM)


class Progress:
    """Counts samples; on rank 0 it draws a bar, and says at the end how fast it was."""

    def __init__(self, name, args, rank=0, size=1):
        self.name, self.epochs, self.rank, self.size = name, args.epochs, rank, size
        self.samples, self.start, self.loss = 0, time.perf_counter(), None

    def epoch(self, batches, epoch):
        """The batches of one epoch, with the bar beside them."""
        batches.sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(batches, 1):
            yield x, y
            self.samples += len(x) * self.size
            last = number == len(batches)
            # In a file or behind ringrun's prefixes only the whole bar is of use.
            if self.rank == 0 and (last or sys.stderr.isatty()):
                done = 30 * number // len(batches)
                bar = "#" * done + "." * (30 - done)
                loss = "" if self.loss is None else f" loss {float(self.loss):.4f}"
                text = f"[{bar}] epoch {epoch + 1}/{self.epochs}{loss}"
                start, end = ("\r" if sys.stderr.isatty() else ""), ("\n" if last else "")
                print(start + text, end=end, file=sys.stderr, flush=True)

    def done(self):
        """The one line with the speed."""
        if self.rank == 0:
            rate = self.samples / (time.perf_counter() - self.start)
            ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
            print(f"{self.name} on {ranks}: {rate:.0f} samples per second", flush=True)


def save(model, args, rank=0):
    """Write the weights where `--save` says."""
    if args.save and rank == 0:
        torch.save(model.state_dict(), args.save)


def alone(args, *, shards=1, model=None, schedule=None, autocast=None, skip=None):
    """Train in one process on whole batches: what every example is measured against.

    With `shards`, a batch is that many parts whose gradients are added in order, as ranks do: the
    same arithmetic, so that the weights can be compared bit for bit. `skip` is the step that is not
    made.
    """
    model = model or network(args)
    step, batches = optimizer(model, args), loader(data(args)[0], args)
    progress = Progress("one process", args)
    for epoch in range(args.epochs):
        for number, (x, y) in enumerate(progress.epoch(batches, epoch)):
            if schedule:
                for group in step.param_groups:
                    group["lr"] = schedule(epoch * len(batches) + number)
            step.zero_grad()
            for part in range(shards):
                with torch.autocast("cpu", autocast, enabled=autocast is not None):
                    loss = nn.functional.cross_entropy(model(x[part::shards]), y[part::shards])
                (loss / shards).backward()
            if epoch * len(batches) + number != skip:
                step.step()
            progress.loss = loss.detach()
    progress.done()
    return model


if __name__ == "__main__":
    arguments = options(__doc__, without=["backend"]).parse_args()
    save(alone(arguments), arguments)
