/* A communicator to which ranks are added: the old ones keep their numbers, and one of them makes
   the id that the new ones come by. */
#include "check.h"

enum { OLD = 2, RANKS = 4, COUNT = 50021 };

/* By which the id comes to the new ranks. */
static int ends[2];

/* Every rank has all that the others had. */
static void gather(ncclComm_t comm, int rank, int ranks) {
    static int send[COUNT], recv[RANKS * COUNT];
    int own = -1, count = -1;
    CHECK(comm, ncclCommUserRank(comm, &own));
    CHECK(comm, ncclCommCount(comm, &count));
    EXPECT(own == rank && count == ranks);
    for (int i = 0; i < COUNT; i++)
        send[i] = rank * COUNT + i;
    CHECK(comm, ncclAllGather(send, recv, COUNT, ncclInt, comm, NULL));
    for (int i = 0; i < ranks * COUNT; i++)
        EXPECT(recv[i] == i);
}

static void old(int rank, ncclUniqueId id) {
    ncclComm_t comm = NULL, grown = NULL;
    CHECK(NULL, ncclCommInitRank(&comm, OLD, id, rank));
    gather(comm, rank, OLD);
    if (rank == 1) {
        ncclUniqueId joins;
        CHECK(comm, ncclCommGetUniqueId(comm, &joins));
        send_id(ends[1], &joins, RANKS - OLD);
        CHECK(comm, ncclCommGrow(comm, RANKS, &joins, -1, &grown, NULL));
    } else {
        CHECK(comm, ncclCommGrow(comm, RANKS, NULL, -1, &grown, NULL));
    }
    /* The old one is still there, and goes when it is no longer needed. */
    gather(comm, rank, OLD);
    CHECK(comm, ncclCommDestroy(comm));
    gather(grown, rank, RANKS);
    CHECK(grown, ncclCommDestroy(grown));
}

static void join(int rank) {
    ncclComm_t grown = NULL;
    ncclUniqueId joins;
    close(ends[1]);
    receive_id(ends[0], &joins);
    CHECK(NULL, ncclCommGrow(NULL, RANKS, &joins, rank, &grown, NULL));
    gather(grown, rank, RANKS);
    CHECK(grown, ncclCommDestroy(grown));
}

int main(void) {
    pid_t children[RANKS];
    EXPECT(pipe(ends) == 0);
    start_processes(OLD, children, old);
    for (int rank = OLD; rank < RANKS; rank++) {
        children[rank] = fork();
        EXPECT(children[rank] >= 0);
        if (children[rank] == 0) {
            join(rank);
            return 0;
        }
    }
    close(ends[1]);
    EXPECT(all_ended_well(RANKS, children));
    printf("ok %d ranks became %d\n", OLD, RANKS);
    return 0;
}
