/* What a call through NCCL's interface takes beside the library's own: two ranks as threads, 8 bytes,
 * blocks of both in turns. Each library is loaded by itself, as programs have it.
 *
 *     gcc -O2 benches/nccl/call_cost.c -o target/call_cost -ldl -pthread
 *     target/call_cost target/release/libringcomm.so target/release/libringcomm_nccl.so
 *
 * A line for each round: the time of a call by either, in nanoseconds; then the medians.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 41
#define CALLS 20000

typedef struct {
    char internal[128];
} Id;

typedef int (*GetId)(Id *);
typedef int (*Init)(void **, int, Id, int);
typedef int (*AllReduce)(const void *, void *, size_t, int, int, void *, void *);

/* The names of both differ in their first letters alone. */
struct library {
    const char *prefix;
    AllReduce all_reduce;
    Init init;
    Id id;
    void *comms[2];
    double nanoseconds[ROUNDS];
};

static struct library libraries[2] = {{.prefix = "ring"}, {.prefix = "nccl"}};
static pthread_barrier_t barrier;

static void *find(void *handle, const char *prefix, const char *name) {
    char whole[64];
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    void *found = dlsym(handle, whole);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

static void check(int result) {
    if (result != 0) {
        fprintf(stderr, "a call failed with %d\n", result);
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * time.tv_sec + time.tv_nsec;
}

static void *rank(void *argument) {
    int me = (int)(size_t)argument;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(me, &core);
    sched_setaffinity(0, sizeof core, &core);
    double input = 1, output = 0;
    for (int which = 0; which < 2; which++) {
        struct library *library = &libraries[which];
        check(library->init(&library->comms[me], 2, library->id, me));
    }
    for (int round = -2; round < ROUNDS; round++) {
        for (int turn = 0; turn < 2; turn++) {
            /* Either goes first as often. */
            struct library *library = &libraries[(turn + round + 2) % 2];
            pthread_barrier_wait(&barrier);
            double begin = now();
            for (int call = 0; call < CALLS; call++) {
                check(library->all_reduce(&input, &output, 1, 8, 0, library->comms[me], NULL));
            }
            if (me == 0 && round >= 0) {
                library->nanoseconds[round] = (now() - begin) / CALLS;
            }
            if (output != 2) {
                fprintf(stderr, "wrong: %g\n", output);
                exit(1);
            }
        }
    }
    return NULL;
}

static int by_value(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "%s libringcomm.so libringcomm_nccl.so\n", arguments[0]);
        return 2;
    }
    for (int which = 0; which < 2; which++) {
        struct library *library = &libraries[which];
        void *handle = dlopen(arguments[1 + which], RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        library->all_reduce = (AllReduce)find(handle, library->prefix, "AllReduce");
        library->init = (Init)find(handle, library->prefix, "CommInitRank");
        check(((GetId)find(handle, library->prefix, "GetUniqueId"))(&library->id));
    }
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t other;
    pthread_create(&other, NULL, rank, (void *)1);
    rank(NULL);
    pthread_join(other, NULL);
    double differences[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double ring = libraries[0].nanoseconds[round], nccl = libraries[1].nanoseconds[round];
        differences[round] = nccl - ring;
        printf("round %2d: ring %7.1f ns, nccl %7.1f ns\n", round, ring, nccl);
    }
    double ring = median(libraries[0].nanoseconds), nccl = median(libraries[1].nanoseconds);
    printf("medians: ring %.1f ns, nccl %.1f ns, differences of rounds %.1f ns\n", ring, nccl,
           median(differences));
    return 0;
}
