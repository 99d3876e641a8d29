/*
 * ringcomm for C++11: owners that clean up after themselves, and errors as exceptions.
 *
 * Header only and thin: a function is one call of ringcomm.h, which says what it means. An object
 * owns its handle, moves, and does not copy; handle() gives it to the C interface. A destructor has
 * nobody to tell an error to: end(), finalize() and synchronize() do what it would do, and throw.
 */
#ifndef RINGCOMM_HPP
#define RINGCOMM_HPP

#include "ringcomm.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace ringcomm {

/** Numbers of elements, or where blocks begin, one for each rank. */
using Counts = std::vector<std::size_t>;

/** A call that failed: what() is the library's text, code() the result. */
class Error : public std::runtime_error {
  public:
    Error(ringResult_t code, const std::string &text) : std::runtime_error(text), code_(code) {}
    ringResult_t code() const noexcept { return code_; }

  private:
    ringResult_t code_;
};

/** Throw unless the result is a success. */
inline void check(ringResult_t result, ringComm_t comm = nullptr) {
    if (result == ringSuccess)
        return;
    std::string text = ringGetLastError(comm);
    throw Error(result, text.empty() ? ringGetErrorString(result) : text);
}

/** The data type of an element. For a type of your own (a half, say) specialize it. */
template <typename T> struct TypeOf;
template <> struct TypeOf<std::int8_t> { static constexpr ringDataType_t value = ringInt8; };
template <> struct TypeOf<std::uint8_t> { static constexpr ringDataType_t value = ringUint8; };
template <> struct TypeOf<std::int16_t> { static constexpr ringDataType_t value = ringInt16; };
template <> struct TypeOf<std::uint16_t> { static constexpr ringDataType_t value = ringUint16; };
template <> struct TypeOf<std::int32_t> { static constexpr ringDataType_t value = ringInt32; };
template <> struct TypeOf<std::uint32_t> { static constexpr ringDataType_t value = ringUint32; };
template <> struct TypeOf<std::int64_t> { static constexpr ringDataType_t value = ringInt64; };
template <> struct TypeOf<std::uint64_t> { static constexpr ringDataType_t value = ringUint64; };
template <> struct TypeOf<float> { static constexpr ringDataType_t value = ringFloat32; };
template <> struct TypeOf<double> { static constexpr ringDataType_t value = ringFloat64; };
template <> struct TypeOf<bool> { static constexpr ringDataType_t value = ringBool; };

/** What leads the ranks of one communicator together. */
class UniqueId {
  public:
    UniqueId() { check(ringGetUniqueId(&id_)); }
    explicit UniqueId(const ringUniqueId &id) : id_(id) {}
    UniqueId(UniqueId &&) = default;
    UniqueId &operator=(UniqueId &&) = default;
    UniqueId(const UniqueId &) = delete;
    UniqueId &operator=(const UniqueId &) = delete;
    const ringUniqueId &bytes() const noexcept { return id_; }

  private:
    ringUniqueId id_;
};

/** A host stream: calls given to it run in order while the program goes on. */
class Stream {
  public:
    Stream() : handle_(nullptr) { check(ringStreamCreate(&handle_)); }
    /** Waits for its calls. */
    ~Stream() {
        if (handle_)
            ringStreamDestroy(handle_);
    }
    Stream(Stream &&other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
    Stream &operator=(Stream &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;

    ringStream_t handle() const noexcept { return handle_; }
    void synchronize() { check(ringStreamSynchronize(handle_)); }
    /** Whether everything that was given to the stream is done. */
    bool query() { return done(ringStreamQuery(handle_)); }
    /** A mark behind everything that was given to the stream so far. */
    std::uint64_t mark() {
        std::uint64_t mark = 0;
        check(ringStreamMark(handle_, &mark));
        return mark;
    }
    /** Wait until what is before the mark is done, at most so long, or without end; whether it is. */
    bool reached(std::uint64_t mark, std::int64_t timeout_ms = -1) {
        return done(ringStreamReached(handle_, mark, timeout_ms));
    }

  private:
    static bool done(ringResult_t result) {
        if (result != ringInProgress)
            check(result);
        return result == ringSuccess;
    }

    ringStream_t handle_;
};

namespace detail {
/** Make this thread's open group, if there is one, run nothing: a call of it is refused. */
inline void spoil_group() { ringBarrier(nullptr, nullptr); }
/** What a destructor may still give back: with a communicator goes all that was made with it. */
inline bool is_there(ringComm_t comm) {
    int rank = 0;
    return comm && ringCommUserRank(comm, &rank) == ringSuccess;
}
} // namespace detail

/**
 * Calls that this thread makes while it is open start together at end().
 *
 * Without end() none of them runs: a group that goes out of scope by an exception, by a return or
 * forgotten is dropped with all its calls. What was declared after it is gone by then, buffers and
 * communicators among them, and where the calls of some ranks are missing the others would wait for
 * them. With an inner group the groups around it are dropped, too; their end() throws.
 *
 * It ends on the thread that it began on.
 */
class Group {
  public:
    Group() : open_(true) { check(ringGroupStart()); }
    ~Group() {
        if (open_) {
            detail::spoil_group();
            ringGroupEnd();
        }
    }
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;
    /** Run the calls, unless a group around it is to; throws the first error among them. */
    void end() {
        if (!open_)
            throw Error(ringInvalidUsage, "invalid usage: this group has ended already");
        open_ = false;
        check(ringGroupEnd());
    }

  private:
    bool open_;
};

/** Run as one group the calls that `calls()` makes; none of them where it throws. */
template <typename Calls> void group(Calls &&calls) {
    Group open;
    calls();
    open.end();
}

/** Memory that other ranks reach directly, for elements that need no constructor. */
template <typename T> class Memory {
    static_assert(std::is_trivially_copyable<T>::value && std::is_trivially_destructible<T>::value,
                  "elements travel as bytes");

  public:
    /** Room for `count` elements, aligned to a page. Their values are not set. */
    explicit Memory(std::size_t count) : data_(nullptr), size_(count) {
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T))
            throw Error(ringInvalidArgument, "invalid argument: more bytes than addresses");
        void *memory = nullptr;
        check(ringMemAlloc(&memory, count * sizeof(T)));
        data_ = static_cast<T *>(memory);
    }
    /** No call uses it any more. */
    ~Memory() {
        if (data_)
            ringMemFree(data_);
    }
    Memory(Memory &&other) noexcept : data_(other.data_), size_(other.size_) {
        other.data_ = nullptr;
        other.size_ = 0;
    }
    Memory &operator=(Memory &&other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    T *data() noexcept { return data_; }
    const T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    T *begin() noexcept { return data_; }
    const T *begin() const noexcept { return data_; }
    T *end() noexcept { return data_ + size_; }
    const T *end() const noexcept { return data_ + size_; }
    T &operator[](std::size_t at) noexcept { return data_[at]; }
    const T &operator[](std::size_t at) const noexcept { return data_[at]; }

  private:
    T *data_;
    std::size_t size_;
};

/** One rank's end of a communicator. */
class Communicator {
  public:
    /** Join nranks ranks; returns when all have come. Not in a group: see split(). */
    Communicator(int nranks, const UniqueId &id, int rank, ringConfig_t *config = nullptr)
        : handle_(made(nullptr, [&](ringComm_t *place) {
              return ringCommInitRankConfig(place, nranks, id.bytes(), rank, config);
          })) {}
    /** Take a handle over. */
    explicit Communicator(ringComm_t handle) noexcept : handle_(handle) {}
    /** Finalizes. Where an open group holds calls of it, they could never run: it aborts. */
    ~Communicator() {
        ringComm_t handle = handle_;
        if (handle && ringCommDestroy(handle) == ringInvalidUsage)
            ringCommAbort(handle);
    }
    Communicator(Communicator &&other) noexcept : handle_(other.handle_.exchange(nullptr)) {}
    Communicator &operator=(Communicator &&other) noexcept {
        handle_ = other.handle_.exchange(handle_);
        return *this;
    }
    Communicator(const Communicator &) = delete;
    Communicator &operator=(const Communicator &) = delete;

    /** Every rank of a new communicator, all in this process, on the CPU. */
    static std::vector<Communicator> all(int nranks) { return all_on(nranks, nullptr); }
    /** The same, on these CUDA devices; -1 is the CPU. */
    static std::vector<Communicator> all(const std::vector<int> &devices) {
        return all_on(narrowed(devices.size()), devices.data());
    }
    /** Join the ranks that meet at `url`, or where the environment says. Not in a group. */
    static Communicator join(const char *url = nullptr, int nranks = -1, int rank = -1,
                             const ringConfig_t *config = nullptr) {
        return Communicator(made(nullptr, [&](ringComm_t *place) {
            return ringCommInitUrl(place, url, nranks, rank, config);
        }));
    }

    ringComm_t handle() const noexcept { return handle_; }
    /** Whether there is one: a rank that took no part in a split has none, nor one that aborted. */
    explicit operator bool() const noexcept { return handle() != nullptr; }

    int rank() const { return ask(ringCommUserRank); }
    int count() const { return ask(ringCommCount); }
    /** The CUDA device of this rank; -1 on the CPU. */
    int device() const { return ask(ringCommCuDevice); }

    /**
     * The communicator of the ranks that give the same color.
     *
     * Not in a group, where the handle comes with the group's end and this object would be there
     * before: that throws and the group runs nothing. There call ringCommSplit with a place that
     * lives long enough, and hand what it gets to a Communicator.
     */
    Communicator split(int color, int key, ringConfig_t *config = nullptr) {
        ringComm_t handle = handle_;
        return Communicator(made(handle, [&](ringComm_t *place) {
            return ringCommSplit(handle, color, key, place, config);
        }));
    }
    /** The communicator of those who are left, without the dead or without these. Not in a group. */
    Communicator shrink(std::vector<int> exclude = std::vector<int>(),
                        int flags = RING_SHRINK_DEFAULT, ringConfig_t *config = nullptr) {
        ringComm_t handle = handle_;
        return Communicator(made(handle, [&](ringComm_t *place) {
            return ringCommShrink(handle, exclude.data(), narrowed(exclude.size()), place, config,
                                  flags);
        }));
    }
    /** Wait for what was started, and say goodbye. */
    void finalize() { check_(ringCommFinalize(handle_)); }
    /** Fail what runs on it, from any thread, also while others call; the communicator is gone
     * afterwards. */
    void abort() { check(ringCommAbort(handle_.exchange(nullptr))); }
    /** What broke it, ringSuccess if nothing has. */
    ringResult_t asyncError() const {
        ringResult_t error = ringSuccess;
        check_(ringCommGetAsyncError(handle_, &error));
        return error;
    }
    /** The flight record, as JSON. */
    std::string dump() const { return text_of(ringCommDump); }
    /** The flight record, as a trace for Perfetto. */
    std::string trace() const { return text_of(ringCommTrace); }
    /** How a collective would run. */
    ringExplain_t explain(ringCollective_t collective, std::size_t count, ringDataType_t type,
                          ringRedOp_t op = ringSum, int root = 0) const {
        ringExplain_t answer = RING_EXPLAIN_INITIALIZER;
        check_(ringCommExplain(handle_, collective, count, type, op, root, &answer));
        return answer;
    }

    template <typename T>
    void allReduce(const T *send, T *recv, std::size_t count, ringRedOp_t op = ringSum,
                   ringStream_t stream = nullptr) {
        check_(ringAllReduce(send, recv, count, TypeOf<T>::value, op, handle_, stream));
    }
    template <typename T>
    void reduceScatter(const T *send, T *recv, std::size_t recvcount, ringRedOp_t op = ringSum,
                       ringStream_t stream = nullptr) {
        check_(ringReduceScatter(send, recv, recvcount, TypeOf<T>::value, op, handle_, stream));
    }
    template <typename T>
    void allGather(const T *send, T *recv, std::size_t sendcount, ringStream_t stream = nullptr) {
        check_(ringAllGather(send, recv, sendcount, TypeOf<T>::value, handle_, stream));
    }
    template <typename T>
    void broadcast(const T *send, T *recv, std::size_t count, int root,
                   ringStream_t stream = nullptr) {
        check_(ringBroadcast(send, recv, count, TypeOf<T>::value, root, handle_, stream));
    }
    template <typename T>
    void reduce(const T *send, T *recv, std::size_t count, int root, ringRedOp_t op = ringSum,
                ringStream_t stream = nullptr) {
        check_(ringReduce(send, recv, count, TypeOf<T>::value, op, root, handle_, stream));
    }
    template <typename T>
    void allToAll(const T *send, T *recv, std::size_t count, ringStream_t stream = nullptr) {
        check_(ringAllToAll(send, recv, count, TypeOf<T>::value, handle_, stream));
    }
    template <typename T>
    void gather(const T *send, T *recv, std::size_t count, int root,
                ringStream_t stream = nullptr) {
        check_(ringGather(send, recv, count, TypeOf<T>::value, root, handle_, stream));
    }
    template <typename T>
    void scatter(const T *send, T *recv, std::size_t count, int root,
                 ringStream_t stream = nullptr) {
        check_(ringScatter(send, recv, count, TypeOf<T>::value, root, handle_, stream));
    }
    template <typename T>
    void send(const T *buffer, std::size_t count, int peer, ringStream_t stream = nullptr) {
        check_(ringSend(buffer, count, TypeOf<T>::value, peer, handle_, stream));
    }
    template <typename T>
    void recv(T *buffer, std::size_t count, int peer, ringStream_t stream = nullptr) {
        check_(ringRecv(buffer, count, TypeOf<T>::value, peer, handle_, stream));
    }
    /** Whether a message of peer comes within so long; less than 0 is the deadline. */
    bool probe(int peer, std::int64_t timeout_ms = 0) {
        return done_(ringProbe(peer, timeout_ms, handle_));
    }
    /** Send if that waits for nobody; whether it was sent. */
    template <typename T> bool trySend(const T *buffer, std::size_t count, int peer) {
        return done_(ringTrySend(buffer, count, TypeOf<T>::value, peer, handle_));
    }
    void barrier(ringStream_t stream = nullptr) { check_(ringBarrier(handle_, stream)); }

    /* Blocks of different lengths. A list has a number for every rank; where only the root's are
     * used, the others may give empty ones. */

    template <typename T>
    void allGatherv(const T *send, std::size_t sendcount, T *recv, const Counts &recvcounts,
                    const Counts &rdispls, ringStream_t stream = nullptr) {
        check_(ringAllGatherv(send, sendcount, recv, listed(recvcounts), listed(rdispls),
                              TypeOf<T>::value, handle_, stream));
    }
    template <typename T>
    void reduceScatterv(const T *send, T *recv, const Counts &recvcounts,
                        ringRedOp_t op = ringSum, ringStream_t stream = nullptr) {
        check_(ringReduceScatterv(send, recv, listed(recvcounts), TypeOf<T>::value, op, handle_,
                                  stream));
    }
    template <typename T>
    void allToAllv(const T *send, const Counts &sendcounts, const Counts &sdispls, T *recv,
                   const Counts &recvcounts, const Counts &rdispls,
                   ringStream_t stream = nullptr) {
        check_(ringAllToAllv(send, listed(sendcounts), listed(sdispls), recv, listed(recvcounts),
                             listed(rdispls), TypeOf<T>::value, handle_, stream));
    }
    template <typename T>
    void gatherv(const T *send, std::size_t sendcount, T *recv, const Counts &recvcounts,
                 const Counts &rdispls, int root, ringStream_t stream = nullptr) {
        check_(ringGatherv(send, sendcount, recv, listed(recvcounts, root), listed(rdispls, root),
                           TypeOf<T>::value, root, handle_, stream));
    }
    template <typename T>
    void scatterv(const T *send, const Counts &sendcounts, const Counts &sdispls, T *recv,
                  std::size_t recvcount, int root, ringStream_t stream = nullptr) {
        check_(ringScatterv(send, listed(sendcounts, root), listed(sdispls, root), recv, recvcount,
                            TypeOf<T>::value, root, handle_, stream));
    }

  private:
    static std::vector<Communicator> all_on(int nranks, const int *devices) {
        if (nranks < 1)
            throw Error(ringInvalidArgument, "invalid argument: a communicator needs a rank");
        std::vector<ringComm_t> handles(static_cast<std::size_t>(nranks));
        check(ringCommInitAll(handles.data(), nranks, devices));
        std::vector<Communicator> communicators;
        communicators.reserve(handles.size());
        for (ringComm_t handle : handles)
            communicators.emplace_back(handle);
        return communicators;
    }
    static int narrowed(std::size_t size) {
        if (size > static_cast<std::size_t>(std::numeric_limits<int>::max()))
            throw Error(ringInvalidArgument, "invalid argument: more ranks than an int counts");
        return static_cast<int>(size);
    }
    void check_(ringResult_t result) const { check(result, handle_); }
    bool done_(ringResult_t result) const {
        if (result != ringInProgress)
            check_(result);
        return result == ringSuccess;
    }
    /** What a call writes that makes a communicator now. */
    template <typename Call> static ringComm_t made(ringComm_t parent, Call call) {
        /* The address of nothing that lives, and no handle. */
        char nobody = 0;
        const ringComm_t unwritten = reinterpret_cast<ringComm_t>(&nobody);
        ringComm_t handle = unwritten;
        check(call(&handle), parent);
        if (handle == unwritten) {
            /* The group's end would write to this frame, which is gone then. */
            detail::spoil_group();
            throw Error(ringInvalidUsage,
                        "invalid usage: a Communicator is not made in a group, whose end brings "
                        "the handle; nothing of the group will run");
        }
        return handle;
    }
    /** A list that the library reads to the last rank. */
    const std::size_t *listed(const Counts &numbers) const {
        const int ranks = count();
        if (numbers.size() != static_cast<std::size_t>(ranks))
            throw Error(ringInvalidArgument, "invalid argument: a list of " +
                                                 std::to_string(numbers.size()) + " numbers for " +
                                                 std::to_string(ranks) + " ranks");
        return numbers.data();
    }
    /** One that is read on the root only. */
    const std::size_t *listed(const Counts &numbers, int root) const {
        return rank() == root ? listed(numbers) : nullptr;
    }
    std::string text_of(ringResult_t (*question)(ringComm_t, char *, std::size_t,
                                                 std::size_t *)) const {
        std::string text;
        std::size_t needed = 0;
        do {
            /* The record may grow between two calls: some room to spare, and again. */
            text.resize(needed + 1024);
            check_(question(handle_, &text[0], text.size(), &needed));
        } while (needed > text.size());
        text.resize(needed - 1);
        return text;
    }
    int ask(ringResult_t (*question)(ringComm_t, int *)) const {
        int answer = 0;
        check_(question(handle_, &answer));
        return answer;
    }

    /* abort() takes it while other threads read it. */
    std::atomic<ringComm_t> handle_;
};

/** A buffer of the program's own that other ranks reach directly while this lives. It goes before
 * the buffer does; the communicator may go before it. */
class Registration {
  public:
    /** Whole pages of private memory. */
    Registration(const Communicator &comm, void *buffer, std::size_t bytes)
        : comm_(comm.handle()), handle_(nullptr) {
        check(ringCommRegister(comm_, buffer, bytes, &handle_), comm_);
    }
    /** No call uses the buffer any more. */
    ~Registration() {
        if (handle_ && detail::is_there(comm_))
            ringCommDeregister(comm_, handle_);
    }
    Registration(Registration &&other) noexcept : comm_(other.comm_), handle_(other.handle_) {
        other.handle_ = nullptr;
    }
    Registration &operator=(Registration &&other) noexcept {
        std::swap(comm_, other.comm_);
        std::swap(handle_, other.handle_);
        return *this;
    }
    Registration(const Registration &) = delete;
    Registration &operator=(const Registration &) = delete;

    void *handle() const noexcept { return handle_; }

  private:
    ringComm_t comm_;
    void *handle_;
};

/** A reduction that multiplies this rank's input by a scalar before summing; stands where ringSum
 * could, in calls on elements of the scalar's type. */
class Reduction {
  public:
    /** With this scalar. */
    template <typename T> static Reduction scaled(const Communicator &comm, T scalar) {
        return Reduction(comm, &scalar, TypeOf<T>::value, ringScalarHostImmediate);
    }
    /** With what `*scalar` is whenever a call is made; it outlives this. */
    template <typename T> static Reduction scaledBy(const Communicator &comm, T *scalar) {
        return Reduction(comm, scalar, TypeOf<T>::value, ringScalarDevice);
    }
    ~Reduction() {
        if (detail::is_there(comm_))
            ringRedOpDestroy(op_, comm_);
    }
    Reduction(Reduction &&other) noexcept : comm_(other.comm_), op_(other.op_) {
        other.comm_ = nullptr;
    }
    Reduction &operator=(Reduction &&other) noexcept {
        std::swap(comm_, other.comm_);
        std::swap(op_, other.op_);
        return *this;
    }
    Reduction(const Reduction &) = delete;
    Reduction &operator=(const Reduction &) = delete;

    ringRedOp_t handle() const noexcept { return op_; }
    operator ringRedOp_t() const noexcept { return op_; }

  private:
    Reduction(const Communicator &comm, void *scalar, ringDataType_t type,
              ringScalarResidence_t residence)
        : comm_(comm.handle()), op_(ringSum) {
        check(ringRedOpCreatePreMulSum(&op_, scalar, type, residence, comm_), comm_);
    }

    ringComm_t comm_;
    ringRedOp_t op_;
};

} // namespace ringcomm

#endif
