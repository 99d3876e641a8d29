//! Groups: several calls that start together.
#![allow(unsafe_code)]

use super::dispatch;
use crate::ffi::boundary::run;
use crate::ffi::types::ringResult_t;

/// Open a group on this thread: the calls until the matching `ringGroupEnd` are kept and start
/// together there.
///
/// Needed where a thread makes the calls of several ranks, and for sends and receives that wait for
/// each other. Of each communicator the collectives run first, in the order of the calls, and then
/// all sends and receives together, wherever they stood among them; communicators run at the same
/// time. Groups nest; the outermost counts. Buffers stay untouched until the group's end.
///
/// A thread that makes the calls of several ranks without a group waits for itself. Nothing tells
/// that from another thread that is late: the first such call ends at the deadline (`timeoutMs`),
/// with a hint where this thread made all ranks. Between devices of one process a later call is
/// refused (`ringInvalidUsage`) once it has waited 10 s, or half the deadline where that is less,
/// for a rank whose last call its own thread made, even if another thread was to make the next one
/// later than that.
#[unsafe(no_mangle)]
pub extern "C" fn ringGroupStart() -> ringResult_t {
    run(dispatch::group_start)
}

/// Close the thread's innermost group; if it is the outermost, run what it holds.
///
/// Returns when all of it is done, except calls on a stream, which go on there. Communicators that
/// were asked for are all made, or none is. Returns the first error of the calls. Where one of them
/// was refused as it was made, none of them runs: a call that cannot be right (`ringBarrier` of
/// NULL) drops what the thread's groups hold.
///
/// Errors: `ringInvalidUsage` without a matching `ringGroupStart`, and those of the calls.
#[unsafe(no_mangle)]
pub extern "C" fn ringGroupEnd() -> ringResult_t {
    run(dispatch::group_end)
}
