/*
 * The flag protocol under ThreadSanitizer: rings, two-shot and one-shot exchanges of
 * several ranks, each launching its own kernels, threads for threads.
 *
 * The host's fences and flags order what the device's order, and nothing more (kernels/host.hpp),
 * so a fence or a flag in the wrong place is a data race here. scripts/kernel-protocol runs this
 * as it is, and once without each fence, which must be found.
 */
#include "../../kernels/host.cpp"

#include <cstdio>
#include <functional>

namespace {

constexpr uint32_t RANKS = 3, ROUNDS = 12;
int failures = 0;

void say(bool ok, const char *what) {
    std::printf("%s: %s\n", ok ? "ok" : "FAILED", what);
    failures += !ok;
}

/* Zeroed memory, aligned as a device's. */
struct Memory {
    explicit Memory(size_t bytes) : lines((bytes + 127) / 128) {}
    struct alignas(128) Line {
        unsigned char bytes[128] = {};
    };
    std::vector<Line> lines;
    uint64_t address() { return reinterpret_cast<uint64_t>(lines.data()); }
    uint32_t *words() { return reinterpret_cast<uint32_t *>(lines.data()); }
};

struct Guard {
    Memory control{sizeof(ringcomm_control)}, stop{sizeof(ringcomm_flag)};
    ringcomm_watch watch(uint32_t rank) { return {control.address(), stop.address(), 0, rank, 0}; }
};

template <class Args> void launch(const char *symbol, uint32_t blocks, const Args &args) {
    if (ringcomm_host_launch(symbol, blocks, 1, 2, &args, sizeof args) != 0) say(false, symbol);
}

/* Every rank in a thread of its own; whether all said yes. */
bool all_ranks(const std::function<bool(uint32_t)> &run) {
    std::vector<std::thread> threads;
    std::atomic<uint32_t> good{0};
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        threads.emplace_back([&, rank] { good += run(rank); });
    }
    for (std::thread &thread : threads) thread.join();
    return good == RANKS;
}

/* The element at `index` of a rank's input in a round, and what all ranks' add up to. */
uint32_t element(uint32_t rank, uint32_t round, uint32_t index) {
    return rank * 1000003 + round * 977 + index;
}
uint32_t total(uint32_t round, uint32_t index) {
    uint32_t sum = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++) sum += element(rank, round, index);
    return sum;
}
void fill(Memory &memory, uint32_t rank, uint32_t round, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) memory.words()[i] = element(rank, round, i);
}
bool is_total(Memory &memory, uint32_t round, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (memory.words()[i] != total(round, i)) return false;
    }
    return true;
}

/* ---- The ring, in two channels over slots that hold a third of a chunk ------------------------
 */

constexpr uint32_t CHANNELS = 2, DEPTH = 2, SLOT = 256, CHUNK = 640;

/* The textbook's ring: after step i, the chunk that left rank r holds i + 1 contributions. */
struct Ring {
    std::vector<ringcomm_step> steps;
    std::vector<ringcomm_end> ends;
    std::vector<ringcomm_span> spans;

    void step(uint32_t channel, uint32_t chunk, std::vector<ringcomm_end> sources,
              std::vector<ringcomm_end> targets) {
        const uint64_t offset = (channel * RANKS + chunk % RANKS) * CHUNK;
        steps.push_back({uint32_t(spans.size()), 1, uint32_t(ends.size()), uint16_t(sources.size()),
                         uint16_t(targets.size()), (CHUNK + SLOT - 1) / SLOT, 0, RINGCOMM_NONE,
                         sources.size() == 1 ? RINGCOMM_COPY : RINGCOMM_FINISH});
        spans.push_back({offset, offset, 0, CHUNK});
        ends.insert(ends.end(), sources.begin(), sources.end());
        ends.insert(ends.end(), targets.begin(), targets.end());
    }

    Ring(uint32_t rank, uint32_t channel) {
        const ringcomm_end input = {RINGCOMM_INPUT, 0}, output = {RINGCOMM_OUTPUT, 0};
        const ringcomm_end next = {RINGCOMM_PEER, (rank + 1) % RANKS};
        const ringcomm_end last = {RINGCOMM_PEER, (rank + RANKS - 1) % RANKS};
        const uint32_t own = rank + RANKS;
        step(channel, own, {input}, {next});
        for (uint32_t i = 1; i + 1 < RANKS; i++) step(channel, own - i, {last, input}, {next});
        step(channel, own + 1, {last, input}, {output, next});
        for (uint32_t i = 0; i + 2 < RANKS; i++) step(channel, own - i, {last}, {output, next});
        step(channel, own + 2, {last}, {output});
    }

    ringcomm_program program() {
        const uint32_t ticks = (CHUNK + SLOT - 1) / SLOT;
        return {uint64_t(steps.data()),
                uint64_t(ends.data()),
                uint64_t(spans.data()),
                uint32_t(steps.size()),
                ticks,
                SLOT,
                0,
                0,
                1,
                0};
    }
};

bool ring_rank(uint32_t rank, std::vector<ringcomm_connection> &sends,
               std::vector<ringcomm_connection> &receives) {
    const uint32_t count = RANKS * CHANNELS * CHUNK / 4;
    Memory input(count * 4), output(count * 4);
    Guard guard;
    std::vector<Ring> rings;
    std::vector<ringcomm_program> programs;
    for (uint32_t channel = 0; channel < CHANNELS; channel++) rings.emplace_back(rank, channel);
    for (Ring &ring : rings) programs.push_back(ring.program());
    ringcomm_plan_args args = {};
    args.data_type = 3;
    args.parts = RANKS;
    args.call = {
        input.address(),        output.address(),          0,     1.0,   uint64_t(programs.data()),
        uint64_t(sends.data()), uint64_t(receives.data()), RANKS, DEPTH, SLOT,
        guard.watch(rank)};
    bool good = true;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        fill(input, rank, round, count);
        launch("ringcomm_plan_w4", CHANNELS, args);
        good = good && is_total(output, round, count);
    }
    /* A rank that has given up posts nothing more. */
    const uint64_t *posted = at<const uint64_t>(sends[(rank + 1) % RANKS].posted);
    const uint64_t before = __atomic_load_n(posted, __ATOMIC_RELAXED);
    store_flag(guard.stop.address(), RINGCOMM_LATE);
    launch("ringcomm_plan_w4", CHANNELS, args);
    return good && __atomic_load_n(posted, __ATOMIC_RELAXED) == before;
}

void ring() {
    std::vector<std::unique_ptr<Memory>> memories;
    const auto memory = [&](size_t bytes) {
        memories.push_back(std::make_unique<Memory>(bytes));
        return memories.back()->address();
    };
    std::vector<std::vector<ringcomm_connection>> sends(RANKS), receives(RANKS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        sends[rank].resize(CHANNELS * RANKS);
        receives[rank].resize(CHANNELS * RANKS);
    }
    for (uint32_t channel = 0; channel < CHANNELS; channel++) {
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            const uint32_t next = (rank + 1) % RANKS;
            const ringcomm_connection connection = {memory(DEPTH * SLOT), memory(128), memory(128),
                                                    0};
            sends[rank][channel * RANKS + next] = connection;
            receives[next][channel * RANKS + rank] = connection;
        }
    }
    say(all_ranks([&](uint32_t rank) { return ring_rank(rank, sends[rank], receives[rank]); }),
        "ring");
}

/* ---- Two-shot: each rank reduces its part from all inputs and writes it to all outputs --------
 */

void two_shot() {
    constexpr uint32_t PART = 200, COUNT = RANKS * PART;
    std::vector<Memory> inputs, outputs, flags;
    std::vector<uint64_t> addresses;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        inputs.emplace_back(COUNT * 4);
        outputs.emplace_back(COUNT * 4);
        flags.emplace_back(RINGCOMM_BARRIER_BLOCKS * RANKS * sizeof(ringcomm_flag));
    }
    for (Memory &memory : flags) addresses.push_back(memory.address());
    const auto run = [&](uint32_t rank) {
        Guard guard;
        std::vector<uint64_t> epochs(RINGCOMM_BARRIER_BLOCKS);
        ringcomm_reduce_args args = {};
        args.data_type = 3;
        args.parts = RANKS;
        args.tile = 32;
        args.call = {
            0,
            1,
            (PART + 31) / 32,
            0,
            {uint64_t(addresses.data()), uint64_t(epochs.data()), RANKS, 0, guard.watch(rank)}};
        args.inline_pieces[0] = {PART, 0, 0, RANKS, RANKS, RINGCOMM_FINISH};
        for (uint32_t peer = 0; peer < RANKS; peer++) {
            args.inline_ends[peer] = inputs[peer].address() + rank * PART * 4;
            args.inline_ends[RANKS + peer] = outputs[peer].address() + rank * PART * 4;
        }
        bool good = true;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            fill(inputs[rank], rank, round, COUNT);
            launch("ringcomm_reduce_w4", 2, args);
            good = good && is_total(outputs[rank], round, COUNT);
        }
        return good;
    };
    say(all_ranks(run), "two-shot");
}

/* ---- One-shot ----------------------------------------------------------------------------------
 */

void one_shot() {
    constexpr uint32_t COUNT = 57, LINES = 32;
    std::vector<Memory> inboxes;
    std::vector<uint64_t> addresses;
    for (uint32_t rank = 0; rank < RANKS; rank++) inboxes.emplace_back(2 * RANKS * LINES * 16);
    for (Memory &memory : inboxes) addresses.push_back(memory.address());
    const auto run = [&](uint32_t rank) {
        Memory input(COUNT * 4), output(COUNT * 4), epoch(sizeof(ringcomm_epoch));
        /* Numbers come round on the way: halves must still take turns. */
        epoch.words()[0] = 0xffffffffu - ROUNDS;
        Guard guard;
        ringcomm_oneshot_args args = {};
        args.data_type = 3;
        args.parts = RANKS;
        args.call = {input.address(),
                     output.address(),
                     COUNT,
                     1.0,
                     uint64_t(addresses.data()),
                     epoch.address(),
                     LINES,
                     RANKS,
                     0,
                     guard.watch(rank)};
        bool good = true;
        for (uint32_t round = 0; round < 4 * ROUNDS; round++) {
            fill(input, rank, round, COUNT);
            launch("ringcomm_oneshot_w4", 2, args);
            good = good && is_total(output, round, COUNT);
        }
        return good;
    };
    say(all_ranks(run), "one-shot");
}

/* ---- A wait that ends without its peers: the host reads why -----------------------------------
 */

void gives_up() {
    Memory flags(RINGCOMM_BARRIER_BLOCKS * RANKS * sizeof(ringcomm_flag));
    std::vector<uint64_t> addresses(RANKS, flags.address());
    std::vector<uint64_t> epochs(RINGCOMM_BARRIER_BLOCKS);
    Guard guard;
    ringcomm_watch watch = guard.watch(0);
    watch.timeout_ns = 1000000;
    ringcomm_reduce_args args = {};
    args.data_type = 3;
    args.parts = RANKS;
    args.tile = 32;
    args.call = {0, 0, 0, 0, {uint64_t(addresses.data()), uint64_t(epochs.data()), RANKS, 0, watch}};
    const ringcomm_report &report = at<ringcomm_control>(watch.control)->report;
    bool good = false;
    std::thread host([&] {
        uint32_t reason = 0;
        while (reason == 0) {
            reason = __atomic_load_n(&report.reason, __ATOMIC_ACQUIRE);
            sched_yield();
        }
        good = reason == RINGCOMM_LATE && report.waiting == RINGCOMM_FOR_BARRIER &&
               report.rank == 0 && report.peer != 0 && report.wanted == 1 && report.found == 0;
    });
    launch("ringcomm_reduce_w4", 1, args);
    host.join();
    say(good, "the report of a wait that is given up");
}

} // namespace

int main() {
    ringcomm_host_block(2);
    ring();
    two_shot();
    one_shot();
    gives_up();
    return failures != 0;
}
