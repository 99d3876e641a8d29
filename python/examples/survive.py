"""DistributedDataParallel that goes on when a rank is killed, without a restart.

Ranks from --ranks on are spares: they have loaded everything, and wait. When a rank dies, the
others shrink the group and make the same step again with the samples that they have; at the next
step a spare takes its place, with model and optimizer from a survivor.

    ringrun -np 5 --keep-going python survive.py --ranks 4 --kill-in-step 20 --victim 2
"""

import os
import signal
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import SHRINK_ABORT
from torch.nn.parallel import DistributedDataParallel

import digits
import ringcomm
from ringcomm.torch import dead_ranks


class Batches:
    """The batches of an epoch, from any of them on: of each, the part of what is now this rank."""

    def __init__(self, dataset, args, begin):
        self.dataset, self.batch, self.begin = dataset, args.batch, begin
        self.sampler = self

    def set_epoch(self, epoch):
        """Draw the order that `digits.loader` draws."""
        drawn = torch.Generator().manual_seed(2 + epoch)
        self.order = torch.randperm(len(self.dataset), generator=drawn)

    def __len__(self):
        return len(self.dataset) // self.batch

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for number in range(begin, len(self)):
            whole = self.order[number * self.batch :][: self.batch]
            yield self.dataset[whole[dist.get_rank() :: dist.get_world_size()]]


class Trainer:
    """A rank: the network, and the group of those who train it."""

    def __init__(self, args, store):
        self.args, self.store = args, store
        self.device = digits.device(int(os.environ.get("LOCAL_RANK", "0")))
        self.network = digits.network(args).to(self.device)
        self.optimizer = digits.optimizer(self.network, args)
        #: Steps made, groups made, spares used.
        self.steps = self.groups = self.used = 0

    def meet(self, rank, size):
        """Make a group with the others; who is new gets everything from rank 0."""
        place = dist.PrefixStore(f"group {self.groups}", self.store)
        dist.init_process_group(self.args.backend, store=place, rank=rank, world_size=size)
        if self.groups:
            counts, weights = (self.steps, self.groups, self.used), self.network.state_dict()
            state = [counts, weights, self.optimizer.state_dict()]
            dist.broadcast_object_list(state)
            (self.steps, self.groups, self.used), weights, optimizer = state
            self.network.load_state_dict(weights)
            self.optimizer.load_state_dict(optimizer)
        self.groups += 1
        self.average()

    def average(self):
        """Average gradients over the group as it is now, in several buckets."""
        self.model = None  # the one before lets go of the parameters
        self.model = DistributedDataParallel(self.network, bucket_cap_mb=0.01)

    def step(self, x, y):
        """A step, without those who die in it. The loss, and whether a spare waits."""
        while True:
            complete = False
            try:
                loss = nn.functional.cross_entropy(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                complete = True
                spare = self.vote()
                break
            except ringcomm.RingError as error:
                print(f"step {self.steps}: {error}", flush=True)
            # Outside the handler, which keeps what the error has seen.
            if self.go_on():
                # One has everybody's vote: every gradient is complete, the dead one's share in it.
                assert complete
                spare = False
                break
        self.optimizer.step()
        self.steps += 1
        return loss.detach(), spare

    def vote(self):
        """Wait until everybody's gradients are complete, and hear from rank 0 of a spare."""
        waits = dist.get_world_size() < self.args.ranks and dist.get_rank() == 0
        waits = waits and self.store.add("spares", 0) > self.used
        answer = torch.tensor([int(waits)], device=self.device)
        dist.all_reduce(answer, dist.ReduceOp.MAX)
        return bool(answer.item())

    def go_on(self):
        """Shrink to the survivors; whether one of them has made this step."""
        before = dist.get_world_size()
        while True:
            try:
                dist.shrink_group(dead_ranks(), shrink_flags=SHRINK_ABORT)
                if 2 * dist.get_world_size() <= before:
                    # The others may live, on the far side of a broken network.
                    raise SystemExit(f"only {dist.get_world_size()} of {before} ranks are left")
                most = torch.tensor([self.steps], device=self.device)
                dist.all_reduce(most, dist.ReduceOp.MAX)
                self.average()
                return most.item() > self.steps
            except ringcomm.RingError as error:
                print(f"another one: {error}", flush=True)

    def grow(self):
        """Let the next spare in."""
        try:
            dist.barrier()  # all know that they do
        except ringcomm.RingError:
            self.go_on()
            return
        self.used += 1
        rank, size = dist.get_rank(), dist.get_world_size()
        if rank == 0:
            self.store.set(f"spare {self.used}", f"{self.groups} {size}")
        dist.destroy_process_group()
        self.meet(rank, size + 1)

    def wait_as_spare(self, seconds):
        """Join when a rank is missing; False: nobody was."""
        number = self.store.add("spares", 1)
        until = time.monotonic() + seconds
        while not self.store.check([f"spare {number}"]):
            if self.store.check(["over"]) or time.monotonic() > until:
                self.store.add("gone", 1)
                return False
            time.sleep(0.005)
        self.groups, rank = map(int, self.store.get(f"spare {number}").split())
        self.meet(rank, rank + 1)
        return True

    def end(self, path):
        """Send home the spares that nobody needed, and remove the store."""
        self.store.set("over", "")
        until = time.monotonic() + 5
        while self.store.add("gone", 0) + self.used < self.store.add("spares", 0):
            if time.monotonic() > until:
                return
            time.sleep(0.005)
        os.unlink(path)

    def die(self, gradient):
        """In backward, when the last gradients come and the first ones are on their way."""
        self.store.set("killed", str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    def report(self, what):
        """How long ago the kill was; the clock is that of the machine."""
        if self.store.check(["killed"]):
            seconds = time.monotonic() - float(self.store.get("killed"))
            print(f"{what} {seconds:.3f} s after the kill", flush=True)


def train(trainer, args, progress, victim, joined):
    """All steps that are left."""
    trained = digits.data(args)[0]
    each = len(trained) // args.batch
    batches = Batches(trained, args, trainer.steps % each)
    for epoch in range(trainer.steps // each, args.epochs):
        for x, y in progress.epoch(batches, epoch):
            if victim and trainer.steps == args.kill_in_step:
                next(trainer.network.parameters()).register_hook(trainer.die)
            before, was, first = dist.get_world_size(), progress.loss, progress.loss is None
            progress.loss, spare = trainer.step(x.to(trainer.device), y.to(trainer.device))
            if dist.get_world_size() < before and dist.get_rank() == 0:
                losses = f"loss {float(was):.4f}, then {float(progress.loss):.4f}"
                trainer.report(f"step {trainer.steps - 1} done by {before - 1} ranks, {losses},")
            if joined and first:
                trainer.report(f"step {trainer.steps - 1} done by {before} ranks again,")
            if spare:
                trainer.grow()
            progress.rank, progress.size = dist.get_rank(), dist.get_world_size()


def main():
    """Meet the others or wait as a spare, train, part."""
    parser = digits.options(__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4, help="how many train; the rest are spares")
    parser.add_argument("--kill-in-step", type=int, metavar="N", help="a rank dies there")
    parser.add_argument("--victim", type=int, default=2, metavar="RANK", help="which one")
    parser.add_argument("--meet", default=tempfile.gettempdir(), help="a folder that all see")
    parser.add_argument("--patience", type=float, default=600, help="seconds that a spare waits")
    args = parser.parse_args()
    rank, job = int(os.environ["RANK"]), os.environ.get("RINGCOMM_JOB", "job")
    # A file outlives every rank; a TCPStore ends with the one that holds it.
    path = os.path.join(args.meet, f"survive-{job}")
    trainer = Trainer(args, dist.FileStore(path, -1))
    if rank < args.ranks:
        trainer.meet(rank, args.ranks)
    elif not trainer.wait_as_spare(args.patience):
        return
    progress = digits.Progress("DDP that survives", args, dist.get_rank(), dist.get_world_size())
    train(trainer, args, progress, rank == args.victim, rank >= args.ranks)
    progress.done()
    digits.save(trainer.network, args, progress.rank)
    dist.destroy_process_group()
    if progress.rank == 0:
        trainer.end(path)


if __name__ == "__main__":
    main()
