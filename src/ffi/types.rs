//! The types a C program sees: the first part of `include/ringcomm.h`.
//!
//! C enums arrive as [`RawDataType`] and its like, never as the Rust enums: a C program can put any
//! number there, and a Rust enum with an unknown number is undefined behaviour. The generator
//! gives both the enum's name in the header.
#![allow(non_camel_case_types, non_upper_case_globals)]

use std::ffi::{c_char, c_int, c_void};

/// The release's major number. What a program needs to load the library is the interface's number,
/// in its name (`libringcomm.so.1`); that is another one, and changes with the interface alone.
pub const RING_MAJOR: i32 = 0;
/// The release's minor number: grows when something is added.
pub const RING_MINOR: i32 = 1;
/// The release's patch number: grows when something is repaired.
pub const RING_PATCH: i32 = 0;
/// `RING_MAJOR * 10000 + RING_MINOR * 100 + RING_PATCH`, as `ringGetVersion` answers.
pub const RING_VERSION_CODE: i32 = 100;
/// Bytes of a unique id.
pub const RING_UNIQUE_ID_BYTES: usize = 128;
/// First field after `size` in every structure that a program hands in; "ring" in ASCII.
pub const RING_MAGIC: u32 = 0x72696e67;
/// A configuration field with this value was not set: the environment or the default decides.
pub const RING_CONFIG_UNDEF_INT: i32 = -2147483648;

/// [`ringConfig_t::protection`]: TCP's own checksum alone.
pub const RING_PROTECTION_CLEAR: c_int = 0;
/// [`ringConfig_t::protection`]: a CRC-32C over every payload.
pub const RING_PROTECTION_CHECKSUM: c_int = 1;
/// [`ringConfig_t::protection`]: AES-128-GCM over header and payload; what is used where nothing is
/// set.
pub const RING_PROTECTION_ENCRYPTED: c_int = 2;
/// The color of a rank that joins none of the communicators of a split.
pub const RING_SPLIT_NOCOLOR: i32 = -1;
/// Shrink a communicator on which nothing is running.
pub const RING_SHRINK_DEFAULT: i32 = 0;
/// Abort what is running on the communicator, then shrink it.
pub const RING_SHRINK_ABORT: i32 = 1;
/// Bytes of a name in `ringExplain_t`, its closing NUL among them.
pub const RING_NAME_BYTES: usize = 32;

/// What every function returns. Values below 64 are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ringResult_t {
    /// The call did what it says.
    ringSuccess = 0,
    /// A CUDA function failed.
    ringUnhandledCudaError = 1,
    /// The operating system refused something; the text says what, and its answer.
    ringSystemError = 2,
    /// A defect of the library; please report it with the text of `ringGetLastError`.
    ringInternalError = 3,
    /// An argument that can never be right: NULL, an unknown number, a handle that is not one (any
    /// more), buffers that overlap in part.
    ringInvalidArgument = 4,
    /// A call that is right by itself but not here: ranks that disagree, an unbalanced group, a
    /// communicator that has failed.
    ringInvalidUsage = 5,
    /// Another rank died or failed; the text names it.
    ringRemoteError = 6,
    /// Not an error: the work is still going on.
    ringInProgress = 7,
    /// A deadline passed while waiting for another rank; the text names it.
    ringTimeout = 8,
    /// `ringCommAbort` was called on this rank.
    ringAborted = 64,
}

/// The type of one element. Values below 64 are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ringDataType_t {
    ringInt8 = 0,
    ringUint8 = 1,
    ringInt32 = 2,
    ringUint32 = 3,
    ringInt64 = 4,
    ringUint64 = 5,
    /// IEEE 754 binary16.
    ringFloat16 = 6,
    ringFloat32 = 7,
    ringFloat64 = 8,
    /// The upper half of a float32.
    ringBfloat16 = 9,
    /// Four exponent and three mantissa bits, no infinities (OCP 8-bit floating point, E4M3).
    ringFloat8e4m3 = 10,
    /// Five exponent and two mantissa bits (OCP 8-bit floating point, E5M2).
    ringFloat8e5m2 = 11,
    ringInt16 = 64,
    ringUint16 = 65,
    /// One byte; any other value than 0 is true, results are 0 or 1.
    ringBool = 66,
}

/// A reduction. Values below 64 are NCCL's; values from 1024 are made by
/// `ringRedOpCreatePreMulSum` and belong to one communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ringRedOp_t {
    /// Integers wrap around. Floats of one host's ranks are summed in the order 0, 1, 2, ..., wider
    /// than their type, and rounded once. Between hosts these sums are added as a balanced binary
    /// tree, the larger half first, and each is rounded to the type and may overflow. With
    /// `deterministic` all ranks are summed as those of one host; `RINGCOMM_ALGO` may ask for
    /// another order.
    ringSum = 0,
    /// Integers wrap around.
    ringProd = 1,
    /// NaN wins.
    ringMax = 2,
    /// NaN wins.
    ringMin = 3,
    /// The sum, as of `ringSum`, divided by the number of ranks; integers are truncated to zero.
    /// Where partial sums of float16 and 8-bit floats are rounded to the type, inputs are
    /// multiplied by the first 1/2^k that is at most 1/ranks: no average of finite values
    /// overflows, and values within 2^k of the type's smallest lose bits. Other floats overflow
    /// where their sum does.
    ringAvg = 4,
    /// Bitwise and, of integers and bool.
    ringBand = 64,
    /// Bitwise or, of integers and bool.
    ringBor = 65,
    /// Bitwise exclusive or, of integers and bool.
    ringBxor = 66,
}

/// Where the scalar of `ringRedOpCreatePreMulSum` lives. The values are NCCL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ringScalarResidence_t {
    /// Read by every call that uses the operation, when it is called. It lies in host memory, also
    /// where the ranks are on devices.
    ringScalarDevice = 0,
    /// Read once, before `ringRedOpCreatePreMulSum` returns.
    ringScalarHostImmediate = 1,
}

/// The collectives, for `ringCommExplain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ringCollective_t {
    ringCollAllReduce = 0,
    ringCollReduceScatter = 1,
    ringCollAllGather = 2,
    ringCollBroadcast = 3,
    ringCollReduce = 4,
    ringCollAllToAll = 5,
    ringCollGather = 6,
    ringCollScatter = 7,
    ringCollBarrier = 8,
}

/// A `ringDataType_t` as it arrives: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawDataType(pub i32);

/// A `ringRedOp_t` as it arrives: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawRedOp(pub i32);

/// A `ringResult_t` as it arrives: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawResult(pub i32);

/// A `ringScalarResidence_t` as it arrives: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawScalarResidence(pub i32);

/// A `ringCollective_t` as it arrives: any number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RawCollective(pub i32);

/// What leads the ranks of one communicator together. Made by `ringGetUniqueId` on one rank and
/// handed to the others by any means. It carries a secret: whoever has it can join.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ringUniqueId {
    pub internal: [c_char; RING_UNIQUE_ID_BYTES],
}

/// What `ringComm_t` seems to point to; it is never there.
pub struct ringComm;

/// One rank's end of a communicator. Not an address: a handle that stays safe to pass after
/// `ringCommDestroy`, where every function answers `ringInvalidArgument`.
pub type ringComm_t = *mut ringComm;

/// NULL: do the call now and return when it is done. Else a host stream of `ringStreamCreate`.
///
/// On a rank that is on a CUDA device also a `CUstream` or `cudaStream_t`, and NULL is the device's
/// default stream: a call on device memory returns once its work is given to the stream. Operations
/// of a communicator run one after another, whatever streams they name.
/// `cudaStreamPerThread` is another stream on every thread: a group of several communicators takes
/// it for the first one's calls only, and refuses it for the others'.
pub type ringStream_t = *mut c_void;

/// Settings of one communicator, for `ringCommInitRankConfig`, `ringCommSplit` and
/// `ringCommShrink`. Begin with `RING_CONFIG_INITIALIZER`, then set what matters. A field that was
/// not set takes its value from the environment (`RINGCOMM_*`), else the default. All ranks need
/// the same values, except `spins`, `debug`, `interfaces`, `ports` and `device`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ringConfig_t {
    /// `sizeof(ringConfig_t)`.
    pub size: usize,
    /// `RING_MAGIC`.
    pub magic: u32,
    /// `RING_VERSION_CODE` of the header the program was built with.
    pub version: u32,
    /// Milliseconds that one operation waits for its peers before it fails (`RINGCOMM_TIMEOUT_MS`).
    /// A rank on another host whose kernel answers nothing counts as dead after about seven
    /// seconds, whatever this is: of a process that is stopped or busy the kernel answers.
    pub timeoutMs: i64,
    /// Bytes of connection buffers of one rank (`RINGCOMM_BUFFSIZE`). Less than the default, 4 MiB,
    /// of which more than two ranks use half, is shared by all its peers. The default and more are
    /// for those of its host alone (for all, where hosts have several ranks and some rank is on a
    /// CUDA device), and never less than ranks get that ask for nothing; each peer on another host
    /// then has up to 20 MiB of addresses besides, which become memory as they are used. A rank on
    /// a CUDA device has twice as many of pinned memory, through which long calls and messages that
    /// go through the host go piece by piece.
    pub buffSize: i64,
    /// 1: every result equals the serial loop over ranks 0, 1, 2, ... bit for bit
    /// (`RINGCOMM_DETERMINISTIC`).
    pub deterministic: c_int,
    /// Polls before a waiting rank first yields its core (`RINGCOMM_SPINS`).
    pub spins: c_int,
    /// 1 prints errors to standard error, 2 every call too (`RINGCOMM_DEBUG`).
    pub debug: c_int,
    /// What guards payloads between hosts (`RINGCOMM_PROTECTION`): `RING_PROTECTION_CLEAR`,
    /// `RING_PROTECTION_CHECKSUM` or `RING_PROTECTION_ENCRYPTED`.
    pub protection: c_int,
    /// The algorithm to use where it exists for the collective (`RINGCOMM_ALGO`); NULL: not set.
    pub algorithm: *const c_char,
    /// A file with the cost model's constants (`RINGCOMM_TUNING_FILE`); NULL: not set.
    pub tuningFile: *const c_char,
    /// Network interfaces between hosts, in NCCL's syntax (`RINGCOMM_SOCKET_IFNAME`); NULL: not
    /// set. In a split or a shrink that means those of `comm`, whatever the environment says, and
    /// so it does for `RINGCOMM_SOCKET_FAMILY`; others are refused where `comm` is on several
    /// hosts, as its ranks look for each other at the addresses that they have.
    pub interfaces: *const c_char,
    /// Ports to listen on, as `20000-20100` (`RINGCOMM_PORT_RANGE`); NULL: not set.
    pub ports: *const c_char,
    /// Sockets to each peer on another host, 1 to 16 (`RINGCOMM_NSOCKS`).
    pub nsocks: c_int,
    /// Whose memory this rank's calls may name beside the host's: that of the CUDA device with this
    /// number, or -1 for nobody's (`RINGCOMM_CUDA=0`). Not set: that of the device which is current
    /// on the calling thread, if the program uses CUDA; in a split or a shrink, of `comm`'s device.
    pub device: c_int,
    /// Milliseconds that making a communicator waits for its ranks. Not set: as `timeoutMs`.
    pub initTimeoutMs: i64,
    /// What moves messages between hosts (`RINGCOMM_NET`): `auto`, `tcp`, `ucx`, `plugin` or
    /// `plugin:NAME`; NULL: not set.
    pub net: *const c_char,
}

/// How a call would run: the answer of `ringCommExplain`. Begin with `RING_EXPLAIN_INITIALIZER`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ringExplain_t {
    /// `sizeof(ringExplain_t)`.
    pub size: usize,
    /// `RING_MAGIC`.
    pub magic: u32,
    /// `RING_VERSION_CODE` of the header the program was built with.
    pub version: u32,
    /// The algorithm's name, closed by a NUL.
    pub algorithm: [c_char; RING_NAME_BYTES],
    /// How data moves between the ranks, closed by a NUL. Where it says "or" the buffers decide;
    /// the numbers are of the last of the two.
    pub transport: [c_char; RING_NAME_BYTES],
    /// Parallel channels: those of a hierarchical algorithm, times the sockets to a peer on another
    /// host (`RINGCOMM_NSOCKS`); on devices, the connections that a plan is spread over.
    pub channels: usize,
    /// Parts that the buffer is cut into.
    pub chunks: usize,
    /// Passes over the chunks.
    pub slices: usize,
    /// Most bytes that one chunk moves in one pass.
    pub sliceBytes: usize,
    /// The cost model's time, in microseconds.
    pub predictedUs: f64,
    /// What runs instead, in the ranks' own buffers, closed by a NUL: between processes where all
    /// of those of the call are memory that they share (`ringMemAlloc`, `ringCommRegister`),
    /// between threads where no rank calls in place. Empty where the buffers change nothing.
    pub directAlgorithm: [c_char; RING_NAME_BYTES],
    /// The cost model's time for that, in microseconds; 0 where the name is empty.
    pub directPredictedUs: f64,
    /// 1 where that also holds for a call in place, else 0.
    pub directInPlace: usize,
}
