"""Train a small network on CIFAR-10 with Horovod.

horovodrun -np 4 python horovod_fp16.py --fp16-allreduce
"""

import argparse

import torch
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed
from torchvision import datasets, transforms

import horovod.torch as hvd
from models import SmallNet

parser = argparse.ArgumentParser(description="CIFAR-10 with Horovod")
parser.add_argument("--data-dir", default="./data")
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
parser.add_argument("--batch-size", type=int, default=8, help="of each GPU")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--base-lr", type=float, default=0.0125, help="of a single GPU")
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--no-cuda", action="store_true", default=False)


class Metric:
    """The mean of a figure over steps and ranks."""

    def __init__(self, name):
        self.name = name
        self.sum, self.n = torch.tensor(0.0), torch.tensor(0.0)

    def update(self, val):
        mean = hvd.allreduce(val.detach().cpu(), name=self.name)
        self.sum += mean
        self.n += 1
        return mean

    @property
    def avg(self):
        return self.sum / self.n


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(args.seed + hvd.rank())
    if not args.no_cuda:
        torch.cuda.set_device(hvd.local_rank())
    torch.set_num_threads(1)

    transform = transforms.Compose([
        transforms.ToTensor(),
        transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    ])  # fmt: skip
    train_dataset = datasets.CIFAR10(args.data_dir, train=True, transform=transform)
    train_sampler = torch.utils.data.distributed.DistributedSampler(
        train_dataset, num_replicas=hvd.size(), rank=hvd.rank()
    )
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, sampler=train_sampler
    )

    model = SmallNet()
    model.cuda()
    optimizer = optim.SGD(
        model.parameters(), lr=args.base_lr * hvd.size(), momentum=args.momentum, weight_decay=1e-4
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression
    )

    for epoch in range(args.epochs):
        model.train()
        train_sampler.set_epoch(epoch)
        train_loss = Metric("train_loss")
        for batch_idx, (data, target) in enumerate(train_loader):
            data, target = data.cuda(), target.cuda()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            mean = train_loss.update(loss)
            if hvd.rank() == 0:
                print(f"Epoch: [{epoch}][{batch_idx}] Loss {mean.item():.6f}", flush=True)
        if hvd.rank() == 0:
            print(f"Epoch #{epoch}: mean of the losses {train_loss.avg.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
