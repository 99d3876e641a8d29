"""Objects that every rank has of every rank: by files in a shared folder, and by all_gather_object.

python launcher.py --nproc 2 shared_dir.py --shared-dir /dev/shm
"""

import argparse
import os
import pickle
import shutil
import tempfile

import torch
import torch.distributed as dist

#: Of the name of a folder, which ranks tell each other as a tensor.
MAX_LEN = 512


def broadcast_name(shared_dir):
    """A folder that rank 0 makes; all ranks get its name."""
    name = torch.full((MAX_LEN,), 32, dtype=torch.uint8).cuda()
    if dist.get_rank() == 0:
        made = tempfile.mkdtemp(prefix="gather-", dir=shared_dir).encode()
        name[: len(made)] = torch.tensor(list(made), dtype=torch.uint8).cuda()
    dist.broadcast(name, 0)
    return bytes(name.tolist()).decode().rstrip()


def gather_by_files(obj, shared_dir):
    """Every rank's object, in the order of ranks: each writes a file, and reads those of all."""
    folder = broadcast_name(shared_dir)
    mine = os.path.join(folder, f"part_{dist.get_rank()}.pkl")
    with open(mine, "wb") as f:
        pickle.dump(obj, f, protocol=pickle.HIGHEST_PROTOCOL)
    # All are written, and are read before they are deleted.
    dist.barrier()
    parts = []
    for rank in range(dist.get_world_size()):
        with open(os.path.join(folder, f"part_{rank}.pkl"), "rb") as f:
            parts.append(pickle.load(f))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
    return parts


def gather_by_names(obj, shared_dir):
    """The same, where every rank writes where it likes, and tells the others its file's name."""
    fd, mine = tempfile.mkstemp(suffix=".pkl", dir=shared_dir)
    with os.fdopen(fd, "wb") as f:
        pickle.dump(obj, f, protocol=pickle.HIGHEST_PROTOCOL)
    name = torch.full((MAX_LEN,), 32, dtype=torch.uint8).cuda()
    name[: len(mine.encode())] = torch.tensor(list(mine.encode()), dtype=torch.uint8).cuda()
    names = [torch.empty_like(name) for _ in range(dist.get_world_size())]
    dist.all_gather(names, name)
    parts = []
    for one in names:
        with open(bytes(one.tolist()).decode().rstrip(), "rb") as f:
            parts.append(pickle.load(f))
    dist.barrier()
    os.remove(mine)
    return parts


def objects(rank):
    """What ranks tell each other at the end of an epoch: results, of other sizes on each."""
    predictions = torch.arange(100_000 * (rank + 1), dtype=torch.float32) * (rank + 1)
    yield {"rank": rank, "boxes": [(n, n / 3) for n in range(1000 * (rank + 1))]}
    yield {"predictions": predictions.numpy(), "names": [f"{n}.jpg" for n in range(rank)]}
    yield None if rank == 0 else b"\0" * (3 << 20)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shared-dir", required=True)
    args = parser.parse_args()
    dist.init_process_group(backend="nccl", init_method="env://")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    expected = zip(*(objects(other) for other in range(size)))
    for obj, right in zip(objects(rank), expected):
        gathered = [None] * size
        dist.all_gather_object(gathered, obj)
        right = [pickle.dumps(one) for one in right]
        for parts in (
            gathered,
            gather_by_files(obj, args.shared_dir),
            gather_by_names(obj, args.shared_dir),
        ):
            assert [pickle.dumps(one) for one in parts] == right
    print(f"rank {rank} of {size}: all objects are equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
