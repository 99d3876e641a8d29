"""The ring all-reduce step by step, as the textbooks draw it, with real messages between 4 ranks.

Rank r's vector is cut into as many chunks as there are ranks: a, b, c, d. In each step every rank
sends one chunk to its right neighbour. Scatter-reduce adds what comes in; after N-1 steps rank r
holds the whole sum of chunk r+1. All-gather then sends the sums around; after N-1 more steps
everyone has all of them. Each rank sends 2 (N-1)/N of its vector, whatever N is.

    python ring_allreduce.py
"""

import argparse
from array import array
from string import ascii_lowercase

import ringcomm


def show(title, vectors, length):
    """Print who has added what: rank r puts in 10^r, so the digits of a value tell."""
    print(title)
    for rank, vector in enumerate(vectors):
        cells = []
        for chunk in range(len(vectors)):
            digits = reversed(f"{int(vector[chunk * length]):d}")
            parts = [
                f"{ascii_lowercase[chunk]}{r}" for r, digit in enumerate(digits) if digit != "0"
            ]
            cells.append("+".join(parts).ljust(3 * len(vectors)))
        print(f"  rank {rank}: {' '.join(cells)}".rstrip())


def exchange(ranks, vectors, incoming, length, first):
    """Rank r sends chunk `r + first` to its right, and receives what its left sends.

    Yields for each rank where the chunk that came belongs.
    """
    count = len(ranks)
    with ringcomm.group():
        for rank, comm in enumerate(ranks):
            start = (rank + first) % count * length
            comm.send(memoryview(vectors[rank])[start : start + length], (rank + 1) % count)
            comm.recv(incoming[rank], (rank - 1) % count)
    for rank in range(count):
        yield rank, (rank - 1 + first) % count * length


def main():
    """Run it, and compare with the library's own all-reduce."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4, choices=range(2, 8))
    parser.add_argument("--length", type=int, default=1000, help="elements of a chunk")
    args = parser.parse_args()
    count, length = args.ranks, args.length
    ranks = ringcomm.Communicator.all(count)
    vectors = [array("d", [10.0**rank]) * (count * length) for rank in range(count)]
    expected = [array("d", vector) for vector in vectors]
    incoming = [array("d", [0.0]) * length for _ in range(count)]

    show("start", vectors, length)
    for step in range(count - 1):
        for rank, start in exchange(ranks, vectors, incoming, length, -step):
            for index in range(length):
                vectors[rank][start + index] += incoming[rank][index]
        show(f"scatter-reduce, step {step + 1}", vectors, length)
    for step in range(count - 1):
        for rank, start in exchange(ranks, vectors, incoming, length, 1 - step):
            vectors[rank][start : start + length] = incoming[rank]
        show(f"all-gather, step {step + 1}", vectors, length)

    with ringcomm.group():
        for rank, comm in enumerate(ranks):
            comm.all_reduce(expected[rank])
    assert vectors == expected, "the library's own all-reduce has another answer"
    print("the library's own all_reduce gives the same")
    for comm in ranks:
        comm.destroy()


if __name__ == "__main__":
    main()
