/* What goes wrong says so: misuse, a rank that does not come, an abort; nothing crashes or hangs. */
#include "check.h"
#include <pthread.h>
#include <string.h>

/* The call must fail with this code; show the text. */
static void refused(ringComm_t comm, ringResult_t got, ringResult_t wanted) {
    EXPECT(got == wanted);
    EXPECT(strlen(ringGetLastError(comm)) > 0);
    printf("  %s\n", ringGetLastError(comm));
}

static void misuse(void) {
    ringComm_t comm = NULL, copy;
    float value = 1;
    int local = 0, count = -7;
    CHECK(NULL, ringCommInitAll(&comm, 1, NULL));
    refused(comm, ringAllReduce(&value, &value, 1, (ringDataType_t)12345, ringSum, comm, NULL),
            ringInvalidArgument);
    refused(comm, ringAllReduce(&value, &value, 1, ringFloat, ringBxor, comm, NULL),
            ringInvalidArgument);
    refused(comm, ringBroadcast(&value, &value, 1, ringFloat, 1, comm, NULL), ringInvalidArgument);
    refused(comm, ringAllReduce(NULL, &value, 1, ringFloat, ringSum, comm, NULL),
            ringInvalidArgument);
    refused(NULL, ringCommCount(NULL, &count), ringInvalidArgument);
    refused(NULL, ringCommCount((ringComm_t)(void *)&local, &count), ringInvalidArgument);
    refused(comm, ringCommCount(comm, NULL), ringInvalidArgument);
    refused(NULL, ringGroupEnd(), ringInvalidUsage);
    copy = comm;
    CHECK(comm, ringCommDestroy(comm));
    refused(copy, ringCommDestroy(copy), ringInvalidArgument);
    refused(copy, ringCommCount(copy, &count), ringInvalidArgument);
    /* No failed call wrote a result. */
    EXPECT(count == -7);
}

static void missing_rank(void) {
    ringUniqueId id;
    ringComm_t comm = NULL;
    ringConfig_t config = RING_CONFIG_INITIALIZER;
    config.timeoutMs = 200;
    CHECK(NULL, ringGetUniqueId(&id));
    refused(NULL, ringCommInitRankConfig(&comm, 2, id, 0, &config), ringTimeout);
    EXPECT(comm == NULL);
}

static void *wait_for_ever(void *argument) {
    ringComm_t comm = (ringComm_t)argument;
    float value = 1;
    /* The other rank never calls. */
    refused(comm, ringAllReduce(&value, &value, 1, ringFloat, ringSum, comm, NULL), ringAborted);
    return NULL;
}

static void abort_from_another_thread(void) {
    ringComm_t comms[2];
    pthread_t thread;
    CHECK(NULL, ringCommInitAll(comms, 2, NULL));
    EXPECT(pthread_create(&thread, NULL, wait_for_ever, comms[0]) == 0);
    /* Wait until the call is on its way: its flight record then has a first operation. */
    char record[65536];
    size_t needed = 0;
    do {
        CHECK(comms[0], ringCommDump(comms[0], record, sizeof record, &needed));
        EXPECT(needed <= sizeof record);
    } while (strstr(record, "AllReduce") == NULL);
    CHECK(NULL, ringCommAbort(comms[0]));
    pthread_join(thread, NULL);
    /* The other rank was told, and fails instead of waiting. */
    CHECK(NULL, ringCommAbort(comms[1]));
}

/* The loop over ranks that every user writes once: it is told at once, as no other thread can call. */
#ifndef __SANITIZE_THREAD__
static void one_thread_without_a_group(void) {
    ringComm_t comms[2];
    float value = 1;
    CHECK(NULL, ringCommInitAll(comms, 2, NULL));
    refused(comms[0], ringAllReduce(&value, &value, 1, ringFloat, ringSum, comms[0], NULL),
            ringInvalidUsage);
    EXPECT(strstr(ringGetLastError(comms[0]), "no other thread that could call that") != NULL);
    CHECK(NULL, ringCommAbort(comms[0]));
    CHECK(NULL, ringCommAbort(comms[1]));
}
#endif

int main(void) {
    misuse();
#ifndef __SANITIZE_THREAD__ /* which has a thread of its own, that might call for all one knows */
    one_thread_without_a_group();
#endif
    missing_rank();
    abort_from_another_thread();
    printf("every mistake had its error\n");
    return 0;
}
