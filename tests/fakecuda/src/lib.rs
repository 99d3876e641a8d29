//! A CUDA driver without a GPU: the entry points that ringcomm calls, as `libcuda.so.1`.
//!
//! A device is a set of hardware queues, each a thread that does one thing after the other; a
//! stream is put on one of them, so with few queues streams block each other as they do on a
//! device. What a device's memory holds only those threads may touch, where the processor has
//! protection keys, and a kernel may be given another device's only where access was enabled.
//! Kernels are the library's own, compiled for the host. Cooperative grids of two streams that a
//! device has no room for at once break the context.
//!
//! The environment says what there is: `FAKECUDA_DEVICES` (1), `FAKECUDA_FIRST` (0; what no other
//! host's begin with, for their UUIDs), `FAKECUDA_QUEUES` for each (8; 0
//! gives every stream a queue of its own), `FAKECUDA_KERNELS` (the host's kernels),
//! `FAKECUDA_VERSION` (13000), `FAKECUDA_PEERS=0` (devices that do not reach each other),
//! `FAKECUDA_PIECES=0` (no memory that is mapped piece by piece), `FAKECUDA_FABRIC=0` (no fabric
//! that carries it), `FAKECUDA_FREES_ALONE=1` (while memory comes or goes all streams are waited
//! for, and none is given anything), `FAKECUDA_REUSES=1` (memory comes again where as much was
//! freed, else a place is never another's), `FAKECUDA_DELAY_US` (the longest of the random delays
//! before each thing that a queue does) and `FAKECUDA_FAIL=symbol:nth:code`, several with commas
//! between.
#![allow(non_snake_case)] // The driver's names.

mod capture;
mod entry;
mod events;
mod failures;
mod ipc;
mod kernels;
mod memory;
mod peers;
mod pieces;
mod queue;
mod residency;
mod streams;
mod words;

/// A result of the driver.
pub type Code = i32;
pub type Answer<T = ()> = Result<T, Code>;

pub const INVALID_VALUE: Code = 1;
pub const OUT_OF_MEMORY: Code = 2;
pub const NO_DEVICE: Code = 100;
pub const INVALID_DEVICE: Code = 101;
pub const INVALID_IMAGE: Code = 200;
pub const INVALID_CONTEXT: Code = 201;
pub const ALREADY_MAPPED: Code = 208;
pub const INVALID_HANDLE: Code = 400;
pub const NOT_FOUND: Code = 500;
pub const NOT_READY: Code = 600;
pub const PEER_ACCESS_UNSUPPORTED: Code = 217;
pub const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub const ALREADY_REGISTERED: Code = 712;
pub const NOT_REGISTERED: Code = 713;
pub const LAUNCH_FAILED: Code = 719;
pub const COOPERATIVE_LAUNCH_TOO_LARGE: Code = 720;
pub const NOT_SUPPORTED: Code = 801;
pub const CAPTURE_UNSUPPORTED: Code = 900;
pub const CAPTURE_INVALIDATED: Code = 901;
pub const CAPTURE_UNJOINED: Code = 904;
pub const CAPTURE_ISOLATION: Code = 905;
pub const CAPTURED_EVENT: Code = 907;

/// The names that this driver knows; of the others it says, as a driver does, that it does not.
pub const NAMES: [(Code, &std::ffi::CStr); 21] = [
    (INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE"),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY"),
    (NO_DEVICE, c"CUDA_ERROR_NO_DEVICE"),
    (INVALID_DEVICE, c"CUDA_ERROR_INVALID_DEVICE"),
    (INVALID_IMAGE, c"CUDA_ERROR_INVALID_IMAGE"),
    (INVALID_CONTEXT, c"CUDA_ERROR_INVALID_CONTEXT"),
    (ALREADY_MAPPED, c"CUDA_ERROR_ALREADY_MAPPED"),
    (PEER_ACCESS_UNSUPPORTED, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    (ALREADY_REGISTERED, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
    (NOT_REGISTERED, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"),
    (INVALID_HANDLE, c"CUDA_ERROR_INVALID_HANDLE"),
    (NOT_FOUND, c"CUDA_ERROR_NOT_FOUND"),
    (NOT_READY, c"CUDA_ERROR_NOT_READY"),
    (LAUNCH_FAILED, c"CUDA_ERROR_LAUNCH_FAILED"),
    (COOPERATIVE_LAUNCH_TOO_LARGE, c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"),
    (NOT_SUPPORTED, c"CUDA_ERROR_NOT_SUPPORTED"),
    (CAPTURE_UNSUPPORTED, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
    (CAPTURE_INVALIDATED, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
    (CAPTURE_UNJOINED, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED"),
    (CAPTURE_ISOLATION, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION"),
    (CAPTURED_EVENT, c"CUDA_ERROR_CAPTURED_EVENT"),
];

/// A number from the environment.
pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How many devices there are.
pub fn ndevices() -> usize {
    static COUNT: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *COUNT.get_or_init(|| setting("FAKECUDA_DEVICES", 1))
}

/// A lock that a panic elsewhere does not spoil.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
