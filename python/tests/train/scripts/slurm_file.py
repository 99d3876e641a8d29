"""Train a small network on CIFAR-10 under Slurm; the processes meet through a file.

srun -N 2 --gres gpu:2 python slurm_file.py --dist-file dist_file
"""

import argparse
import os

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
import torchvision.datasets as datasets
import torchvision.transforms as transforms

from models import SmallNet

parser = argparse.ArgumentParser(description="CIFAR-10 under Slurm")
parser.add_argument("--data", default="./data")
parser.add_argument("--dist-file", default="dist_file", help="on a disk that all nodes see")
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("-b", "--batch-size", default=32, type=int, help="of all GPUs together")
parser.add_argument("--lr", default=0.05, type=float)
parser.add_argument("--seed", default=1, type=int)


def main():
    args = parser.parse_args()
    args.rank = int(os.environ["SLURM_PROCID"])
    args.world_size = int(os.environ["SLURM_NPROCS"])
    args.gpu = int(os.environ["SLURM_LOCALID"])
    dist_url = f"file://{os.path.realpath(args.dist_file)}.{os.environ['SLURM_JOBID']}"
    dist.init_process_group(
        backend="nccl", init_method=dist_url, world_size=args.world_size, rank=args.rank
    )
    print(f"process {args.rank} of {dist.get_world_size()} is here", flush=True)
    torch.manual_seed(args.seed)
    torch.cuda.set_device(args.gpu)
    cudnn.benchmark = True

    model = SmallNet().cuda(args.gpu)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
    criterion = nn.CrossEntropyLoss().cuda(args.gpu)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)

    transform = transforms.Compose([
        transforms.ToTensor(),
        transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    ])  # fmt: skip
    train_set = datasets.CIFAR10(args.data, train=True, transform=transform)
    sampler = torch.utils.data.distributed.DistributedSampler(train_set)
    loader = torch.utils.data.DataLoader(
        train_set, batch_size=args.batch_size // args.world_size, sampler=sampler, pin_memory=True
    )

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for i, (images, target) in enumerate(loader):
            images = images.cuda(args.gpu, non_blocking=True)
            target = target.cuda(args.gpu, non_blocking=True)
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses = [torch.zeros_like(loss) for _ in range(args.world_size)]
            dist.all_gather(losses, loss.detach())
            if args.rank == 0:
                mean = torch.stack(losses).mean().item()
                print(f"Epoch: [{epoch}][{i}/{len(loader)}] Loss {mean:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
