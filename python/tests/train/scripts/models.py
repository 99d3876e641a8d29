"""The networks of the scripts beside this file: small, and without dropout."""

from torch import nn


class SmallNet(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class SmallNetBN(nn.Module):
    """The same with batch normalization, whose statistics are of the whole batch or are wrong."""

    def __init__(self, num_classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 5, stride=2), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        x = nn.functional.relu(self.bn1(self.conv1(x)))
        x = nn.functional.relu(self.bn2(self.conv2(x)))
        return self.fc(self.pool(x).flatten(1))
