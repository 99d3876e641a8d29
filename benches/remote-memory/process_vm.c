/* What process_vm_readv and process_vm_writev move between two processes that both use them at once. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const size_t SIZE = 64u << 20;

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec * 1e-3;
}

static void *memory(size_t bytes, int flags)
{
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return start;
}

/* Half of `theirs` in blocks: into `bounce`, or out of `mine` where `writes`. */
static double move_half(pid_t peer, char *mine, char *theirs, char *bounce, size_t block, int writes)
{
    double started = now_us();
    for (size_t offset = 0; offset < SIZE / 2; offset += block) {
        struct iovec local = {writes ? mine + offset : bounce, block};
        struct iovec remote = {theirs + offset, block};
        ssize_t moved = writes ? process_vm_writev(peer, &local, 1, &remote, 1, 0)
                               : process_vm_readv(peer, &local, 1, &remote, 1, 0);
        if (moved != (ssize_t)block) {
            perror("process_vm");
            exit(1);
        }
    }
    return now_us() - started;
}

int main(void)
{
    volatile int *arrived = memory(4096, MAP_SHARED);
    char *input = memory(SIZE, MAP_PRIVATE), *output = memory(SIZE, MAP_PRIVATE);
    char *bounce = memory(1 << 20, MAP_PRIVATE);
    pid_t parent = getpid(), child = fork();
    int rank = child == 0;
    pid_t peer = rank ? parent : child;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(rank, &core);
    sched_setaffinity(0, sizeof core, &core);
    memset(input, rank, SIZE);
    memset(output, 3, SIZE);
    memset(bounce, 0, 1 << 20);
    arrived[16 * rank] = 1;
    while (!arrived[16 * !rank])
        ;
    for (size_t block = 64 << 10; block <= 1 << 20; block *= 4) {
        for (int repeat = 0; repeat < 3; repeat++) {
            double read = move_half(peer, input, input, bounce, block, 0);
            double written = move_half(peer, input, output, bounce, block, 1);
            if (rank == 0)
                printf("blocks of %4zu KiB: read 32 MiB in %.0f us, wrote 32 MiB in %.0f us\n",
                       block >> 10, read, written);
        }
    }
    if (rank == 0)
        wait(NULL);
    return 0;
}
