/* One thread that is several ranks: it makes all their calls in groups. */
#include "check.h"

enum { RANKS = 4, COUNT = 20011 };

static int send[RANKS][COUNT], recv[RANKS][COUNT], sums[RANKS][2], words[RANKS][RANKS];

static void fill(int factor) {
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < COUNT; i++)
            send[rank][i] = factor * (rank + 1) + i;
}

/* Every rank sends to the next one, and receives from the one before. */
static void ring(ncclComm_t *comms) {
    fill(3);
    CHECK(NULL, ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        int next = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
        CHECK(comms[rank], ncclSend(send[rank], COUNT, ncclInt, next, comms[rank], NULL));
        CHECK(comms[rank], ncclRecv(recv[rank], COUNT, ncclInt, before, comms[rank], NULL));
    }
    CHECK(NULL, ncclGroupEnd());
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < COUNT; i++)
            EXPECT(recv[rank][i] == send[(rank + RANKS - 1) % RANKS][i]);
}

/* Messages with every rank, one's own as well: an all-to-all of parts. */
static void exchange(ncclComm_t *comms) {
    fill(5);
    CHECK(NULL, ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++)
        for (int peer = 0; peer < RANKS; peer++) {
            CHECK(comms[rank], ncclSend(&send[rank][peer], 1, ncclInt, peer, comms[rank], NULL));
            CHECK(comms[rank], ncclRecv(&words[rank][peer], 1, ncclInt, peer, comms[rank], NULL));
        }
    CHECK(NULL, ncclGroupEnd());
    for (int rank = 0; rank < RANKS; rank++)
        for (int peer = 0; peer < RANKS; peer++)
            EXPECT(words[rank][peer] == send[peer][rank]);
}

/* Calls on several communicators, several on each of them, and a group within the group. */
static void several(ncclComm_t *comms, ncclComm_t *others) {
    fill(7);
    CHECK(NULL, ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        sums[rank][0] = rank, sums[rank][1] = rank * rank;
        CHECK(comms[rank], ncclAllReduce(send[rank], recv[rank], COUNT, ncclInt, ncclSum,
                                         comms[rank], NULL));
        CHECK(NULL, ncclGroupStart());
        for (int at = 0; at < 2; at++)
            CHECK(others[rank], ncclAllReduce(&sums[rank][at], &sums[rank][at], 1, ncclInt, ncclMax,
                                              others[rank], NULL));
        CHECK(NULL, ncclGroupEnd());
        CHECK(comms[rank], ncclAllGather(send[rank], words[rank], 1, ncclInt, comms[rank], NULL));
    }
    CHECK(NULL, ncclGroupEnd());
    for (int rank = 0; rank < RANKS; rank++) {
        EXPECT(sums[rank][0] == RANKS - 1 && sums[rank][1] == (RANKS - 1) * (RANKS - 1));
        for (int i = 0; i < COUNT; i++)
            EXPECT(recv[rank][i] == RANKS * i + 7 * RANKS * (RANKS + 1) / 2);
        for (int peer = 0; peer < RANKS; peer++)
            EXPECT(words[rank][peer] == send[peer][0]);
    }
}

/* How long a group would take; nothing of it runs. */
static void simulate(ncclComm_t *comms) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    memset(recv, 0, sizeof recv);
    CHECK(NULL, ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(comms[rank], ncclAllReduce(send[rank], recv[rank], COUNT, ncclInt, ncclSum,
                                         comms[rank], NULL));
    CHECK(NULL, ncclGroupSimulateEnd(&info));
    EXPECT(info.estimatedTime > 0 && recv[0][COUNT - 1] == 0);
}

int main(void) {
    ncclComm_t comms[RANKS], others[RANKS];
    ncclUniqueId ids[2];
    CHECK(NULL, ncclCommInitAll(comms, RANKS, NULL));
    /* The same ranks in another communicator; large jobs begin faster with several ids. */
    CHECK(NULL, ncclGetUniqueId(&ids[0]));
    CHECK(NULL, ncclGetUniqueId(&ids[1]));
    CHECK(NULL, ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++)
        CHECK(NULL, ncclCommInitRankScalable(&others[rank], RANKS, rank, 2, ids, NULL));
    CHECK(NULL, ncclGroupEnd());
    ring(comms);
    exchange(others);
    several(comms, others);
    simulate(comms);
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK(NULL, ncclCommDestroy(others[rank]));
        CHECK(NULL, ncclCommDestroy(comms[rank]));
    }
    printf("ok one thread was %d ranks of two communicators\n", RANKS);
    return 0;
}
