/* Where the ranks of any library meet and leave their times: a file that all of them map. */
#ifndef BOARD_H
#define BOARD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Times kept of one cell: a default budget of 40 ms holds 3,000 blocks of the fastest call. */
enum { SAMPLES = 4096, MOST_RANKS = 64, MOST_SIZES = 64, MOST_TURNS = 63 };

struct board {
    uint32_t arrived, generation, sleepers, padding;
    uint64_t decision[2];
    /* For what a library must tell all ranks before they can speak. */
    uint32_t blob_ready;
    char blob[4096];
    double samples[MOST_RANKS][SAMPLES];
};

static void board_fail(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    _exit(1);
}

static double board_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void board_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static struct board *board_board(void)
{
    const char *path = getenv("BENCH_BOARD"), *limit = getenv("BENCH_LIMIT_S");
    /* A rank outlives neither its launcher nor its time, whatever the library does. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(limit ? (unsigned)atoi(limit) : 600);
    int file = path ? open(path, O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, sizeof(struct board)) != 0)
        board_fail("BENCH_BOARD must name a file that can be written");
    void *place = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (place == MAP_FAILED)
        board_fail("the board cannot be mapped");
    return (struct board *)place;
}

/* Spin for about 20 us, as long as a short call takes to come; then sleep, so that more ranks than
 * cores get on. */
static void board_barrier(struct board *board, uint32_t ranks)
{
    uint32_t generation = __atomic_load_n(&board->generation, __ATOMIC_SEQ_CST);
    if (__atomic_add_fetch(&board->arrived, 1, __ATOMIC_SEQ_CST) == ranks) {
        __atomic_store_n(&board->arrived, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&board->generation, generation + 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&board->sleepers, __ATOMIC_SEQ_CST) > 0)
            syscall(SYS_futex, &board->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return;
    }
    double begun = board_now();
    for (unsigned polls = 1; __atomic_load_n(&board->generation, __ATOMIC_SEQ_CST) == generation;
         polls++) {
        board_relax();
        if (polls % 64 != 0 || board_now() - begun < 20e-6)
            continue;
        __atomic_add_fetch(&board->sleepers, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &board->generation, FUTEX_WAIT, generation, NULL, NULL, 0);
        __atomic_sub_fetch(&board->sleepers, 1, __ATOMIC_SEQ_CST);
    }
}

#endif
