#!/usr/bin/env python3
"""Programs built for NCCL, with ringcomm's libnccl.so.2 in its place, on one GPU: gpu-nccl.py LIBRARY [PART...]

Processes of their own, which preload LIBRARY, and all parts at once:

    examples             the C examples of cbindings/nccl on the device's memory, through ctypes
    torch-1, torch-2     PyTorch's backend "nccl" with one and two processes: every collective on CUDA tensors
                         and DistributedDataParallel against gloo
    torch-nonblocking    the same with two, whose communicators do not block
    torch-failures       two, of which one does not come to a call, and then dies
    cupy, jax            CuPy's NcclCommunicator of two ranks; JAX's collectives of two processes

Prints a JSON object for each; what is not installed says so there. Ends with 1 if one is wrong.
"""
import collections
import datetime
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import gpu_nccl_ranks
from gpu_driver import NoDevice

SCRIPTS = Path(__file__).resolve().parent
# Processes of each part.
PARTS = {"examples": 1, "torch-1": 1, "torch-2": 2, "torch-nonblocking": 2, "torch-failures": 2, "cupy": 1, "jax": 2}
# How a rank of a part may end that is not through.
KILLED = {("torch-failures", 1): -signal.SIGKILL}
# For all of it, if nobody has ended it before; and for the others of a part of which one has failed, whose library
# tells them soon.
MOST_SECONDS, GRACE_SECONDS = 150, 15
# A rank waits so long for one that does not come, in the part where one does not, and in the others; and learns so
# soon that one has died. Whoever looks has them in turn, so that it takes some more.
LATE_MS, DEADLINE_MS, SLACK_SECONDS = 6000, 20_000, 5
# What an id of this library begins with, and what its log has.
OURS = "ringcomm"
# Lines of the log of a part that is wrong, and letters of why: a line goes whole where processes share a pipe.
MOST_LINES, MOST_WORDS = 10, 1000
COUNT = 10_000


class NotHere(Exception):
    """What a part is about is not on this machine; the text says what."""


def tell(**row):
    # In one write, as others have the same pipe.
    print(json.dumps(row) + "\n", end="", flush=True)


def loaded():
    """Every file of NCCL's name, or of ringcomm's, in this process's memory."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
    return sorted(path for path in paths if Path(path).name.startswith(("libnccl.", "libringcomm")))


def who_is_called(library, framework, folder):
    """Tell whose functions this process has called by NCCL's names: those of the library that keeps its log in the
    folder. PyTorch may have opened NVIDIA's library, too, by its path; nobody's calls go there."""
    log = Path(folder) / f"log.{os.getpid()}"
    text, files = log.read_text(encoding="utf-8") if log.exists() else "", loaded()
    calls = dict(collections.Counter(re.findall(r"NCCL INFO (\w+): sendbuff", text)))
    beside = [file for file in files if os.path.realpath(file) != os.path.realpath(library)]
    is_wrong = not calls or OURS not in text or len(beside) == len(files)
    tell(framework=framework, what="NCCL's calls are ringcomm's", calls=calls, loaded_beside=beside, wrong=is_wrong)
    return is_wrong


def frameworks():
    """scripts/gpu-frameworks.py as a module."""
    loader = importlib.machinery.SourceFileLoader("gpu_frameworks", str(SCRIPTS / "gpu-frameworks.py"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def examples(library, _, __, folder):
    wrong = 0
    gpu_nccl_ranks.Device()
    for number, example in enumerate(gpu_nccl_ranks.EXAMPLES):
        (place := Path(folder) / str(number)).mkdir()
        name, begun = example.__name__.replace("_", " "), time.monotonic()
        try:
            example(gpu_nccl_ranks.Machine(library, place))
            why = None
        except Exception:
            why = traceback.format_exc()[-MOST_WORDS:]
        tell(framework="ctypes", what=name, seconds=round(time.monotonic() - begun, 2), wrong=bool(why), why=why)
        wrong += bool(why)
    return wrong


def with_torch():
    try:
        import torch
    except ImportError as reason:
        raise NotHere(f"torch is not installed ({reason})") from reason
    if not torch.cuda.is_available():
        raise NotHere("no device that torch knows")
    torch.cuda.set_device(0)
    return torch


def nccl_module(torch):
    """What torch has of NCCL beside its backend; whether it is wrong."""
    framework, tensor = f"torch {torch.__version__}", torch.arange(1000, dtype=torch.float32, device="cuda:0")
    made = torch.cuda.nccl.unique_id()
    torch.cuda.nccl.all_reduce([tensor])
    is_wrong = not made.startswith(OURS.encode()) or bool((tensor.cpu() != torch.arange(1000)).any())
    tell(framework=framework, what="torch.cuda.nccl", version=torch.cuda.nccl.version(), wrong=is_wrong)
    return is_wrong


def more_of_nccl(torch, dist, device):
    """What gloo has not: a name, and how far it is from what it should be."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def mine(of=rank):
        return torch.arange(COUNT, dtype=torch.float32, device=device) % 61 + of
    total = sum(map(mine, range(size)))
    average = mine()
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    yield "average", average - total / size
    for name, factor in [("factor", 2.0), ("factor on the device", torch.full([1], 2.0, device=device))]:
        factored = mine()
        dist.all_reduce(factored, op=dist._make_nccl_premul_sum(factor))
        yield f"sum with a {name}", factored - 2 * total
    come = [torch.zeros(COUNT, device=device) for _ in range(size)]
    dist.all_to_all(come, [mine(rank + peer) for peer in range(size)])
    yield "all_to_all", torch.stack(come) - torch.stack([mine(rank + peer) for peer in range(size)])
    dist.gather(mine(), come if rank == 0 else None, 0)
    yield "gather", (torch.stack(come) - torch.stack([mine(of) for of in range(size)])) * (rank == 0)
    part = torch.zeros(COUNT, device=device)
    dist.scatter(part, [mine(10 + peer) for peer in range(size)] if rank == 0 else None, 0)
    yield "scatter", part - mine(10 + rank)
    if size > 1:
        after, before = (rank + 1) % size, (rank - 1) % size
        passed = [dist.P2POp(dist.isend, mine(), after), dist.P2POp(dist.irecv, part, before)]
        for work in dist.batch_isend_irecv(passed):
            work.wait()
        yield "batch_isend_irecv", part - mine(before)
    several = [mine(), 2 * mine()]
    with dist.distributed_c10d._coalescing_manager(device=torch.device(device)):
        for one in several:
            dist.all_reduce(one)
    yield "coalesced all_reduces", torch.stack(several) - torch.stack([total, 2 * total])
    everybody, alone, summed = dist.new_group(), dist.new_group([0]), mine()
    dist.all_reduce(summed, group=everybody)
    if rank == 0:
        dist.broadcast(summed, 0, group=alone)
    yield "groups", summed - total
    if size == 1:
        # Processes that share a GPU meet anew for each call, which no graph does.
        graph, kept = torch.cuda.CUDAGraph(), mine()
        with torch.cuda.graph(graph):
            dist.all_reduce(kept)
            kept += 1
        graph.replay()
        graph.replay()
        yield "graph", kept - mine() - 2


def torch_backend(library, rank, size, folder, is_eager=False):
    """The backend "nccl" against gloo. An eager one knows its device, and makes groups by splitting."""
    torch, module, results = with_torch(), frameworks(), {}
    import torch.distributed as dist
    wrong = nccl_module(torch) if rank == 0 else 0
    for backend, device in [("gloo", "cpu"), ("nccl", "cuda:0")]:
        like = {"init_method": f"file://{folder}/{backend}", "rank": rank, "world_size": size}
        if backend == "nccl" and is_eager:
            like["device_id"] = torch.device(device)
        more = more_of_nccl if backend == "nccl" else None
        results[backend] = module.ran(torch, dist, backend, device, like, more)
    wrong += who_is_called(library, f"torch {torch.__version__}", folder) if rank == 0 else 0
    is_blocking = os.environ.get("TORCH_NCCL_USE_COMM_NONBLOCKING") != "1"
    return wrong + module.compared(torch, results["nccl"], results["gloo"], backend="nccl", processes=size, rank=rank,
                                   blocking=is_blocking)


def until_it_fails(torch, dist, group, most):
    """Make calls until one fails, or so many: how long the last took, and what it said; None if none has failed."""
    mine = torch.ones(1 << 20, device="cuda:0")
    for _ in range(most):
        begun = time.monotonic()
        try:
            work = dist.all_reduce(mine, group=group, async_op=True)
            work.wait(datetime.timedelta(seconds=4 * LATE_MS / 1000))
        except RuntimeError as error:
            return time.monotonic() - begun, str(error)
    return time.monotonic() - begun, None


def torch_failures(_, rank, size, folder):
    """One process does not come to a call, and later dies; the other has an error in time, and ends well."""
    torch = with_torch()
    import torch.distributed as dist
    dist.init_process_group("nccl", init_method=f"file://{folder}/nccl", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=60), device_id=torch.device("cuda:0"))
    store, late, wrong = dist.FileStore(f"{folder}/store", size), dist.new_group(), 0

    def judge(what, took, said, most):
        is_wrong = said is None or took > most
        tell(framework=f"torch {torch.__version__}", backend="nccl", processes=size, rank=rank, what=what,
             seconds=round(took, 2), most_seconds=most, error=said and said[-MOST_WORDS:], wrong=is_wrong)
        return is_wrong
    for group in (None, late):
        until_it_fails(torch, dist, group, 3)
    if rank == 1:
        store.wait(["go on"], datetime.timedelta(seconds=60))
        until_it_fails(torch, dist, None, 5)
        os.kill(os.getpid(), signal.SIGKILL)
    wrong += judge("a rank that does not come", *until_it_fails(torch, dist, late, 1), LATE_MS / 1000 + SLACK_SECONDS)
    begun = time.monotonic()
    dist.distributed_c10d._abort_process_group(late)
    wrong += judge("abort", time.monotonic() - begun, "", SLACK_SECONDS)
    store.set("go on", "")
    # It makes some of these calls.
    wrong += judge("a rank that dies", *until_it_fails(torch, dist, None, 100), SLACK_SECONDS)
    begun = time.monotonic()
    dist.distributed_c10d._abort_process_group()
    return wrong + judge("abort of all", time.monotonic() - begun, "", SLACK_SECONDS)


def cupy_ranks(library, _, __, folder):
    """CuPy's interface: two ranks of this process on one device, each with a stream."""
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as reason:
        raise NotHere(f"cupy is not installed ({reason})") from reason
    if not cupy.cuda.is_available():
        raise NotHere("no device that cupy knows")
    framework, comms = f"cupy {cupy.__version__}", nccl.NcclCommunicator.initAll([0, 0])
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in comms]
    sent = [cupy.arange(COUNT, dtype=cupy.float32) % 61 + rank for rank in range(2)]
    received, gathered = ([cupy.zeros(size * COUNT, cupy.float32) for _ in comms] for size in (1, 2))
    cupy.cuda.Device(0).synchronize()

    def each(call):
        nccl.groupStart()
        for rank, comm in enumerate(comms):
            call(comm, rank, streams[rank].ptr)
        nccl.groupEnd()
        for stream in streams:
            stream.synchronize()
    kind, wrong = nccl.NCCL_FLOAT32, 0

    def judge(what, got, want):
        is_wrong = any(bool((one != other).any()) for one, other in zip(got, want))
        tell(framework=framework, what=what, ranks=len(comms), wrong=is_wrong)
        return is_wrong
    each(lambda comm, rank, stream: comm.allReduce(
        sent[rank].data.ptr, received[rank].data.ptr, COUNT, kind, nccl.NCCL_SUM, stream))
    wrong += judge("allReduce", received, [sent[0] + sent[1]] * 2)
    each(lambda comm, rank, stream: comm.allGather(sent[rank].data.ptr, gathered[rank].data.ptr, COUNT, kind, stream))
    wrong += judge("allGather", gathered, [cupy.concatenate(sent)] * 2)

    def turned(comm, rank, stream):
        comm.send(sent[rank].data.ptr, COUNT, kind, 1 - rank, stream)
        comm.recv(received[rank].data.ptr, COUNT, kind, 1 - rank, stream)
    each(turned)
    wrong += judge("send and recv", received, sent[::-1])
    wrong += judge("device_id", [cupy.array([comm.device_id()]) for comm in comms], [cupy.array([0])] * 2)
    for comm in comms:
        comm.destroy()
    return wrong + who_is_called(library, framework, folder)


def jax_calls(jax, mesh):
    """Name, function of what a rank has, and what rank 0 has of it then; the ranks have consecutive numbers."""
    size = mesh.size
    numbers = [[COUNT * rank + i for i in range(COUNT)] for rank in range(size)]
    sums, share = [sum(column) for column in zip(*numbers)], COUNT // size
    yield "psum", lambda x: jax.lax.psum(x, "ranks"), sums
    yield "all_gather", lambda x: jax.lax.all_gather(x, "ranks", tiled=True), sum(numbers, [])
    yield "psum_scatter", lambda x: jax.lax.psum_scatter(x, "ranks", tiled=True), sums[:share]
    yield ("all_to_all", lambda x: jax.lax.all_to_all(x, "ranks", 0, 0, tiled=True),
           [one for rank in range(size) for one in numbers[rank][:share]])
    around = [(rank, (rank + 1) % size) for rank in range(size)]
    yield "ppermute", lambda x: jax.lax.ppermute(x, "ranks", around), numbers[-1]


def jax_ranks(library, rank, size, folder, platform="gpu"):
    """JAX's collectives of two processes, which share the device: of one device alone XLA makes no calls."""
    try:
        import jax
    except ImportError as reason:
        raise NotHere(f"jax is not installed ({reason})") from reason
    # One folder is one job: a port that nobody has, told by rank 0.
    port = int(announced(Path(folder) / "port", rank, free_port))
    try:
        jax.distributed.initialize(f"127.0.0.1:{port}", size, rank, local_device_ids=[0])
        found = jax.default_backend()
    except RuntimeError as reason:
        found = str(reason)
    if found != platform:
        raise NotHere(f"no device that jax knows ({found})")
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    shard_map = getattr(jax, "shard_map", None) or importlib.import_module("jax.experimental.shard_map").shard_map
    mesh, spread = Mesh(jax.devices(), ("ranks",)), PartitionSpec("ranks")
    import numpy
    mine = numpy.arange(COUNT * rank, COUNT * (rank + 1), dtype=numpy.int32)
    whole, wrong = jax.make_array_from_process_local_data(NamedSharding(mesh, spread), mine), 0
    for name, function, want in jax_calls(jax, mesh):
        made = jax.jit(shard_map(function, mesh=mesh, in_specs=spread, out_specs=spread))(whole)
        got = numpy.asarray(made.addressable_data(0)).tolist()
        is_wrong = rank == 0 and got != want
        wrong += is_wrong
        if rank == 0:
            tell(framework=f"jax {jax.__version__}", processes=size, what=name, wrong=is_wrong)
    jax.distributed.shutdown()
    return wrong + (who_is_called(library, f"jax {jax.__version__}", folder) if rank == 0 else 0)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def announced(place, rank, make):
    """A text that rank 0 makes, on all ranks."""
    if rank == 0:
        part = place.with_suffix(".part")
        part.write_text(make(), encoding="utf-8")
        part.rename(place)
    while not place.exists():
        time.sleep(0.01)
    return place.read_text(encoding="utf-8")


WORK = {"examples": examples, "torch-1": torch_backend, "torch-failures": torch_failures, "cupy": cupy_ranks,
        "jax": jax_ranks, **dict.fromkeys(["torch-2", "torch-nonblocking"],
                                          lambda *words: torch_backend(*words, is_eager=True))}


def process_of(part, library, rank, folder):
    """A rank of a part: whether it is wrong."""
    try:
        return WORK[part](library, rank, PARTS[part], folder) != 0
    except NoDevice as reason:
        # By the driver's own word; a framework may be built without devices.
        print(f"skipped: no device ({reason})", flush=True)
        return False
    except NotHere as reason:
        if rank == 0:
            tell(framework=part.split("-")[0], part=part, what=str(reason), wrong=False)
        return False


def environment(part, library, folder):
    """What a part runs in: this library for whoever asks for NCCL's. The examples ask for the file itself."""
    before = os.environ.get("LD_PRELOAD")
    more = {"RINGCOMM_TIMEOUT_MS": str(DEADLINE_MS), "GLOO_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,COLL", "NCCL_DEBUG_FILE": f"{folder}/log.%p"}
    if part == "examples":
        return {**os.environ, **more}
    more["LD_PRELOAD"] = f"{library}:{before}" if before else library
    if part == "torch-nonblocking":
        more["TORCH_NCCL_USE_COMM_NONBLOCKING"] = "1"
    if part == "torch-failures":
        # Who waits has the error as an exception, and nobody ends the process for it.
        more |= {"TORCH_NCCL_BLOCKING_WAIT": "1", "RINGCOMM_TIMEOUT_MS": str(LATE_MS)}
    if part == "jax":
        # Not three quarters of the memory for each.
        more["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return {**os.environ, **more}


def watch(started, end):
    """Wait for all processes, by part and rank; those that ended as they should not."""
    bad, graces = {}, {}
    while started:
        for key, process in list(started.items()):
            code, (part, _) = process.poll(), key
            if code is None and time.monotonic() > min(end, graces.get(part, end)):
                process.kill()
                code = f"killed: it did not end ({process.wait()})"
            if code is None:
                continue
            del started[key]
            if code not in (0, KILLED.get(key)):
                bad[key] = code
                graces.setdefault(part, time.monotonic() + GRACE_SECONDS)
        time.sleep(0.02)
    return bad


def warnings(folder):
    """The last of what the library said that was wrong."""
    lines = [line for log in folder.glob("log.*") for line in log.read_text(errors="replace").splitlines()]
    return [line[-MOST_WORDS // 4:] for line in lines if "NCCL WARN" in line][-MOST_LINES:]


def main():
    if sys.argv[1] == "--process":
        part, library, rank, folder = sys.argv[2:]
        return process_of(part, library, int(rank), folder)
    library, parts = os.path.abspath(sys.argv[1]), sys.argv[2:] or list(PARTS)
    end = time.monotonic() + MOST_SECONDS
    with tempfile.TemporaryDirectory() as scratch:
        started = {}
        for part in parts:
            (folder := Path(scratch) / part).mkdir()
            for rank in range(PARTS[part]):
                words = [sys.executable, __file__, "--process", part, library, str(rank), str(folder)]
                started[part, rank] = subprocess.Popen(words, env=environment(part, library, folder))
        bad = watch(started, end)
        for (part, rank), code in bad.items():
            tell(part=part, rank=rank, what="how it ended", status=code, wrong=True, log=warnings(Path(scratch) / part))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
