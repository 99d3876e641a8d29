/* Communicators that do not block: their calls return at once, and the program asks how they go.
   Who waits for a rank that never comes gives up. */
#include "check.h"
#include <time.h>

enum { RANKS = 2, COUNT = 100003 };

static double seconds(void) {
    struct timespec now;
    EXPECT(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static ncclResult_t state_of(ncclComm_t comm) {
    ncclResult_t state = ncclInternalError;
    CHECK(comm, ncclCommGetAsyncError(comm, &state));
    return state;
}

/* Ask until nothing is in progress, and rest in between. */
static void finish(ncclComm_t comm) {
    const struct timespec rest = {0, 1000000};
    ncclResult_t state;
    while ((state = state_of(comm)) == ncclInProgress)
        nanosleep(&rest, NULL);
    CHECK(comm, state);
}

/* What a call that may go on in the background says. */
static int begun(ncclResult_t result) {
    return result == ncclSuccess || result == ncclInProgress;
}

static void begin(ncclComm_t *comm, ncclUniqueId id, int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT(begun(ncclCommInitRankConfig(comm, RANKS, id, rank, &config)));
    EXPECT(*comm != NULL);
}

static void all_there(void) {
    static float send[RANKS][COUNT], recv[RANKS][COUNT];
    ncclComm_t comms[RANKS], halves[RANKS];
    ncclUniqueId id;
    CHECK(NULL, ncclGetUniqueId(&id));
    /* As nothing waits, one thread begins the ranks one after the other. */
    for (int rank = 0; rank < RANKS; rank++)
        begin(&comms[rank], id, rank);
    for (int rank = 0; rank < RANKS; rank++)
        finish(comms[rank]);
    /* A group returns at once, too. */
    CHECK(NULL, ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < COUNT; i++)
            send[rank][i] = (float)(i % 1000 + rank);
        EXPECT(begun(ncclAllReduce(send[rank], recv[rank], COUNT, ncclFloat, ncclSum, comms[rank],
                                   NULL)));
    }
    EXPECT(begun(ncclGroupEnd()));
    for (int rank = 0; rank < RANKS; rank++)
        finish(comms[rank]);
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < COUNT; i++)
            EXPECT(recv[rank][i] == (float)(RANKS * (i % 1000) + RANKS * (RANKS - 1) / 2));
    /* What is made from one that does not block does not block either. */
    for (int rank = 0; rank < RANKS; rank++)
        EXPECT(begun(ncclCommSplit(comms[rank], rank, 0, &halves[rank], NULL)));
    for (int rank = 0; rank < RANKS; rank++) {
        int count = -1;
        finish(comms[rank]);
        finish(halves[rank]);
        CHECK(halves[rank], ncclCommCount(halves[rank], &count));
        EXPECT(count == 1);
        CHECK(NULL, ncclCommDestroy(halves[rank]));
        EXPECT(begun(ncclCommFinalize(comms[rank])));
    }
    for (int rank = 0; rank < RANKS; rank++) {
        finish(comms[rank]);
        CHECK(NULL, ncclCommDestroy(comms[rank]));
    }
}

static void one_never_comes(void) {
    const struct timespec patience = {0, 200000000};
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    float value = 1;
    CHECK(NULL, ncclGetUniqueId(&id));
    begin(&comm, id, 0);
    nanosleep(&patience, NULL);
    EXPECT(state_of(comm) == ncclInProgress);
    /* Until it is there, it takes no calls. */
    REFUSED(comm, ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, NULL),
            ncclInvalidArgument, "ncclInProgress");
    double start = seconds();
    CHECK(NULL, ncclCommAbort(comm));
    EXPECT(seconds() - start < 10);
}

int main(void) {
    all_there();
    one_never_comes();
    printf("ok %d ranks went on meanwhile, and gave up one that never came\n", RANKS);
    return 0;
}
