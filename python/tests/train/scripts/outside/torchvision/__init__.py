"""In the place of torchvision, with data that has the shape of CIFAR-10: see `datasets`."""

from . import datasets, transforms

__all__ = ["datasets", "transforms"]
