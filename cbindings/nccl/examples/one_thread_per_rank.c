/* One thread per rank, all of one process: reductions with a factor, and what goes from each rank
   to each other one. */
#include "check.h"
#include <pthread.h>

enum { RANKS = 4, COUNT = 50021 };

static ncclUniqueId id;

/* The value at a place of what a rank has for another one. */
static int value(int from, int to, int i) {
    return from * 1000003 + to * 10007 + i;
}

static void factors(ncclComm_t comm, int rank) {
    static double halves[RANKS][COUNT];
    double *values = halves[rank], factor = 1.0 / (1 << rank);
    ncclRedOp_t scaled;
    /* Each rank has a factor of its own, which is read before the call returns. */
    CHECK(comm, ncclRedOpCreatePreMulSum(&scaled, &factor, ncclDouble, ncclScalarHostImmediate,
                                         comm));
    factor = -1;
    for (int i = 0; i < COUNT; i++)
        values[i] = (double)i * (1 << rank);
    CHECK(comm, ncclAllReduce(values, values, COUNT, ncclDouble, scaled, comm, NULL));
    CHECK(comm, ncclRedOpDestroy(scaled, comm));
    for (int i = 0; i < COUNT; i++)
        EXPECT(values[i] == (double)i * RANKS);
    for (int i = 0; i < COUNT; i++)
        values[i] = (double)i * rank;
    CHECK(comm, ncclAllReduce(values, values, COUNT, ncclDouble, ncclAvg, comm, NULL));
    for (int i = 0; i < COUNT; i++)
        EXPECT(values[i] == (double)i * (RANKS - 1) / 2);
}

static void parts(ncclComm_t comm, int rank) {
    int *send = malloc(RANKS * COUNT * sizeof *send), *recv = malloc(RANKS * COUNT * sizeof *recv);
    void *handle = NULL;
    EXPECT(send != NULL && recv != NULL);
    /* Tells of a buffer that is used again and again. */
    CHECK(comm, ncclCommRegister(comm, recv, RANKS * COUNT * sizeof *recv, &handle));
    for (int i = 0; i < RANKS * COUNT; i++)
        send[i] = value(rank, i / COUNT, i % COUNT);
    CHECK(comm, ncclAlltoAll(send, recv, COUNT, ncclInt, comm, NULL));
    for (int i = 0; i < RANKS * COUNT; i++)
        EXPECT(recv[i] == value(i / COUNT, rank, i % COUNT));
    for (int root = 0; root < RANKS; root++) {
        CHECK(comm, ncclScatter(send, recv, COUNT, ncclInt, root, comm, NULL));
        for (int i = 0; i < COUNT; i++)
            EXPECT(recv[i] == value(root, rank, i));
        CHECK(comm, ncclGather(send, recv, COUNT, ncclInt, root, comm, NULL));
        for (int i = 0; rank == root && i < RANKS * COUNT; i++)
            EXPECT(recv[i] == value(i / COUNT, 0, i % COUNT));
    }
    CHECK(comm, ncclCommDeregister(comm, handle));
    free(send);
    free(recv);
}

static void *work(void *argument) {
    int rank = *(int *)argument;
    ncclComm_t comm = NULL;
    CHECK(NULL, ncclCommInitRank(&comm, RANKS, id, rank));
    factors(comm, rank);
    parts(comm, rank);
    CHECK(comm, ncclCommFinalize(comm));
    CHECK(comm, ncclCommDestroy(comm));
    return NULL;
}

int main(void) {
    pthread_t threads[RANKS];
    int ranks[RANKS];
    CHECK(NULL, ncclGetUniqueId(&id));
    for (int rank = 0; rank < RANKS; rank++) {
        ranks[rank] = rank;
        EXPECT(pthread_create(&threads[rank], NULL, work, &ranks[rank]) == 0);
    }
    for (int rank = 0; rank < RANKS; rank++)
        EXPECT(pthread_join(threads[rank], NULL) == 0);
    printf("ok %d threads scaled and exchanged %d values each\n", RANKS, COUNT);
    return 0;
}
