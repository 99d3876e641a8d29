/* All-reduce between the threads of one process: each thread is a rank. */
#include "check.h"
#include <pthread.h>

enum { RANKS = 4, COUNT = 1000003 };

static void *work(void *argument) {
    ringComm_t comm = (ringComm_t)argument;
    int rank = 0;
    CHECK(comm, ringCommUserRank(comm, &rank));

    float *send = malloc(COUNT * sizeof *send);
    float *recv = malloc(COUNT * sizeof *recv);
    EXPECT(send != NULL && recv != NULL);
    for (size_t i = 0; i < COUNT; i++)
        send[i] = (float)(rank + 1) * (float)(i % 1000);

    CHECK(comm, ringAllReduce(send, recv, COUNT, ringFloat, ringSum, comm, NULL));

    for (size_t i = 0; i < COUNT; i++)
        EXPECT(recv[i] == (float)(RANKS * (RANKS + 1) / 2) * (float)(i % 1000));
    free(send);
    free(recv);
    CHECK(comm, ringCommDestroy(comm));
    return NULL;
}

int main(void) {
    ringComm_t comms[RANKS];
    pthread_t threads[RANKS];
    CHECK(NULL, ringCommInitAll(comms, RANKS, NULL));
    for (int rank = 0; rank < RANKS; rank++)
        EXPECT(pthread_create(&threads[rank], NULL, work, comms[rank]) == 0);
    for (int rank = 0; rank < RANKS; rank++)
        pthread_join(threads[rank], NULL);
    printf("%d threads summed %d floats each\n", RANKS, COUNT);
    return 0;
}
