"""DataParallel: one process, and a replica of the network for each device, in a thread.

The loop is that of one process; only the line that wraps the network is new. Without GPUs the CPU
is taken several times.

    python data_parallel.py --devices 2
"""

import torch
from torch import nn

import digits
from ringcomm.torch import DataParallel


def main(argv=None):
    """Train; returns the network."""
    # It is one process, and has no process group.
    parser = digits.options(__doc__.splitlines()[0], without=["backend"])
    parser.add_argument("--devices", type=int, default=2, help="CPU devices, where there is no GPU")
    args = parser.parse_args(argv)
    gpu = torch.cuda.is_available()
    network = digits.network(args).to("cuda:0" if gpu else "cpu")
    model = DataParallel(network, None if gpu else ["cpu"] * args.devices)
    step, batches = digits.optimizer(model, args), digits.loader(digits.data(args)[0], args)
    progress = digits.Progress(f"DataParallel of {len(model.devices)} devices", args)
    for epoch in range(args.epochs):
        for x, y in progress.epoch(batches, epoch):
            output = model(x.to(model.devices[0]))
            loss = nn.functional.cross_entropy(output, y.to(output.device))
            step.zero_grad()
            loss.backward()
            step.step()
            progress.loss = loss.detach()
    progress.done()
    digits.save(network, args)
    return network


if __name__ == "__main__":
    main()
