/* A rank dies in the middle of all-reduces: the others learn which, leave it out, and go on. */
#include "check.h"
#include <signal.h>
#include <time.h>

enum { RANKS = 4, VICTIM = 1, COUNT = 100003, ROUNDS = 20, MOST_SECONDS = 30 };

/* By which the victim says that it is in the middle of them. */
static int under_way[2];

static long long values[COUNT];

/* All-reduce until that fails, or for so many rounds. */
static ncclResult_t sum(ncclComm_t comm, int rank, int ranks, int rounds) {
    for (int round = 0; round != rounds; round++) {
        for (int i = 0; i < COUNT; i++)
            values[i] = (long long)i * (rank + 1) + round;
        ncclResult_t result = ncclAllReduce(values, values, COUNT, ncclInt64, ncclSum, comm, NULL);
        if (result != ncclSuccess)
            return result;
        for (int i = 0; i < COUNT; i++)
            EXPECT(values[i] == (long long)i * (ranks * (ranks + 1) / 2) + round * ranks);
        if (rounds < 0 && rank == VICTIM && round == ROUNDS)
            EXPECT(write(under_way[1], "", 1) == 1);
    }
    return ncclSuccess;
}

static void work(int rank, ncclUniqueId id) {
    ncclComm_t comm = NULL, smaller = NULL;
    ncclResult_t state = ncclSuccess;
    int dead = VICTIM, count = -1, own = -1;
    char name[16];
    CHECK(NULL, ncclCommInitRank(&comm, RANKS, id, rank));

    /* The victim gets no further than this. */
    snprintf(name, sizeof name, "rank %d (", VICTIM);
    REFUSED(comm, sum(comm, rank, RANKS, -1), ncclRemoteError, name);
    EXPECT(strstr(ncclGetLastError(comm), ") died") != NULL);
    CHECK(comm, ncclCommGetAsyncError(comm, &state));
    EXPECT(state == ncclRemoteError);

    /* What is still under way on the old communicator ends, and the rest moves up. */
    CHECK(comm, ncclCommShrink(comm, &dead, 1, &smaller, NULL, NCCL_SHRINK_ABORT));
    CHECK(smaller, ncclCommCount(smaller, &count));
    CHECK(smaller, ncclCommUserRank(smaller, &own));
    EXPECT(count == RANKS - 1 && own == (rank < VICTIM ? rank : rank - 1));
    CHECK(smaller, sum(smaller, own, RANKS - 1, ROUNDS));
    CHECK(NULL, ncclCommAbort(comm));

    /* Without a failure a rank is left out by the others alone. */
    if (own == 0) {
        CHECK(smaller, ncclCommDestroy(smaller));
        return;
    }
    int first = 0;
    CHECK(smaller, ncclCommShrink(smaller, &first, 1, &comm, NULL, NCCL_SHRINK_DEFAULT));
    CHECK(comm, sum(comm, own - 1, RANKS - 2, ROUNDS));
    CHECK(comm, ncclCommDestroy(comm));
    CHECK(smaller, ncclCommDestroy(smaller));
}

int main(void) {
    pid_t children[RANKS];
    char byte;
    int status = 0;
    EXPECT(pipe(under_way) == 0);
    start_processes(RANKS, children, work);
    close(under_way[1]);
    EXPECT(read(under_way[0], &byte, 1) == 1);
    time_t killed = time(NULL);
    EXPECT(kill(children[VICTIM], SIGKILL) == 0);
    EXPECT(waitpid(children[VICTIM], &status, 0) == children[VICTIM] && WIFSIGNALED(status));
    for (int rank = 0; rank < RANKS; rank++)
        EXPECT(rank == VICTIM || all_ended_well(1, &children[rank]));
    EXPECT(time(NULL) - killed < MOST_SECONDS);
    printf("ok rank %d of %d was killed, and the others went on\n", VICTIM, RANKS);
    return 0;
}
