// Every call of the C++ wrapper that moves data is made, and what it gives is checked.
#include "wrapper.h"

#include <cstdint>

static void collectives(Communicator &comm) {
    const int rank = comm.rank();
    EXPECT(comm.count() == RANKS && rank >= 0 && rank < RANKS);
    EXPECT(comm.device() == -1);

    const int mine[2] = {rank + 1, 10 * rank};
    int two[2] = {0, 0};
    comm.allReduce(mine, two, 2);
    EXPECT(two[0] == 6 && two[1] == 30);
    comm.allReduce(mine, two, 2, ringMax);
    EXPECT(two[0] == 3 && two[1] == 20);

    const std::vector<int> blocks = {rank, rank + 10, rank + 20};
    int block = -1;
    comm.reduceScatter(blocks.data(), &block, 1);
    EXPECT(block == 3 + 30 * rank);
    comm.reduceScatter(blocks.data(), &block, 1, ringMin);
    EXPECT(block == 10 * rank);

    std::vector<int> all(RANKS, -1);
    comm.allGather(&rank, all.data(), 1);
    EXPECT((all == std::vector<int>{0, 1, 2}));

    int told = rank == 1 ? 77 : 0;
    comm.broadcast(&told, &told, 1, 1);
    EXPECT(told == 77);

    int sum = -1;
    comm.reduce(&rank, &sum, 1, 2);
    EXPECT(sum == (rank == 2 ? 3 : -1));
    comm.reduce(mine, two, 2, 0, ringProd);
    EXPECT(rank != 0 || (two[0] == 6 && two[1] == 0));

    comm.allToAll(blocks.data(), all.data(), 1);
    EXPECT((all == std::vector<int>{10 * rank, 10 * rank + 1, 10 * rank + 2}));

    std::vector<int> gathered(RANKS, -1);
    comm.gather(&rank, gathered.data(), 1, 2);
    EXPECT((gathered == (rank == 2 ? std::vector<int>{0, 1, 2} : std::vector<int>(RANKS, -1))));

    int part = -1;
    comm.scatter(blocks.data(), &part, 1, 1);
    EXPECT(part == 1 + 10 * rank);

    comm.barrier();
}

// Rank r has r + 1 elements, each of which tells where it is from.
static void collectives_of_different_lengths(Communicator &comm) {
    const int rank = comm.rank();
    const std::size_t me = static_cast<std::size_t>(rank);
    const Counts counts = {1, 2, 3}, places = {0, 1, 3}, none;
    const std::vector<int> mine(me + 1, rank), wanted = {0, 1, 1, 2, 2, 2};

    std::vector<int> all(6, -1);
    comm.allGatherv(mine.data(), mine.size(), all.data(), counts, places);
    EXPECT(all == wanted);

    std::vector<int> sums(me + 1, -1);
    comm.reduceScatterv(wanted.data(), sums.data(), counts);
    EXPECT(sums == std::vector<int>(me + 1, RANKS * rank));
    comm.reduceScatterv(wanted.data(), sums.data(), counts, ringMax);
    EXPECT(sums == mine);

    // Everybody sends d + 1 elements to rank d, which so gets as many from each.
    const Counts from(RANKS, me + 1), at = {0, me + 1, 2 * (me + 1)};
    std::vector<int> given(6, rank), got(RANKS * (me + 1), -1);
    comm.allToAllv(given.data(), counts, places, got.data(), from, at);
    for (std::size_t i = 0; i < got.size(); i++)
        EXPECT(got[i] == static_cast<int>(i / (me + 1)));

    // Only the root's lists are used.
    std::vector<int> gathered(6, -1);
    const Counts &counts_here = rank == 1 ? counts : none, &places_here = rank == 1 ? places : none;
    comm.gatherv(mine.data(), mine.size(), gathered.data(), counts_here, places_here, 1);
    EXPECT(gathered == (rank == 1 ? wanted : std::vector<int>(6, -1)));
    std::vector<int> part(me + 1, -1);
    comm.scatterv(wanted.data(), counts_here, places_here, part.data(), part.size(), 1);
    EXPECT(part == mine);

    // A list that the library would read past its end is refused here.
    const Counts shorter = {1, 2};
    for (const Counts *bad : {&shorter, &none}) {
        EXPECT(code_of([&] { comm.allGatherv(mine.data(), 1, all.data(), *bad, places); }) ==
               ringInvalidArgument);
        EXPECT(code_of([&] { comm.reduceScatterv(wanted.data(), all.data(), *bad); }) ==
               ringInvalidArgument);
        EXPECT(code_of([&] {
                   comm.allToAllv(given.data(), counts, *bad, all.data(), counts, places);
               }) == ringInvalidArgument);
        EXPECT(code_of([&] { comm.gatherv(mine.data(), 1, all.data(), counts, *bad, rank); }) ==
               ringInvalidArgument);
        EXPECT(code_of([&] {
                   comm.scatterv(wanted.data(), *bad, places, all.data(), 1, rank);
               }) == ringInvalidArgument);
    }
    comm.barrier();
}

// A type of the program's own, and what an element of its is on the wire.
struct Half {
    std::uint16_t bits;
};
namespace ringcomm {
template <> struct TypeOf<Half> { static constexpr ringDataType_t value = ringFloat16; };
} // namespace ringcomm

template <typename T> static void greatest(Communicator &comm, ringDataType_t type) {
    EXPECT(ringcomm::TypeOf<T>::value == type);
    const T mine = static_cast<T>(comm.rank());
    T result = T();
    comm.allReduce(&mine, &result, 1, ringMax);
    EXPECT(result == static_cast<T>(RANKS - 1));
}

static void types(Communicator &comm) {
    greatest<std::int8_t>(comm, ringInt8);
    greatest<std::uint8_t>(comm, ringUint8);
    greatest<std::int16_t>(comm, ringInt16);
    greatest<std::uint16_t>(comm, ringUint16);
    greatest<std::int32_t>(comm, ringInt32);
    greatest<std::uint32_t>(comm, ringUint32);
    greatest<std::int64_t>(comm, ringInt64);
    greatest<std::uint64_t>(comm, ringUint64);
    greatest<float>(comm, ringFloat32);
    greatest<double>(comm, ringFloat64);
    const bool is_last = comm.rank() == RANKS - 1;
    bool any = false;
    comm.allReduce(&is_last, &any, 1, ringBor);
    EXPECT(any);
    // 1.0 in binary16, three times.
    const Half one = {0x3c00};
    Half sum = {0};
    comm.allReduce(&one, &sum, 1);
    EXPECT(sum.bits == 0x4200);
}

// Sends and receives that wait for each other, by both spellings of a group.
static void messages(Communicator &comm) {
    const int rank = comm.rank(), next = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    int got = -1;
    Group group;
    comm.send(&rank, 1, next);
    comm.recv(&got, 1, before);
    EXPECT(got == -1);
    group.end();
    EXPECT(got == before);
    EXPECT(code_of([&] { group.end(); }) == ringInvalidUsage);

    // One that has ended leaves the one around it alone.
    got = -1;
    Group outer;
    Group inner;
    comm.recv(&got, 1, before);
    inner.end();
    EXPECT(code_of([&] { inner.end(); }) == ringInvalidUsage);
    comm.send(&rank, 1, next);
    EXPECT(got == -1);
    outer.end();
    EXPECT(got == before);

    ringcomm::group([&] {
        // The outermost counts.
        ringcomm::group([&] { comm.send(&rank, 1, before); });
        got = -1;
        comm.recv(&got, 1, next);
        EXPECT(got == -1);
    });
    EXPECT(got == next);
}

// One rank's call waits on its stream for the other's, which this thread makes when it likes.
static void streams() {
    std::vector<Communicator> comms = Communicator::all(2);
    int result[2] = {1, 2};
    Stream stream;
    EXPECT(stream.query());
    const std::uint64_t before = stream.mark();
    comms[0].allReduce(&result[0], &result[0], 1, ringSum, stream.handle());
    const std::uint64_t mark = stream.mark();
    EXPECT(stream.reached(before) && !stream.reached(mark, 0) && !stream.query());
    comms[1].allReduce(&result[1], &result[1], 1);
    EXPECT(stream.reached(mark) && stream.reached(mark, 0) && stream.query());
    stream.synchronize();
    EXPECT(result[0] == 3 && result[1] == 3);

    // Every other kind of call takes a stream, too.
    Stream others, moved(std::move(others));
    EXPECT(others.handle() == nullptr && moved.handle() != nullptr);
    std::swap(others, moved);
    const ringStream_t handles[2] = {stream.handle(), others.handle()};
    const Counts one = {1, 1}, at = {0, 1};
    int input[2] = {5, 6}, output[2][2] = {{0, 0}, {0, 0}};
    const auto finish = [&](int first, int second) {
        stream.synchronize();
        others.synchronize();
        EXPECT(output[0][0] == first && output[1][0] == second);
    };
    const auto on_both = [&](const std::function<void(int, Communicator &, ringStream_t)> &call) {
        for (int rank = 0; rank < 2; rank++)
            call(rank, comms[static_cast<std::size_t>(rank)], handles[rank]);
    };
    on_both([&](int rank, Communicator &comm, ringStream_t on) {
        comm.reduceScatter(input, output[rank], 1, ringSum, on);
    });
    finish(10, 12);
    on_both([&](int rank, Communicator &comm, ringStream_t on) {
        comm.allGather(&input[rank], output[rank], 1, on);
        comm.barrier(on);
    });
    finish(5, 5);
    on_both([&](int rank, Communicator &comm, ringStream_t on) {
        comm.broadcast(&input[rank], output[rank], 1, 1, on);
        comm.reduce(&input[rank], output[rank], 1, 1, ringSum, on);
    });
    finish(6, 11);
    on_both([&](int rank, Communicator &comm, ringStream_t on) {
        comm.allToAll(input, output[rank], 1, on);
        comm.gather(&input[rank], output[rank], 1, 0, on);
    });
    finish(5, 6);
    on_both([&](int rank, Communicator &comm, ringStream_t on) {
        comm.scatter(input, output[rank], 1, 0, on);
    });
    finish(5, 6);
    on_both([&](int rank, Communicator &comm, ringStream_t on) {
        if (rank == 0)
            comm.send(input, 1, 1, on);
        else
            comm.recv(output[1], 1, 0, on);
    });
    finish(5, 5);
    on_both([&](int rank, Communicator &comm, ringStream_t on) {
        comm.allGatherv(&input[rank], 1, output[rank], one, {1, 0}, on);
    });
    finish(6, 6);
    on_both([&](int rank, Communicator &comm, ringStream_t on) {
        comm.reduceScatterv(input, output[rank], one, ringSum, on);
    });
    finish(10, 12);
    on_both([&](int rank, Communicator &comm, ringStream_t on) {
        comm.allToAllv(input, one, at, output[rank], one, at, on);
        comm.gatherv(&input[rank], 1, output[rank], one, at, 1, on);
        comm.scatterv(input, one, at, output[rank], 1, 0, on);
    });
    finish(5, 6);

    // The error of a call on a stream is that of the wait.
    comms[0].allReduce(input, output[0], 1, ringSum, stream.handle());
    comms[1].abort();
    EXPECT(code_of([&] { stream.synchronize(); }) == ringRemoteError);
}

int main() {
    return report("every call of the C++ wrapper does what it says", [] {
        on_ranks(RANKS, collectives);
        on_ranks(RANKS, collectives_of_different_lengths);
        on_ranks(RANKS, types);
        on_ranks(RANKS, messages);
        streams();
    });
}
