//! Where a call goes: it runs now, joins the thread's open group, or waits on a stream.
//!
//! This file alone knows groups and streams; the functions above hand their work to [`submit`].
#![allow(unsafe_code)]

use crate::communicator::{Call, Message};
use crate::error::{Error, Result};
use crate::ffi::object::{self, Comm};
use crate::ffi::types::ringStream_t;
use std::cell::Cell;

/// What a function was asked to do.
pub enum Work<'a> {
    Collective(&'a Call<'a>),
    Message(Message),
}

thread_local! {
    /// Groups open on this thread, one inside the other.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The queue that a `ringStream_t` names.
pub struct HostStream;

/// NULL stream outside a group: run now. Else hand over.
///
/// The caller's C program promised that buffers are valid until the work is done.
#[inline]
pub fn submit(comm: &Comm, stream: ringStream_t, work: Work) -> Result<()> {
    if in_group() || !stream.is_null() {
        return hand_over(comm, stream, work);
    }
    // SAFETY: the C caller promises the buffers that each function's documentation names.
    unsafe {
        match work {
            Work::Collective(call) => comm.communicator.run(call),
            Work::Message(message) => comm.communicator.exchange(&[message]),
        }
    }
}

/// Give the work to the open group, or to the stream.
#[cold]
fn hand_over(_comm: &Comm, stream: ringStream_t, _work: Work) -> Result<()> {
    if !stream.is_null() {
        object::enter_stream(stream)?;
    }
    Err(Error::Internal("groups and streams are not connected".into()))
}

/// Whether a group is open on this thread.
#[inline]
pub fn in_group() -> bool {
    DEPTH.get() > 0
}

pub fn group_start() -> Result<()> {
    DEPTH.set(DEPTH.get() + 1);
    Ok(())
}

/// Close the innermost group; closing the outermost makes what was waiting run, new communicators
/// first.
pub fn group_end() -> Result<()> {
    match DEPTH.get() {
        0 => Err(Error::usage("ringGroupEnd without ringGroupStart on this thread")),
        1 => {
            DEPTH.set(0);
            super::creation::finish_group()
        }
        depth => {
            DEPTH.set(depth - 1);
            Ok(())
        }
    }
}

impl HostStream {
    pub fn new() -> Result<HostStream> {
        Ok(HostStream)
    }

    /// Wait until everything that was handed over is done; the first error of it.
    pub fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// Whether everything that was handed over is done; the first error of it.
    pub fn query(&self) -> Result<bool> {
        Ok(true)
    }
}
