"""What others need on one GPU for what ring-perf -g 1 measures: one JSON object a line.

gpu-peers.py stack       torch.stack(inputs).sum(0) and copies of the result, in a CUDA graph and eager
gpu-peers.py nccl        NCCL with several ranks of one GPU (2.30 or later)
gpu-peers.py symmetric   torch's symmetric-memory all-reduce, ranks on the same device

Times are microseconds of one all-reduce of `bytes` per rank, by the device's events.
"""

import json
import os
import sys

import torch

SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]
RANKS = [2, 4, 8]


def timed(work, bytes_):
    """Microseconds of one call."""
    count = 200 if bytes_ <= 1 << 20 else 20
    for _ in range(5):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / count


def tell(peer, ranks, bytes_, time_us):
    print(json.dumps({"peer": peer, "ranks": ranks, "bytes": bytes_, "time_us": time_us,
                      "scope": "one GPU, HBM-bound"}), flush=True)


def stack():
    for ranks in RANKS:
        for bytes_ in SIZES:
            inputs = [torch.ones(bytes_ // 4, device="cuda") for _ in range(ranks)]
            outputs = [torch.empty_like(one) for one in inputs]

            def work():
                total = torch.stack(inputs).sum(0)
                for output in outputs:
                    output.copy_(total)
            tell("torch.stack", ranks, bytes_, timed(work, bytes_))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            tell("torch.stack in a graph", ranks, bytes_, timed(graph.replay, bytes_))


def rank_of(rank, ranks, peer, port):
    """One rank, in a process of its own."""
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
                       "WORLD_SIZE": str(ranks), "NCCL_MULTI_RANK_GPU_ENABLE": "1",
                       "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"})
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda:0"))
    for bytes_ in SIZES:
        if peer == "nccl":
            mine = torch.ones(bytes_ // 4, device="cuda")

            def work():
                torch.distributed.all_reduce(mine)
        else:
            import torch.distributed._symmetric_memory as symmetric
            group = torch.distributed.group.WORLD.group_name
            mine = symmetric.empty(max(bytes_ // 4, 4), device="cuda")
            symmetric.rendezvous(mine, group)

            def work():
                torch.ops.symm_mem.two_shot_all_reduce_(mine, "sum", group)
        time_us = timed(work, bytes_)
        if rank == 0:
            tell(peer, ranks, bytes_, time_us)
    torch.distributed.destroy_process_group()


def main():
    peer = sys.argv[1]
    if peer == "stack":
        return stack()
    for index, ranks in enumerate(RANKS):
        torch.multiprocessing.spawn(rank_of, args=(ranks, peer, 29600 + index), nprocs=ranks)


if __name__ == "__main__":
    main()
