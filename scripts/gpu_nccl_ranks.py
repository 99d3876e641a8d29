"""What the C examples of cbindings/nccl do, on a device's memory: ranks of one device that call NCCL's interface.

Each function here is one example: it raises where something is wrong. scripts/gpu-nccl.py runs them.
"""
import ctypes
import os
import signal
import subprocess
import sys
import time
from array import array
from pathlib import Path

import nccl_calls
from gpu_driver import Device
from nccl_calls import INT32, INT64, MAX, NO_COLOR, REMOTE_ERROR, SUCCESS, SUM, Nccl, NcclError, UniqueId

COUNT = 20011
# Of the ranks of the example in which one dies: after so many rounds, of so many; the others learn of it and go on
# for as many. They wait for it no longer than so many seconds.
RANKS, VICTIM, ROUNDS, MOST_SECONDS = 3, 1, 5, 30
# An id that a rank makes for the others is there soon, or never.
MEETING_SECONDS = 60
CODES = {INT32: "i", INT64: "q"}


def expect(condition, *seen):
    """As `assert`, whatever options Python has."""
    if not condition:
        raise AssertionError(f"not so: {seen}")


class Machine:
    """The library, the first device, and a folder of the example's own."""

    def __init__(self, library, folder):
        self.library, self.folder = library, Path(folder)
        self.nccl, self.device = Nccl(library), Device()


class Buffers:
    """Integers in the device's memory."""

    def __init__(self, device):
        self.device = device

    def put(self, numbers, kind=INT32, at=None):
        content = array(CODES[kind], numbers).tobytes()
        if at is None:
            return self.device.table(content)
        self.device.write(at, content)
        return at

    def get(self, at, count, kind=INT32):
        numbers = array(CODES[kind])
        numbers.frombytes(self.device.read(at, count * numbers.itemsize))
        return list(numbers)


class Thread:
    """A thread that is several ranks of one device, with a stream for each."""

    def __init__(self, machine, nranks, comms=None):
        self.nccl, self.device, self.ranks = machine.nccl, machine.device, range(nranks)
        self.buffers = Buffers(self.device)
        self.comms = comms or self.nccl.init_all([0] * nranks)
        self.streams = [self.device.new_stream() for _ in self.ranks]

    def put(self, numbers_of):
        """A buffer for each rank, of `numbers_of(rank)`."""
        return [self.buffers.put(numbers_of(rank)) for rank in self.ranks]

    def got(self, addresses, count):
        """What is in them once the ranks' streams are through."""
        self.device.synchronize(*self.streams)
        return [self.buffers.get(at, count) for at in addresses]

    def sum(self, addresses, count, comms=None, op=SUM):
        """An all-reduce in place, by all ranks."""
        with self.nccl.group():
            for rank, comm in enumerate(comms or self.comms):
                at = addresses[rank]
                self.nccl.AllReduce(at, at, count, INT32, op, comm, self.streams[rank])

    def end(self, *more):
        for comm in [*more, *self.comms]:
            self.nccl.CommDestroy(comm)
        self.device.free_all()


def numbers(rank, factor=1, count=COUNT):
    return [factor * (rank + 1) + i for i in range(count)]


def total(nranks, factor=1, count=COUNT):
    """The sum over the ranks."""
    return [factor * nranks * (nranks + 1) // 2 + nranks * i for i in range(count)]


def one_thread_that_is_several_ranks(machine):
    """groups.c: messages around a ring and between all, and calls on several communicators in one group."""
    nccl, here = machine.nccl, Thread(machine, 4)
    last = len(here.ranks)
    sent, received = here.put(lambda rank: numbers(rank, 3)), here.put(lambda _: [0] * COUNT)
    with nccl.group():
        for rank, (comm, stream) in enumerate(zip(here.comms, here.streams)):
            nccl.Send(sent[rank], COUNT, INT32, (rank + 1) % last, comm, stream)
            nccl.Recv(received[rank], COUNT, INT32, (rank - 1) % last, comm, stream)
    for rank, got in enumerate(here.got(received, COUNT)):
        expect(got == numbers((rank - 1) % last, 3), "ring", rank)
    with nccl.group():
        for rank, (comm, stream) in enumerate(zip(here.comms, here.streams)):
            for peer in here.ranks:
                nccl.Send(sent[rank] + 4 * peer, 1, INT32, peer, comm, stream)
                nccl.Recv(received[rank] + 4 * peer, 1, INT32, peer, comm, stream)
    for rank, got in enumerate(here.got(received, last)):
        expect(got == [numbers(peer, 3)[rank] for peer in here.ranks], "exchange", rank)
    others = nccl.init_all([0] * last)
    words, gathered = here.put(lambda rank: [rank]), here.put(lambda _: [0] * last)
    with nccl.group():
        for rank, (comm, stream) in enumerate(zip(here.comms, here.streams)):
            nccl.AllReduce(sent[rank], received[rank], COUNT, INT32, SUM, comm, stream)
            with nccl.group():
                nccl.AllReduce(words[rank], words[rank], 1, INT32, MAX, others[rank], stream)
            nccl.AllGather(sent[rank], gathered[rank], 1, INT32, comm, stream)
    for rank, got in enumerate(here.got(received, COUNT)):
        expect(got == total(last, 3), "sum", rank)
    expect(here.got(words, 1) == [[last - 1]] * last, "max")
    expect(here.got(gathered, last) == [[3 * (rank + 1) for rank in here.ranks]] * last, "gather")
    here.end(*others)


def rows_and_columns(machine):
    """split.c: a grid of ranks, and a rank that stays out."""
    width, height = 3, 2
    nccl, here = machine.nccl, Thread(machine, width * height)
    rows = nccl.split(here.comms, [rank // width for rank in here.ranks])
    columns = nccl.split(here.comms, [rank % width for rank in here.ranks])
    rest = nccl.split(here.comms, [NO_COLOR if rank == 1 else 0 for rank in here.ranks], [-rank for rank in here.ranks])
    expect(rest[1] is None and nccl.number("CommUserRank", rest[0]) == len(here.ranks) - 2, "rest")
    for rank, (row, column) in enumerate(zip(rows, columns)):
        for comm, place, count in [(row, rank % width, width), (column, rank // width, height)]:
            said = [nccl.number(name, comm) for name in ("CommUserRank", "CommCount", "CommCuDevice")]
            expect(said == [place, count, 0], rank, said)
    in_rows, in_columns = (here.put(lambda rank: [rank + i for i in range(COUNT)]) for _ in range(2))
    with nccl.group():
        here.sum(in_rows, COUNT, rows)
        here.sum(in_columns, COUNT, columns)
    got = zip(here.got(in_rows, COUNT), here.got(in_columns, COUNT))
    for rank, (row, column) in enumerate(got):
        across = sum(one for one in here.ranks if one // width == rank // width)
        down = sum(one for one in here.ranks if one % width == rank % width)
        expect(row == [across + width * i for i in range(COUNT)], "row", rank)
        expect(column == [down + height * i for i in range(COUNT)], "column", rank)
    here.end(*rows, *columns, *filter(None, rest))


def those_that_do_not_block(machine):
    """nonblocking.c: begun by one thread, asked about, and given up where a rank never comes."""
    nccl = machine.nccl
    unique_id = nccl.unique_id()
    comms = [nccl.begin(2, unique_id, rank) for rank in range(2)]
    expect([nccl.finish(comm) for comm in comms] == [SUCCESS] * 2, "init")
    here = Thread(machine, 2, comms)
    both = here.put(numbers)
    here.sum(both, COUNT)
    expect([nccl.finish(comm) for comm in comms] == [SUCCESS] * 2, "sum")
    expect(here.got(both, COUNT) == [total(2)] * 2, "sum")
    # What is made from one that does not block does not block either.
    alone = nccl.split(comms, [0, 1])
    expect([nccl.finish(comm) for comm in [*comms, *alone]] == [SUCCESS] * 4, "split")
    for comm in comms:
        nccl.CommFinalize(comm)
    expect([nccl.finish(comm) for comm in comms] == [SUCCESS] * 2, "finalize")
    here.end(*alone)
    waiting, begun = nccl.begin(2, nccl.unique_id(), 0), time.monotonic()
    time.sleep(0.2)
    expect(nccl.state(waiting) == nccl_calls.IN_PROGRESS, "it waits")
    nccl.CommAbort(waiting)
    expect(time.monotonic() - begun < 10, "abort")


def memory_of_the_device(machine):
    """one_sided.c, as far as a device has it: memory of NCCL's own, and no windows."""
    nccl, here = machine.nccl, Thread(machine, 2)
    both = [nccl.pointer("MemAlloc", 4 * COUNT) for _ in here.ranks]
    for rank, at in enumerate(both):
        here.buffers.put(numbers(rank), at=at)
        window, handle = ctypes.c_void_p(7), ctypes.c_void_p()
        flags = nccl_calls.COLLECTIVE_WINDOW
        nccl.CommWindowRegister(here.comms[rank], at, 4 * COUNT, ctypes.byref(window), flags)
        expect(window.value is None, "a window")
        nccl.CommRegister(here.comms[rank], at, 4 * COUNT, ctypes.byref(handle))
        nccl.CommDeregister(here.comms[rank], handle)
    here.sum(both, COUNT)
    expect(here.got(both, COUNT) == [total(2)] * 2, "sum")
    for at in both:
        nccl.MemFree(at)
    here.end()


def factors_of_the_device(machine):
    """A sum whose factors lie in the device's memory, made and destroyed in the group of its calls, as PyTorch does."""
    nccl, here = machine.nccl, Thread(machine, 2)
    both, factors = here.put(numbers), here.put(lambda rank: [rank + 2])
    with nccl.group():
        for rank, (comm, stream) in enumerate(zip(here.comms, here.streams)):
            op, at = ctypes.c_int(), both[rank]
            nccl.RedOpCreatePreMulSum(ctypes.byref(op), factors[rank], INT32, nccl_calls.ON_DEVICE, comm)
            nccl.AllReduce(at, at, COUNT, INT32, op, comm, stream)
            nccl.RedOpDestroy(op, comm)
    want = [2 * one + 3 * other for one, other in zip(numbers(0), numbers(1))]
    expect(here.got(both, COUNT) == [want] * 2, "sum")
    here.end()


def a_graph_of_calls(machine):
    """The calls of both ranks on one stream, captured and replayed."""
    here = Thread(machine, 2)
    here.streams = [machine.device.stream] * 2
    both = here.put(numbers)
    here.sum(both, COUNT)
    replay = machine.device.captured(lambda: here.sum(both, COUNT), 1)
    for _ in range(2):
        replay()
    expect(here.got(both, COUNT) == [[4 * one for one in total(2)]] * 2, "sums of sums")
    here.end()


def a_rank_that_dies(machine):
    """shrink.c: a process is killed between its calls; the others learn which, leave it out, and go on."""
    words = [sys.executable, str(Path(__file__)), machine.library, str(machine.folder)]
    started = [subprocess.Popen([*words, str(rank)]) for rank in range(RANKS)]
    try:
        codes = [process.wait(2 * MEETING_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    expect(codes == [-signal.SIGKILL if rank == VICTIM else 0 for rank in range(RANKS)], codes)


EXAMPLES = [one_thread_that_is_several_ranks, rows_and_columns, those_that_do_not_block, memory_of_the_device,
            factors_of_the_device, a_graph_of_calls, a_rank_that_dies]


def meet(nccl, folder, rank):
    """The id of all ranks: rank 0 leaves it in the folder."""
    place, part = folder / "id", folder / "id.part"
    if rank == 0:
        part.write_bytes(bytes(nccl.unique_id()))
        part.rename(place)
    end = time.monotonic() + MEETING_SECONDS
    while not place.exists():
        expect(time.monotonic() < end, "no id")
        time.sleep(0.01)
    return UniqueId.from_buffer_copy(place.read_bytes())


class Rank:
    """A process that is a rank."""

    def __init__(self, machine):
        self.nccl, self.device, self.buffers = machine.nccl, machine.device, Buffers(machine.device)
        self.at = self.device.allocate(8 * COUNT)

    def rounds(self, comm, rank, nranks, most=None):
        """Sum until that fails, or so many times: the code, and the text."""
        turn = 0
        while turn != most:
            self.buffers.put([i * (rank + 1) + turn for i in range(COUNT)], INT64, self.at)
            if turn == ROUNDS and most is None and rank == VICTIM:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                self.nccl.AllReduce(self.at, self.at, COUNT, INT64, SUM, comm, self.device.stream)
            except NcclError as error:
                return error.code, error.text
            self.device.synchronize()
            # What the stream is through with is a result unless the communicator says otherwise.
            state = self.nccl.state(comm)
            if state != SUCCESS:
                return state, self.nccl.library.ncclGetLastError(comm).decode()
            want = [i * (nranks * (nranks + 1) // 2) + turn * nranks for i in range(COUNT)]
            expect(self.buffers.get(self.at, COUNT, INT64) == want, "round", turn)
            turn += 1
        return SUCCESS, ""


def process_of(library, folder, rank):
    """A rank of `a_rank_that_dies`."""
    machine = Machine(library, folder)
    nccl, here = machine.nccl, Rank(machine)
    comm = nccl.pointer("CommInitRank", RANKS, meet(nccl, machine.folder, rank), rank)
    expect(nccl.number("CommCuDevice", comm) == 0, "device")
    begun = time.monotonic()
    code, text = here.rounds(comm, rank, RANKS)
    expect(code == REMOTE_ERROR and f"rank {VICTIM}" in text, code, text)
    expect(time.monotonic() - begun < MOST_SECONDS, "late")
    smaller = nccl.shrink(comm, [VICTIM], nccl_calls.SHRINK_ABORT)
    own = nccl.number("CommUserRank", smaller)
    expect((own, nccl.number("CommCount", smaller)) == (rank - (rank > VICTIM), RANKS - 1), own)
    code, text = here.rounds(smaller, own, RANKS - 1, ROUNDS)
    expect(code == SUCCESS, code, text)
    nccl.CommAbort(comm)
    nccl.CommDestroy(smaller)


if __name__ == "__main__":
    process_of(sys.argv[1], sys.argv[2], int(sys.argv[3]))
