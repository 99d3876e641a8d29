//! What handles name: communicators with what only the C API adds to them, streams, registrations.

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::ffi::handle::{Inside, Kind, Table};
use crate::ffi::reduction::Reductions;
use crate::ffi::types::{ringComm_t, ringStream_t};
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex};

/// A communicator and what the C API keeps beside it.
pub struct Comm {
    /// Shared with groups and streams, whose work may outlive the handle.
    pub communicator: Arc<Communicator>,
    /// The reductions made by `ringRedOpCreatePreMulSum`.
    pub reductions: Reductions,
    /// The text of the last call that failed, by whichever thread.
    pub last_error: Mutex<CString>,
    /// `debug` of the configuration it was made with: whether failures are printed.
    pub debug: u32,
}

impl Comm {
    pub fn new(communicator: Communicator, debug: u32) -> Comm {
        Comm {
            communicator: Arc::new(communicator),
            reductions: Reductions::default(),
            last_error: Mutex::default(),
            debug,
        }
    }
}

/// A range of memory that peers may reach directly.
pub struct Registration {
    pub communicator: Arc<Communicator>,
    pub key: u64,
}

pub static COMMUNICATORS: Table<Comm> = Table::new(Kind::Communicator);
pub static STREAMS: Table<super::enqueue::HostStream> = Table::new(Kind::Stream);
pub static REGISTRATIONS: Table<Registration> = Table::new(Kind::Registration);

/// Enter a communicator, or say what the handle is instead.
#[inline]
pub fn enter(comm: ringComm_t) -> Result<Inside<Comm>> {
    COMMUNICATORS.enter(comm.cast()).ok_or_else(|| not_a("communicator", comm.cast()))
}

/// Enter a host stream, or say what the handle is instead.
pub fn enter_stream(stream: ringStream_t) -> Result<Inside<super::enqueue::HostStream>> {
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
