/*
 * ringcomm: collective communication between threads and processes.
 *
 * Generated from the comments and signatures in src/ffi; `make header` makes it anew.
 *
 * Whoever knows NCCL knows this interface: s/nccl/ring/. What holds for every function:
 *
 * - It returns a ringResult_t. ringGetLastError explains a failure in one sentence. Results are
 *   written through pointers on success only. NULL, unknown numbers and handles that are none, or
 *   no more, give ringInvalidArgument.
 * - It may be called from any thread. Calls on one communicator take turns, in the order in which
 *   every rank must make them.
 *
 * And for every collective:
 *
 * - `count` is in elements of `datatype`; zero is a count, and buffers need no alignment.
 * - `comm` is this rank's end; every rank of the communicator makes the same calls with the same
 *   count, type, operation and root.
 * - `stream` NULL: the call returns when it is done. A stream of ringStreamCreate: it returns at
 *   once, and buffers are left alone until ringStreamSynchronize. In a group: until ringGroupEnd.
 * - Send and receive buffers do not overlap, except in place, as each function says.
 * - Every rank gets the same bits, and the same call gives them again in the next run with as many
 *   ranks on each host; with `deterministic`, wherever the ranks are.
 * - Errors: ringInvalidArgument; ringInvalidUsage where ranks disagree (the text names both calls);
 *   ringRemoteError where a rank died or failed, ringTimeout where it did not come in time (the
 *   text names rank and operation); ringAborted. A communicator that failed stays failed: destroy
 *   or shrink it.
 */

#ifndef RINGCOMM_H
#define RINGCOMM_H

#include <stddef.h>
#include <stdint.h>

/**
 * The release's major number. What a program needs to load the library is the interface's number,
 * in its name (`libringcomm.so.1`); that is another one, and changes with the interface alone.
 */
#define RING_MAJOR 0

/**
 * The release's minor number: grows when something is added.
 */
#define RING_MINOR 1

/**
 * The release's patch number: grows when something is repaired.
 */
#define RING_PATCH 0

/**
 * `RING_MAJOR * 10000 + RING_MINOR * 100 + RING_PATCH`, as `ringGetVersion` answers.
 */
#define RING_VERSION_CODE 100

/**
 * Bytes of a unique id.
 */
#define RING_UNIQUE_ID_BYTES 128

/**
 * First field after `size` in every structure that a program hands in; "ring" in ASCII.
 */
#define RING_MAGIC 1919512167

/**
 * A configuration field with this value was not set: the environment or the default decides.
 */
#define RING_CONFIG_UNDEF_INT (-2147483647 - 1)

/**
 * [`ringConfig_t::protection`]: TCP's own checksum alone.
 */
#define RING_PROTECTION_CLEAR 0

/**
 * [`ringConfig_t::protection`]: a CRC-32C over every payload.
 */
#define RING_PROTECTION_CHECKSUM 1

/**
 * [`ringConfig_t::protection`]: AES-128-GCM over header and payload; what is used where nothing is
 * set.
 */
#define RING_PROTECTION_ENCRYPTED 2

/**
 * The color of a rank that joins none of the communicators of a split.
 */
#define RING_SPLIT_NOCOLOR (-1)

/**
 * Shrink a communicator on which nothing is running.
 */
#define RING_SHRINK_DEFAULT 0

/**
 * Abort what is running on the communicator, then shrink it.
 */
#define RING_SHRINK_ABORT 1

/**
 * Bytes of a name in `ringExplain_t`, its closing NUL among them.
 */
#define RING_NAME_BYTES 32

/**
 * What every function returns. Values below 64 are NCCL's.
 */
enum ringResult_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The call did what it says.
     */
    ringSuccess = 0,
    /**
     * A CUDA function failed.
     */
    ringUnhandledCudaError = 1,
    /**
     * The operating system refused something; the text says what, and its answer.
     */
    ringSystemError = 2,
    /**
     * A defect of the library; please report it with the text of `ringGetLastError`.
     */
    ringInternalError = 3,
    /**
     * An argument that can never be right: NULL, an unknown number, a handle that is not one (any
     * more), buffers that overlap in part.
     */
    ringInvalidArgument = 4,
    /**
     * A call that is right by itself but not here: ranks that disagree, an unbalanced group, a
     * communicator that has failed.
     */
    ringInvalidUsage = 5,
    /**
     * Another rank died or failed; the text names it.
     */
    ringRemoteError = 6,
    /**
     * Not an error: the work is still going on.
     */
    ringInProgress = 7,
    /**
     * A deadline passed while waiting for another rank; the text names it.
     */
    ringTimeout = 8,
    /**
     * `ringCommAbort` was called on this rank.
     */
    ringAborted = 64,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ringResult_t ringResult_t;
#else
typedef int32_t ringResult_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The type of one element. Values below 64 are NCCL's.
 */
enum ringDataType_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    ringInt8 = 0,
    ringUint8 = 1,
    ringInt32 = 2,
    ringUint32 = 3,
    ringInt64 = 4,
    ringUint64 = 5,
    /**
     * IEEE 754 binary16.
     */
    ringFloat16 = 6,
    ringFloat32 = 7,
    ringFloat64 = 8,
    /**
     * The upper half of a float32.
     */
    ringBfloat16 = 9,
    /**
     * Four exponent and three mantissa bits, no infinities (OCP 8-bit floating point, E4M3).
     */
    ringFloat8e4m3 = 10,
    /**
     * Five exponent and two mantissa bits (OCP 8-bit floating point, E5M2).
     */
    ringFloat8e5m2 = 11,
    ringInt16 = 64,
    ringUint16 = 65,
    /**
     * One byte; any other value than 0 is true, results are 0 or 1.
     */
    ringBool = 66,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ringDataType_t ringDataType_t;
#else
typedef int32_t ringDataType_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A reduction. Values below 64 are NCCL's; values from 1024 are made by
 * `ringRedOpCreatePreMulSum` and belong to one communicator.
 */
enum ringRedOp_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Integers wrap around. Floats of one host's ranks are summed in the order 0, 1, 2, ..., wider
     * than their type, and rounded once. Between hosts these sums are added as a balanced binary
     * tree, the larger half first, and each is rounded to the type and may overflow. With
     * `deterministic` all ranks are summed as those of one host; `RINGCOMM_ALGO` may ask for
     * another order.
     */
    ringSum = 0,
    /**
     * Integers wrap around.
     */
    ringProd = 1,
    /**
     * NaN wins.
     */
    ringMax = 2,
    /**
     * NaN wins.
     */
    ringMin = 3,
    /**
     * The sum, as of `ringSum`, divided by the number of ranks; integers are truncated to zero.
     * Where partial sums of float16 and 8-bit floats are rounded to the type, inputs are
     * multiplied by the first 1/2^k that is at most 1/ranks: no average of finite values
     * overflows, and values within 2^k of the type's smallest lose bits. Other floats overflow
     * where their sum does.
     */
    ringAvg = 4,
    /**
     * Bitwise and, of integers and bool.
     */
    ringBand = 64,
    /**
     * Bitwise or, of integers and bool.
     */
    ringBor = 65,
    /**
     * Bitwise exclusive or, of integers and bool.
     */
    ringBxor = 66,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ringRedOp_t ringRedOp_t;
#else
typedef int32_t ringRedOp_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Where the scalar of `ringRedOpCreatePreMulSum` lives. The values are NCCL's.
 */
enum ringScalarResidence_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Read by every call that uses the operation, when it is called. It lies in host memory, also
     * where the ranks are on devices.
     */
    ringScalarDevice = 0,
    /**
     * Read once, before `ringRedOpCreatePreMulSum` returns.
     */
    ringScalarHostImmediate = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ringScalarResidence_t ringScalarResidence_t;
#else
typedef int32_t ringScalarResidence_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The collectives, for `ringCommExplain`.
 */
enum ringCollective_t
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    ringCollAllReduce = 0,
    ringCollReduceScatter = 1,
    ringCollAllGather = 2,
    ringCollBroadcast = 3,
    ringCollReduce = 4,
    ringCollAllToAll = 5,
    ringCollGather = 6,
    ringCollScatter = 7,
    ringCollBarrier = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum ringCollective_t ringCollective_t;
#else
typedef int32_t ringCollective_t;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What `ringComm_t` seems to point to; it is never there.
 */
typedef struct ringComm ringComm;

/**
 * One rank's end of a communicator. Not an address: a handle that stays safe to pass after
 * `ringCommDestroy`, where every function answers `ringInvalidArgument`.
 */
typedef struct ringComm *ringComm_t;

/**
 * What leads the ranks of one communicator together. Made by `ringGetUniqueId` on one rank and
 * handed to the others by any means. It carries a secret: whoever has it can join.
 */
typedef struct ringUniqueId {
    char internal[RING_UNIQUE_ID_BYTES];
} ringUniqueId;

/**
 * Settings of one communicator, for `ringCommInitRankConfig`, `ringCommSplit` and
 * `ringCommShrink`. Begin with `RING_CONFIG_INITIALIZER`, then set what matters. A field that was
 * not set takes its value from the environment (`RINGCOMM_*`), else the default. All ranks need
 * the same values, except `spins`, `debug`, `interfaces`, `ports` and `device`.
 */
typedef struct ringConfig_t {
    /**
     * `sizeof(ringConfig_t)`.
     */
    size_t size;
    /**
     * `RING_MAGIC`.
     */
    uint32_t magic;
    /**
     * `RING_VERSION_CODE` of the header the program was built with.
     */
    uint32_t version;
    /**
     * Milliseconds that one operation waits for its peers before it fails (`RINGCOMM_TIMEOUT_MS`).
     * A rank on another host whose kernel answers nothing counts as dead after about seven
     * seconds, whatever this is: of a process that is stopped or busy the kernel answers.
     */
    int64_t timeoutMs;
    /**
     * Bytes of connection buffers of one rank (`RINGCOMM_BUFFSIZE`). Less than the default, 4 MiB,
     * of which more than two ranks use half, is shared by all its peers. The default and more are
     * for those of its host alone (for all, where hosts have several ranks and some rank is on a
     * CUDA device), and never less than ranks get that ask for nothing; each peer on another host
     * then has up to 20 MiB of addresses besides, which become memory as they are used. A rank on
     * a CUDA device has twice as many of pinned memory, through which long calls and messages that
     * go through the host go piece by piece.
     */
    int64_t buffSize;
    /**
     * 1: every result equals the serial loop over ranks 0, 1, 2, ... bit for bit
     * (`RINGCOMM_DETERMINISTIC`).
     */
    int deterministic;
    /**
     * Polls before a waiting rank first yields its core (`RINGCOMM_SPINS`).
     */
    int spins;
    /**
     * 1 prints errors to standard error, 2 every call too (`RINGCOMM_DEBUG`).
     */
    int debug;
    /**
     * What guards payloads between hosts (`RINGCOMM_PROTECTION`): `RING_PROTECTION_CLEAR`,
     * `RING_PROTECTION_CHECKSUM` or `RING_PROTECTION_ENCRYPTED`.
     */
    int protection;
    /**
     * The algorithm to use where it exists for the collective (`RINGCOMM_ALGO`); NULL: not set.
     */
    const char *algorithm;
    /**
     * A file with the cost model's constants (`RINGCOMM_TUNING_FILE`); NULL: not set.
     */
    const char *tuningFile;
    /**
     * Network interfaces between hosts, in NCCL's syntax (`RINGCOMM_SOCKET_IFNAME`); NULL: not
     * set. In a split or a shrink that means those of `comm`, whatever the environment says, and
     * so it does for `RINGCOMM_SOCKET_FAMILY`; others are refused where `comm` is on several
     * hosts, as its ranks look for each other at the addresses that they have.
     */
    const char *interfaces;
    /**
     * Ports to listen on, as `20000-20100` (`RINGCOMM_PORT_RANGE`); NULL: not set.
     */
    const char *ports;
    /**
     * Sockets to each peer on another host, 1 to 16 (`RINGCOMM_NSOCKS`).
     */
    int nsocks;
    /**
     * Whose memory this rank's calls may name beside the host's: that of the CUDA device with this
     * number, or -1 for nobody's (`RINGCOMM_CUDA=0`). Not set: that of the device which is current
     * on the calling thread, if the program uses CUDA; in a split or a shrink, of `comm`'s device.
     */
    int device;
    /**
     * Milliseconds that making a communicator waits for its ranks. Not set: as `timeoutMs`.
     */
    int64_t initTimeoutMs;
    /**
     * What moves messages between hosts (`RINGCOMM_NET`): `auto`, `tcp`, `ucx`, `plugin` or
     * `plugin:NAME`; NULL: not set.
     */
    const char *net;
} ringConfig_t;

/**
 * NULL: do the call now and return when it is done. Else a host stream of `ringStreamCreate`.
 *
 * On a rank that is on a CUDA device also a `CUstream` or `cudaStream_t`, and NULL is the device's
 * default stream: a call on device memory returns once its work is given to the stream. Operations
 * of a communicator run one after another, whatever streams they name.
 * `cudaStreamPerThread` is another stream on every thread: a group of several communicators takes
 * it for the first one's calls only, and refuses it for the others'.
 */
typedef void *ringStream_t;

/**
 * How a call would run: the answer of `ringCommExplain`. Begin with `RING_EXPLAIN_INITIALIZER`.
 */
typedef struct ringExplain_t {
    /**
     * `sizeof(ringExplain_t)`.
     */
    size_t size;
    /**
     * `RING_MAGIC`.
     */
    uint32_t magic;
    /**
     * `RING_VERSION_CODE` of the header the program was built with.
     */
    uint32_t version;
    /**
     * The algorithm's name, closed by a NUL.
     */
    char algorithm[RING_NAME_BYTES];
    /**
     * How data moves between the ranks, closed by a NUL. Where it says "or" the buffers decide;
     * the numbers are of the last of the two.
     */
    char transport[RING_NAME_BYTES];
    /**
     * Parallel channels: those of a hierarchical algorithm, times the sockets to a peer on another
     * host (`RINGCOMM_NSOCKS`); on devices, the connections that a plan is spread over.
     */
    size_t channels;
    /**
     * Parts that the buffer is cut into.
     */
    size_t chunks;
    /**
     * Passes over the chunks.
     */
    size_t slices;
    /**
     * Most bytes that one chunk moves in one pass.
     */
    size_t sliceBytes;
    /**
     * The cost model's time, in microseconds.
     */
    double predictedUs;
    /**
     * What runs instead, in the ranks' own buffers, closed by a NUL: between processes where all
     * of those of the call are memory that they share (`ringMemAlloc`, `ringCommRegister`),
     * between threads where no rank calls in place. Empty where the buffers change nothing.
     */
    char directAlgorithm[RING_NAME_BYTES];
    /**
     * The cost model's time for that, in microseconds; 0 where the name is empty.
     */
    double directPredictedUs;
    /**
     * 1 where that also holds for a call in place, else 0.
     */
    size_t directInPlace;
} ringExplain_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library that is loaded, as `RING_VERSION_CODE`.
 *
 * Requires:
 * `version` has room for an `int`.
 */
ringResult_t ringGetVersion(int *version);

/**
 * What a result code means, in one line. Never NULL, never freed.
 */
const char *ringGetErrorString(ringResult_t result);

/**
 * What went wrong in the last call that failed on this communicator, by whichever thread: who,
 * what, which rank, which operation, and what to do.
 *
 * A group that fails is such a call on each of its communicators, and a stream's call where it
 * runs.
 *
 * Where `comm` is NULL or destroyed: in this thread's last call that failed. Never NULL; "" where
 * nothing failed. Valid until the same thread calls this function again.
 *
 * Requires:
 * Safe for any argument.
 */
const char *ringGetLastError(ringComm_t comm);

/**
 * The number of ranks.
 *
 * `*count` is written on success.
 *
 * Requires:
 * `count` has room for an `int`.
 */
ringResult_t ringCommCount(ringComm_t comm, int *count);

/**
 * This rank.
 *
 * `*rank` is written on success.
 *
 * Requires:
 * `rank` has room for an `int`.
 */
ringResult_t ringCommUserRank(ringComm_t comm, int *rank);

/**
 * The CUDA device of this rank; -1 on the CPU.
 *
 * `*device` is written on success.
 *
 * Requires:
 * `device` has room for an `int`.
 */
ringResult_t ringCommCuDevice(ringComm_t comm, int *device);

/**
 * Make the id that leads the ranks of one new communicator together.
 *
 * Call it on one rank, and hand the 128 bytes to the others by any means: a file, a pipe, MPI. It
 * carries a secret: whoever has it can join. One id serves one communicator. On a machine with a
 * network the ranks may be on any host: a thread of the calling process introduces them to each
 * other, so the process has to live until all have joined; the thread and its sockets stay that
 * long, at most the deadline from when the first one came. Ids that nobody has used share one
 * thread, and hold sockets until `ringFreeUniqueId`. `RINGCOMM_SOCKET_IFNAME`,
 * `RINGCOMM_SOCKET_FAMILY` and `RINGCOMM_PORT_RANGE` say where it listens, and it does nowhere
 * else.
 *
 * Errors: `ringInvalidArgument` for NULL; `ringSystemError` where no socket or no randomness is
 * to be had.
 *
 * Requires:
 * `uniqueId` has room for a `ringUniqueId`.
 */
ringResult_t ringGetUniqueId(struct ringUniqueId *uniqueId);

/**
 * As `ringGetUniqueId`, for a new communicator of some ranks of `comm`: the `nranks` numbers at
 * `ranks`, each once. Where they share a host they meet without the network, which takes a
 * fraction of the time, and the id holds no sockets.
 *
 * One of them calls it, and hands the id to the others. `*uniqueId` is written on success. Errors:
 * `ringInvalidArgument` for NULL, a rank out of range, no rank; else as `ringGetUniqueId`.
 *
 * Requires:
 * `ranks` has `nranks` numbers; `uniqueId` has room for a `ringUniqueId`.
 */
ringResult_t ringCommGetUniqueId(ringComm_t comm,
                                 const int *ranks,
                                 int nranks,
                                 struct ringUniqueId *uniqueId);

/**
 * Give up what this process holds for an id that `ringGetUniqueId` gave and nobody will use: its
 * sockets. Ranks that try it from then on are refused. Nothing happens for an id that has been
 * used, that is free already, or that another process gave.
 *
 * Errors: `ringInvalidArgument` for an id that is none.
 */
ringResult_t ringFreeUniqueId(struct ringUniqueId uniqueId);

/**
 * Join `nranks` ranks as rank `rank`; returns when all have come. As `ringCommInitRankConfig`
 * with a NULL `config`.
 *
 * Requires:
 * `comm` has room for a `ringComm_t`, in a group until `ringGroupEnd`.
 */
ringResult_t ringCommInitRank(ringComm_t *comm, int nranks, struct ringUniqueId commId, int rank);

/**
 * Join `nranks` ranks as rank `rank`, with settings; returns when all have come.
 *
 * Every rank gives the same `nranks`, `commId` and settings, and a rank of its own from 0 to
 * `nranks - 1`. `config` may be NULL. In a group (`ringGroupStart`) the call returns at once and
 * `ringGroupEnd` makes all communicators that were asked for together, so that one thread can
 * be several ranks.
 *
 * `*comm` is written on success. Errors: `ringInvalidArgument` for NULL, a rank out of range, an
 * id that is none, a setting out of bounds; `ringTimeout` where not all ranks came in time (the
 * text names those missing); `ringInvalidUsage` where ranks disagree.
 *
 * Requires:
 * `comm` has room for a `ringComm_t`, in a group until `ringGroupEnd`; `config` is NULL or points
 * to an initialized `ringConfig_t`.
 */
ringResult_t ringCommInitRankConfig(ringComm_t *comm,
                                    int nranks,
                                    struct ringUniqueId commId,
                                    int rank,
                                    struct ringConfig_t *config);

/**
 * Make a communicator whose ranks are all in this process, and hand out every rank's end.
 *
 * `comm` is an array of `ndev` places; rank i's end is written to `comm[i]`, all of them on
 * success and none else. `devlist` is NULL, which puts all ranks on the CPU, or names the device
 * of each rank: a CUDA device's number, or -1 for the CPU. A device may have any number of ranks.
 * The ends are usually given to a thread each; one thread that makes the calls of several ranks
 * makes them in a group.
 *
 * Errors: `ringInvalidArgument` for NULL, `ndev` below 1 or above 1024, a device that is not
 * there; `ringSystemError` where there is not a thread for each rank to start on.
 *
 * Requires:
 * `comm` has room for `ndev` handles; `devlist` is NULL or has `ndev` numbers.
 */
ringResult_t ringCommInitAll(ringComm_t *comm, int ndev, const int *devlist);

/**
 * Divide a communicator: the ranks that give the same `color` form a new one, ordered by `key`
 * and, where keys are equal, by their old rank.
 *
 * Every rank of `comm` calls it. A rank that gives `RING_SPLIT_NOCOLOR` joins none and gets NULL.
 * `config` NULL: the settings of `comm`. `comm` stays usable. In a group the call returns at once
 * and `ringGroupEnd` does it.
 *
 * `*newcomm` is written on success. Errors: `ringInvalidArgument` for NULL, another negative
 * color, or other interfaces than those of `comm` between hosts; and those of a collective.
 *
 * Requires:
 * `newcomm` has room for a `ringComm_t`, in a group until `ringGroupEnd`; `config` is NULL or
 * points to an initialized `ringConfig_t`.
 */
ringResult_t ringCommSplit(ringComm_t comm,
                           int color,
                           int key,
                           ringComm_t *newcomm,
                           struct ringConfig_t *config);

/**
 * Make a communicator of the ranks that are left, in their old order.
 *
 * An `excludeRanksCount` of 0 leaves out the dead and those who destroyed `comm`: the survivors
 * agree on which ranks those are, also where more die meanwhile. A rank that lives and does not
 * call is waited for. Up to 4,096 ranks find the dead like this; in a larger communicator they
 * have to be listed, and 0 is refused with `ringInvalidUsage`.
 *
 * Else exactly the ranks in `excludeRanksList` are left out: those that stay call it with the same
 * list; those excluded need not take part and may be dead.
 *
 * Where a network comes apart, the ranks on either side find those on the other dead, and both may
 * shrink and go on alone. Compare `ringCommCount` of `*newcomm` with what the job can go on with,
 * more than half of its ranks for one, before it writes a checkpoint or anything else that counts.
 *
 * `shrinkFlags` is `RING_SHRINK_DEFAULT`, or `RING_SHRINK_ABORT` to abort first what is running on
 * `comm`, as after a failure. `config` NULL: the settings of `comm`. In a group the call returns
 * at once and `ringGroupEnd` does it.
 *
 * `*newcomm` is written on success. Errors: `ringInvalidArgument` for NULL, a rank out of range,
 * this rank in the list, unknown flags, other interfaces than those of `comm` between hosts;
 * `ringTimeout` where a rank that should stay did not come; `ringRemoteError` where it gave up, or
 * died though the list keeps it.
 *
 * Requires:
 * `excludeRanksList` has `excludeRanksCount` numbers; `newcomm` has room for a `ringComm_t`, in a
 * group until `ringGroupEnd`; `config` is NULL or points to an initialized `ringConfig_t`.
 */
ringResult_t ringCommShrink(ringComm_t comm,
                            int *excludeRanksList,
                            int excludeRanksCount,
                            ringComm_t *newcomm,
                            struct ringConfig_t *config,
                            int shrinkFlags);

/**
 * Wait for every call that was started on this rank, then say goodbye to the other ranks. Between
 * hosts it waits until the machines of the others have all that this rank sent.
 *
 * Ranks whose last calls differ, as in their roots, are told here, where the calls themselves
 * ended well: it waits up to a second for ranks of the machine that have not come to this rank's
 * last call.
 *
 * Calls that wait on a host stream are done first. The handle stays valid for questions and for
 * `ringCommDestroy`; new calls are refused. A second time it does nothing.
 *
 * Errors: `ringInvalidUsage` in a group that holds calls of the communicator, and where that of
 * another thread has not ended by the deadline, or last calls differ; the error that broke the
 * communicator.
 *
 * Requires:
 * Safe for any argument.
 */
ringResult_t ringCommFinalize(ringComm_t comm);

/**
 * End this rank's part in a communicator and give its memory back.
 *
 * New calls are refused from here on; those running, on other threads, and those that wait on a
 * host stream are done first. Finalizes, unless that was done or the communicator or a peer has
 * failed: only the call that runs is done then, and those that a stream still holds fail when
 * their turn comes, without touching a buffer. The handle is gone afterwards, also where
 * finalizing fails: its error is returned then, `ringAborted` where another thread called
 * `ringCommAbort` meanwhile. Calls in a group that another thread has not ended by the deadline
 * fail there. In every case this rank's buffers are the program's again.
 *
 * Errors: `ringInvalidArgument` for NULL, garbage, and a handle that was destroyed;
 * `ringInvalidUsage` in a group that holds calls of the communicator, which stays as it was.
 *
 * Requires:
 * Safe for any argument.
 */
ringResult_t ringCommDestroy(ringComm_t comm);

/**
 * Make every call that runs on this rank of the communicator return `ringAborted` soon, tell the
 * other ranks, and destroy the handle.
 *
 * Returns when the calls that ran have ended, also those of a group or a host stream. From any
 * thread, also while another one is in `ringCommDestroy` for the same handle. From a signal
 * handler that has interrupted a call that waits for other ranks it returns at once: that call
 * returns `ringAborted`, and the handle is there until it is aborted or destroyed from elsewhere.
 *
 * Errors: `ringInvalidArgument` for NULL, garbage, and a handle that was destroyed.
 *
 * Requires:
 * Safe for any argument.
 */
ringResult_t ringCommAbort(ringComm_t comm);

/**
 * The error that broke the communicator on this rank, `ringSuccess` if none has.
 *
 * `*asyncError` is written on success. The text is that of `ringGetLastError(comm)`. Does not
 * wait.
 *
 * Requires:
 * `asyncError` has room for a `ringResult_t`.
 */
ringResult_t ringCommGetAsyncError(ringComm_t comm, ringResult_t *asyncError);

/**
 * Join the ranks that meet at `url`, without handing an id around; returns when all have come.
 *
 * - `tcp://host:port`: rank 0 is on that host.
 * - `file:///path`: rank 0 leaves a file there, which the others see; its folder exists. The file
 *   goes when the ranks have met, and one that a crashed job left behind does no harm.
 * - `env://`: at MASTER_ADDR, on the port after MASTER_PORT, as RANK of WORLD_SIZE.
 * - `slurm://`: on the first node of the step, as `srun` numbers its tasks.
 * - NULL: as the environment says. RINGCOMM_RANK and RINGCOMM_NRANKS, RANK and WORLD_SIZE,
 *   HOROVOD_*, OMPI_COMM_WORLD_*, PMI_* and SLURM_* are asked in this order, and the first family
 *   that is complete is believed. RINGCOMM_ADDRESS (`host:port` or a URL) says where to meet.
 *
 * `nranks` and `rank` are -1 where the environment says them, or the URL itself in
 * `?rank=R&world_size=N`. Every rank gives the same URL. Called again, it makes another
 * communicator of the same ranks, on the next port; all ranks make theirs in the same order.
 * `config` may be NULL. In a group the call returns at once and `ringGroupEnd` does it; a group
 * joins no rank of one URL twice.
 *
 * Strangers are kept out by a secret: RINGCOMM_SECRET, the same text of at least 16 characters on
 * every rank; or RINGCOMM_SECRET_FILE, a file of mode 0600 that holds it; or what `file://` brings
 * with it. Without one, only ranks of one machine meet.
 *
 * `*comm` is written on success. Errors: `ringInvalidArgument` for NULL, a URL that is none, and
 * where variables do not say rank, number of ranks and place (the text says what was found and
 * what is missing); `ringInvalidUsage` where no launcher says anything, and for another host
 * without a secret; `ringTimeout` where not all ranks came in time; and those of
 * `ringCommInitRankConfig`.
 *
 * Requires:
 * `comm` has room for a `ringComm_t`, in a group until `ringGroupEnd`; `url` is NULL or a C
 * string; `config` is NULL or points to an initialized `ringConfig_t`.
 */
ringResult_t ringCommInitUrl(ringComm_t *comm,
                             const char *url,
                             int nranks,
                             int rank,
                             const struct ringConfig_t *config);

/**
 * What `ringCommInitUrl` would find in the environment: rank, number of ranks, the rank among
 * those of this machine, and all of it in a sentence. Joins nobody.
 *
 * `*localRank` is -1 where the launcher does not say it. `text` has room for `size` bytes; what
 * does not fit is cut off, and a NUL closes it. Where only a URL could say where to meet, the text
 * says so. Each pointer may be NULL. They are written on success.
 *
 * Errors: `ringInvalidUsage` where no launcher's variables are set, `ringInvalidArgument` where
 * they do not say rank and number of ranks; the text of `ringGetLastError` says what was found and
 * what is missing.
 *
 * Requires:
 * `rank`, `nranks` and `localRank` are NULL or have room for an `int`, `text` is NULL or has room
 * for `size` bytes.
 */
ringResult_t ringLauncherInfo(int *rank, int *nranks, int *localRank, char *text, size_t size);

/**
 * Open a group on this thread: the calls until the matching `ringGroupEnd` are kept and start
 * together there.
 *
 * Needed where a thread makes the calls of several ranks, and for sends and receives that wait for
 * each other. Of each communicator the collectives run first, in the order of the calls, and then
 * all sends and receives together, wherever they stood among them; communicators run at the same
 * time. Groups nest; the outermost counts. Buffers stay untouched until the group's end.
 *
 * A thread that makes the calls of several ranks without a group waits for itself. Nothing tells
 * that from another thread that is late: the first such call ends at the deadline (`timeoutMs`),
 * with a hint where this thread made all ranks. Between devices of one process a later call is
 * refused (`ringInvalidUsage`) once it has waited 10 s, or half the deadline where that is less,
 * for a rank whose last call its own thread made, even if another thread was to make the next one
 * later than that.
 */
ringResult_t ringGroupStart(void);

/**
 * Close the thread's innermost group; if it is the outermost, run what it holds.
 *
 * Returns when all of it is done, except calls on a stream, which go on there. Communicators that
 * were asked for are all made, or none is. Returns the first error of the calls. Where one of them
 * was refused as it was made, none of them runs: a call that cannot be right (`ringBarrier` of
 * NULL) drops what the thread's groups hold.
 *
 * Errors: `ringInvalidUsage` without a matching `ringGroupStart`, and those of the calls.
 */
ringResult_t ringGroupEnd(void);

/**
 * Reduce `count` elements of every rank; every rank gets the result.
 *
 * `sendbuff` and `recvbuff` hold `count` elements. In place: `sendbuff == recvbuff`.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done.
 */
ringResult_t ringAllReduce(const void *sendbuff,
                           void *recvbuff,
                           size_t count,
                           ringDataType_t datatype,
                           ringRedOp_t op,
                           ringComm_t comm,
                           ringStream_t stream);

/**
 * Reduce the blocks of every rank; rank r gets block r of the result.
 *
 * `sendbuff` holds `nranks * recvcount` elements, `recvbuff` `recvcount`. In place:
 * `recvbuff == sendbuff + rank * recvcount` elements.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done.
 */
ringResult_t ringReduceScatter(const void *sendbuff,
                               void *recvbuff,
                               size_t recvcount,
                               ringDataType_t datatype,
                               ringRedOp_t op,
                               ringComm_t comm,
                               ringStream_t stream);

/**
 * Every rank gets the blocks of all ranks, in the order of ranks.
 *
 * `sendbuff` holds `sendcount` elements, `recvbuff` `nranks * sendcount`. In place:
 * `sendbuff == recvbuff + rank * sendcount` elements.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done.
 */
ringResult_t ringAllGather(const void *sendbuff,
                           void *recvbuff,
                           size_t sendcount,
                           ringDataType_t datatype,
                           ringComm_t comm,
                           ringStream_t stream);

/**
 * Every rank gets the root's elements.
 *
 * `sendbuff` holds `count` elements and is used on `root` only; `recvbuff` holds `count`. In
 * place: `sendbuff == recvbuff` on the root.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done.
 */
ringResult_t ringBroadcast(const void *sendbuff,
                           void *recvbuff,
                           size_t count,
                           ringDataType_t datatype,
                           int root,
                           ringComm_t comm,
                           ringStream_t stream);

/**
 * Reduce `count` elements of every rank; the root gets the result.
 *
 * `sendbuff` holds `count` elements; `recvbuff` holds `count` and is used on `root` only. In
 * place: `sendbuff == recvbuff` on the root.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done.
 */
ringResult_t ringReduce(const void *sendbuff,
                        void *recvbuff,
                        size_t count,
                        ringDataType_t datatype,
                        ringRedOp_t op,
                        int root,
                        ringComm_t comm,
                        ringStream_t stream);

/**
 * Every rank sends block d of its buffer to rank d and gets the block from rank s as its block s.
 *
 * Both buffers hold `nranks * count` elements. In place: `sendbuff == recvbuff`.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done.
 */
ringResult_t ringAllToAll(const void *sendbuff,
                          void *recvbuff,
                          size_t count,
                          ringDataType_t datatype,
                          ringComm_t comm,
                          ringStream_t stream);

/**
 * The root gets the blocks of all ranks, in the order of ranks.
 *
 * `sendbuff` holds `count` elements; `recvbuff` holds `nranks * count` and is used on `root` only.
 * In place: `sendbuff == recvbuff + root * count` elements on the root.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done.
 */
ringResult_t ringGather(const void *sendbuff,
                        void *recvbuff,
                        size_t count,
                        ringDataType_t datatype,
                        int root,
                        ringComm_t comm,
                        ringStream_t stream);

/**
 * Rank r gets block r of the root's buffer.
 *
 * `sendbuff` holds `nranks * count` elements and is used on `root` only; `recvbuff` holds `count`.
 * In place: `recvbuff == sendbuff + root * count` elements on the root.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done.
 */
ringResult_t ringScatter(const void *sendbuff,
                         void *recvbuff,
                         size_t count,
                         ringDataType_t datatype,
                         int root,
                         ringComm_t comm,
                         ringStream_t stream);

/**
 * Return on every rank after every rank has called.
 *
 * Requires:
 * Safe for any arguments.
 */
ringResult_t ringBarrier(ringComm_t comm, ringStream_t stream);

/**
 * Send `count` elements to `peer`, which receives them with `ringRecv`.
 *
 * Returns when the buffer may be used again: for a short message (a slot at most, 64 KiB or less
 * with many ranks) soon, for a longer one, or in a group that also receives, once the peer has it.
 * Messages between two ranks arrive in the order
 * sent. Sends and receives that wait for each other belong in one group, in which what is received
 * overlaps no other buffer. On a rank with a CUDA device messages of its memory are in the order
 * of `stream`, and the call, or the group's end, may return before the stream has come to them.
 *
 * Requires:
 * The buffer is valid for the elements named, until the call is done.
 */
ringResult_t ringSend(const void *sendbuff,
                      size_t count,
                      ringDataType_t datatype,
                      int peer,
                      ringComm_t comm,
                      ringStream_t stream);

/**
 * Receive `count` elements from `peer`, which sends them with `ringSend`, of the same count and
 * type.
 *
 * Requires:
 * The buffer is valid for the elements named, until the call is done.
 */
ringResult_t ringRecv(void *recvbuff,
                      size_t count,
                      ringDataType_t datatype,
                      int peer,
                      ringComm_t comm,
                      ringStream_t stream);

/**
 * Wait until a message of `peer` has come, at most about `timeoutMs` milliseconds and the
 * communicator's deadline; less than 0 is that deadline, 0 does not wait.
 *
 * Returns `ringInProgress` where none has, else `ringSuccess`: the next `ringRecv` from `peer`
 * finds its message there, the beginning at the least. What a collective sends counts as a
 * message, so probe while `peer` makes none. An error is what a receive would return,
 * and ends the communicator as that does. It is for ranks without a CUDA device.
 *
 * Requires:
 * Safe for any arguments.
 */
ringResult_t ringProbe(int peer, int64_t timeoutMs, ringComm_t comm);

/**
 * As `ringSend`, if the message leaves at once: `ringInProgress`, and nothing is sent, where the
 * send would wait for `peer` or for another call on the communicator.
 *
 * A message leaves at once to a rank on this machine, up to the length of a slot (see `ringSend`),
 * while a slot is free. It is never part of a group, and for ranks without a CUDA device.
 *
 * Requires:
 * The buffer is valid for the elements named.
 */
ringResult_t ringTrySend(const void *sendbuff,
                         size_t count,
                         ringDataType_t datatype,
                         int peer,
                         ringComm_t comm);

/**
 * Every rank gets the blocks of all ranks, of different lengths.
 *
 * `sendbuff` holds `sendcount` elements, `recvcounts[rank]` of them on every rank; the block of
 * rank r goes to `recvbuff + rdispls[r]` elements. In place: `sendbuff == recvbuff +
 * rdispls[rank]` elements. The arrays have `nranks` values, the same on every rank for
 * `recvcounts`.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done; the arrays while it is
 * made.
 */
ringResult_t ringAllGatherv(const void *sendbuff,
                            size_t sendcount,
                            void *recvbuff,
                            const size_t *recvcounts,
                            const size_t *rdispls,
                            ringDataType_t datatype,
                            ringComm_t comm,
                            ringStream_t stream);

/**
 * Reduce the blocks of every rank, of different lengths; rank r gets block r of the result.
 *
 * `sendbuff` holds the blocks of all ranks one after the other, `recvcounts[r]` elements for rank
 * r; `recvbuff` holds `recvcounts[rank]`. In place: `recvbuff` is where this rank's block begins
 * in `sendbuff`. `recvcounts` has `nranks` values, the same on every rank.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done; the array while it is
 * made.
 */
ringResult_t ringReduceScatterv(const void *sendbuff,
                                void *recvbuff,
                                const size_t *recvcounts,
                                ringDataType_t datatype,
                                ringRedOp_t op,
                                ringComm_t comm,
                                ringStream_t stream);

/**
 * Every rank sends a block to every rank, of different lengths.
 *
 * `sendcounts[d]` elements from `sendbuff + sdispls[d]` go to rank d; `recvcounts[s]` elements
 * from rank s come to `recvbuff + rdispls[s]`, as many as that rank sends. The arrays have
 * `nranks` values. Not in place: buffers that overlap are refused.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done; the arrays while it is
 * made.
 */
ringResult_t ringAllToAllv(const void *sendbuff,
                           const size_t *sendcounts,
                           const size_t *sdispls,
                           void *recvbuff,
                           const size_t *recvcounts,
                           const size_t *rdispls,
                           ringDataType_t datatype,
                           ringComm_t comm,
                           ringStream_t stream);

/**
 * The root gets the blocks of all ranks, of different lengths.
 *
 * `sendbuff` holds `sendcount` elements, `recvcounts[rank]` of the root; the block of rank r goes
 * to `recvbuff + rdispls[r]` elements on the root. `recvbuff` and the arrays, of `nranks` values,
 * are used on `root` only. In place: `sendbuff == recvbuff + rdispls[root]` elements on the root.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done; the arrays while it is
 * made.
 */
ringResult_t ringGatherv(const void *sendbuff,
                         size_t sendcount,
                         void *recvbuff,
                         const size_t *recvcounts,
                         const size_t *rdispls,
                         ringDataType_t datatype,
                         int root,
                         ringComm_t comm,
                         ringStream_t stream);

/**
 * Rank r gets its block of the root's buffer, of different lengths.
 *
 * `sendcounts[r]` elements from `sendbuff + sdispls[r]` on the root go to rank r, where `recvbuff`
 * holds `recvcount`, the same number. `sendbuff` and the arrays, of `nranks` values, are used on
 * `root` only. In place: `recvbuff == sendbuff + sdispls[root]` elements on the root.
 *
 * Requires:
 * The buffers are valid for the elements named, until the call is done; the arrays while it is
 * made.
 */
ringResult_t ringScatterv(const void *sendbuff,
                          const size_t *sendcounts,
                          const size_t *sdispls,
                          void *recvbuff,
                          size_t recvcount,
                          ringDataType_t datatype,
                          int root,
                          ringComm_t comm,
                          ringStream_t stream);

/**
 * Make a host stream: calls that are given it return at once and run in order, on a thread of the
 * stream. Their buffers stay untouched until `ringStreamSynchronize`. 256 calls may wait in it;
 * one more returns when there is room: a thread that gives calls to several ranks' streams puts
 * those of one step on all streams before those of the next, or in a group.
 *
 * `*stream` is written on success.
 *
 * Requires:
 * `stream` has room for a `ringStream_t`.
 */
ringResult_t ringStreamCreate(ringStream_t *stream);

/**
 * Wait until every call that was given to the stream is done.
 *
 * Returns the first error of those calls since the last time.
 *
 * Requires:
 * Safe for any argument.
 */
ringResult_t ringStreamSynchronize(ringStream_t stream);

/**
 * Whether every call that was given to the stream is done: `ringSuccess`, or `ringInProgress`.
 * Does not wait.
 *
 * Returns the first error of those calls since the last `ringStreamSynchronize`.
 *
 * Requires:
 * Safe for any argument.
 */
ringResult_t ringStreamQuery(ringStream_t stream);

/**
 * A mark behind every call that was given to the stream so far, for `ringStreamReached`.
 *
 * `*mark` is written on success.
 *
 * Requires:
 * `mark` has room for a `uint64_t`.
 */
ringResult_t ringStreamMark(ringStream_t stream, uint64_t *mark);

/**
 * Wait until the calls before the mark are done, at most `timeoutMs` milliseconds; less than 0 is
 * without end, 0 does not wait. Calls behind the mark are not waited for.
 *
 * Returns `ringInProgress` where they are not, else the first error of those calls since the last
 * `ringStreamSynchronize`. With the highest bit set in the mark (`mark | 1 << 63`) it is the error
 * of the call just before the mark and of no other, also after a `ringStreamSynchronize`; of calls
 * that have failed 512 are known, and `ringInvalidUsage` is what is said of older ones.
 *
 * Requires:
 * Safe for any arguments.
 */
ringResult_t ringStreamReached(ringStream_t stream, uint64_t mark, int64_t timeoutMs);

/**
 * Wait as `ringStreamSynchronize` does, then end the stream. The handle is gone afterwards, also
 * where a call had failed.
 *
 * Requires:
 * Safe for any argument.
 */
ringResult_t ringStreamDestroy(ringStream_t stream);

/**
 * Allocate memory that other ranks reach directly.
 *
 * Where all ranks' buffers of a call are such memory, or all ranks are threads of one process, a
 * collective of more than a few KiB moves its data from buffer to buffer, without staging (the
 * cost model decides from where on; `ringCommExplain` says how). Of `ringSend`, `ringAllToAllv`,
 * `ringGatherv` and `ringScatterv` a block that is longer than a slot (64 KiB at most), and a
 * shorter one where the rank receives in the same call or group and that is faster, is copied
 * once, from the send buffer, where that is such memory, whatever the receiver's is. What
 * goes through slots at any length: `ringAllToAll` in place, algorithms of `RINGCOMM_ALGO` in
 * which ranks pass on what they got (rings, trees, halving), and everything between hosts.
 *
 * `*ptr` is written on success, aligned to a page; zero bytes give a pointer that can be freed. A
 * child made by `fork` shares the memory with its parent: what one writes, the other reads, and
 * when the parent has freed it the child reads zeros.
 *
 * A rank that gives up waits for peers that are writing here. One that is stopped (SIGSTOP) in the
 * middle of that is waited for two seconds, and finishes its write when it goes on.
 *
 * Errors: `ringInvalidArgument` for NULL; `ringSystemError` where there is not enough memory.
 *
 * Requires:
 * `ptr` has room for a pointer.
 */
ringResult_t ringMemAlloc(void **ptr, size_t size);

/**
 * Free memory of `ringMemAlloc`.
 *
 * Errors: `ringInvalidArgument` where `ptr` is not one of its pointers, or was freed.
 *
 * Requires:
 * No call uses the memory any more.
 */
ringResult_t ringMemFree(void *ptr);

/**
 * Tell the communicator about a buffer that will be used again and again, so that other ranks
 * reach it directly.
 *
 * Never needed for a right result. Where short calls of one collective, count, type, operation and
 * root have run in memory that is not shared, up to fifteen more may pass before one finds that
 * all ranks' buffers now are. `*handle` is written on success, for `ringCommDeregister`. The
 * buffer stays allocated until then. Destroying or aborting the communicator takes back what is
 * left; the handle is gone then. Of a peer that is stopped in the middle of a write, see
 * `ringMemAlloc`. While this runs no thread writes to the buffer, which is moved: what is written
 * meanwhile may be lost. While it is registered, a child made by `fork` shares it with its
 * parent; see `ringCommDeregister` for what it has afterwards.
 *
 * Errors: `ringInvalidArgument` for NULL, and a range that is not whole pages or not private,
 * writable memory throughout (not mapped, mapped from a shared file, partly registered already).
 *
 * Requires:
 * `buff` is valid for `size` bytes; `handle` has room for a pointer.
 */
ringResult_t ringCommRegister(ringComm_t comm, void *buff, size_t size, void **handle);

/**
 * Undo `ringCommRegister`.
 *
 * After the last registration of a buffer it is private again, with its content; other threads may
 * go on reading and writing it meanwhile, and while a communicator is destroyed or aborted.
 *
 * A child that was forked while the buffer was registered keeps it with the content of this
 * moment, and shares it no more. The parent's buffer then takes its memory twice until it is
 * unmapped, also after the child has ended, and `madvise(MADV_DONTNEED)` there brings that content
 * back, and no zeros: who hands such a buffer back to an allocator that counts on zeros registers
 * it after the last fork, or uses `ringMemAlloc`.
 *
 * Errors: `ringInvalidArgument` where `handle` is none of this communicator, or was deregistered.
 *
 * Requires:
 * No call uses the buffer any more.
 */
ringResult_t ringCommDeregister(ringComm_t comm, void *handle);

/**
 * Make a reduction that multiplies each rank's input by a scalar of that rank before summing.
 *
 * `scalar` points to one element of type `datatype`. With `ringScalarHostImmediate` it is read
 * before this function returns; with `ringScalarDevice` by every call that uses the reduction,
 * when it is called, and must stay valid until `ringRedOpDestroy`. The reduction goes with this
 * communicator and this type only; each rank makes its own, and the scalars may differ.
 *
 * `*op` is written on success: a number from 1024. Errors: `ringInvalidArgument` for NULL, an
 * unknown type or residence, bool, or a 64-bit integer of more than 53 significant bits.
 *
 * Requires:
 * `op` has room for a `ringRedOp_t`; `scalar` is valid as said above.
 */
ringResult_t ringRedOpCreatePreMulSum(ringRedOp_t *op,
                                      void *scalar,
                                      ringDataType_t datatype,
                                      ringScalarResidence_t residence,
                                      ringComm_t comm);

/**
 * Destroy a reduction of `ringRedOpCreatePreMulSum`. Calls that were made with it are not touched.
 *
 * Errors: `ringInvalidArgument` where it is none of this communicator, or was destroyed.
 *
 * Requires:
 * Safe for any arguments.
 */
ringResult_t ringRedOpDestroy(ringRedOp_t op, ringComm_t comm);

/**
 * How a collective would run on this communicator: algorithm, transport, channels, chunks, time.
 *
 * `count` as in the collective's own function; `op` counts for those that reduce, `root` for those
 * that have one. Nothing is sent, and the other ranks need not ask. Does not wait for calls that
 * other threads make, but where several processes share devices. Set `explain` to
 * `RING_EXPLAIN_INITIALIZER` before; it is written on success.
 *
 * Requires:
 * `explain` points to an initialized `ringExplain_t`.
 */
ringResult_t ringCommExplain(ringComm_t comm,
                             ringCollective_t collective,
                             size_t count,
                             ringDataType_t datatype,
                             ringRedOp_t op,
                             int root,
                             struct ringExplain_t *explain);

/**
 * The flight record of this rank, as JSON: the last operations, and who waits for whom.
 *
 * Like `snprintf`: the text and a NUL are written to `buffer` if they fit into `size` bytes, else
 * nothing is; `*needed` gets the bytes needed, with the NUL, in both cases. `buffer` may be NULL.
 * The record grows while calls run, so ask with room to spare. Never waits, from any thread.
 *
 * `steps_done` of `steps` is how far an operation had come at its last long wait; both are null
 * where none was long, and for calls that run in kernels. A step is one of the plan's for a slice
 * (collectives through slots), a byte (messages, and the `v` forms that run as such; some bytes
 * where they are more than 2^32), or a peer that was met, the work, and a peer that has done its
 * part (collectives in each other's buffers).
 *
 * Requires:
 * `buffer` is NULL or has room for `size` bytes; `needed` has room for a `size_t`.
 */
ringResult_t ringCommDump(ringComm_t comm, char *buffer, size_t size, size_t *needed);

/**
 * The same operations as a trace: open the text as a file in ui.perfetto.dev or chrome://tracing.
 *
 * JSON trace events: a process for each rank, a track for each communicator. Times are those of
 * the system's monotonic clock, so traces of one machine's ranks lie side by side. Buffer and
 * sizes as in `ringCommDump`. Never waits, from any thread.
 *
 * Requires:
 * `buffer` is NULL or has room for `size` bytes; `needed` has room for a `size_t`.
 */
ringResult_t ringCommTrace(ringComm_t comm, char *buffer, size_t size, size_t *needed);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RINGCOMM_H */


/** A ringConfig_t in which nothing is set. */
#define RING_CONFIG_INITIALIZER                                                                    \
    {                                                                                              \
        sizeof(ringConfig_t), RING_MAGIC, RING_VERSION_CODE, RING_CONFIG_UNDEF_INT,                \
            RING_CONFIG_UNDEF_INT, RING_CONFIG_UNDEF_INT, RING_CONFIG_UNDEF_INT,                   \
            RING_CONFIG_UNDEF_INT, RING_CONFIG_UNDEF_INT, NULL, NULL, NULL, NULL,                  \
            RING_CONFIG_UNDEF_INT, RING_CONFIG_UNDEF_INT, RING_CONFIG_UNDEF_INT, NULL              \
    }

/** A ringExplain_t for ringCommExplain to fill. */
#define RING_EXPLAIN_INITIALIZER                                                                   \
    {                                                                                              \
        sizeof(ringExplain_t), RING_MAGIC, RING_VERSION_CODE, { 0 }, { 0 }, 0, 0, 0, 0, 0.0, { 0 },\
            0.0, 0                                                                                 \
    }

/** The code of a version, to compare with RING_VERSION_CODE. */
#define RING_VERSION(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))

/* NCCL's other names for some types. */
#define ringChar ringInt8
#define ringInt ringInt32
#define ringHalf ringFloat16
#define ringFloat ringFloat32
#define ringDouble ringFloat64
