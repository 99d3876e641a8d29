//! Communicators that are asked for: made now, at the end of a group, or while the caller goes on.
//!
//! The handle is there at once. In a group what is asked for is kept, and its end makes all of it
//! at the same time, as the library's own groups do.
#![allow(unsafe_code)]

use crate::comm::{COMMS, Comm, last_text, refuse, refuse_by};
use crate::environment::log;
use crate::group;
use crate::init::Settings;
use crate::types::*;
use ringcomm::Communicator;
use ringcomm::communicator::enqueue;
use ringcomm::error::{Error, Result};
use ringcomm::ffi::boundary::caught;
use ringcomm::ffi::calls::dispatch;
use ringcomm::ffi::comm::grouped_creation;
use ringcomm::ffi::comm::lifecycle::ringCommAbort;
use ringcomm::ffi::convert;
use ringcomm::ffi::types::ringComm_t;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::Builder;

/// How to make one, on any thread; `None` where this rank takes no part.
pub type Make = Box<dyn FnOnce(&Comm) -> Result<Option<Communicator>> + Send>;

/// A communicator that was asked for.
pub struct Creation {
    pub function: &'static str,
    pub comm: Arc<Comm>,
    pub make: Make,
    /// What it is made from: the library's communicator, and this layer's.
    pub parent: Option<(Arc<Communicator>, Arc<Comm>)>,
    pub handle: ncclComm_t,
    /// Where the caller finds the handle; written until the call, or its group, is over.
    pub out: *mut ncclComm_t,
    pub is_blocking: bool,
}

// SAFETY: `out` is only written on the thread that asked.
unsafe impl Send for Creation {}

impl Creation {
    /// What takes no other calls until it is over.
    fn busy_parent(&self) -> Option<Arc<Comm>> {
        self.parent.as_ref().filter(|_| !self.is_blocking).map(|(_, parent)| Arc::clone(parent))
    }
}

/// Ask for a communicator. The handle is written to `out` at once; NULL for a rank that takes no
/// part in it, but in its making.
pub fn create(
    function: &'static str,
    (out, takes_part): (*mut ncclComm_t, bool),
    Settings { is_blocking, name }: Settings,
    parent: Option<(Arc<Communicator>, Arc<Comm>)>,
    make: Make,
) -> Result<ncclResult_t> {
    let comm = Comm::new(is_blocking, name);
    let handle: ncclComm_t = match takes_part {
        true => COMMS.insert(Arc::clone(&comm))?.cast(),
        false => null_mut(),
    };
    comm.handle.store(handle.addr(), Relaxed);
    // SAFETY: the caller's promise: there is room for a handle.
    unsafe { out.write_unaligned(handle) };
    let creation = Creation { function, comm, make, parent, handle, out, is_blocking };
    if enqueue::is_open() {
        group::keep(creation);
        return Ok(ncclSuccess);
    }
    Ok(make_all(vec![creation]))
}

/// Make all of them, or none: here, or on a thread where one of them does not block.
pub fn make_all(creations: Vec<Creation>) -> ncclResult_t {
    if creations.iter().all(|one| one.is_blocking) {
        return finish(&creations.iter().map(Place::of).collect::<Vec<_>>(), run(creations));
    }
    let places: Vec<Place> = creations.iter().map(Place::of).collect();
    let parents: Vec<Arc<Comm>> = creations.iter().filter_map(Creation::busy_parent).collect();
    parents.iter().for_each(|parent| parent.begin());
    let job = move || {
        // Whoever asked polls: the handle stays, and says what became of it.
        let _ = run(creations);
    };
    match Builder::new().name("ringcomm init".into()).spawn(job) {
        Ok(_) => ncclInProgress,
        Err(error) => {
            let what = "starting the thread of a communicator that does not block".into();
            let errno = error.raw_os_error().unwrap_or(0);
            let code = refuse_by(&Error::System { what, errno });
            places.iter().for_each(Place::withdraw);
            parents.iter().for_each(|parent| parent.over(ncclSuccess));
            code
        }
    }
}

/// Nothing of it is made: the group that asked for it has failed.
pub fn forget(creations: Vec<Creation>) {
    creations.iter().map(Place::of).for_each(|place| place.withdraw());
}

/// Where a caller that waits finds a handle.
struct Place {
    handle: ncclComm_t,
    out: *mut ncclComm_t,
    comm: Arc<Comm>,
}

impl Place {
    fn of(creation: &Creation) -> Place {
        let Creation { handle, out, comm, .. } = creation;
        Place { handle: *handle, out: *out, comm: Arc::clone(comm) }
    }

    /// The handle is gone, and NULL is in its place.
    fn withdraw(&self) {
        drop(COMMS.close(self.handle.cast()));
        // SAFETY: the caller waits, and its place is still there.
        unsafe { self.out.write_unaligned(null_mut()) };
    }
}

/// What a caller that waited finds: handles where something was made, NULL elsewhere.
fn finish(places: &[Place], result: Result<(), ncclResult_t>) -> ncclResult_t {
    for place in places.iter().filter(|place| place.comm.ring().is_null()) {
        place.withdraw();
    }
    result.err().unwrap_or(ncclSuccess)
}

/// Make all of them on this thread, whose failure all of them learn.
fn run(creations: Vec<Creation>) -> Result<(), ncclResult_t> {
    let mut slots: Vec<ringComm_t> = vec![null_mut(); creations.len()];
    let mut made = Vec::with_capacity(creations.len());
    let together = creations.len() > 1;
    if together {
        enqueue::start();
    }
    let mut begun = Ok(());
    for (creation, slot) in creations.into_iter().zip(&mut slots) {
        let Creation { function, comm, make, parent, is_blocking, .. } = creation;
        let from = parent.as_ref().map(|(from, _)| Arc::clone(from));
        let own = Arc::clone(&comm);
        if begun.is_ok() {
            begun = convert::out(slot, "comm").and_then(|out| {
                grouped_creation::create(out, 0, from.as_ref(), move || make(&own))
            });
        }
        made.push((function, comm, parent.map(|(_, parent)| parent), is_blocking));
    }
    let ended = if together { caught(dispatch::group_end) } else { Ok(()) };
    let given_up = made.iter().any(|(_, comm, ..)| comm.aborted.load(SeqCst));
    let result = begun.and(ended).map_err(|error| match given_up {
        true => refuse(ncclInternalError, "ncclCommAbort has ended its making".into()),
        false => refuse_by(&error),
    });
    for ((function, comm, parent, is_blocking), slot) in made.into_iter().zip(slots) {
        match result {
            Ok(()) => settle(function, &comm, slot),
            Err(code) => fail(&comm, code),
        }
        if let Some(parent) = parent.filter(|_| !is_blocking) {
            parent.over(ncclSuccess);
        }
    }
    result
}

fn settle(function: &str, comm: &Arc<Comm>, ring: ringComm_t) {
    if !ring.is_null() {
        comm.set_ring(ring);
        log::made(function, comm);
    }
    // SeqCst: as in `set_ring`.
    if comm.aborted.load(SeqCst) && !ring.is_null() {
        // SAFETY: safe for any argument.
        unsafe { ringCommAbort(ring) };
    }
    comm.over(ncclSuccess);
}

fn fail(comm: &Arc<Comm>, code: ncclResult_t) {
    comm.note(&last_text());
    comm.over(code);
    log::warn("", comm);
}
