/*
 * The kernels on the host, behind one entry point that takes what a driver would.
 *
 * Kernels that wait have a thread of the host for each thread of each block, all at once; the
 * others run to their end in the caller's thread, one block after another. Few threads run in a
 * block, one unless asked for more: kernels work with any number.
 */
#include "ringcomm.cu"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

namespace host {

thread_local Thread thread;

/* All threads of the block: whether every one said yes. */
bool meet_threads(bool yes) {
    Block &block = *thread.block;
    if (block.threads == 1) return yes;
    const uint32_t round = block.round.load(std::memory_order_acquire);
    if (!yes) block.refused.fetch_add(1, std::memory_order_relaxed);
    if (block.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == block.threads) {
        block.answer = block.refused.exchange(0, std::memory_order_relaxed) == 0;
        block.arrived.store(0, std::memory_order_relaxed);
        /* Release: pairs with the Acquire loads below and at the next barrier's beginning. */
        block.round.store(round + 1, std::memory_order_release);
        block.round.notify_all();
    } else {
        block.round.wait(round, std::memory_order_acquire);
    }
    return block.answer;
}

/* Come to a barrier of so many threads, and perhaps wait for the others. */
void meet_at(std::atomic<uint64_t> &arrived, uint32_t count, bool waits) {
    /* Release: pairs with the Acquire load below, of who waits alone. */
    const uint64_t before = arrived.fetch_add(1, std::memory_order_release);
    const uint64_t all = (before / count + 1) * count;
    if (before + 1 == all) arrived.notify_all();
    while (waits) {
        const uint64_t now = arrived.load(std::memory_order_acquire);
        if (now >= all) return;
        arrived.wait(now, std::memory_order_acquire);
    }
}

using Entry = void (*)(const void *);

struct Kernel {
    Entry entry;
    size_t args_bytes;
    /* Whether its blocks wait for others. */
    bool (*waits)(const void *args, uint32_t rows);
    /* Threads that it cannot do without: of a plan, one for each role. */
    uint32_t least;
};

template <class Args, void (*KERNEL_)(const Args &)> void enter(const void *args) {
    KERNEL_(*static_cast<const Args *>(args));
}

bool always(const void *, uint32_t) { return true; }

bool meets(const void *untyped, uint32_t rows) {
    const auto &args = *static_cast<const ringcomm_reduce_args *>(untyped);
    if (!args.calls) return args.call.barrier.flags != 0;
    for (uint32_t row = 0; row < rows; row++) {
        if (at<const ringcomm_reduce_call>(args.calls)[row].barrier.flags) return true;
    }
    return false;
}

#define ALL_KINDS(ENTRY)                                                                           \
    ENTRY(w1)                                                                                      \
    ENTRY(w2) ENTRY(w4) ENTRY(w8) ENTRY(e4m3) ENTRY(e5m2) ENTRY(f16) ENTRY(bf16) ENTRY(f32)        \
        ENTRY(f64)
#define ENTRY_OF(NAME, ARGS, WAITS, LEAST) {#NAME, {enter<ARGS, NAME>, sizeof(ARGS), WAITS, LEAST}},
#define REDUCE_ENTRY(KIND) ENTRY_OF(ringcomm_reduce_##KIND, ringcomm_reduce_args, meets, 1)
#define PLAN_ENTRY(KIND) ENTRY_OF(ringcomm_plan_##KIND, ringcomm_plan_args, always, 3)
#define ONESHOT_ENTRY(KIND) ENTRY_OF(ringcomm_oneshot_##KIND, ringcomm_oneshot_args, always, 1)

const std::unordered_map<std::string, Kernel> KERNELS = {
    ALL_KINDS(REDUCE_ENTRY) ALL_KINDS(PLAN_ENTRY) ALL_KINDS(ONESHOT_ENTRY)
        ENTRY_OF(ringcomm_delay, ringcomm_delay_args, always, 1)
            ENTRY_OF(ringcomm_costs, ringcomm_costs_args, always, 1)};

std::atomic<uint32_t> block_threads{1};

void run_thread(Block &block, uint32_t index, const Kernel &kernel, const void *args) {
    thread.block = &block;
    thread.index = index;
    thread.polled.clear();
    thread.fenced = false;
    kernel.entry(args);
}

/* All threads of all blocks at once. */
void run_together(const Kernel &kernel, const void *args, Block *blocks, size_t nblocks) {
    std::vector<std::thread> threads;
    for (size_t b = 0; b < nblocks; b++) {
        for (uint32_t t = 0; t < blocks[b].threads; t++) {
            if (b + 1 == nblocks && t + 1 == blocks[b].threads) continue;
            threads.emplace_back(run_thread, std::ref(blocks[b]), t, std::cref(kernel), args);
        }
    }
    Block &last = blocks[nblocks - 1];
    run_thread(last, last.threads - 1, kernel, args);
    for (std::thread &one : threads) one.join();
}

} // namespace host

extern "C" {

/* Threads that really run in each block of launches from now on, as far as a launch asks for them.
 */
void ringcomm_host_block(uint32_t threads) { host::block_threads = threads ? threads : 1; }

/* Bytes of a kernel's argument; 0 where there is no such kernel. */
size_t ringcomm_host_args_bytes(const char *symbol) {
    const auto found = host::KERNELS.find(symbol);
    return found == host::KERNELS.end() ? 0 : found->second.args_bytes;
}

/* Run a kernel to its end: 0; 1 where there is no such kernel, 2 where its argument has another
   size, 3 for an empty grid or block. */
int ringcomm_host_launch(const char *symbol, uint32_t grid_x, uint32_t grid_y, uint32_t block_x,
                         const void *args, size_t args_bytes) {
    const auto found = host::KERNELS.find(symbol);
    if (found == host::KERNELS.end()) return 1;
    const host::Kernel &kernel = found->second;
    if (args_bytes != kernel.args_bytes) return 2;
    if (grid_x == 0 || grid_y == 0 || block_x == 0) return 3;
    const bool waits = kernel.waits(args, grid_y);
    const uint32_t most = host::block_threads.load();
    const size_t nblocks = size_t(grid_x) * grid_y;
    const std::unique_ptr<host::Block[]> blocks(new host::Block[waits ? nblocks : 1]);
    for (size_t b = 0; b < nblocks; b++) {
        host::Block &block = blocks[waits ? b : 0];
        block.threads = std::max(block_x < most ? block_x : most, kernel.least);
        block.index = uint32_t(b % grid_x);
        block.row = uint32_t(b / grid_x);
        block.count = grid_x;
        for (uint32_t t = 0; !waits && t < block.threads; t++)
            host::run_thread(block, t, kernel, args);
    }
    if (waits) host::run_together(kernel, args, blocks.get(), nblocks);
    return 0;
}

/* One field of the argument structures, for whoever mirrors them. */
struct ringcomm_host_field {
    const char *structure;
    const char *field;
    size_t offset;
    /* Of the field; of the structure where `field` is empty. */
    size_t bytes;
};

#include "layout.inc"
}
