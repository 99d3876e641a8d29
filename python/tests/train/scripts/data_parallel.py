"""Train a small network on CIFAR-10 on all GPUs of a machine, in one process.

python data_parallel.py --epochs 2
"""

import argparse
import time

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.optim as optim
from torchvision import datasets, transforms

from models import SmallNet

parser = argparse.ArgumentParser(description="CIFAR-10 with nn.DataParallel")
parser.add_argument("--data", default="./data")
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("-b", "--batch-size", default=32, type=int, help="over all GPUs")
parser.add_argument("--lr", default=0.05, type=float)
parser.add_argument("-j", "--workers", default=0, type=int)
parser.add_argument("--seed", default=1, type=int)


def loaders(args):
    normalize = transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
    transform = transforms.Compose([transforms.ToTensor(), normalize])
    train_set = datasets.CIFAR10(args.data, train=True, download=True, transform=transform)
    test_set = datasets.CIFAR10(args.data, train=False, download=True, transform=transform)
    options = dict(batch_size=args.batch_size, num_workers=args.workers, pin_memory=True)
    shuffled = torch.Generator().manual_seed(args.seed)
    return (
        torch.utils.data.DataLoader(train_set, shuffle=True, generator=shuffled, **options),
        torch.utils.data.DataLoader(test_set, shuffle=False, **options),
    )


def train(model, loader, criterion, optimizer, epoch):
    model.train()
    start = time.time()
    for i, (inputs, labels) in enumerate(loader):
        inputs, labels = inputs.cuda(), labels.cuda()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"Epoch: [{epoch}][{i}/{len(loader)}] Loss {loss.item():.6f}", flush=True)
    print(f"Epoch {epoch} took {time.time() - start:.1f} s")


def test(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, labels in loader:
            predicted = model(inputs.cuda()).argmax(dim=1).cpu()
            correct += (predicted == labels).sum().item()
            total += labels.size(0)
    print(f"Accuracy of the network on the {total} test images: {100 * correct / total:.1f} %")


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    cudnn.benchmark = True
    net = SmallNet()
    model = nn.DataParallel(net).cuda()
    print(f"{len(model.device_ids)} devices")
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    train_loader, test_loader = loaders(args)
    for epoch in range(args.epochs):
        train(model, train_loader, criterion, optimizer, epoch)
    test(model, test_loader)


if __name__ == "__main__":
    main()
