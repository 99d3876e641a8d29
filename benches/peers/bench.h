/* How a time is taken, for every library that is compared: the method of ring-perf.
 *
 * Calls run in blocks over several buffers in turn, the same numbers of them as in ring-perf.
 * Before a block all ranks meet at a barrier of the board, a shared file that belongs to no
 * library. Calls longer than 20 us are timed one by one, shorter ones by the block. A time is the
 * longest of the ranks'; the median is taken over these. The first call of every cell is checked.
 *
 * A program includes this file, fills in `struct library` and calls `bench_main`. */
#ifndef BENCH_H
#define BENCH_H

#include "cell.h"

/* Calls longer than this, in seconds, are timed one by one (ring-perf's limit). */
static const double single_from = 20e-6;
/* Fewer times than this make no median. */
enum { LEAST_TIMES = 5 };

/* One block: `calls` calls, timed each by itself or as a whole; returns the seconds of all. */
static double bench_block(struct bench *bench, const struct cell *cell, int calls, int single,
                          float **sends, float **recvs, int *kept)
{
    struct call call = cell->call;
    double stamps[MOST_TURNS + 1];
    double *samples = bench->board->samples[bench->library->rank];
    stamps[0] = board_now();
    for (int number = 0; number < calls; number++) {
        call.send = call.in_place ? NULL : sends[bench->next_send];
        call.recv = recvs[bench->next_recv];
        bench->next_send = (bench->next_send + 1) % (cell->turns + 1);
        bench->next_recv = (bench->next_recv + 1) % cell->turns;
        bench->library->run(&call);
        if (single)
            stamps[number + 1] = board_now();
    }
    if (!single)
        stamps[calls] = board_now();
    for (int number = 0; single && number < calls && *kept < SAMPLES; number++)
        samples[(*kept)++] = stamps[number + 1] - stamps[number];
    if (!single && *kept < SAMPLES)
        samples[(*kept)++] = (stamps[calls] - stamps[0]) / calls;
    return stamps[calls] - stamps[0];
}

static int bench_ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Rank 0 tells the result as one JSON line. */
static void bench_report(struct bench *bench, const struct cell *cell, int kept, size_t wrong)
{
    static double times[SAMPLES];
    for (int index = 0; index < kept; index++) {
        times[index] = 0;
        for (int rank = 0; rank < bench->library->ranks; rank++) {
            double time = bench->board->samples[rank][index];
            times[index] = time > times[index] ? time : times[index];
        }
    }
    /* A message that goes there and back takes twice what a message takes. */
    double scale = cell->call.operation == PING_PONG ? 1e6 / 2 : 1e6;
    qsort(times, (size_t)kept, sizeof(double), bench_ascending);
    printf("{\"op\": \"%s\", \"in_place\": %s, \"bytes\": %zu, \"ranks\": %d, \"time_us\": %.4f, "
           "\"min_us\": %.4f, \"p99_us\": %.4f, \"times\": %d, \"wrong\": %zu}\n",
           operation_names[cell->call.operation], cell->call.in_place ? "true" : "false",
           cell->bytes, bench->library->ranks, times[(kept - 1) / 2] * scale, times[0] * scale,
           times[(kept * 99 + 99) / 100 - 1] * scale, kept, wrong);
    fflush(stdout);
}

/* Rank 0 decides the number of calls of the next block for all; 0 ends the cell. */
static uint64_t bench_decide(struct bench *bench, uint64_t number, uint64_t decision)
{
    if (bench->library->rank == 0)
        __atomic_store_n(&bench->board->decision[number % 2], decision, __ATOMIC_SEQ_CST);
    bench_start_together(bench);
    return __atomic_load_n(&bench->board->decision[number % 2], __ATOMIC_SEQ_CST);
}

static void bench_run_cell(struct bench *bench, struct cell *cell)
{
    float *sends[MOST_TURNS + 1], *recvs[MOST_TURNS];
    char *at = bench->arena + 64;
    for (int turn = 0; !cell->call.in_place && turn <= cell->turns;
         turn++, at += bench_taken(cell->send_elements))
        sends[turn] = (float *)at;
    for (int turn = 0; turn < cell->turns; turn++, at += bench_taken(cell->recv_elements))
        recvs[turn] = (float *)at;
    cell->call.send = cell->call.in_place ? NULL : sends[0];
    cell->call.recv = recvs[0];
    size_t wrong = bench_check(bench, cell);
    /* Zeros stay zeros in place, however often they are summed. */
    for (int turn = 0; !cell->call.in_place && turn <= cell->turns; turn++)
        bench_fill(sends[turn], cell->send_elements, 1);
    for (int turn = 0; turn < cell->turns; turn++)
        bench_fill(recvs[turn], cell->recv_elements, 0);
    /* Wrong elements of all ranks, through the samples that are not in use yet. */
    bench->board->samples[bench->library->rank][0] = (double)wrong;
    bench_barrier(bench);
    wrong = 0;
    for (int rank = 0; rank < bench->library->ranks; rank++)
        wrong += (size_t)bench->board->samples[rank][0];
    bench_barrier(bench);

    bench->next_send = bench->next_recv = 0;
    int kept = 0, warmed = 0, warming = 1, single = 0;
    double estimate = 0, begun = board_now(), timed = 0;
    uint64_t calls = 1;
    int rewrites = getenv("BENCH_REWRITE") != NULL;
    for (uint64_t number = 0;; number++) {
        if (rewrites)
            bench_rewrite(bench, cell, sends, recvs);
        if (bench->library->rank == 0) {
            double now = board_now();
            /* Warm up for five blocks or a third of the budget; then measure for the budget. */
            if (warming && (warmed >= 5 || (warmed > 0 && now - begun > bench->budget / 3))) {
                warming = 0;
                timed = now;
                single = estimate >= single_from;
            }
            /* A block takes at most an eighth of the budget: slow calls come one at a time. */
            double fit = estimate > 0 ? bench->budget / 8 / estimate : 1;
            calls = fit >= cell->turns ? (uint64_t)cell->turns : fit < 1 ? 1 : (uint64_t)fit;
            /* A call that takes longer than the whole budget gets by with a time or two. */
            int least = now - begun > 4 * bench->budget ? 1 : LEAST_TIMES;
            int done = kept >= least && now - timed > bench->budget;
            if (!warming && (done || kept + cell->turns > SAMPLES))
                calls = 0;
            calls |= (uint64_t)warming << 32 | (uint64_t)single << 33;
        }
        uint64_t decision = bench_decide(bench, number, calls);
        int count = (int)(decision & 0xffffffff), unused = 0;
        if (count == 0)
            break;
        int warm = decision >> 32 & 1;
        double seconds = bench_block(bench, cell, count, decision >> 33 & 1, sends, recvs,
                                     warm ? &unused : &kept);
        estimate = seconds / count;
        warmed += warm;
    }
    if (bench->library->rank == 0)
        bench_report(bench, cell, kept, wrong);
    bench_barrier(bench);
}

/* The words of a list with commas, each given to `take` with its number. */
static int bench_words(const char *list, const char **words, size_t *lengths, int most)
{
    int number = 0;
    for (const char *at = list; *at && number < most; number++) {
        words[number] = at;
        lengths[number] = strcspn(at, ",");
        at += lengths[number];
        at += *at == ',';
    }
    return number;
}

static enum operation bench_operation(const char *name, size_t length)
{
    for (int operation = 0; operation < OPERATIONS; operation++) {
        if (strlen(operation_names[operation]) == length &&
            strncmp(operation_names[operation], name, length) == 0)
            return (enum operation)operation;
    }
    board_fail("there is no such operation");
    return OPERATIONS;
}

/* `OPERATION[:in],... SIZE,... BUDGET_MS`: the cells, by size. */
static int bench_main(const struct library *library, struct board *board, int argc, char **argv)
{
    if (argc != 4)
        board_fail("usage: OPERATION[:in],... BYTES,... BUDGET_MS");
    struct bench bench = {library, board, NULL, atof(argv[3]) * 1e-3};
    const char *words[MOST_SIZES], *names[MOST_SIZES];
    size_t lengths[MOST_SIZES], name_lengths[MOST_SIZES], most = 0;
    int sizes = bench_words(argv[2], words, lengths, MOST_SIZES);
    int wishes = bench_words(argv[1], names, name_lengths, MOST_SIZES);
    static struct cell cells[MOST_SIZES * MOST_SIZES];
    int count = 0;
    /* Small sizes first, so that a library that runs out of time has told what it can do. */
    for (int size = 0; size < sizes; size++) {
        for (int wish = 0; wish < wishes; wish++) {
            const char *colon = (const char *)memchr(names[wish], ':', name_lengths[wish]);
            size_t length = colon ? (size_t)(colon - names[wish]) : name_lengths[wish];
            enum operation operation = bench_operation(names[wish], length);
            if (!library->has(operation, colon != NULL))
                continue;
            cells[count] = bench_cell(operation, colon != NULL, strtoull(words[size], NULL, 10),
                                      library->ranks);
            size_t needed = bench_arena_bytes(&cells[count++]);
            most = needed > most ? needed : most;
        }
    }
    if (library->ranks > MOST_RANKS)
        board_fail("too many ranks");
    bench.arena =
        (char *)mmap(NULL, most + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bench.arena == MAP_FAILED)
        board_fail("no memory for the buffers");
    for (int cell = 0; cell < count; cell++)
        bench_run_cell(&bench, &cells[cell]);
    return 0;
}

#endif
