/*
 * ringcomm for C++11: owners that clean up after themselves, and errors as exceptions.
 *
 * Header only and thin: every function is one call of ringcomm.h, which says what it means. An
 * object owns its handle, moves, and does not copy; handle() gives it to the C interface.
 */
#ifndef RINGCOMM_HPP
#define RINGCOMM_HPP

#include "ringcomm.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ringcomm {

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

/** The data type of an element. */
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
    bool query() {
        ringResult_t result = ringStreamQuery(handle_);
        if (result != ringInProgress)
            check(result);
        return result == ringSuccess;
    }

  private:
    ringStream_t handle_;
};

/** Calls made while it lives start together at end(), or when it goes out of scope. */
class Group {
  public:
    Group() : open_(true) { check(ringGroupStart()); }
    ~Group() {
        if (open_)
            ringGroupEnd();
    }
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;
    void end() {
        open_ = false;
        check(ringGroupEnd());
    }

  private:
    bool open_;
};

/** One rank's end of a communicator. */
class Communicator {
  public:
    /** Join nranks ranks; returns when all have come. */
    Communicator(int nranks, const UniqueId &id, int rank, ringConfig_t *config = nullptr)
        : handle_(nullptr) {
        ringComm_t handle = nullptr;
        check(ringCommInitRankConfig(&handle, nranks, id.bytes(), rank, config));
        handle_ = handle;
    }
    /** Take a handle over. */
    explicit Communicator(ringComm_t handle) noexcept : handle_(handle) {}
    ~Communicator() {
        if (ringComm_t handle = handle_)
            ringCommDestroy(handle);
    }
    Communicator(Communicator &&other) noexcept : handle_(other.handle_.exchange(nullptr)) {}
    Communicator &operator=(Communicator &&other) noexcept {
        handle_ = other.handle_.exchange(handle_);
        return *this;
    }
    Communicator(const Communicator &) = delete;
    Communicator &operator=(const Communicator &) = delete;

    /** Every rank of a new communicator, all in this process. */
    static std::vector<Communicator> all(int nranks) {
        if (nranks < 1)
            throw Error(ringInvalidArgument, "a communicator needs a rank");
        std::vector<ringComm_t> handles(static_cast<std::size_t>(nranks));
        check(ringCommInitAll(handles.data(), nranks, nullptr));
        std::vector<Communicator> communicators;
        communicators.reserve(handles.size());
        for (ringComm_t handle : handles)
            communicators.emplace_back(handle);
        return communicators;
    }

    ringComm_t handle() const noexcept { return handle_; }
    /** Whether there is one: a rank that took no part in a split has none, nor one that aborted. */
    explicit operator bool() const noexcept { return handle() != nullptr; }

    int rank() const { return ask(ringCommUserRank); }
    int count() const { return ask(ringCommCount); }

    /** The communicator of the ranks that give the same color. */
    Communicator split(int color, int key, ringConfig_t *config = nullptr) {
        ringComm_t handle = nullptr;
        check_(ringCommSplit(handle_, color, key, &handle, config));
        return Communicator(handle);
    }
    /** Wait for what was started, and say goodbye. */
    void finalize() { check_(ringCommFinalize(handle_)); }
    /** Fail what runs on it, from any thread, also while others call; the communicator is gone
     * afterwards. */
    void abort() { check(ringCommAbort(handle_.exchange(nullptr))); }
    /** The flight record, as JSON. */
    std::string dump() const { return text_of(ringCommDump); }
    /** The flight record, as a trace for Perfetto. */
    std::string trace() const { return text_of(ringCommTrace); }

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
    void barrier(ringStream_t stream = nullptr) { check_(ringBarrier(handle_, stream)); }

  private:
    void check_(ringResult_t result) const { check(result, handle_); }
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

} // namespace ringcomm

#endif
