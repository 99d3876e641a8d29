/*
 * A kernel that times what the others are made of: fences, flags, loads of far memory, the timer.
 *
 * `scripts/gpu-costs.py` launches it; the library does not.
 */
#include "platform.cuh"

/* What is timed: a store of a flag and a fence of the system; two loads of flags, one after the
   other; a flag and its answer, between two blocks; steps of the timer. */
constexpr uint32_t COST_FENCE = 1, COST_LOAD = 2, COST_ROUND_TRIP = 3, COST_TIMER = 4;

/* The script packs these by itself, since no launch of the library has them. */
struct ringcomm_costs_args {
    uint64_t flags;  /* ringcomm_flag[2], zero at first */
    uint64_t result; /* uint64_t[3] */
    uint32_t what;
    uint32_t times;
};

/* Nanoseconds after which a wait for the other block ends: no measurement hangs. */
constexpr uint64_t LONGEST_NS = 1000000000;

/* Whether a flag has come to `value`. */
DEVICE bool comes(uint64_t flag, uint64_t value, uint64_t begin) {
    while (load_flag(flag) != value) {
        if (now_ns() - begin > LONGEST_NS) return false;
        breathe();
    }
    return true;
}

/* How often the timer steps in a while, and its smallest step. */
DEVICE void time_the_timer(const ringcomm_costs_args &args) {
    uint64_t *result = at<uint64_t>(args.result);
    const uint64_t begin = now_ns();
    uint64_t before = begin, steps = 0, least = LONGEST_NS;
    for (uint32_t i = 0; i < args.times; i++) {
        const uint64_t now = now_ns();
        if (now == before) continue;
        steps++;
        if (now - before < least) least = now - before;
        before = now;
    }
    result[0] = before - begin;
    result[1] = least;
    result[2] = steps;
}

/* Nanoseconds of `times` in the first result; 0 where the other block never came. */
KERNEL(ringcomm_costs, ringcomm_costs_args) {
    if (thread_index() > 0) return;
    if (args.what == COST_TIMER) return time_the_timer(args);
    const uint64_t mine = args.flags + block_index() * sizeof(ringcomm_flag);
    const uint64_t theirs = args.flags + (1 - block_index()) * sizeof(ringcomm_flag);
    const uint64_t begin = now_ns();
    bool came = true;
    for (uint32_t i = 1; came && i <= args.times; i++) {
        switch (args.what) {
        case COST_FENCE:
            store_flag(mine, i);
            fence_system();
            break;
        case COST_LOAD:
            /* The next address follows from what this load gives: zero. */
            came = load_flag(mine + load_flag(mine)) == 0;
            break;
        case COST_ROUND_TRIP:
            /* The first block begins, the second answers. */
            if (block_index() == 0) store_flag(mine, i);
            came = comes(theirs, i, begin);
            if (block_index() == 1) store_flag(mine, i);
        }
    }
    if (block_index() == 0) at<uint64_t>(args.result)[0] = came ? now_ns() - begin : 0;
}
