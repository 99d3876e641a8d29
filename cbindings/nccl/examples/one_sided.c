/* Ranks write into each other's memory, and signal that they did: no rank receives. */
#include "check.h"

enum { RANKS = 3, COUNT = 10007, ROUNDS = 50, DATA = 0, DONE = 1 };

/* A place for what each rank puts. */
static int *places;
static int own[COUNT];

static int value(int from, int to, int round, int i) {
    return ((from * RANKS + to) * ROUNDS + round) * 31 + i;
}

static void put(ncclComm_t comm, ncclWindow_t window, int rank, int to, int round) {
    size_t offset = (size_t)rank * COUNT * sizeof(int);
    for (int i = 0; i < COUNT; i++)
        own[i] = value(rank, to, round, i);
    CHECK(comm, ncclPutSignal(own, COUNT, ncclInt, to, window, offset, DATA, 0, 0, comm, NULL));
}

static void expect_put(int from, int rank, int round) {
    for (int i = 0; i < COUNT; i++)
        EXPECT(places[from * COUNT + i] == value(from, rank, round, i));
}

/* Round after round to the next rank, which says when its place may be written again. */
static void stream(ncclComm_t comm, ncclWindow_t window, int rank) {
    int next = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    ncclWaitSignalDesc_t data = {1, before, DATA, 0}, done = {1, next, DONE, 0};
    for (int round = 0; round < ROUNDS; round++) {
        put(comm, window, rank, next, round);
        CHECK(comm, ncclWaitSignal(1, &data, comm, NULL));
        expect_put(before, rank, round);
        CHECK(comm, ncclSignal(before, DONE, 0, 0, comm, NULL));
        CHECK(comm, ncclWaitSignal(1, &done, comm, NULL));
    }
}

/* Signals alone: nobody goes on before all are there. */
static void barrier(ncclComm_t comm, int rank) {
    ncclWaitSignalDesc_t others[RANKS - 1];
    int count = 0;
    for (int peer = 0; peer < RANKS; peer++) {
        if (peer == rank)
            continue;
        CHECK(comm, ncclSignal(peer, DATA, 0, 0, comm, NULL));
        others[count++] = (ncclWaitSignalDesc_t){1, peer, DATA, 0};
    }
    CHECK(comm, ncclWaitSignal(count, others, comm, NULL));
}

/* Something for every rank, oneself as well, and one wait for all that comes. */
static void all_to_all(ncclComm_t comm, ncclWindow_t window, int rank) {
    ncclWaitSignalDesc_t all[RANKS];
    for (int peer = 0; peer < RANKS; peer++) {
        put(comm, window, rank, peer, ROUNDS);
        all[peer] = (ncclWaitSignalDesc_t){1, peer, DATA, 0};
    }
    CHECK(comm, ncclWaitSignal(RANKS, all, comm, NULL));
    for (int peer = 0; peer < RANKS; peer++)
        expect_put(peer, rank, ROUNDS);
}

static void work(int rank, ncclUniqueId id) {
    size_t bytes = RANKS * COUNT * sizeof(int);
    ncclComm_t comm = NULL;
    ncclWindow_t window = NULL;
    void *memory = NULL, *found = NULL;
    CHECK(NULL, ncclCommInitRank(&comm, RANKS, id, rank));
    CHECK(NULL, ncclMemAlloc(&memory, bytes));
    /* All ranks call it, each for its own memory. */
    CHECK(comm, ncclCommWindowRegister(comm, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(comm, ncclWinGetUserPtr(comm, window, &found));
    EXPECT(found == memory);
    places = memory;
    stream(comm, window, rank);
    barrier(comm, rank);
    all_to_all(comm, window, rank);
    barrier(comm, rank);
    REFUSED(comm, ncclPutSignal(own, 1, ncclInt, 0, window, bytes, DATA, 0, 0, comm, NULL),
            ncclInvalidArgument, "window of rank 0");
    CHECK(comm, ncclCommWindowDeregister(comm, window));
    CHECK(comm, ncclCommDestroy(comm));
    CHECK(NULL, ncclMemFree(memory));
}

int main(void) {
    pid_t children[RANKS];
    start_processes(RANKS, children, work);
    EXPECT(all_ended_well(RANKS, children));
    printf("ok %d processes put %d rounds of %d values\n", RANKS, ROUNDS, COUNT);
    return 0;
}
