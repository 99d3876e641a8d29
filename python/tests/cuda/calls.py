"""Every call of a communicator, on buffers that the caller makes."""

import numpy as np

import ringcomm

#: Elements of a block: no power of two.
EACH = 5


def everything(comm, make, read):
    """Make every call, on buffers `make(values)`; what `read(buffer)` finds there, by name.

    Values differ by rank and place, and every sum of them is exact.
    """
    rank, n = comm.rank, comm.nranks
    root = n - 1

    def mine(count, kind=np.float32):
        return make((np.arange(count) + 100 * rank).astype(kind))

    def room(count, kind=np.float32):
        return make(np.zeros(count, kind))

    found = {}

    def keep(name, *buffers):
        found[name] = [read(buffer).tolist() for buffer in buffers]

    for kind in (np.float32, np.float64, np.float16, np.int64, np.uint8):
        send, recv = mine(EACH, kind), room(EACH, kind)
        comm.all_reduce(send, recv)
        comm.all_reduce(send)
        keep(f"all_reduce {np.dtype(kind)}", send, recv)
    for op in (ringcomm.MAX, ringcomm.MIN, ringcomm.AVG, ringcomm.PROD):
        recv = room(EACH)
        comm.all_reduce(mine(EACH), recv, op)
        keep(f"all_reduce {op.name}", recv)
    factor = comm.pre_mul_sum(rank + 2.0)
    recv = room(EACH)
    comm.all_reduce(mine(EACH), recv, factor)
    keep("pre_mul_sum", recv)
    send = mine(EACH)
    comm.broadcast(send, root=root)
    recv = room(EACH)
    comm.broadcast(mine(EACH), recv)
    keep("broadcast", send, recv)
    recv = room(EACH)
    comm.reduce(mine(EACH), recv if rank == root else None, root=root)
    keep("reduce", recv)
    recv = room(n * EACH)
    comm.all_gather(mine(EACH), recv)
    keep("all_gather", recv)
    recv, whole = room(EACH), mine(n * EACH)
    comm.reduce_scatter(whole, recv)
    comm.reduce_scatter(whole)
    own = slice(rank * EACH, (rank + 1) * EACH)
    found["reduce_scatter"] = [read(recv).tolist(), read(whole)[own].tolist()]
    recv, whole = room(n * EACH), mine(n * EACH)
    comm.all_to_all(whole, recv)
    comm.all_to_all(whole)
    keep("all_to_all", recv, whole)
    recv = room(n * EACH)
    comm.gather(mine(EACH), recv if rank == root else None, root)
    keep("gather", recv)
    recv = room(EACH)
    comm.scatter(mine(n * EACH) if rank == root else None, recv, root)
    keep("scatter", recv)
    recv, send = room(EACH), mine(EACH)
    with ringcomm.group():
        comm.send(send, (rank + 1) % n)
        comm.recv(recv, (rank - 1) % n)
    keep("send and recv", recv)
    comm.barrier()
    _vectors(comm, mine, room, keep, root)
    found["objects"] = _objects(comm, root)
    return found


def _vectors(comm, mine, room, keep, root):
    rank, n = comm.rank, comm.nranks
    counts = [3 * one + 1 for one in range(n)]
    total, own = sum(counts), counts[rank]
    recv = room(total)
    comm.all_gather_v(mine(own), recv, counts)
    keep("all_gather_v", recv)
    recv = room(own)
    comm.reduce_scatter_v(mine(total), recv, counts)
    keep("reduce_scatter_v", recv)
    recv = room(n * own)
    comm.all_to_all_v(mine(total), counts, recv, [own] * n)
    keep("all_to_all_v", recv)
    recv = room(total)
    at_root = (recv, counts) if rank == root else (None, None)
    comm.gather_v(mine(own), *at_root, root=root)
    keep("gather_v", recv)
    recv = room(own)
    send = mine(total) if rank == root else None
    comm.scatter_v(send, recv, counts if rank == root else None, root=root)
    keep("scatter_v", recv)


def _objects(comm, root):
    rank, n = comm.rank, comm.nranks
    mine = {"rank": rank, "text": "x" * 1000 * rank}
    found = [
        comm.all_gather_object(mine),
        comm.broadcast_object(mine, root),
        comm.gather_object(mine, root),
        comm.scatter_object([[rank, one] for one in range(n)] if rank == root else None, root),
        comm.all_to_all_object([(rank, one) for one in range(n)]),
    ]
    if rank == 0:
        comm.send_object(mine, root)
    elif rank == root:
        found.append(comm.recv_object(0))
    return found
