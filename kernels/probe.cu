/*
 * Two small kernels beside the collectives: whether a peer's memory carries data and flags, and a
 * delay for tests.
 */
#include "fifo.cuh"

/* Every word differs from every other and between seeds: the finalizer of splitmix64. */
DEVICE uint64_t pattern(uint64_t seed, uint64_t index) {
    uint64_t word = seed + index * 0x9e3779b97f4a7c15ull;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ word >> 27) * 0x94d049bb133111ebull;
    return word ^ word >> 31;
}

DEVICE void probe_write(const ringcomm_probe_args &args) {
    for (uint64_t i = thread_index(); i < args.words; i += thread_count()) {
        store_scalar(args.memory + 8 * i, pattern(args.seed, i));
    }
    sync_block();
    if (thread_index() != 0) return;
    fence_system();
    store_flag(args.flag, args.seed);
}

/* The flag is compared for equality: what was there before may be anything. */
DEVICE bool probe_wait(const ringcomm_probe_args &args) {
    const Waiting waiting = {RINGCOMM_FOR_PROBE, args.peer, 0, 0};
    Patience patience;
    uint64_t found = load_flag(args.flag);
    while (found != args.seed) {
        if (loses_patience(args.watch, patience, waiting, args.seed, found)) return false;
        found = load_flag(args.flag);
    }
    fence_system();
    return true;
}

DEVICE void probe_check(const ringcomm_probe_args &args) {
    bool came = true;
    if (thread_index() == 0) {
        came = probe_wait(args);
        *at<uint64_t>(args.wrong) = came ? 0 : ~uint64_t(0);
    }
    if (!sync_block_and(came)) return;
    for (uint64_t i = thread_index(); i < args.words; i += thread_count()) {
        if (load_scalar<uint64_t>(args.memory + 8 * i) != pattern(args.seed, i))
            add_atomic(args.wrong, 1);
    }
}

KERNEL(ringcomm_probe, ringcomm_probe_args) {
    if (args.mode == RINGCOMM_PROBE_WRITE) {
        probe_write(args);
    } else {
        probe_check(args);
    }
}

KERNEL(ringcomm_delay, ringcomm_delay_args) {
    const uint64_t begin = now_ns();
    while (now_ns() - begin < args.duration_ns) breathe();
}
