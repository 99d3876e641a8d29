//! The C functions, called as a C program calls them: groups of splits, the ends of communicators,
//! memory that peers reach directly, messages that wait for nobody, calls at awkward moments, and
//! arguments that are none.
#![allow(non_snake_case)] // C names are spelled as a C program spells them.

#[path = "capi/ends.rs"]
mod ends;
#[path = "capi/exported.rs"]
mod exported;
#[path = "capi/forks.rs"]
mod forks;
#[path = "capi/groups.rs"]
mod groups;
#[path = "capi/messages.rs"]
mod messages;
#[path = "capi/misuse.rs"]
mod misuse;
#[path = "capi/moments.rs"]
mod moments;
#[path = "capi/registrations.rs"]
mod registrations;
#[path = "capi/splits.rs"]
mod splits;
mod support;

use ringcomm::ffi::calls::collective::*;
use ringcomm::ffi::calls::group::*;
use ringcomm::ffi::calls::stream::*;
use ringcomm::ffi::calls::vector::*;
use ringcomm::ffi::comm::lifecycle::*;
use ringcomm::ffi::comm::query::*;
use ringcomm::ffi::memory::*;
use ringcomm::ffi::types::ringResult_t::*;
use ringcomm::ffi::types::*;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::config;
use support::processes::{Ranks, Seat};
use support::threads::join_all;

const SUM: RawRedOp = RawRedOp(ringRedOp_t::ringSum as i32);
const FLOAT: RawDataType = RawDataType(ringDataType_t::ringFloat32 as i32);
const INT: RawDataType = RawDataType(ringDataType_t::ringInt32 as i32);
const BYTE: RawDataType = RawDataType(ringDataType_t::ringUint8 as i32);

/// A handle that other threads may use too, as a C program's threads do.
#[derive(Clone, Copy)]
struct Handle(ringComm_t);

// SAFETY: a handle is a number, and never followed.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    fn comm(&self) -> ringComm_t {
        self.0
    }
}

#[track_caller]
fn succeeds(result: ringResult_t) {
    assert_eq!(result, ringSuccess, "{}", last_error());
}

fn last_error() -> String {
    last_error_of(null_mut())
}

fn last_error_of(comm: ringComm_t) -> String {
    // SAFETY: a C string that lives until this thread asks again.
    unsafe { CStr::from_ptr(ringGetLastError(comm)) }.to_string_lossy().into_owned()
}

/// A configuration with a deadline of a minute and `debug` as given.
fn settings(debug: c_int) -> ringConfig_t {
    ringConfig_t {
        size: size_of::<ringConfig_t>(),
        magic: RING_MAGIC,
        version: RING_VERSION_CODE as u32,
        timeoutMs: 60_000,
        buffSize: i64::from(RING_CONFIG_UNDEF_INT),
        deterministic: RING_CONFIG_UNDEF_INT,
        spins: RING_CONFIG_UNDEF_INT,
        debug,
        protection: RING_CONFIG_UNDEF_INT,
        algorithm: null(),
        tuningFile: null(),
        interfaces: null(),
        ports: null(),
        nsocks: RING_CONFIG_UNDEF_INT,
        device: RING_CONFIG_UNDEF_INT,
        initTimeoutMs: i64::from(RING_CONFIG_UNDEF_INT),
        net: std::ptr::null(),
    }
}

/// All ranks of a communicator in this process.
fn init_all(nranks: usize) -> Vec<Handle> {
    let mut all = vec![null_mut(); nranks];
    // SAFETY: room for every handle.
    succeeds(unsafe { ringCommInitAll(all.as_mut_ptr(), nranks as c_int, null()) });
    all.into_iter().map(Handle).collect()
}

/// The seat's place in a communicator of all processes of the test.
fn join(seat: &Seat, debug: c_int) -> ringComm_t {
    let id = ringUniqueId { internal: seat.id.as_bytes().map(|byte| byte as _) };
    let (mut comm, mut settings) = (null_mut(), settings(debug));
    let (nranks, rank) = (seat.nranks as c_int, seat.rank as c_int);
    // SAFETY: all pointers are to locals.
    succeeds(unsafe { ringCommInitRankConfig(&mut comm, nranks, id, rank, &mut settings) });
    comm
}

/// Run `body` as every rank of a communicator of `nranks` processes; all must succeed.
#[track_caller]
fn in_processes<F: Fn(&Seat, &str) -> String>(nranks: usize, body: F) {
    let mut ranks = Ranks::start_apart(nranks, &config(), "", body);
    let deadline = Instant::now() + Duration::from_secs(support::HARD_DEADLINE_S);
    for rank in 0..nranks {
        let end = ranks.end(rank, deadline);
        end.result.unwrap_or_else(|why| panic!("rank {rank}: {why}"));
    }
}

/// What every rank gives, gathered by all.
fn gather(comm: ringComm_t, mine: i32) -> Vec<i32> {
    let mut nranks = 0;
    // SAFETY: a local.
    succeeds(unsafe { ringCommCount(comm, &mut nranks) });
    let mut all = vec![-1; nranks as usize];
    let (send, recv) = ((&raw const mine).cast(), all.as_mut_ptr().cast());
    // SAFETY: one element from each rank.
    succeeds(unsafe { ringAllGather(send, recv, 1, INT, comm, null_mut()) });
    all
}

fn destroy(comm: ringComm_t) {
    // SAFETY: safe for any argument.
    succeeds(unsafe { ringCommDestroy(comm) });
}

/// The access flags in /proc/self/maps of the mapping that holds `address`.
fn access(address: *const c_void) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let bound = |text: &str| usize::from_str_radix(text, 16).expect("hex");
    for line in maps.lines() {
        let mut words = line.split(' ');
        let (low, high) = words.next().and_then(|range| range.split_once('-')).expect("a range");
        if (bound(low)..bound(high)).contains(&address.addr()) {
            return words.next().expect("access").to_string();
        }
    }
    "unmapped".into()
}

/// Mappings of exported user memory, this process's own and imported ones.
fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let shared = |line: &&str| line.contains("-s ") && line.contains("memfd:ringcomm-user");
    maps.lines().filter(shared).count()
}

/// Whole pages of ordinary memory.
struct Pages {
    start: *mut u8,
    bytes: usize,
}

const PAGE: usize = 4096;

impl Pages {
    fn new(count: usize) -> Pages {
        let bytes = count * PAGE;
        let layout = std::alloc::Layout::from_size_align(bytes, PAGE).expect("a layout");
        // SAFETY: not of size zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!start.is_null());
        Pages { start, bytes }
    }

    fn at(&self, page: usize) -> *mut c_void {
        self.start.wrapping_add(page * PAGE).cast()
    }

    /// The first elements, as numbers.
    fn numbers(&mut self) -> &mut [f32] {
        // SAFETY: allocated, aligned, initialized and this value's own.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes / 4) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(self.bytes, PAGE).expect("a layout");
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.start, layout) };
    }
}

/// Destroy every rank's end.
fn end_all(all: &[Handle]) {
    all.iter().for_each(|comm| destroy(comm.comm()));
}
