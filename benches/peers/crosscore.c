/* Nanoseconds for a cache line from the first core that we may use to the last: half of a round
 * trip, the median of 21 runs, or of fewer that are asked for. Prints the number, or nothing where
 * there is one core only. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A run is short against a scheduler's tick (1-4 ms), so that most runs are undisturbed. */
enum { RUNS = 21, TRIPS = 500 };
static _Alignas(128) uint64_t ping;
static _Alignas(128) uint64_t pong;
static uint64_t trips;

static void bind(int core)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static void wait_for(uint64_t *line, uint64_t value)
{
    for (unsigned polls = 1; __atomic_load_n(line, __ATOMIC_ACQUIRE) < value; polls++) {
        if (polls % 65536 == 0)
            sched_yield();
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

static void *answer(void *core)
{
    bind(*(int *)core);
    for (uint64_t trip = 1; trip <= trips; trip++) {
        wait_for(&ping, trip);
        __atomic_store_n(&pong, trip, __ATOMIC_RELEASE);
    }
    return NULL;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
    cpu_set_t allowed;
    int first = -1, last = -1;
    double times[RUNS];
    int runs = argc > 1 ? atoi(argv[1]) : RUNS;
    runs = runs < 1 || runs > RUNS ? RUNS : runs;
    trips = (uint64_t)runs * TRIPS;
    pthread_t other;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &allowed)) {
            first = first < 0 ? core : first;
            last = core;
        }
    }
    if (first == last)
        return 0;
    if (pthread_create(&other, NULL, answer, &last) != 0)
        return 1;
    bind(first);
    uint64_t trip = 0;
    for (int run = 0; run < runs; run++) {
        double begin = now();
        for (int number = 0; number < TRIPS; number++) {
            __atomic_store_n(&ping, ++trip, __ATOMIC_RELEASE);
            wait_for(&pong, trip);
        }
        times[run] = (now() - begin) / (2 * TRIPS);
    }
    pthread_join(other, NULL);
    qsort(times, (size_t)runs, sizeof times[0], ascending);
    printf("%.1f\n", times[runs / 2]);
    return 0;
}
