/* All-reduce between processes: the parent makes the id, and every child is a rank. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, COUNT = 100003 };

static void work(int rank, ringUniqueId id) {
    ringComm_t comm = NULL;
    ringConfig_t config = RING_CONFIG_INITIALIZER;
    config.timeoutMs = 20000;
    CHECK(NULL, ringCommInitRankConfig(&comm, RANKS, id, rank, &config));

    /* Memory of the library is reached directly by the other processes. */
    void *memory = NULL;
    CHECK(NULL, ringMemAlloc(&memory, COUNT * sizeof(double)));
    double *values = memory;
    for (size_t i = 0; i < COUNT; i++)
        values[i] = (double)i * (rank + 1);

    /* In place: the same buffer is read and written. */
    CHECK(comm, ringAllReduce(values, values, COUNT, ringDouble, ringSum, comm, NULL));

    for (size_t i = 0; i < COUNT; i++)
        EXPECT(values[i] == (double)i * (RANKS * (RANKS + 1) / 2));
    CHECK(comm, ringCommDestroy(comm));
    CHECK(NULL, ringMemFree(memory));
}

int main(void) {
    /* The id is 128 bytes; here a pipe hands it on, elsewhere a file or MPI does. It is made after
       the forks: a thread of its maker introduces the ranks to each other. */
    ringUniqueId id;
    pid_t children[RANKS];
    int pipes[RANKS][2], failed = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        EXPECT(pipe(pipes[rank]) == 0);
        children[rank] = fork();
        EXPECT(children[rank] >= 0);
        if (children[rank] == 0) {
            close(pipes[rank][1]);
            EXPECT(read(pipes[rank][0], &id, sizeof(id)) == (ssize_t)sizeof(id));
            work(rank, id);
            return 0;
        }
        close(pipes[rank][0]);
    }
    CHECK(NULL, ringGetUniqueId(&id));
    for (int rank = 0; rank < RANKS; rank++) {
        EXPECT(write(pipes[rank][1], &id, sizeof(id)) == (ssize_t)sizeof(id));
        close(pipes[rank][1]);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        int status = 0;
        waitpid(children[rank], &status, 0);
        failed |= status != 0;
    }
    EXPECT(!failed);
    printf("%d processes summed %d doubles each\n", RANKS, COUNT);
    return 0;
}
