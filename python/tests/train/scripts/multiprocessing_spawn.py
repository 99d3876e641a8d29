"""Train a small network on CIFAR-10, a process for each GPU, by torch.multiprocessing.

python multiprocessing_spawn.py --gpus 4
"""

import argparse
import os

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torchvision.datasets as datasets
import torchvision.transforms as transforms

from models import SmallNet

parser = argparse.ArgumentParser(description="CIFAR-10 with mp.spawn")
parser.add_argument("--data", default="./data")
parser.add_argument("-g", "--gpus", default=torch.cuda.device_count(), type=int)
parser.add_argument("-n", "--nodes", default=1, type=int)
parser.add_argument("-nr", "--nr", default=0, type=int, help="the number of this node")
parser.add_argument("--dist-url", default="tcp://127.0.0.1:23456")
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--batch-size", default=32, type=int, help="of all GPUs together")
parser.add_argument("--lr", default=0.05, type=float)
parser.add_argument("--checkpoint", default="checkpoint.pt")


def main():
    args = parser.parse_args()
    args.world_size = args.gpus * args.nodes
    mp.spawn(main_worker, nprocs=args.gpus, args=(args,))


def main_worker(gpu, args):
    rank = args.nr * args.gpus + gpu
    dist.init_process_group(
        backend="nccl", init_method=args.dist_url, world_size=args.world_size, rank=rank
    )
    torch.manual_seed(1 if rank == 0 else 100 + rank)  # DDP sends the weights of rank 0
    torch.cuda.set_device(gpu)
    cudnn.benchmark = True
    model = SmallNet().cuda(gpu)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    criterion = nn.CrossEntropyLoss().cuda(gpu)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)

    transform = transforms.Compose([
        transforms.ToTensor(),
        transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    ])  # fmt: skip
    train_set = datasets.CIFAR10(root=args.data, train=True, transform=transform)
    sampler = torch.utils.data.distributed.DistributedSampler(
        train_set, num_replicas=args.world_size, rank=rank
    )
    loader = torch.utils.data.DataLoader(
        train_set, batch_size=args.batch_size // args.world_size, shuffle=False, sampler=sampler
    )

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for i, (images, labels) in enumerate(loader):
            images = images.cuda(non_blocking=True)
            labels = labels.cuda(non_blocking=True)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.reduce(mean, dst=0)
            if rank == 0:
                mean /= args.world_size
                print(f"Epoch [{epoch + 1}/{args.epochs}] Step {i + 1} Loss {mean:.6f}", flush=True)
        if rank == 0:
            torch.save(model.module.state_dict(), args.checkpoint)
        # Nobody reads it before it is there.
        dist.barrier()
        saved = torch.load(args.checkpoint, map_location="cpu")
        for name, value in model.module.state_dict().items():
            assert torch.equal(value.cpu(), saved[name]), name
        dist.barrier()
    if rank == 0:
        os.remove(args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
