"""What others need on one GPU for what ring-perf -g 1 measures: gpu-peers.py PEER [SECONDS]

gpu-peers.py stack       torch.stack(inputs).sum(0) and copies of the result, eager and in a CUDA graph
gpu-peers.py nccl        NCCL with several ranks of one GPU (2.30 or later)
gpu-peers.py symmetric   torch's symmetric-memory all-reduces, ranks on the same device

One JSON object a line, as soon as it is known: `time_us` are microseconds of one all-reduce of `bytes` per
rank, by the device's events, after one whose result is right, or `error` says why there is none. SECONDS after its start, loading torch
included, nothing more is begun. Ends with 1 if anything was not measured; a peer that cannot run on one GPU is
`left_out`, with the reason, and is no failure. Processes take turns on a GPU: figures of theirs are time-sliced.
scripts/gpu_goals.py has the sizes, and makes ratios of the times.
"""
import ctypes
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

from gpu_goals import LARGE, RANKS, RANKS_OF, SCOPE, SIZES, SLICED, SMALL, TIME_SLICED, calls_of_a_graph

# What one cell may take, and its most calls: where every call takes a time slice of the device, which
# processes that wait for each other on it do, few of them are all that there is time for.
CELL_SECONDS = 0.25
MOST_CALLS = 200
# The first NCCL that takes several ranks on one GPU, by NCCL_MULTI_RANK_GPU_ENABLE.
LEAST_NCCL = (2, 30)
# Ranks of one GPU that NCCL takes without being told how many blocks each may have.
NCCL_RANKS = 2
# Bytes that kernels on symmetric memory can do at least: one access.
LEAST_SYMMETRIC = 16
# What there are goals for comes first.
ORDER = [*SMALL, *LARGE, *(size for size in SIZES if size not in SMALL + LARGE)]


class Clock:
    """When nothing more is begun: a time of the machine's clock, the same in every process."""

    def __init__(self, end):
        self.end = end

    def check(self):
        if time.monotonic() > self.end:
            raise TimeoutError("out of time before it")


def tell(**row):
    scope = f"{SCOPE}; {SLICED}" if row["peer"] in TIME_SLICED else SCOPE
    print(json.dumps(row | {"scope": scope}), flush=True)


def timed(torch, work, agree=lambda number: number):
    """Microseconds of one call; `agree` makes one number of what the ranks have."""
    def several(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(count):
            work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e3 / count
    several(1)
    affordable = CELL_SECONDS * 1e6 / max(several(2), 1e-3)
    return several(agree(int(max(2, min(MOST_CALLS, affordable)))))


def check(result, ranks, agree=lambda number: number):
    """Of ones the result is the number of ranks, on every rank; a time of anything else says nothing."""
    wrong = int((result != ranks).sum())
    if not agree(int(wrong == 0)):
        raise ArithmeticError(f"{wrong} of {result.numel()} elements here are not the sum of {ranks} ones")


def measured(cells, says=True):
    """Run cells, each of (row, function to its time); whether one has no time."""
    failed = False
    for row, cell in cells:
        try:
            time_us = cell()
            if says:
                tell(**row, time_us=time_us)
        except Exception as error:
            # Whatever a peer raises is the reason why it was not measured; on every rank, as it may
            # be raised on one.
            failed = True
            tell(**row, error=f"{type(error).__name__}: {str(error).strip()[:400]}")
    return failed


def stack(torch, clock):
    def cells():
        for bytes_ in ORDER:
            for ranks in RANKS:
                row = {"peer": "torch.stack", "ranks": ranks, "bytes": bytes_}
                yield row | {"mode": "eager"}, lambda b=bytes_, n=ranks: one(b, n, False)
                yield row | {"mode": "graph"}, lambda b=bytes_, n=ranks: one(b, n, True)

    def one(bytes_, ranks, captured):
        clock.check()
        inputs = [torch.ones(bytes_ // 4, device="cuda") for _ in range(ranks)]
        outputs = [torch.empty_like(one) for one in inputs]

        def work():
            total = torch.stack(inputs).sum(0)
            for output in outputs:
                output.copy_(total)
        # Also since memory that a capture uses first has to be the allocator's already.
        work()
        for output in outputs:
            check(output, ranks)
        if not captured:
            return timed(torch, work)
        calls = calls_of_a_graph(bytes_)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                work()
        return timed(torch, graph.replay) / calls
    return measured(cells())


def nccl_group(torch, ranks):
    """A communicator of the first ranks, which is made at its first call; on one GPU all of their blocks
    have to be resident at once."""
    options = torch.distributed.ProcessGroupNCCL.Options()
    if ranks > NCCL_RANKS:
        blocks = torch.cuda.get_device_properties(0).multi_processor_count
        options.config.max_ctas = max(1, blocks // ranks)
    return torch.distributed.new_group(list(range(ranks)), backend="nccl", pg_options=options)


def nccl_work(torch, group, bytes_):
    mine = torch.empty(bytes_ // 4, device="cuda:0")

    def work():
        torch.distributed.all_reduce(mine, group=group)
        return mine
    return mine, {"": (bytes_, work)}


def symmetric_work(torch, group, bytes_):
    import torch.distributed._symmetric_memory as symmetric
    reduced = max(bytes_, LEAST_SYMMETRIC)
    mine = symmetric.empty(reduced // 4, device="cuda:0")
    symmetric.rendezvous(mine, group.group_name)
    ops = torch.ops.symm_mem
    ways = {"two-shot": (reduced, lambda: ops.two_shot_all_reduce_(mine, "sum", group.group_name))}
    if bytes_ <= SMALL[-1]:
        ways["one-shot"] = (reduced, lambda: ops.one_shot_all_reduce(mine, "sum", group.group_name))
    return mine, ways


def rank_of(rank, peer, port, end):
    """One rank, in a process of its own; ends with 1 if something was not measured."""
    import torch
    clock, distributed = Clock(end), torch.distributed
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
                       "WORLD_SIZE": str(RANKS_OF.get(peer, RANKS)[-1])})
    torch.cuda.set_device(0)
    # The processes talk by gloo; NCCL is asked for nothing before its turn.
    distributed.init_process_group("gloo")
    failed = False
    for ranks in RANKS_OF.get(peer, RANKS):
        talk = distributed.new_group(list(range(ranks)), backend="gloo")
        group = nccl_group(torch, ranks) if peer == "nccl" else talk
        if rank >= ranks:
            continue

        def agree(number):
            least = torch.tensor([number])
            distributed.all_reduce(least, op=distributed.ReduceOp.MIN, group=talk)
            return int(least)

        def cells():
            make = nccl_work if peer == "nccl" else symmetric_work
            for bytes_ in ORDER:
                row = {"peer": peer, "ranks": ranks, "bytes": bytes_, "mode": "eager"}
                if not agree(time.monotonic() < clock.end):
                    yield row, clock.check if rank == 0 else lambda: None
                    continue
                mine, ways = make(torch, group, bytes_)
                for way, (reduced, work) in ways.items():
                    more = {"way": way, "reduced_bytes": reduced} if way else {"reduced_bytes": reduced}
                    yield row | more, lambda mine=mine, work=work: one(mine, work)

        def one(mine, work):
            mine.fill_(1)
            check(work(), ranks, agree)
            return timed(torch, work, agree)
        try:
            failed |= measured(cells(), says=rank == 0)
        except Exception as error:
            # Not of a cell: of what comes before all of them.
            tell(peer=peer, ranks=ranks, rank=rank, error=f"{type(error).__name__}: {str(error)[:400]}")
            failed = True
            break
    # A group that has failed may wait for its own end.
    sys.stdout.flush()
    os._exit(failed)


def loaded_nccl(torch):
    """The version of the NCCL that runs; torch itself tells that of the one it was compiled with."""
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    except OSError:
        # It is a part of torch's own library.
        failed = True
    if failed:
        return torch.cuda.nccl.version()
    return version_of(number.value)


def is_left_out(version):
    """Whether this NCCL does not take several ranks of one GPU, which is then told."""
    if tuple(version[:2]) >= LEAST_NCCL:
        return False
    tell(peer="nccl", left_out=f"NCCL {'.'.join(map(str, version))} refuses two ranks of one GPU, which "
         f"{'.'.join(map(str, LEAST_NCCL))} takes")
    return True


def installed_nccl():
    """The version of the package's NCCL, which torch would load: to know it takes no torch. None if there is none."""
    spec = importlib.util.find_spec("nvidia")
    number = ctypes.c_int()
    for place in spec.submodule_search_locations if spec else []:
        for library in Path(place).glob("nccl/lib/libnccl.so.2"):
            if ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(number)) == 0:
                return version_of(number.value)
    return None


def version_of(number):
    return number // 10_000, number % 10_000 // 100, number % 100


def processes(torch, peer, end):
    """As many processes as the most ranks need, once; fewer ranks are the first of them."""
    # The ranks meet on this machine, which may have no other network and no name.
    more = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
            "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    os.environ.update(more)
    version = loaded_nccl(torch)
    tell(peer=peer, device=torch.cuda.get_device_name(0), torch=torch.__version__, nccl=".".join(map(str, version)), variables=more)
    if peer == "nccl" and is_left_out(version):
        return False
    context = torch.multiprocessing.get_context("spawn")
    all_ranks = [context.Process(target=rank_of, args=(rank, peer, 29600 + os.getpid() % 1000, end))
                 for rank in range(RANKS_OF.get(peer, RANKS)[-1])]
    for process in all_ranks:
        process.start()
    for process in all_ranks:
        process.join()
    return any(process.exitcode != 0 for process in all_ranks)


def main():
    peer, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60
    end = time.monotonic() + seconds
    name = "torch.stack" if peer == "stack" else peer
    version = installed_nccl() if peer == "nccl" else None
    if version and is_left_out(version):
        return 0
    try:
        import torch
        torch.cuda.init()
    except Exception as error:
        # Not there, built without CUDA, or without a device.
        tell(peer=name, error=f"{type(error).__name__}: {error}")
        return 1
    if peer == "stack":
        tell(peer=name, device=torch.cuda.get_device_name(0), torch=torch.__version__)
        return stack(torch, Clock(end))
    return processes(torch, peer, end)


if __name__ == "__main__":
    sys.exit(main())
