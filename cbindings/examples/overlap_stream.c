/* Communication beside computation: a host stream works while the thread goes on. */
#include "check.h"
#include <pthread.h>

enum { RANKS = 2, LAYERS = 8, COUNT = 50000 };

/* Stands for the backward pass of one layer. */
static void compute(float *gradient, int rank, int layer) {
    for (size_t i = 0; i < COUNT; i++)
        gradient[i] = (float)((rank + 1) * (layer + 1));
}

static void *work(void *argument) {
    ringComm_t comm = (ringComm_t)argument;
    ringStream_t stream = NULL;
    int rank = 0;
    float *gradients = malloc(LAYERS * COUNT * sizeof *gradients);
    EXPECT(gradients != NULL);
    CHECK(comm, ringCommUserRank(comm, &rank));
    CHECK(NULL, ringStreamCreate(&stream));

    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        float *gradient = gradients + (size_t)layer * COUNT;
        compute(gradient, rank, layer);
        /* Returns at once; the next layer is computed while this one is summed. */
        CHECK(comm, ringAllReduce(gradient, gradient, COUNT, ringFloat, ringSum, comm, stream));
    }
    ringResult_t state = ringStreamQuery(stream);
    EXPECT(state == ringSuccess || state == ringInProgress);
    CHECK(NULL, ringStreamSynchronize(stream));

    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < COUNT; i++)
            EXPECT(gradients[(size_t)layer * COUNT + i] ==
                   (float)(RANKS * (RANKS + 1) / 2 * (layer + 1)));
    CHECK(NULL, ringStreamDestroy(stream));
    CHECK(comm, ringCommDestroy(comm));
    free(gradients);
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
    printf("%d ranks overlapped %d all-reduces with computing\n", RANKS, LAYERS);
    return 0;
}
