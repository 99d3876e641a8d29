"""Pictures of 32 x 32 x 3 bytes in ten classes, the same in every process."""

import numpy
import torch

#: Few, so that two epochs take seconds; as many in every class, and whole batches for 4 ranks.
TRAINED_ON, TESTED_ON = 160, 40


class CIFAR10(torch.utils.data.Dataset):
    """Each class has a picture of its own, of four colours, under noise."""

    def __init__(self, root, train=True, transform=None, download=False):
        self.transform = transform
        drawn = numpy.random.RandomState(10)
        prototypes = drawn.randint(0, 256, (10, 2, 2, 3)).repeat(16, axis=1).repeat(16, axis=2)
        count = TRAINED_ON + TESTED_ON
        targets = numpy.arange(count) % 10
        pictures = (prototypes[targets] + drawn.randint(0, 256, (count, 32, 32, 3))) // 2
        mine = slice(0, TRAINED_ON) if train else slice(TRAINED_ON, count)
        self.data = pictures[mine].astype(numpy.uint8)
        self.targets = [int(one) for one in targets[mine]]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        picture, target = self.data[index], self.targets[index]
        return picture if self.transform is None else self.transform(picture), target
