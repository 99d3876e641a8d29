// Every owner of the C++ wrapper is made, moved and dropped, also in the middle of a group, and what
// else its members give is checked.
#include "wrapper.h"

#include <sys/mman.h>
#include <type_traits>
#include <unistd.h>

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
    return report("every owner of the C++ wrapper does what it says", [] {
        on_ranks(RANKS, families);
        on_ranks(RANKS, owners);
        on_ranks(2, failing_groups);
        dropped_groups();
        makers_in_groups();
        lives();
        errors();
    });
}
