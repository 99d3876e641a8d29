//! What handles name: communicators with what only the C API adds to them, streams, registrations.

use super::reductions::Reductions;
use crate::communicator::{Communicator, enqueue};
use crate::error::{Error, Result};
use crate::ffi::handle::{HandleKind, HandleTable, InsideCall};
use crate::ffi::types::{ringComm_t, ringStream_t};
use crate::sync::Mutex;
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::Arc;

/// A communicator and what the C API keeps beside it.
pub struct Comm {
    /// Shared with groups and streams, whose work may outlive the handle.
    pub communicator: Arc<Communicator>,
    /// The reductions made by `ringRedOpCreatePreMulSum`.
    pub reductions: Reductions,
    /// `debug` of the configuration it was made with: whether failures are printed.
    pub debug: u32,
    /// Handles of the registrations made with it that are still there.
    pub registrations: Mutex<HashSet<usize>>,
    /// Whether it has said goodbye to its peers.
    pub finalized: Mutex<bool>,
}

impl Comm {
    pub fn new(communicator: Communicator, debug: u32) -> Comm {
        Comm {
            communicator: Arc::new(communicator),
            reductions: Reductions::default(),
            debug,
            registrations: Mutex::default(),
            finalized: Mutex::default(),
        }
    }
}

impl Drop for Comm {
    /// See the running call off, which a group or a stream may hold, then take back the
    /// registrations that the program has left.
    fn drop(&mut self) {
        self.communicator.retire();
        let left = self.registrations.get_mut();
        for handle in left.drain() {
            if let Some(left) = REGISTRATIONS.close(std::ptr::without_provenance_mut(handle)) {
                // Where the kernel refuses, the memory stays shared and usable.
                let _ = self.communicator.deregister(left.key);
            }
        }
    }
}

/// A range of memory that peers may reach directly. It belongs to the [`Comm`] that lists it, and
/// holds nothing of it.
pub struct Registration {
    pub key: u64,
}

/// The queue that a `ringStream_t` names.
pub type StreamHandle = Arc<enqueue::HostStream>;

pub static COMMUNICATORS: HandleTable<Comm> = HandleTable::new(HandleKind::Communicator);
pub static STREAMS: HandleTable<StreamHandle> = HandleTable::new(HandleKind::Stream);
pub static REGISTRATIONS: HandleTable<Registration> = HandleTable::new(HandleKind::Registration);

/// Enter a communicator, or say what the handle is instead.
#[inline]
pub fn enter(comm: ringComm_t) -> Result<InsideCall<Comm>> {
    let inside = COMMUNICATORS.enter(comm.cast());
    let inside = inside.ok_or_else(|| not_a("communicator", comm.cast()))?;
    inside.communicator.check_process()?;
    Ok(inside)
}

/// Enter a host stream, or say what the handle is instead.
pub fn enter_stream(stream: ringStream_t) -> Result<InsideCall<StreamHandle>> {
    STREAMS.enter(stream).ok_or_else(|| not_a("stream", stream))
}

#[cold]
pub fn not_a(what: &str, handle: *mut c_void) -> Error {
    if handle.is_null() {
        Error::argument(format!("the {what} is NULL"))
    } else {
        Error::argument(format!("{handle:?} is no {what}: never made, or already destroyed"))
    }
}
