"""Python objects from all ranks to all: by files in a shared folder, and by all_gather_object.

    ringrun -np 2 python benches/torch/objects.py [--commit COMMIT] [--quick]

The files are those of python/tests/train/scripts/shared_dir.py: in /dev/shm, which is memory, and
in the folder for temporary files. Beside them are torch's all_gather_object, on ringcomm and on
gloo, and ringcomm's, of a Communicator. The ways take turns. A time is the median of the turns on
rank 0; each begins at a barrier, and ends when rank 0 has the objects of all. What has come is
compared with what was sent.
"""

import argparse
import datetime
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ringcomm
import ringcomm.torch  # noqa: F401  (registers the backend)

SCRIPTS = Path(__file__).resolve().parents[2] / "python/tests/train/scripts"
sys.path.insert(0, str(SCRIPTS))
from shared_dir import gather_by_files  # noqa: E402

#: Bytes of an object, and turns.
SIZES = {"1 KiB": (1 << 10, 40), "1 MiB": (1 << 20, 20), "64 MiB": (64 << 20, 5)}


def by_torch(group):
    """torch's own call, in a group."""

    def gather(value):
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, value, group=group)
        return found

    return gather


def timed(way, value):
    """Seconds of one exchange, and what came."""
    dist.barrier()
    start = time.perf_counter()
    found = way(value)
    return time.perf_counter() - start, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="not given")
    parser.add_argument("--quick", action="store_true", help="one turn, and no large objects")
    args = parser.parse_args()
    # The script says where tensors would go on a GPU; here they stay.
    if not torch.cuda.is_available():
        torch.Tensor.cuda = lambda self: self
    torch.set_num_threads(1)
    dist.init_process_group("ringcomm")
    rank, size = dist.get_rank(), dist.get_world_size()
    comm = ringcomm.init()
    ways = {
        "files in /dev/shm": lambda value: gather_by_files(value, "/dev/shm"),
        f"files in {tempfile.gettempdir()}": lambda value: gather_by_files(value, None),
        "torch's, on gloo": by_torch(dist.new_group(backend="gloo")),
        "torch's, on ringcomm": by_torch(None),
        "a Communicator's": comm.all_gather_object,
    }
    if rank == 0:
        print(f"{datetime.date.today()}, commit {args.commit}, torch {torch.__version__}")
        load = os.getloadavg()[0]
        print(f"{os.cpu_count()} cores, shared, {platform.platform()}, load before {load:.1f}")
        print(f"{size} processes, milliseconds: median (least to most)")
    for name, (count, turns) in list(SIZES.items())[: 2 if args.quick else None]:
        turns = 1 if args.quick else turns
        values = [{"rank": one, "data": bytes([one + 1]) * count} for one in range(size)]
        times = {way: [] for way in ways}
        for _ in range(turns):
            for way, gather in ways.items():
                seconds, found = timed(gather, values[rank])
                assert found == values, way
                times[way].append(seconds * 1000)
        for way, all_times in times.items() if rank == 0 else ():
            median, least, most = statistics.median(all_times), min(all_times), max(all_times)
            print(f"{name:>7} {way:<22} {median:9.2f} ({least:.2f} to {most:.2f})", flush=True)
    comm.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
