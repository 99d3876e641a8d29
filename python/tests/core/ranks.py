"""What the ranks that are processes do: named functions, which `spawn` can start anew."""

import atexit
import json
import os
import signal
import threading
import time

import numpy as np

import ringcomm


def add(comm, value, scale=1):
    """The sum over ranks, and what the environment said."""
    array = np.full(1000, (comm.rank + value) * scale, np.float64)
    comm.all_reduce(array)
    assert (array == array[0]).all()
    return comm.rank, array[0], ringcomm.launcher().nranks


def place(comm):
    """Where a rank is, among those of its machine too."""
    here = ringcomm.launcher()
    return here.rank, here.nranks, here.local_rank, os.environ["RINGCOMM_LOCAL_SIZE"]


def objects(comm):
    """Everything that carries objects, with pickles of all lengths."""
    mine = {"rank": comm.rank, "data": list(range(comm.rank * 1000))}
    others = comm.all_gather_object(mine)
    big = comm.broadcast_object("x" * 3_000_000 if comm.rank == 1 else None, root=1)
    return [other["rank"] for other in others], [len(other["data"]) for other in others], len(big)


def die(comm, folder, who):
    """Rank `who` kills itself in the middle; the others write down what they were told."""
    comm.barrier()
    token = np.zeros(1)
    # All have left the barrier, so that nobody is told of the death there.
    if comm.rank == who:
        for other in set(range(comm.nranks)) - {who}:
            comm.recv(token, other)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.send(token, who)
    try:
        comm.all_reduce(np.zeros(8, np.float32))
    except ringcomm.RingError as error:
        survivors = comm.shrink(abort=True)
        total = np.ones(1)
        survivors.all_reduce(total)
        with open(f"{folder}/{comm.rank}", "w") as out:
            facts = {
                name: getattr(error, name) for name in ("rank", "peer", "operation", "sequence")
            }
            kind = type(error).__name__
            json.dump({"kind": kind, "text": str(error), "left": total[0], **facts}, out)
        raise


def fail(comm):
    """Rank 1 has a defect; the others wait for it."""
    if comm.rank == 1:
        raise KeyError("a defect")
    comm.barrier()


def leave(comm):
    """Rank 0 ends without a word."""
    if comm.rank == 0:
        os._exit(3)
    time.sleep(600)


def leave_late(comm, folder):
    """Every rank still has something to do when it has returned."""

    def work():
        time.sleep(0.3)
        with open(f"{folder}/{comm.rank}", "w"):
            pass

    atexit.register(work)
    return comm.rank


def leave_a_child(comm, folder):
    """Every rank returns, and what it has forked lives on for a while."""
    child = os.fork()
    if child == 0:
        time.sleep(30)
        with open(f"{folder}/{comm.rank}", "w"):
            pass
        os._exit(0)
    return child


def stay(comm):
    """Rank 1 returns, and its process never ends."""
    if comm.rank == 1:
        threading.Thread(target=time.sleep, args=(3600,)).start()
    return comm.rank
