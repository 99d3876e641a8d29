//! Groups: the library's own, with what is asked for in them.
#![allow(unsafe_code)]

use crate::comm::{answer_of, last_text, refuse};
use crate::create::{Creation, forget, make_all};
use crate::environment::log;
use crate::types::*;
use ringcomm::communicator::enqueue;
use ringcomm::communicator::init::spawn_all;
use ringcomm::ffi::boundary::caught;
use ringcomm::ffi::calls::group::{ringGroupEnd, ringGroupStart};
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::mem::offset_of;

/// What a communicator does at the group's end, in this order: what all ranks meet for, what waits
/// for nobody, and what waits for the others' puts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Windows,
    Puts,
    Waits,
}

type Job = Box<dyn FnOnce() -> ncclResult_t + Send>;

/// A communicator's jobs. Those of several communicators run at the same time.
struct Chain {
    comm: usize,
    jobs: Vec<(Phase, Job)>,
}

impl Chain {
    /// Run them; the first result that is no success, and why.
    fn run(mut self) -> (ncclResult_t, CString) {
        self.jobs.sort_by_key(|(phase, _)| *phase);
        // What would follow one that has failed is not done.
        let mut codes = self.jobs.into_iter().map(|(_, job)| job());
        let code = codes.find(|code| *code != ncclSuccess).unwrap_or(ncclSuccess);
        (code, last_text())
    }
}

thread_local! {
    /// What is done once the group's calls are.
    static TOGETHER: RefCell<Vec<Chain>> = const { RefCell::new(Vec::new()) };
    /// Communicators that this thread's group is to make.
    static ASKED_FOR: RefCell<Vec<Creation>> = const { RefCell::new(Vec::new()) };
    /// Whether the group has calls that return before they are done.
    static RETURNS_EARLY: Cell<bool> = const { Cell::new(false) };
}

/// Keep a communicator that is to be made for the group's end.
pub fn keep(creation: Creation) {
    ASKED_FOR.with_borrow_mut(|all| all.push(creation));
}

/// Do something on a communicator now, or at the end of the open group.
pub fn together(
    comm: ncclComm_t,
    phase: Phase,
    job: impl FnOnce() -> ncclResult_t + Send + 'static,
) -> ncclResult_t {
    if !enqueue::is_open() {
        return job();
    }
    TOGETHER.with_borrow_mut(|chains| {
        let known = chains.iter().position(|chain| chain.comm == comm.addr());
        let at = known.unwrap_or_else(|| {
            chains.push(Chain { comm: comm.addr(), jobs: Vec::new() });
            chains.len() - 1
        });
        chains[at].jobs.push((phase, Box::new(job)));
    });
    ncclSuccess
}

/// Do all of it; the first result that is no success.
fn do_together(mut chains: Vec<Chain>) -> ncclResult_t {
    if chains.len() < 2 {
        return chains.pop().map_or(ncclSuccess, |chain| chain.run().0);
    }
    let jobs = chains.into_iter().map(|chain| move || chain.run());
    let done = match caught(|| spawn_all::all_or_none(jobs)) {
        Ok(done) => done,
        Err(error) => return crate::comm::refuse_by(&error),
    };
    let mut all = done.into_iter().map(|one| one.expect("panics are caught"));
    let failed = all.find(|(code, _)| *code != ncclSuccess);
    failed.map_or(ncclSuccess, |(code, text)| refuse(code, text.to_string_lossy().into_owned()))
}

/// A call of the open group, if there is one, does not block.
pub fn note_nonblocking(returns_early: bool) {
    if returns_early && enqueue::is_open() {
        let _ = RETURNS_EARLY.try_with(|early| early.set(true));
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn pncclGroupStart() -> ncclResult_t {
    answer_of(ringGroupStart())
}

#[unsafe(no_mangle)]
pub extern "C" fn pncclGroupEnd() -> ncclResult_t {
    let ran = answer_of(ringGroupEnd());
    if enqueue::is_open() {
        return ran;
    }
    let (asked_for, returns_early) = take();
    let jobs = TOGETHER.try_with(RefCell::take).unwrap_or_default();
    let ran = if ran == ncclSuccess { do_together(jobs) } else { ran };
    if ran != ncclSuccess {
        forget(asked_for);
        return ran;
    }
    match asked_for.is_empty() {
        true if returns_early => ncclInProgress,
        true => ncclSuccess,
        false => make_all(asked_for),
    }
}

/// What the thread's group was to do beside the library's calls; a thread that is ending has none.
fn take() -> (Vec<Creation>, bool) {
    let asked_for = ASKED_FOR.try_with(RefCell::take).unwrap_or_default();
    (asked_for, RETURNS_EARLY.try_with(Cell::take).unwrap_or_default())
}

/// The group's time by the cost model, in microseconds; nothing of it runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    let time = caught(enqueue::simulate);
    if enqueue::is_open() && time.is_ok() {
        return ncclSuccess;
    }
    forget(take().0);
    drop(TOGETHER.try_with(RefCell::take));
    match time {
        // SAFETY: the caller's promise.
        Ok(microseconds) => unsafe { write_estimate(simInfo, microseconds) },
        Err(error) => {
            let code = crate::comm::refuse_by(&error);
            log::warn_alone(&last_text());
            code
        }
    }
}

unsafe fn write_estimate(info: *mut ncclSimInfo_t, microseconds: f64) -> ncclResult_t {
    if info.is_null() {
        return refuse(ncclInvalidArgument, "ncclGroupSimulateEnd: simInfo is NULL".into());
    }
    // SAFETY: every structure has its head, whatever its size.
    let (size, magic) = unsafe {
        (info.cast::<usize>().read_unaligned(), (&raw const (*info).magic).read_unaligned())
    };
    if magic != SIM_INFO_MAGIC || size < offset_of!(ncclSimInfo_t, estimatedTime) + size_of::<f32>()
    {
        let why = "ncclGroupSimulateEnd: simInfo was not initialized; begin with \
                   NCCL_SIM_INFO_INITIALIZER";
        return refuse(ncclInvalidArgument, why.into());
    }
    // SAFETY: the structure has the field, by its size.
    unsafe { (&raw mut (*info).estimatedTime).write_unaligned(microseconds as f32) };
    ncclSuccess
}
