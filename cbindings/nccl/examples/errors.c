/* What goes wrong says so: garbage, what is already gone, ranks that disagree; nothing crashes. */
#include "check.h"
#include <pthread.h>

static ncclUniqueId new_id(void) {
    ncclUniqueId id;
    CHECK(NULL, ncclGetUniqueId(&id));
    return id;
}

/* A configuration of which a program gets this wrong. */
static void bad_config(size_t size, unsigned magic, int blocking, const char *words) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = (ncclComm_t)&config;
    config.size = size, config.magic = magic, config.blocking = blocking;
    REFUSED(NULL, ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), ncclInvalidArgument,
            words);
    EXPECT(comm == NULL);
}

static void creation(void) {
    struct {
        ncclConfig_t known;
        int of_a_later_header;
    } config = {NCCL_CONFIG_INITIALIZER, 7};
    ncclUniqueId garbage;
    ncclComm_t comm = NULL;
    bad_config(0, NCCL_API_MAGIC, 1, "NCCL_CONFIG_INITIALIZER");
    bad_config(sizeof(size_t), NCCL_API_MAGIC, 1, "NCCL_CONFIG_INITIALIZER");
    bad_config(sizeof(ncclConfig_t), 0, 1, "NCCL_CONFIG_INITIALIZER");
    bad_config(sizeof(ncclConfig_t), NCCL_API_MAGIC, 2, "blocking");
    memset(&garbage, 7, sizeof garbage);
    REFUSED(NULL, ncclCommInitRank(&comm, 1, garbage, 0), ncclInvalidArgument, "");
    REFUSED(NULL, ncclCommInitRank(&comm, 2, new_id(), 2), ncclInvalidArgument, "rank");
    REFUSED(NULL, ncclCommInitRank(&comm, 0, new_id(), 0), ncclInvalidArgument, "0");
    REFUSED(NULL, ncclCommInitRank(NULL, 1, new_id(), 0), ncclInvalidArgument, "");
    EXPECT(comm == NULL);
    config.known.size = sizeof config;
    CHECK(NULL, ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config.known));
    CHECK(comm, ncclCommDestroy(comm));
}

static void calls(void) {
    ncclComm_t comm = NULL;
    ncclCollConfig_t zeros;
    ncclWindow_t window = NULL;
    int one = 1, count = -7;
    CHECK(NULL, ncclCommInitAll(&comm, 1, NULL));
    REFUSED(comm, ncclAllReduce(&one, &one, 1, (ncclDataType_t)99, ncclSum, comm, NULL),
            ncclInvalidArgument, "99");
    REFUSED(comm, ncclAllReduce(&one, &one, 1, ncclInt, (ncclRedOp_t)99, comm, NULL),
            ncclInvalidArgument, "99");
    REFUSED(comm, ncclAllReduce(NULL, &one, 1, ncclInt, ncclSum, comm, NULL), ncclInvalidArgument,
            "NULL");
    REFUSED(comm, ncclBroadcast(&one, &one, 1, ncclInt, 1, comm, NULL), ncclInvalidArgument,
            "root");
    REFUSED(comm, ncclSend(&one, 1, ncclInt, -1, comm, NULL), ncclInvalidArgument, "peer");
    REFUSED(comm, ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument, "built-in");
    REFUSED(comm, ncclCommCount(comm, NULL), ncclInvalidArgument, "ncclCommCount");
    REFUSED(comm, ncclCommWindowRegister(comm, &one, sizeof one, &window, 0x100),
            ncclInvalidArgument, "0x100");
    memset(&zeros, 0, sizeof zeros);
    REFUSED(comm, ncclAllReduceConfig(&one, &one, 1, ncclInt, ncclSum, comm, NULL, &zeros),
            ncclInvalidArgument, "NCCL_COLLCONFIG_INITIALIZER");
    REFUSED(NULL, ncclGroupEnd(), ncclInvalidUsage, "never started");
    REFUSED(NULL, ncclCommCount((ncclComm_t)&one, &count), ncclInvalidArgument, "ncclCommCount");
    REFUSED(NULL, ncclCommCount(NULL, &count), ncclInvalidArgument, "ncclCommCount");
    CHECK(comm, ncclCommDestroy(comm));
    REFUSED(NULL, ncclCommDestroy(comm), ncclInvalidArgument, "already gone");
    REFUSED(NULL, ncclCommAbort(comm), ncclInvalidArgument, "already gone");
    REFUSED(NULL, ncclCommCount(comm, &count), ncclInvalidArgument, "already gone");
    CHECK(NULL, ncclCommInitAll(&comm, 1, NULL));
    CHECK(comm, ncclCommAbort(comm));
    REFUSED(NULL, ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comm, NULL), ncclInvalidArgument,
            "already gone");
    REFUSED(NULL, ncclCommFinalize(comm), ncclInvalidArgument, "already gone");
    /* No failed call wrote anything. */
    EXPECT(count == -7 && one == 1);
}

/* Ranks whose calls do not fit: all of them are told. */
static void *disagree(void *argument) {
    ncclComm_t comm = *(ncclComm_t *)argument;
    ncclResult_t state = ncclSuccess;
    int rank = -1, values[8] = {0};
    CHECK(comm, ncclCommUserRank(comm, &rank));
    ncclResult_t result = ncclAllReduce(values, values, 4 + rank, ncclInt, ncclSum, comm, NULL);
    EXPECT(result == ncclInvalidUsage || result == ncclRemoteError);
    REFUSED(comm, result, result, "disagree");
    CHECK(comm, ncclCommGetAsyncError(comm, &state));
    EXPECT(state != ncclSuccess);
    CHECK(NULL, ncclCommAbort(comm));
    return NULL;
}

int main(void) {
    ncclComm_t comms[2];
    pthread_t thread;
    creation();
    calls();
    CHECK(NULL, ncclCommInitAll(comms, 2, NULL));
    EXPECT(pthread_create(&thread, NULL, disagree, &comms[1]) == 0);
    disagree(&comms[0]);
    EXPECT(pthread_join(thread, NULL) == 0);
    printf("ok every mistake had its error\n");
    return 0;
}
