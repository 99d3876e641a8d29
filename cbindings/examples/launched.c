/* All-reduce between ranks that somebody else starts: ringrun, torchrun, mpirun, srun, or by hand:
 *
 *   for rank in 0 1 2; do
 *       RANK=$rank WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 ./launched &
 *   done
 *
 * An argument says where to meet instead: ./launched file:///shared/meet
 */
#include "check.h"

enum { COUNT = 100003 };

int main(int argc, char **argv) {
    const char *url = argc > 1 ? argv[1] : NULL;
    int rank = -1, nranks = -1;
    char text[1024];

    /* Not needed to join: it says what the library finds in the environment. */
    if (ringLauncherInfo(NULL, NULL, NULL, text, sizeof text) != ringSuccess)
        snprintf(text, sizeof text, "%s", ringGetLastError(NULL));

    ringComm_t comm = NULL;
    CHECK(NULL, ringCommInitUrl(&comm, url, -1, -1, NULL));
    CHECK(comm, ringCommUserRank(comm, &rank));
    CHECK(comm, ringCommCount(comm, &nranks));

    double *values = malloc(COUNT * sizeof(double));
    EXPECT(values != NULL);
    for (size_t i = 0; i < COUNT; i++)
        values[i] = (double)i * (rank + 1);
    CHECK(comm, ringAllReduce(values, values, COUNT, ringDouble, ringSum, comm, NULL));
    for (size_t i = 0; i < COUNT; i++)
        EXPECT(values[i] == (double)i * nranks * (nranks + 1) / 2);
    free(values);

    CHECK(comm, ringCommDestroy(comm));
    printf("rank %d of %d summed %d doubles (%s)\n", rank, nranks, COUNT, text);
    return 0;
}
