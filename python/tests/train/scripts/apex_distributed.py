"""Train a small network on CIFAR-10 with apex: mixed precision and synchronized BatchNorm.

python -m torch.distributed.launch --nproc_per_node=4 apex_distributed.py --opt-level O1
"""

import argparse
import os

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
import torchvision.datasets as datasets
import torchvision.transforms as transforms

from models import SmallNetBN

try:
    from apex import amp
    from apex.parallel import DistributedDataParallel as DDP
    from apex.parallel import convert_syncbn_model
except ImportError:
    raise ImportError("Install apex from https://www.github.com/nvidia/apex to run this example.")

parser = argparse.ArgumentParser(description="CIFAR-10 with apex")
parser.add_argument("--data", default="./data")
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("-b", "--batch-size", default=32, type=int, help="of all GPUs together")
parser.add_argument("--lr", default=0.05, type=float)
parser.add_argument("--local_rank", default=os.getenv("LOCAL_RANK", 0), type=int)
parser.add_argument("--sync_bn", action="store_true")
parser.add_argument("--opt-level", type=str, default="O0")
parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
parser.add_argument("--loss-scale", type=str, default=None)


def reduce_tensor(tensor, world_size):
    rt = tensor.clone()
    dist.all_reduce(rt, op=dist.ReduceOp.SUM)
    rt /= world_size
    return rt


def adjust_learning_rate(optimizer, epoch, step, len_epoch, args):
    """It grows over the first epoch."""
    lr = args.lr * min(1.0, (1 + step + epoch * len_epoch) / len_epoch)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr


def main():
    args = parser.parse_args()
    cudnn.benchmark = True
    args.distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    args.gpu, args.world_size = 0, 1
    if args.distributed:
        args.gpu = args.local_rank
        torch.cuda.set_device(args.gpu)
        dist.init_process_group(backend="nccl", init_method="env://")
        args.world_size = dist.get_world_size()
    torch.manual_seed(1)

    model = SmallNetBN()
    if args.sync_bn:
        model = convert_syncbn_model(model)
    model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    model, optimizer = amp.initialize(
        model,
        optimizer,
        opt_level=args.opt_level,
        keep_batchnorm_fp32=args.keep_batchnorm_fp32,
        loss_scale=args.loss_scale,
    )
    if args.distributed:
        model = DDP(model, delay_allreduce=True)
    criterion = nn.CrossEntropyLoss().cuda()

    transform = transforms.Compose([
        transforms.ToTensor(),
        transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    ])  # fmt: skip
    train_set = datasets.CIFAR10(args.data, train=True, transform=transform)
    sampler = None
    if args.distributed:
        sampler = torch.utils.data.distributed.DistributedSampler(train_set)
    loader = torch.utils.data.DataLoader(
        train_set, args.batch_size // args.world_size, shuffle=sampler is None, sampler=sampler
    )

    for epoch in range(args.epochs):
        if args.distributed:
            sampler.set_epoch(epoch)
        model.train()
        for i, (input, target) in enumerate(loader):
            input, target = input.cuda(non_blocking=True), target.cuda(non_blocking=True)
            adjust_learning_rate(optimizer, epoch, i, len(loader), args)
            loss = criterion(model(input), target)
            optimizer.zero_grad()
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
            reduced = reduce_tensor(loss.data, args.world_size) if args.distributed else loss.data
            torch.cuda.synchronize()
            if args.local_rank == 0:
                print(f"Epoch: [{epoch}][{i}/{len(loader)}] Loss {reduced:.6f}", flush=True)


if __name__ == "__main__":
    main()
