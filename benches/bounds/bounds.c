/* What this machine takes for the things that the slower figures are made of, each as the median of
 * some runs: a turn on a shared core, 64 MiB read and copied by one core, and copied between two
 * processes by the kernel. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RUNS = 9, YIELDS = 20000, LINE = 64 };
static const size_t SIZE = 64u << 20;
/* A ring of slots between two processes is as large by default, and is copied to in such pieces. */
static const size_t RING = 4u << 20, PIECE = 128u << 10;

static char *input, *output, *ring;
static pid_t owner;

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec * 1e-3;
}

static void bind(int core)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static char *memory(size_t bytes)
{
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    memset(start, 1, bytes);
    return start;
}

static void yield_in_turns(void)
{
    for (int turn = 0; turn < YIELDS; turn++)
        sched_yield();
}

static void read_only(void)
{
    volatile char *line = input;
    for (size_t offset = 0; offset < SIZE; offset += LINE)
        (void)line[offset];
}

static void copy_to_ring(void)
{
    for (size_t offset = 0; offset < SIZE; offset += PIECE)
        memcpy(ring + offset % RING, input + offset, PIECE);
}

static void copy_to_memory(void)
{
    memcpy(output, input, SIZE);
}

static void copy_by_kernel(void)
{
    const size_t piece = 1u << 20;
    for (size_t offset = 0; offset < SIZE; offset += piece) {
        struct iovec to = {output + offset, piece}, from = {input + offset, piece};
        if (process_vm_readv(owner, &to, 1, &from, 1, 0) != (ssize_t)piece) {
            perror("process_vm_readv");
            exit(1);
        }
    }
}

static int compare(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static double median_us(void (*work)(void))
{
    double times[RUNS];
    for (int run = 0; run < RUNS; run++) {
        double started = now_us();
        work();
        times[run] = now_us() - started;
    }
    qsort(times, RUNS, sizeof *times, compare);
    return times[RUNS / 2];
}

int main(void)
{
    input = memory(SIZE);
    output = memory(SIZE);
    ring = memory(RING);
    owner = getpid();
    bind(0);
    fflush(stdout);
    pid_t companion = fork();
    if (companion == 0) {
        for (;;)
            sched_yield();
    }
    /* Each yield of this process is followed by one of the companion: two switches. */
    double turn = median_us(yield_in_turns) / YIELDS / 2;
    kill(companion, SIGKILL);
    waitpid(companion, NULL, 0);
    printf("a switch between two processes that yield:       %8.2f us\n", turn);
    printf("64 MiB read by one core:                         %8.0f us\n", median_us(read_only));
    printf("64 MiB copied by one core to a ring of 4 MiB:    %8.0f us\n", median_us(copy_to_ring));
    printf("64 MiB copied by one core to memory:             %8.0f us\n", median_us(copy_to_memory));
    fflush(stdout);
    pid_t reader = fork();
    if (reader == 0) {
        bind(1);
        printf("64 MiB copied by the kernel (process_vm_readv):  %8.0f us\n",
               median_us(copy_by_kernel));
        return 0;
    }
    waitpid(reader, NULL, 0);
    return 0;
}
