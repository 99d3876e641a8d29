//! Where a call goes: it runs now, joins the thread's open group, or waits on a stream.
//!
//! This file alone knows groups and streams; the functions above hand their work to [`submit`].
#![allow(unsafe_code)]

use crate::communicator::{Call, Message, Order, OrderedMessage, enqueue};
use crate::error::{Error, Result};
use crate::ffi::object::{self, Comm};
use crate::ffi::types::ringStream_t;

/// What a function was asked to do.
pub enum RequestedWork<'a> {
    Collective(Call<'a>),
    Message(Message),
}

/// Make a collective call: most run now, and do not pay for what the others need.
///
/// The caller's C program promised what [`submit`] says.
#[inline]
pub fn collective(comm: &Comm, stream: ringStream_t, call: Call) -> Result<()> {
    if stream.is_null() {
        // SAFETY: as in `submit`.
        return unsafe { enqueue::collective(&comm.communicator, &call, None) };
    }
    submit(comm, stream, RequestedWork::Collective(call))
}

/// NULL stream outside a group: run now. Else hand over. On a device, what is no host stream is one
/// of the device's, whose order the call takes where it runs.
///
/// The caller's C program promised that buffers are valid until the work is done.
#[inline]
pub fn submit(comm: &Comm, stream: ringStream_t, work: RequestedWork) -> Result<()> {
    let inside = match (stream.is_null(), comm.communicator.device()) {
        (true, _) => None,
        (false, None) => Some(object::enter_stream(stream)?),
        (false, Some(_)) => object::STREAMS.enter(stream),
    };
    // The device's stream; host streams order calls by themselves.
    let device = if inside.is_some() { std::ptr::null_mut() } else { stream };
    let settles = inside.is_some() && comm.communicator.device().is_some();
    let mut order = Order::on(device);
    order.settles = settles;
    let stream = inside.as_deref();
    // SAFETY: the C caller promises the buffers that each function's documentation names, until the
    // call is done, the group is, or the stream is synchronized.
    unsafe {
        match work {
            RequestedWork::Collective(mut call) => {
                call.order = order;
                enqueue::collective(&comm.communicator, &call, stream)
            }
            RequestedWork::Message(message) => {
                enqueue::message(&comm.communicator, OrderedMessage { message, order }, stream)
            }
        }
    }
}

pub fn group_start() -> Result<()> {
    enqueue::start();
    match enqueue::is_open() {
        true => Ok(()),
        false => Err(Error::usage("a thread that is ending can have no group")),
    }
}

/// Close the innermost group; closing the outermost makes what was waiting run: calls, then new
/// communicators.
pub fn group_end() -> Result<()> {
    let ran = enqueue::end();
    match ran {
        Ok(()) if enqueue::is_open() => Ok(()),
        Ok(()) => crate::ffi::comm::grouped_creation::finish_group(),
        Err(error) => {
            crate::ffi::comm::grouped_creation::forget_group();
            Err(error)
        }
    }
}
