/* One process per rank: each makes its communicator by the id that rank 0 has made. */
#include "check.h"

enum { RANKS = 3, COUNT = 100003, SUM = RANKS * (RANKS + 1) / 2 };

static void *allocate(size_t bytes) {
    void *memory = NULL;
    CHECK(NULL, ncclMemAlloc(&memory, bytes));
    return memory;
}

static void work(int rank, ncclUniqueId id) {
    ncclComm_t comm = NULL;
    int count = -1, own = -1, version = -1;
    CHECK(NULL, ncclGetVersion(&version));
    EXPECT(version == NCCL_VERSION_CODE);
    CHECK(NULL, ncclCommInitRank(&comm, RANKS, id, rank));
    CHECK(comm, ncclCommCount(comm, &count));
    CHECK(comm, ncclCommUserRank(comm, &own));
    EXPECT(count == RANKS && own == rank);

    /* In place: the same buffer is read and written. */
    float *values = allocate(COUNT * sizeof *values);
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)(rank + 1) * (float)(i % 1000);
    CHECK(comm, ncclAllReduce(values, values, COUNT, ncclFloat, ncclSum, comm, NULL));
    for (int i = 0; i < COUNT; i++)
        EXPECT(values[i] == (float)SUM * (float)(i % 1000));

    /* Only the root has a place for a result. */
    int *numbers = malloc(COUNT * sizeof *numbers), *result = malloc(COUNT * sizeof *result);
    EXPECT(numbers != NULL && result != NULL);
    for (int i = 0; i < COUNT; i++)
        numbers[i] = i * (rank + 1);
    CHECK(comm, ncclReduce(numbers, rank == 2 ? result : NULL, COUNT, ncclInt, ncclMax, 2, comm,
                           NULL));
    for (int i = 0; rank == 2 && i < COUNT; i++)
        EXPECT(result[i] == i * RANKS);
    /* Only the root has something to send. */
    CHECK(comm, ncclBroadcast(rank == 2 ? result : NULL, result, COUNT, ncclInt, 2, comm, NULL));
    for (int i = 0; i < COUNT; i++)
        EXPECT(result[i] == i * RANKS);

    /* A part for each rank, and all parts back together: an all-reduce in two halves. */
    long long *parts = allocate(RANKS * COUNT * sizeof *parts);
    for (int i = 0; i < RANKS * COUNT; i++)
        parts[i] = (long long)i << rank;
    long long *own_part = parts + (size_t)rank * COUNT;
    CHECK(comm, ncclReduceScatter(parts, own_part, COUNT, ncclInt64, ncclSum, comm, NULL));
    for (int i = 0; i < COUNT; i++)
        EXPECT(own_part[i] == ((1LL << RANKS) - 1) * (rank * COUNT + i));
    CHECK(comm, ncclAllGather(own_part, parts, COUNT, ncclInt64, comm, NULL));
    for (int i = 0; i < RANKS * COUNT; i++)
        EXPECT(parts[i] == ((1LL << RANKS) - 1) * i);

    CHECK(comm, ncclCommFinalize(comm));
    CHECK(comm, ncclCommDestroy(comm));
    free(numbers);
    free(result);
    CHECK(NULL, ncclMemFree(values));
    CHECK(NULL, ncclMemFree(parts));
}

int main(void) {
    pid_t children[RANKS];
    start_processes(RANKS, children, work);
    EXPECT(all_ended_well(RANKS, children));
    printf("ok %d processes reduced, broadcast and gathered %d values each\n", RANKS, COUNT);
    return 0;
}
