"""Those that draw nothing at random."""

import torch


class Compose:
    """One after the other."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, picture):
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    """Channels first, from 0 to 1."""

    def __call__(self, picture):
        return torch.from_numpy(picture).permute(2, 0, 1).float() / 255


class Normalize:
    """By the mean and the deviation of each channel."""

    def __init__(self, mean, std):
        self.mean, self.std = (torch.tensor(one).view(-1, 1, 1) for one in (mean, std))

    def __call__(self, picture):
        return (picture - self.mean) / self.std
