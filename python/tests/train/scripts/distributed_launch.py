"""Train a small network on CIFAR-10 with DistributedDataParallel.

python -m torch.distributed.launch --nproc_per_node=4 distributed_launch.py
"""

import argparse
import time

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
import torchvision.datasets as datasets
import torchvision.transforms as transforms

from models import SmallNet

parser = argparse.ArgumentParser(description="CIFAR-10 under torch.distributed.launch")
parser.add_argument("--data", default="./data", metavar="DIR")
parser.add_argument("-j", "--workers", default=1, type=int, metavar="N")
parser.add_argument("--epochs", default=2, type=int, metavar="N")
parser.add_argument("-b", "--batch-size", default=32, type=int, help="of all GPUs together")
parser.add_argument("--lr", default=0.05, type=float, dest="lr")
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", default=1e-4, type=float, dest="weight_decay")
parser.add_argument("--seed", default=1, type=int)
parser.add_argument("--local_rank", default=-1, type=int, help="from the launcher")


class AverageMeter:
    """The last value and the mean of a figure."""

    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.val = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n

    def __str__(self):
        return f"{self.name} {self.val:.6f} ({self.sum / self.count:.6f})"


def reduce_mean(tensor, nprocs):
    mean = tensor.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.SUM)
    return mean / nprocs


def accuracy(output, target):
    correct = output.argmax(1).eq(target).float().sum()
    return correct * 100 / target.size(0)


def adjust_learning_rate(optimizer, epoch, args):
    """A tenth after every epoch but the first."""
    lr = args.lr * 0.1**epoch
    for group in optimizer.param_groups:
        group["lr"] = lr


def train(loader, model, criterion, optimizer, epoch, args):
    losses, top1, batch_time = AverageMeter("Loss"), AverageMeter("Acc@1"), AverageMeter("Time")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        images = images.cuda(args.local_rank, non_blocking=True)
        target = target.cuda(args.local_rank, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        dist.barrier()
        reduced_loss = reduce_mean(loss.detach(), args.nprocs)
        reduced_acc = reduce_mean(accuracy(output, target), args.nprocs)
        losses.update(reduced_loss.item(), images.size(0))
        top1.update(reduced_acc.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if args.local_rank == 0:
            print(f"Epoch: [{epoch}][{i}/{len(loader)}] {batch_time} {losses} {top1}", flush=True)


def validate(loader, model, criterion, args):
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            images = images.cuda(args.local_rank, non_blocking=True)
            target = target.cuda(args.local_rank, non_blocking=True)
            output = model(images)
            losses.update(reduce_mean(criterion(output, target), args.nprocs).item())
            top1.update(reduce_mean(accuracy(output, target), args.nprocs).item())
    if args.local_rank == 0:
        print(f" * test {losses} {top1}", flush=True)


def main():
    args = parser.parse_args()
    dist.init_process_group(backend="nccl")
    args.nprocs = dist.get_world_size()
    torch.manual_seed(args.seed)
    cudnn.benchmark = True
    torch.cuda.set_device(args.local_rank)

    model = SmallNet()
    model.cuda(args.local_rank)
    model = DistributedDataParallel(model, device_ids=[args.local_rank])
    criterion = nn.CrossEntropyLoss().cuda(args.local_rank)
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )

    transform = transforms.Compose([
        transforms.ToTensor(),
        transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    ])  # fmt: skip
    train_set = datasets.CIFAR10(args.data, train=True, transform=transform)
    test_set = datasets.CIFAR10(args.data, train=False, transform=transform)
    train_sampler, test_sampler = DistributedSampler(train_set), DistributedSampler(test_set)
    options = dict(
        batch_size=args.batch_size // args.nprocs, num_workers=args.workers, pin_memory=True
    )
    train_loader = DataLoader(train_set, sampler=train_sampler, **options)
    test_loader = DataLoader(test_set, sampler=test_sampler, **options)

    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        adjust_learning_rate(optimizer, epoch, args)
        train(train_loader, model, criterion, optimizer, epoch, args)
    validate(test_loader, model, criterion, args)


if __name__ == "__main__":
    main()
