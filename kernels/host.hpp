/*
 * The host as a platform for the kernels: a thread of a block is a thread of the host.
 *
 * The memory order is that of the device, as far as C++ can say it: flags are relaxed, but where a
 * poll has ended well; a fence turns the flags that this thread polled into acquires and the stores
 * that it makes next into releases. So ThreadSanitizer sees an ordering where the device has one and
 * nowhere else: a fence that is missing is a race that it reports.
 */
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sched.h>
#include <string>
#include <vector>

#define DEVICE inline
#define UNROLL
#define ROLLED
#define KERNEL(NAME, ARGS) extern "C" void NAME(const ARGS &args)

namespace host {

/* What the threads of a block have in common. */
struct Block {
    uint32_t threads = 1, index = 0, count = 1, row = 0;
    std::atomic<uint32_t> arrived{0};
    std::atomic<uint32_t> refused{0};
    std::atomic<uint32_t> round{0};
    /* Threads that have come to each barrier so far; 0 is sync_block's, which has its own. */
    std::atomic<uint64_t> barriers[7] = {};
    bool answer = true;
    alignas(16) unsigned char shared[8192];
};

/* A thread of a block, and what it knows of memory. */
struct Thread {
    Block *block = nullptr;
    uint32_t index = 0;
    /* Flags that were polled since the last fence. */
    std::vector<uint64_t> polled;
    /* Whether a fence stands between the block's accesses and this thread's next store of a flag.
     */
    bool fenced = false;
};

extern thread_local Thread thread;

/* Memory of the block for one object. */
template <class T> T &shared_object() {
    static_assert(sizeof(T) <= sizeof(Block::shared));
    return *reinterpret_cast<T *>(thread.block->shared);
}

bool meet_threads(bool yes);
void meet_at(std::atomic<uint64_t> &arrived, uint32_t count, bool waits);

} // namespace host

#define SHARED(TYPE, NAME) TYPE &NAME = host::shared_object<TYPE>()

DEVICE uint32_t thread_index() { return host::thread.index; }
DEVICE uint32_t thread_count() { return host::thread.block->threads; }
DEVICE uint32_t block_index() { return host::thread.block->index; }
DEVICE uint32_t block_count() { return host::thread.block->count; }
DEVICE uint32_t row_index() { return host::thread.block->row; }

DEVICE bool sync_block_and(bool yes) {
    host::thread.fenced = false;
    return host::meet_threads(yes);
}
DEVICE void sync_block() { sync_block_and(true); }

template <uint32_t ID> DEVICE void sync_threads(uint32_t count) {
    static_assert(ID < std::extent_v<decltype(host::Block::barriers)>);
    host::thread.fenced = false;
    host::meet_at(host::thread.block->barriers[ID], count, true);
}
template <uint32_t ID> DEVICE void arrive_threads(uint32_t count) {
    host::thread.fenced = false;
    host::meet_at(host::thread.block->barriers[ID], count, false);
}

/* Every thread goes alone. */
constexpr uint32_t WARP = 1;
DEVICE uint32_t lane_index() { return 0; }
DEVICE void sync_warp() {}
DEVICE bool sync_warp_and(bool yes) { return yes; }

template <class T> T *at(uint64_t address) { return reinterpret_cast<T *>(address); }

DEVICE Quad load_quad(uint64_t address) { return *at<const Quad>(address); }
DEVICE void store_quad(uint64_t address, const Quad &quad) { *at<Quad>(address) = quad; }
DEVICE void keep_order(Quad &) {}
template <class T> T load_scalar(uint64_t address) { return *at<const T>(address); }
template <class T> void store_scalar(uint64_t address, T value) { *at<T>(address) = value; }

DEVICE uint64_t load_flag(uint64_t address) {
    auto &polled = host::thread.polled;
    if (polled.empty() || polled.back() != address) polled.push_back(address);
    return __atomic_load_n(at<const uint64_t>(address), __ATOMIC_RELAXED);
}
#ifdef RINGCOMM_OMITS_A_FENCE
#define PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define PLACE_TOO , PLACE
/* Whether RINGCOMM_WITHOUT_FENCE names the fence or acquire in this line, as `plan.cu:70`. */
inline bool is_omitted(const char *file, int line) {
    static const char *named = getenv("RINGCOMM_WITHOUT_FENCE");
    const char *slash = strrchr(file, '/');
    const std::string place = (slash ? slash + 1 : file) + (":" + std::to_string(line));
    return named && place == named;
}
#define UNLESS_OMITTED if (is_omitted(file, line)) return
#else
#define PLACE
#define PLACE_TOO
#define UNLESS_OMITTED
#endif
DEVICE void acquire_flag(uint64_t address PLACE_TOO) {
    UNLESS_OMITTED;
    (void)__atomic_load_n(at<const uint64_t>(address), __ATOMIC_ACQUIRE);
    std::erase(host::thread.polled, address);
}
DEVICE void fence_system(PLACE) {
    UNLESS_OMITTED;
    for (uint64_t address : host::thread.polled) {
        (void)__atomic_load_n(at<const uint64_t>(address), __ATOMIC_ACQUIRE);
    }
    host::thread.fenced = true;
    host::thread.polled.clear();
}
DEVICE void store_flag(uint64_t address, uint64_t value) {
    __atomic_store_n(at<uint64_t>(address), value,
                     host::thread.fenced ? __ATOMIC_RELEASE : __ATOMIC_RELAXED);
}
DEVICE void store_flag32(uint64_t address, uint32_t value) {
    __atomic_store_n(at<uint32_t>(address), value,
                     host::thread.fenced ? __ATOMIC_RELEASE : __ATOMIC_RELAXED);
}
DEVICE uint64_t swap_if_zero(uint64_t address, uint64_t value) {
    uint64_t found = 0;
    /* What the winner writes from here on is behind no fence yet. */
    host::thread.fenced = false;
    __atomic_compare_exchange_n(at<uint64_t>(address), &found, value, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
    return found;
}
DEVICE void add_atomic(uint64_t address, uint64_t value) {
    __atomic_fetch_add(at<uint64_t>(address), value, __ATOMIC_RELAXED);
}
/* Orders what its callers did before, as the device's blocks of one launch need it of nothing else.
 */
DEVICE uint32_t add_atomic32(uint32_t *counter, uint32_t value) {
    return __atomic_fetch_add(counter, value, __ATOMIC_ACQ_REL);
}

DEVICE ringcomm_line load_line(uint64_t address) {
    const uint64_t *halves = at<const uint64_t>(address);
    const uint64_t low = __atomic_load_n(halves, __ATOMIC_RELAXED);
    const uint64_t high = __atomic_load_n(halves + 1, __ATOMIC_RELAXED);
    return {uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)};
}
DEVICE void store_line(uint64_t address, const ringcomm_line &line) {
    uint64_t *halves = at<uint64_t>(address);
    __atomic_store_n(halves, line.low | uint64_t(line.low_flag) << 32, __ATOMIC_RELAXED);
    __atomic_store_n(halves + 1, line.high | uint64_t(line.high_flag) << 32, __ATOMIC_RELAXED);
}

DEVICE uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000 + uint64_t(now.tv_nsec);
}
/* There are more threads than processors. */
DEVICE void breathe() { sched_yield(); }

template <class To, class From> To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
DEVICE uint32_t bits_of(float value) { return same_bits<uint32_t>(value); }
DEVICE float float_of(uint32_t bits) { return same_bits<float>(bits); }
DEVICE uint64_t bits_of(double value) { return same_bits<uint64_t>(value); }
DEVICE double double_of(uint64_t bits) { return same_bits<double>(bits); }

/* As the device's min.NaN and max.NaN: each order of operands gives the second one for a NaN and
   for a pair of zeros, and the union of their bits is then a NaN and -0. */
DEVICE float least(float a, float b) {
    return float_of(bits_of(a < b ? a : b) | bits_of(b < a ? b : a));
}
DEVICE float greatest(float a, float b) { return -least(-a, -b); }
