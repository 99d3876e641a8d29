/* Processes that are several ranks each, as on nodes with several devices: one thread of each makes
   its communicators, and their calls, in groups. */
#include "check.h"

enum { PROCESSES = 2, LOCAL = 2, RANKS = PROCESSES * LOCAL, COUNT = 30011 };

static void work(int process, ncclUniqueId id) {
    static int values[LOCAL][COUNT], all[LOCAL][RANKS];
    ncclComm_t comms[LOCAL];
    CHECK(NULL, ncclGroupStart());
    for (int local = 0; local < LOCAL; local++)
        CHECK(NULL, ncclCommInitRank(&comms[local], RANKS, id, process * LOCAL + local));
    CHECK(NULL, ncclGroupEnd());

    for (int local = 0; local < LOCAL; local++)
        for (int i = 0; i < COUNT; i++)
            values[local][i] = i << (process * LOCAL + local);
    CHECK(NULL, ncclGroupStart());
    for (int local = 0; local < LOCAL; local++)
        CHECK(comms[local], ncclAllReduce(values[local], values[local], COUNT, ncclInt, ncclSum,
                                          comms[local], NULL));
    CHECK(NULL, ncclGroupEnd());
    for (int local = 0; local < LOCAL; local++)
        for (int i = 0; i < COUNT; i++)
            EXPECT(values[local][i] == i * ((1 << RANKS) - 1));

    /* In place: every rank's own value is already where the others' come. */
    CHECK(NULL, ncclGroupStart());
    for (int local = 0; local < LOCAL; local++) {
        int rank = process * LOCAL + local;
        all[local][rank] = 100 + rank;
        CHECK(comms[local],
              ncclAllGather(&all[local][rank], all[local], 1, ncclInt, comms[local], NULL));
    }
    CHECK(NULL, ncclGroupEnd());
    for (int local = 0; local < LOCAL; local++) {
        for (int rank = 0; rank < RANKS; rank++)
            EXPECT(all[local][rank] == 100 + rank);
        CHECK(comms[local], ncclCommFinalize(comms[local]));
    }
    for (int local = 0; local < LOCAL; local++)
        CHECK(comms[local], ncclCommDestroy(comms[local]));
}

int main(void) {
    pid_t children[PROCESSES];
    start_processes(PROCESSES, children, work);
    EXPECT(all_ended_well(PROCESSES, children));
    printf("ok %d processes were %d ranks\n", PROCESSES, RANKS);
    return 0;
}
