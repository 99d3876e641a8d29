/*
 * A kernel that does nothing for a while, for tests of what is ordered after it.
 */
#include "platform.cuh"

KERNEL(ringcomm_delay, ringcomm_delay_args) {
    const uint64_t begin = now_ns();
    while (now_ns() - begin < args.duration_ns) breathe();
}
