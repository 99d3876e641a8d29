"""A ResNet-18: 11.7 million parameters in 62 tensors, so that gradients come as those of a real
model do."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + self.short(x))


def resnet18(classes=1000):
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    width = 64
    for outputs, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [Block(width, outputs, stride), Block(outputs, outputs, 1)]
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
