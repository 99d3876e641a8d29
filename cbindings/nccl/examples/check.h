/* What the examples share: what to do with a result, and ranks that are processes. */
#ifndef EXAMPLE_CHECK_H
#define EXAMPLE_CHECK_H

#define _POSIX_C_SOURCE 200809L
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(comm, call)                                                                          \
    do {                                                                                           \
        ncclResult_t check_result = (call);                                                        \
        if (check_result != ncclSuccess) {                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__,                                 \
                    ncclGetErrorString(check_result), ncclGetLastError(comm));                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Stop unless the condition holds. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: wrong: %s\n", __FILE__, __LINE__, #condition);                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The call must fail with this code, and its text must have these words. */
#define REFUSED(comm, call, code, words)                                                           \
    do {                                                                                           \
        ncclResult_t refused_result = (call);                                                      \
        const char *refused_text = ncclGetLastError(comm);                                         \
        if (refused_result != (code) || strstr(refused_text, (words)) == NULL) {                   \
            fprintf(stderr, "%s:%d: %d, not %d: \"%s\", not \"%s\"\n", __FILE__, __LINE__,         \
                    refused_result, code, refused_text, words);                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Hand an id from the one rank that made it to so many others, by a pipe. */
static inline void send_id(int pipe_end, const ncclUniqueId *id, int others) {
    for (int other = 0; other < others; other++)
        EXPECT(write(pipe_end, id, sizeof *id) == (ssize_t)sizeof *id);
}

static inline void receive_id(int pipe_end, ncclUniqueId *id) {
    EXPECT(read(pipe_end, id, sizeof *id) == (ssize_t)sizeof *id);
}

/* Fork a process for every rank. Rank 0 makes the id, and a pipe hands it to the others; under MPI
   a broadcast would. */
static inline void start_processes(int ranks, pid_t *children,
                                   void (*work)(int rank, ncclUniqueId id)) {
    int ends[2];
    EXPECT(pipe(ends) == 0);
    for (int rank = 0; rank < ranks; rank++) {
        children[rank] = fork();
        EXPECT(children[rank] >= 0);
        if (children[rank] > 0)
            continue;
        ncclUniqueId id;
        /* Who reads holds no end to write to, and so learns where nobody writes any more. */
        close(ends[rank > 0]);
        if (rank == 0) {
            CHECK(NULL, ncclGetUniqueId(&id));
            send_id(ends[1], &id, ranks - 1);
        } else {
            receive_id(ends[0], &id);
        }
        work(rank, id);
        exit(0);
    }
    close(ends[0]);
    close(ends[1]);
}

/* Wait for processes; whether all of them ended well. */
static inline int all_ended_well(int ranks, const pid_t *children) {
    int well = 1;
    for (int rank = 0; rank < ranks; rank++) {
        int status = -1;
        waitpid(children[rank], &status, 0);
        well = well && status == 0;
    }
    return well;
}

#endif
