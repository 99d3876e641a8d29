/*
 * What a launch says to a kernel: the structures that the library fills and the kernels read.
 *
 * Plain C, so that it reads alike to nvcc, to a C++ compiler for the host and to whoever checks the
 * Rust mirror (abi.rs). Addresses are 64-bit numbers. Every kernel takes one structure by value, of
 * at most 4 KiB, so that a captured launch carries all that it needs; what does not fit lies in
 * memory that the device reads. What must outlive a launch (positions, epochs) lies in device
 * memory.
 */
#ifndef RINGCOMM_ABI_H
#define RINGCOMM_ABI_H

#include <stdint.h>

/* Threads in a block at most: with the whole register file to itself such a block has 128 registers
   a thread, which the widest loop needs. Any smaller number works; a plan has three warps at
   least. */
#define RINGCOMM_THREADS 512
/* Blocks in x that may meet (`ringcomm_barrier`); more than any device has multiprocessors twice.
 */
#define RINGCOMM_BARRIER_BLOCKS 320
/* Sources and targets of a plan's step together; their addresses are kept in shared memory. */
#define RINGCOMM_STEP_ENDS 128
/* Ranks that a plan's connections may lead to; their positions are kept in shared memory. */
#define RINGCOMM_PLAN_PEERS 128
/* What fits a launch of `ringcomm_reduce_*` without a table in memory. */
#define RINGCOMM_INLINE_PIECES 32
#define RINGCOMM_INLINE_ENDS 256
#define RINGCOMM_INLINE_SCALARS 16
/* "None" where an index is expected. */
#define RINGCOMM_NONE 0xffffffffu

/* Why a kernel ended early (`ringcomm_report.reason`). */
#define RINGCOMM_ABORTED 1u
#define RINGCOMM_LATE 2u

/* What was waited for (`ringcomm_report.waiting`). */
#define RINGCOMM_FOR_MESSAGE 1u
#define RINGCOMM_FOR_SLOT 2u
#define RINGCOMM_FOR_BARRIER 3u
#define RINGCOMM_FOR_LINES 4u

/* A flag or counter that somebody polls, on a line of its own. */
typedef struct {
    uint64_t value;
    uint64_t unused[15];
} ringcomm_flag;

/* Where and why a wait ended without what it waited for. */
typedef struct {
    /* Written last; 0 while there is nothing to report. */
    uint32_t reason;
    uint32_t waiting;
    uint32_t rank;
    /* The peer that was waited for. */
    uint32_t peer;
    /* The channel of a plan, the block of a barrier or of an exchange. */
    uint32_t block;
    /* The step of a plan. */
    uint32_t step;
    /* What the flag should have reached, and what it held. */
    uint64_t wanted;
    uint64_t found;
} ringcomm_report;

/* How the host and the kernels of one rank tell each other to stop. In pinned host memory, 128-byte
   aligned, zero at first. */
typedef struct {
    /* Not 0: this block of the rank's kernels ends at once. Written by the host. A line for each block:
       reads of one word of the host's take turns, 1 us each on an H100. */
    ringcomm_flag abort[RINGCOMM_BARRIER_BLOCKS];
    /* Written by the first thread of the rank that gives up. */
    ringcomm_report report;
    uint64_t unused_too[10];
} ringcomm_control;

/* What bounds the waits of one rank's kernels. */
typedef struct {
    uint64_t control;    /* ringcomm_control *, as the device sees it */
    uint64_t stop;       /* ringcomm_flag * in device memory, zero at first: some thread gave up */
    uint64_t timeout_ns; /* a single wait lasts no longer; 0: no limit */
    uint32_t rank;
    uint32_t unused;
} ringcomm_watch;

/* ---- ringcomm_reduce_KIND: pieces, each `targets <- reduce(sources)` --------------------------
 */

/* The value is complete: a mean divides here. */
#define RINGCOMM_FINISH 1u
/* The one source is copied bit for bit. */
#define RINGCOMM_COPY 2u

typedef struct {
    uint64_t count; /* elements */
    /* Tiles of the pieces before it in the same call. A piece has ceil(count / tile) tiles. */
    uint32_t first_tile;
    /* Its ends: the sources, left to right, then the targets; addresses of any alignment. */
    uint32_t first_end;
    uint16_t nsources;
    uint16_t ntargets;
    uint32_t flags;
} ringcomm_piece;

/* A barrier of the same block of every rank, before the first piece and after the last. */
typedef struct {
    /* const uint64_t[nranks]: of every rank, its `ringcomm_flag[BARRIER_BLOCKS][nranks]` as this
       device addresses it. Zero at first. 0 where there is no barrier. */
    uint64_t flags;
    /* uint64_t[BARRIER_BLOCKS] in this device's memory, zero at first: barriers so far. */
    uint64_t epochs;
    uint32_t nranks;
    uint32_t unused;
    ringcomm_watch watch;
} ringcomm_barrier;

/* The pieces that one rank, or all ranks of a device, have in a launch: row y of the grid. */
typedef struct {
    uint32_t first_piece;
    uint32_t npieces;
    uint32_t ntiles;
    uint32_t unused;
    ringcomm_barrier barrier;
} ringcomm_reduce_call;

typedef struct {
    int32_t data_type; /* DataType, ReduceOp: as numbered in ringcomm.h */
    int32_t op;
    uint64_t parts; /* what a mean divides by */
    uint32_t tile;  /* elements of a tile: tile * size is a multiple of 16 */
    uint32_t unused;
    /* Tables in memory that the device reads, or 0: those below. One call for each row of the grid.
     */
    uint64_t calls;   /* const ringcomm_reduce_call * */
    uint64_t pieces;  /* const ringcomm_piece * */
    uint64_t ends;    /* const uint64_t * */
    uint64_t scalars; /* const double *: by source of a piece; a pre-multiplied sum's factors */
    ringcomm_reduce_call call;
    ringcomm_piece inline_pieces[RINGCOMM_INLINE_PIECES];
    uint64_t inline_ends[RINGCOMM_INLINE_ENDS];
    double inline_scalars[RINGCOMM_INLINE_SCALARS];
} ringcomm_reduce_args;

/* ---- ringcomm_plan_KIND: a bound plan, a block for each channel -------------------------------
 */

/* One end of a connection, in the memory of the device that uses it. The slots and `posted` lie
   with the receiver, `freed` with the sender: everybody polls its own memory. */
typedef struct {
    uint64_t slots;  /* depth slots, 128-byte aligned */
    uint64_t posted; /* ringcomm_flag *: messages posted so far; zero at first */
    uint64_t freed;  /* ringcomm_flag *: messages freed so far; zero at first */
    uint64_t
        position; /* messages that this end has posted, or freed; zero at first; the kernel's */
} ringcomm_connection;

#define RINGCOMM_INPUT 0u
#define RINGCOMM_OUTPUT 1u
#define RINGCOMM_SCRATCH 2u
#define RINGCOMM_PEER 3u

typedef struct {
    uint32_t place;
    uint32_t peer;
} ringcomm_end;

/* Where a chunk of a step lies, in bytes. */
typedef struct {
    uint64_t input;
    uint64_t output;
    uint64_t scratch;
    uint64_t bytes;
} ringcomm_span;

typedef struct {
    uint32_t first_span;
    uint32_t nspans;
    /* Its ends: the sources, left to right, then the targets. */
    uint32_t first_end;
    uint16_t nsources;
    uint16_t ntargets;
    uint32_t slices;
    uint32_t stage;
    uint32_t scaled; /* the source that a pre-multiplied sum scales, or RINGCOMM_NONE */
    uint32_t flags;  /* RINGCOMM_FINISH, RINGCOMM_COPY */
} ringcomm_step;

/* A bound plan, for one channel. */
typedef struct {
    uint64_t steps; /* const ringcomm_step * */
    uint64_t ends;  /* const ringcomm_end * */
    uint64_t spans; /* const ringcomm_span * */
    uint32_t nsteps;
    uint32_t ticks;
    uint64_t slice_bytes;
    uint64_t scratch;       /* bytes before this channel's scratch */
    uint64_t scratch_share; /* bytes that a slice under way has of it */
    uint32_t lives;         /* slices under way at once */
    uint32_t unused;
} ringcomm_program;

/* What one rank runs: row y of the grid. */
typedef struct {
    uint64_t input;
    uint64_t output;
    uint64_t scratch;
    double scalar;
    uint64_t programs;   /* const ringcomm_program *: one for each channel */
    uint64_t sends;      /* ringcomm_connection *: [channel][peer] */
    uint64_t receives;   /* ringcomm_connection *: [channel][peer] */
    uint32_t npeers;     /* ranks of the communicator, this one included */
    uint32_t depth;      /* slots of a connection */
    uint64_t slot_bytes; /* from one slot to the next: a multiple of 128 */
    ringcomm_watch watch;
} ringcomm_plan_call;

typedef struct {
    int32_t data_type;
    int32_t op;
    uint64_t parts;
    uint64_t
        calls; /* const ringcomm_plan_call *: one for each row of the grid; or 0: the one below */
    ringcomm_plan_call call;
} ringcomm_plan_args;

/* ---- ringcomm_oneshot_KIND: small messages, flag packed with data -----------------------------
 */

/* Payload bytes of a line. */
#define RINGCOMM_LINE_PAYLOAD 8

/* What one store moves, half a payload and the flag twice: each half is valid by itself. */
typedef struct {
    uint32_t low;
    uint32_t low_flag;
    uint32_t high;
    uint32_t high_flag;
} ringcomm_line;

/* The number of the next exchange; in the device's own memory, zero at first. */
typedef struct {
    uint32_t epoch;
    uint32_t arrived;
    uint64_t unused[15];
} ringcomm_epoch;

#define RINGCOMM_ALL_REDUCE 0u
#define RINGCOMM_ALL_GATHER 1u

typedef struct {
    uint64_t input;
    uint64_t output; /* of an all-gather: nranks blocks */
    uint64_t count;  /* elements of the input */
    double scalar;
    /* const uint64_t[nranks]: of every rank, its `ringcomm_line[2][nranks][lines]` as this device
       addresses it; zero at first, 16-byte aligned. */
    uint64_t inboxes;
    uint64_t epoch; /* ringcomm_epoch * */
    uint64_t lines; /* count * size <= lines * RINGCOMM_LINE_PAYLOAD */
    uint32_t nranks;
    uint32_t unused;
    ringcomm_watch watch;
} ringcomm_oneshot_call;

typedef struct {
    int32_t data_type;
    int32_t op;
    uint64_t parts;
    uint32_t collective; /* RINGCOMM_ALL_REDUCE, RINGCOMM_ALL_GATHER */
    uint32_t unused;
    uint64_t calls; /* const ringcomm_oneshot_call *, one for each row of the grid; or 0: below */
    ringcomm_oneshot_call call;
} ringcomm_oneshot_args;

/* ---- ringcomm_delay: keeps a stream busy, for tests -------------------------------------------
 */

typedef struct {
    uint64_t duration_ns;
} ringcomm_delay_args;

#endif
