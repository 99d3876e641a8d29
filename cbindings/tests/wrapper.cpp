// Every member of the C++ wrapper is called, and what it gives is checked. Ranks are threads.
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <ringcomm.hpp>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <vector>

using ringcomm::Communicator;
using ringcomm::Counts;
using ringcomm::Error;
using ringcomm::Group;
using ringcomm::Memory;
using ringcomm::Reduction;
using ringcomm::Registration;
using ringcomm::Stream;
using ringcomm::UniqueId;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            throw std::runtime_error(std::string(__FILE__ ":") + std::to_string(__LINE__) +        \
                                     ": not so: " #condition);                                     \
    } while (0)

// The code of the Error that `calls` throws; ringSuccess where it throws none.
static ringResult_t code_of(const std::function<void()> &calls) {
    try {
        calls();
    } catch (const Error &error) {
        EXPECT(std::string(error.what()).size() > 3);
        return error.code();
    }
    return ringSuccess;
}

// Run `work` on a thread for each rank; the first exception is thrown on.
static void on_threads(int ranks, const std::function<void(int)> &work) {
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; rank++)
        threads.emplace_back([&, rank] {
            try {
                work(rank);
            } catch (...) {
                failures[static_cast<std::size_t>(rank)] = std::current_exception();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    for (const std::exception_ptr &failure : failures)
        if (failure)
            std::rethrow_exception(failure);
}

// The same with a communicator, which goes when the work is done or has failed.
static void on_ranks(int ranks, const std::function<void(Communicator &)> &work) {
    std::vector<Communicator> comms = Communicator::all(ranks);
    on_threads(ranks, [&](int rank) {
        Communicator mine = std::move(comms[static_cast<std::size_t>(rank)]);
        work(mine);
    });
}

const int RANKS = 3;

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

// What an exception leaves of a group, where one thread has both ranks: nothing has run, and the
// communicators are as they were.
static void dropped_groups() {
    struct Trouble {};
    std::vector<Communicator> comms = Communicator::all(2);
    std::vector<float> result(2000, -1);
    const auto untouched = [&] { return result == std::vector<float>(2000, -1); };
    const auto half = [&](const std::vector<float> &data) {
        comms[0].allReduce(data.data(), result.data(), data.size());
    };
    const auto whole = [&](const std::vector<float> &data) {
        half(data);
        comms[1].allReduce(data.data(), result.data() + data.size(), data.size());
    };
    const auto works = [&] {
        const std::vector<float> ones(1000, 1);
        ringcomm::group([&] { whole(ones); });
        EXPECT(result == std::vector<float>(2000, 2));
        result.assign(2000, -1);
    };
    works();

    // By an exception: the data is declared after the group, and gone before it.
    bool is_caught = false;
    try {
        Group group;
        const std::vector<float> data(1000, 1);
        half(data);
        throw Trouble();
    } catch (const Trouble &) {
        is_caught = true;
    }
    EXPECT(is_caught && untouched());
    works();

    // By the end of its scope.
    {
        Group group;
        const std::vector<float> data(1000, 1);
        whole(data);
    }
    EXPECT(untouched());
    works();

    // By an exception of `calls`, which comes out as it is.
    const std::vector<float> data(1000, 1);
    is_caught = false;
    try {
        ringcomm::group([&] {
            half(data);
            throw Trouble();
        });
    } catch (const Trouble &) {
        is_caught = true;
    }
    EXPECT(is_caught && untouched());
    works();

    // An inner one takes the outer one with it, which says so.
    Group outer;
    half(data);
    { Group inner; }
    EXPECT(code_of([&] { outer.end(); }) == ringInvalidArgument);
    EXPECT(untouched());
    works();

    // A communicator that goes while a group holds calls of it is given back; the other is told.
    ringComm_t gone = nullptr;
    try {
        Group group;
        Communicator mine = std::move(comms[0]);
        gone = mine.handle();
        mine.allReduce(data.data(), result.data(), data.size());
        throw Trouble();
    } catch (const Trouble &) {
    }
    int count = 0;
    EXPECT(ringCommCount(gone, &count) == ringInvalidArgument);
    EXPECT(untouched());
    EXPECT(code_of([&] { comms[1].barrier(); }) == ringRemoteError);
}

// A group whose calls fail: the ranks disagree.
static void failing_groups(Communicator &comm) {
    const std::vector<int> data(9, 1);
    std::vector<int> result(9);
    const std::size_t count = 8 + static_cast<std::size_t>(comm.rank());
    const ringResult_t code = code_of([&] {
        Group group;
        comm.allReduce(data.data(), result.data(), count);
        group.end();
    });
    EXPECT(code == ringInvalidUsage || code == ringRemoteError);
    EXPECT(comm.asyncError() != ringSuccess);
}

// Communicators are not made in groups, which would write their handles when nobody is there.
static void makers_in_groups() {
    std::vector<Communicator> comms = Communicator::all(1);
    const UniqueId id;
    const std::function<void()> makers[] = {
        [&] { comms[0].split(0, 0); },
        [&] { comms[0].shrink(); },
        [&] { Communicator(1, id, 0); },
        [&] { Communicator::join("tcp://127.0.0.1:29500", 1, 0); },
    };
    for (const std::function<void()> &maker : makers) {
        Group group;
        EXPECT(code_of(maker) == ringInvalidUsage);
        EXPECT(code_of([&] { group.end(); }) == ringInvalidArgument);
    }
    comms[0].barrier();
    EXPECT(comms[0].asyncError() == ringSuccess);
}

static void lives() {
    // By id; with settings.
    const UniqueId id;
    UniqueId copy(id.bytes()), moved(std::move(copy));
    moved = UniqueId(id.bytes());
    on_threads(2, [&](int rank) {
        ringConfig_t config = RING_CONFIG_INITIALIZER;
        config.deterministic = 1;
        Communicator comm(2, rank == 0 ? id : moved, rank, &config);
        EXPECT(comm && comm.rank() == rank && comm.count() == 2);
        EXPECT(comm.asyncError() == ringSuccess);
        comm.finalize();
        float value = 1;
        EXPECT(code_of([&] { comm.allReduce(&value, &value, 1); }) == ringInvalidUsage);
    });

    // By URL.
    char folder[] = "/tmp/ringcomm-wrapper-XXXXXX";
    EXPECT(mkdtemp(folder));
    const std::string url = std::string("file://") + folder + "/meeting";
    on_threads(2, [&](int rank) {
        Communicator comm = Communicator::join(url.c_str(), 2, rank);
        int sum = rank + 1;
        comm.allReduce(&sum, &sum, 1);
        EXPECT(sum == 3);
    });
    rmdir(folder);

    // On devices that are none; none at all, and fewer.
    std::vector<Communicator> host = Communicator::all(std::vector<int>(2, -1));
    EXPECT(host.size() == 2 && host[1].rank() == 1 && host[1].device() == -1);
    for (int ranks : {0, -1})
        EXPECT(code_of([&] { Communicator::all(ranks); }) == ringInvalidArgument);
    EXPECT(code_of([&] { Communicator::all(std::vector<int>()); }) == ringInvalidArgument);

    // A handle goes from owner to owner and is destroyed once.
    static_assert(!std::is_copy_constructible<Communicator>::value, "it owns a handle");
    static_assert(std::is_nothrow_move_constructible<Communicator>::value, "it only moves");
    const ringComm_t handle = host[0].handle();
    Communicator first = std::move(host[0]), second(nullptr);
    EXPECT(first.handle() == handle && !host[0] && !second);
    second = std::move(first);
    EXPECT(second.handle() == handle && !first);
    second = Communicator(nullptr);
    int count = 0;
    EXPECT(ringCommCount(handle, &count) == ringInvalidArgument);
    host[1].abort();
    EXPECT(!host[1]);
}

static void families(Communicator &comm) {
    const int rank = comm.rank();
    // Backwards, without the last.
    Communicator part = comm.split(rank == 2 ? RING_SPLIT_NOCOLOR : 0, -rank);
    EXPECT(static_cast<bool>(part) == (rank != 2));
    if (part) {
        EXPECT(part.count() == 2 && part.rank() == 1 - rank);
        part.barrier();
    }
    EXPECT(code_of([&] { comm.split(-7, 0); }) == ringInvalidArgument);

    Communicator same = comm.shrink();
    EXPECT(same.count() == RANKS && same.rank() == rank);
    if (rank != 1) {
        Communicator others = comm.shrink({1}, RING_SHRINK_DEFAULT);
        EXPECT(others.count() == 2 && others.rank() == rank / 2);
        int sum = rank;
        others.allReduce(&sum, &sum, 1);
        EXPECT(sum == 2);
    }
    same.barrier();

    EXPECT(same.dump().find("Barrier") != std::string::npos);
    EXPECT(same.trace().find("Barrier") != std::string::npos);
    const ringExplain_t answer = same.explain(ringCollBroadcast, 1000, ringFloat32, ringSum, 1);
    EXPECT(answer.algorithm[0] != '\0' && answer.transport[0] != '\0' && answer.chunks > 0);
    EXPECT(same.explain(ringCollAllReduce, 8, ringInt8).predictedUs > 0);
    EXPECT(code_of([&] { same.explain(ringCollBroadcast, 1, ringInt8, ringSum, RANKS); }) ==
           ringInvalidArgument);
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

static void owners(Communicator &comm) {
    const int rank = comm.rank();
    const std::size_t size = 100000;
    Memory<float> send(size), recv(size);
    EXPECT(send.size() == size && send.data() && send.end() - send.begin() == 100000);
    for (float &value : send)
        value = static_cast<float>(rank + 1);
    comm.allReduce(send.data(), recv.data(), size);
    const Memory<float> &result = recv;
    EXPECT(result.begin() == result.data() && result.end() == result.data() + result.size());
    EXPECT(result[0] == 6 && recv[size - 1] == 6);
    float *place = send.data();
    Memory<float> moved(std::move(send)), empty(0);
    EXPECT(moved.data() == place && send.data() == nullptr && send.size() == 0);
    empty = std::move(moved);
    EXPECT(empty.data() == place && empty.size() == size);
    EXPECT(code_of([] { Memory<double>(~std::size_t{0} / 4); }) == ringInvalidArgument);
    // It is given back: once, by whoever had it last. No rank allocates any more.
    comm.barrier();
    { Memory<float> last(std::move(empty)); }
    EXPECT(ringMemFree(place) == ringInvalidArgument);

    const std::size_t bytes = 1 << 20;
    void *buffer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(buffer != MAP_FAILED);
    void *handle = nullptr;
    {
        Registration here(comm, buffer, bytes), there(std::move(here));
        EXPECT(here.handle() == nullptr && there.handle() != nullptr);
        here = std::move(there);
        handle = here.handle();
        int *numbers = static_cast<int *>(buffer);
        numbers[0] = rank;
        comm.allReduce(numbers, numbers, bytes / sizeof(int));
        EXPECT(numbers[0] == 3);
        EXPECT(code_of([&] { Registration(comm, nullptr, bytes); }) == ringInvalidArgument);
    }
    EXPECT(ringCommDeregister(comm.handle(), handle) == ringInvalidArgument);
    {
        // With a communicator that goes first, and takes it along.
        std::vector<Communicator> alone = Communicator::all(1);
        const Registration late(alone[0], buffer, bytes);
        const Reduction later = Reduction::scaled(alone[0], 2.0f);
        alone.clear();
    }
    {
        const Registration again(comm, buffer, bytes);
    }
    munmap(buffer, bytes);

    const float one = 1;
    float sum = 0, scalar = 0.25f;
    ringRedOp_t number = ringSum;
    {
        const Reduction half = Reduction::scaled(comm, 0.5f);
        number = half.handle();
        comm.allReduce(&one, &sum, 1, half);
        EXPECT(sum == 1.5f);
        Reduction current = Reduction::scaledBy(comm, &scalar), taken(std::move(current));
        comm.allReduce(&one, &sum, 1, taken);
        EXPECT(sum == 0.75f);
        scalar = 2;
        comm.allReduce(&one, &sum, 1, taken);
        EXPECT(sum == 6);
        current = std::move(taken);
        EXPECT(current.handle() >= 1024);
    }
    EXPECT(ringRedOpDestroy(number, comm.handle()) == ringInvalidArgument);
    EXPECT(code_of([&] { Reduction::scaled(comm, true); }) == ringInvalidArgument);
}

static void errors() {
    EXPECT(code_of([] { ringcomm::check(ringSuccess); }) == ringSuccess);
    try {
        ringcomm::check(ringStreamSynchronize(nullptr));
        EXPECT(!"NULL is a stream");
    } catch (const std::runtime_error &error) {
        EXPECT(std::string(error.what()).find("stream") != std::string::npos);
    }
    // A communicator that has said nothing: the code's own text.
    std::vector<Communicator> comms = Communicator::all(1);
    EXPECT(code_of([&] { ringcomm::check(ringTimeout, comms[0].handle()); }) == ringTimeout);
    EXPECT(code_of([&] { Communicator(nullptr).rank(); }) == ringInvalidArgument);
}

int main() {
    try {
        on_ranks(RANKS, collectives);
        on_ranks(RANKS, collectives_of_different_lengths);
        on_ranks(RANKS, types);
        on_ranks(RANKS, messages);
        on_ranks(RANKS, families);
        on_ranks(RANKS, owners);
        on_ranks(2, failing_groups);
        dropped_groups();
        makers_in_groups();
        lives();
        streams();
        errors();
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
    std::cout << "every member of the C++ wrapper does what it says\n";
    return 0;
}
