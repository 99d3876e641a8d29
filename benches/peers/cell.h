/* What is measured: calls, their buffers, and what must be in them. */
#ifndef CELL_H
#define CELL_H

#include "board.h"

enum operation {
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    BROADCAST,
    ALL_TO_ALL,
    SEND_RECV,
    PING_PONG,
    OPERATIONS
};
static const char *const operation_names[OPERATIONS] = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_recv", "ping_pong"};

/* One call: float32, sum, root 0. `count` is the collective's own: elements of the vector, or of
 * one rank's block. In place, `send` is NULL and `recv` holds the input by the library's rule. */
struct call {
    enum operation operation;
    int in_place;
    size_t count;
    float *send, *recv;
};

struct library {
    int rank, ranks;
    /* Whether the library has this call. */
    int (*has)(enum operation operation, int in_place);
    void (*run)(const struct call *call);
};

struct bench {
    const struct library *library;
    struct board *board;
    char *arena;
    /* Seconds for each cell. */
    double budget;
    /* The buffers of the next call. */
    int next_send, next_recv;
};

static void bench_barrier(struct bench *bench)
{
    board_barrier(bench->board, (uint32_t)bench->library->ranks);
}

/* Two barriers: whoever slept in the first is awake in the second, so that all leave together. */
static void bench_start_together(struct bench *bench)
{
    bench_barrier(bench);
    bench_barrier(bench);
}

/* What a cell's buffers are, in elements; `turns` of them take turns. */
struct cell {
    struct call call;
    size_t send_elements, recv_elements, bytes;
    int turns;
};

/* ring-perf's numbers: 64 KiB of buffers stay near the core, from 256 KiB on one buffer is enough.
 */
static int bench_turns(size_t bytes)
{
    size_t footprint = 2 * bytes;
    if (footprint > 524288)
        return 1;
    if (footprint > 65536)
        return 3;
    size_t turns = 65536 / (footprint ? footprint : 1);
    turns = turns < 3 ? 3 : turns;
    turns = turns > MOST_TURNS ? (size_t)MOST_TURNS : turns;
    return (int)(turns | 1);
}

static struct cell bench_cell(enum operation operation, int in_place, size_t bytes, int ranks)
{
    struct cell cell = {};
    size_t total = bytes / sizeof(float), block = total / (size_t)ranks;
    int whole = operation == ALL_REDUCE || operation == BROADCAST ||
                operation == SEND_RECV || operation == PING_PONG;
    block = block ? block : 1;
    total = total ? total : 1;
    size_t all = whole ? total : block * (size_t)ranks;
    cell.call.operation = operation;
    cell.call.in_place = in_place;
    cell.call.count = whole ? total : block;
    cell.send_elements = operation == ALL_GATHER ? block : all;
    cell.recv_elements = operation == REDUCE_SCATTER && !in_place ? block : all;
    cell.bytes = all * sizeof(float);
    cell.turns = bench_turns(cell.bytes);
    return cell;
}

/* A buffer and the two cache lines that ring-perf leaves around it. */
static size_t bench_taken(size_t elements)
{
    return (elements * sizeof(float) + 128 + 63) & ~(size_t)63;
}

static size_t bench_arena_bytes(const struct cell *cell)
{
    size_t sends = cell->call.in_place ? 0 : (size_t)cell->turns + 1;
    return sends * bench_taken(cell->send_elements) +
           (size_t)cell->turns * bench_taken(cell->recv_elements);
}

static void bench_fill(float *at, size_t count, float value)
{
    for (size_t index = 0; index < count; index++)
        at[index] = value;
}

/* Write the inputs of the next block's calls and no others, as a program does that computes its data: their lines are then
 * this core's own, and no longer in a peer's caches. */
static void bench_rewrite(const struct bench *bench, const struct cell *cell, float **sends,
                          float **recvs)
{
    int rank = bench->library->rank, in_place = cell->call.in_place;
    enum operation operation = cell->call.operation;
    size_t block = cell->call.count;
    for (int turn = 0; !in_place && turn < cell->turns; turn++)
        bench_fill(sends[(bench->next_send + turn) % (cell->turns + 1)], cell->send_elements, 1);
    for (int turn = 0; in_place && turn < cell->turns; turn++) {
        if (operation == ALL_GATHER)
            bench_fill(recvs[turn] + (size_t)rank * block, block, 0);
        else if (operation != BROADCAST || rank == 0)
            bench_fill(recvs[turn], cell->recv_elements, 0);
    }
}

/* Whom a rank plays ping-pong with: pairs of neighbours, and the last of an odd number itself. */
static int bench_partner(int rank, int ranks)
{
    return (rank ^ 1) < ranks ? rank ^ 1 : rank;
}

/* The value that a block of the result must hold, when rank r's input is r+1 everywhere. */
static float bench_wanted(const struct bench *bench, enum operation operation, size_t block)
{
    int rank = bench->library->rank, ranks = bench->library->ranks;
    switch (operation) {
    case BROADCAST:
        return 1;
    case SEND_RECV:
        return (float)((rank + ranks - 1) % ranks + 1);
    case PING_PONG:
        return (float)(bench_partner(rank, ranks) + 1);
    case ALL_GATHER:
    case ALL_TO_ALL:
        return (float)(block + 1);
    default:
        return (float)(ranks * (ranks + 1) / 2);
    }
}

/* Make one call with known input; the number of wrong elements of this rank. */
static size_t bench_check(struct bench *bench, const struct cell *cell)
{
    struct call call = cell->call;
    float mine = (float)(bench->library->rank + 1);
    if (call.in_place) {
        bench_fill(call.recv, cell->recv_elements, mine);
    } else {
        bench_fill(call.send, cell->send_elements, mine);
        bench_fill(call.recv, cell->recv_elements, -1);
    }
    bench_barrier(bench);
    bench->library->run(&call);
    bench_barrier(bench);
    /* In place, MPI leaves the result of a reduce-scatter in the first block. */
    size_t checked = call.operation == REDUCE_SCATTER ? call.count : cell->recv_elements, wrong = 0;
    for (size_t index = 0; index < checked; index++)
        wrong += call.recv[index] != bench_wanted(bench, call.operation, index / call.count);
    return wrong;
}

#endif
