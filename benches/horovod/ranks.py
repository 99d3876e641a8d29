"""What Horovod's calls take on 2 or more ranks, for whichever Horovod `import horovod.torch` gives.

Prints a line of JSON for each case on rank 0: the medians and the least of the turns, in us.
Started by compare.py.
"""

import json
import statistics
import sys
import time

import torch

if len(sys.argv) > 1 and sys.argv[1] == "ringcomm":
    import ringcomm.horovod.torch as hvd
else:
    import horovod.torch as hvd

TURNS = 15


def resnet50():
    """Parameters with the shapes of a ResNet-50's: 161 tensors, 25.6 million numbers."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for out, into, size in ((width, channels, 1), (width, width, 3), (4 * width, width, 1)):
                shapes += [(out, into, size, size), (out,), (out,)]
            if block == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            channels = 4 * width
    shapes += [(1000, 2048), (1000,)]
    return [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]


def optimizer_step(parameters, name=None):
    """A step of SGD; with a name, of Horovod's optimizer."""
    optimizer = torch.optim.SGD(parameters, 0.1)
    if name:
        named = [(f"{name}.{index}", one) for index, one in enumerate(parameters)]
        optimizer = hvd.DistributedOptimizer(optimizer, named)

    def step():
        optimizer.zero_grad()
        sum(one.sum() for one in parameters).backward()
        optimizer.step()

    return step


def cases():
    small = [torch.ones(256) for _ in range(1000)]
    big = torch.ones(1 << 20)

    def each():
        handles = [
            hvd.allreduce_async_(one, name=f"each.{index}") for index, one in enumerate(small)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    yield "1000 tensors of 1 KiB, allreduce_async_", each
    yield "the same, grouped_allreduce_", lambda: hvd.grouped_allreduce_(small, name="group")
    gradients = [torch.nn.Parameter(torch.ones(256)) for _ in range(1000)]
    yield "a step with 1000 such gradients, alone", optimizer_step(gradients)
    yield "the same, reduced by Horovod", optimizer_step(gradients, "small")
    gradients = [torch.ones_like(one) for one in resnet50()]
    yield "ResNet-50's gradients, grouped_allreduce_", lambda: hvd.grouped_allreduce_(
        gradients, name="gradients"
    )
    parameters = resnet50()
    yield "a step of ResNet-50's parameters, alone", optimizer_step(parameters)
    yield "such a step, reduced by Horovod", optimizer_step(parameters, "resnet")
    yield "1 KiB, allreduce_", lambda: hvd.allreduce_(small[0], name="one")
    yield "4 MiB, allreduce_", lambda: hvd.allreduce_(big, name="big")


def main():
    torch.set_num_threads(1)
    hvd.init()
    for name, case in cases():
        for _ in range(3):
            case()
        times = []
        for _ in range(TURNS):
            start = time.perf_counter()
            case()
            times.append(1e6 * (time.perf_counter() - start))
        if hvd.rank() == 0:
            line = {"case": name, "median": statistics.median(times), "least": min(times)}
            print("\n" + json.dumps(line), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
