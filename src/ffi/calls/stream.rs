//! Host streams: in-order queues with a worker, so that calls overlap with compute.
#![allow(unsafe_code)]

use crate::communicator::enqueue::host_stream::JobStream;
use crate::ffi::boundary::{run, run_for};
use crate::ffi::convert;
use crate::ffi::object::{self, STREAMS};
use crate::ffi::types::*;
use std::time::Duration;

/// Make a host stream: calls that are given it return at once and run in order, on a thread of the
/// stream. Their buffers stay untouched until `ringStreamSynchronize`. 256 calls may wait in it;
/// one more returns when there is room: a thread that gives calls to several ranks' streams puts
/// those of one step on all streams before those of the next, or in a group.
///
/// `*stream` is written on success.
///
/// # Safety
/// `stream` has room for a `ringStream_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringStreamCreate(stream: *mut ringStream_t) -> ringResult_t {
    run(|| {
        let out = convert::out(stream, "stream")?;
        out.set(STREAMS.insert(JobStream::new()?)?);
        Ok(())
    })
}

/// Wait until every call that was given to the stream is done.
///
/// Returns the first error of those calls since the last time.
///
/// # Safety
/// Safe for any argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringStreamSynchronize(stream: ringStream_t) -> ringResult_t {
    run(|| object::enter_stream(stream)?.synchronize())
}

/// Whether every call that was given to the stream is done: `ringSuccess`, or `ringInProgress`.
/// Does not wait.
///
/// Returns the first error of those calls since the last `ringStreamSynchronize`.
///
/// # Safety
/// Safe for any argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringStreamQuery(stream: ringStream_t) -> ringResult_t {
    run_for(|| match object::enter_stream(stream)?.query()? {
        Some(result) => result.map(|()| ringResult_t::ringSuccess),
        None => Ok(ringResult_t::ringInProgress),
    })
}

/// A mark behind every call that was given to the stream so far, for `ringStreamReached`.
///
/// `*mark` is written on success.
///
/// # Safety
/// `mark` has room for a `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringStreamMark(stream: ringStream_t, mark: *mut u64) -> ringResult_t {
    run(|| {
        let out = convert::out(mark, "mark")?;
        out.set(object::enter_stream(stream)?.mark()?);
        Ok(())
    })
}

/// Wait until the calls before the mark are done, at most `timeoutMs` milliseconds; less than 0 is
/// without end, 0 does not wait. Calls behind the mark are not waited for.
///
/// Returns `ringInProgress` where they are not, else the first error of those calls since the last
/// `ringStreamSynchronize`. With the highest bit set in the mark (`mark | 1 << 63`) it is the error
/// of the call just before the mark and of no other, also after a `ringStreamSynchronize`; of calls
/// that have failed 512 are known, and `ringInvalidUsage` is what is said of older ones.
///
/// # Safety
/// Safe for any arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringStreamReached(
    stream: ringStream_t,
    mark: u64,
    timeoutMs: i64,
) -> ringResult_t {
    run_for(|| {
        let patience = u64::try_from(timeoutMs).ok().map(Duration::from_millis);
        match object::enter_stream(stream)?.reached(mark, patience)? {
            true => Ok(ringResult_t::ringSuccess),
            false => Ok(ringResult_t::ringInProgress),
        }
    })
}

/// Wait as `ringStreamSynchronize` does, then end the stream. The handle is gone afterwards, also
/// where a call had failed.
///
/// # Safety
/// Safe for any argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringStreamDestroy(stream: ringStream_t) -> ringResult_t {
    run(|| {
        let closed = STREAMS.close(stream).ok_or_else(|| object::not_a("stream", stream))?;
        closed.destroy()
    })
}
