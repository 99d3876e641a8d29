//! What the library would do, and what it has done.
#![allow(unsafe_code)]

use super::config::check_head;
use crate::communicator::{Call, Communicator, Explanation};
use crate::ffi::boundary::run_on;
use crate::ffi::convert;
use crate::ffi::types::*;
use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};

/// The size of the structure in the first release that had it.
const FIRST_SIZE: usize = offset_of!(ringExplain_t, directInPlace) + size_of::<usize>();

/// How a collective would run on this communicator: algorithm, transport, channels, chunks, time.
///
/// `count` as in the collective's own function; `op` counts for those that reduce, `root` for those
/// that have one. Nothing is sent, and the other ranks need not ask. Does not wait for calls that
/// other threads make, but where several processes share devices. Set `explain` to
/// `RING_EXPLAIN_INITIALIZER` before; it is written on success.
///
/// # Safety
/// `explain` points to an initialized `ringExplain_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommExplain(
    comm: ringComm_t,
    collective: RawCollective,
    count: usize,
    datatype: RawDataType,
    op: RawRedOp,
    root: c_int,
    explain: *mut ringExplain_t,
) -> ringResult_t {
    run_on(comm, |comm| {
        let head = convert::read(explain.cast::<usize>(), "explain")?;
        let magic = explain.wrapping_byte_add(offset_of!(ringExplain_t, magic)).cast::<u32>();
        let magic = convert::read(magic, "explain")?;
        let room = (FIRST_SIZE, size_of::<ringExplain_t>());
        let bytes = check_head("ringExplain_t", (head, magic), room)?;
        let collective = convert::collective(collective)?;
        let data_type = convert::data_type(datatype)?;
        let mut call = Call { count, ..Call::new(collective, data_type) };
        convert::bytes(count, data_type)?;
        if collective.reduces() {
            (call.op, call.scalar) = comm.reductions.resolve(op, data_type)?;
        }
        if collective.has_root() {
            call.root = convert::rank(root, comm.communicator.nranks(), "root")?;
        }
        let answer = comm.communicator.explain(&call)?;
        convert::write_prefix(explain, bytes, &to_c(&answer, head));
        Ok(())
    })
}

fn to_c(answer: &Explanation, size: usize) -> ringExplain_t {
    ringExplain_t {
        size,
        magic: RING_MAGIC,
        version: RING_VERSION_CODE as u32,
        algorithm: convert::name(answer.algorithm),
        transport: convert::name(answer.transport),
        channels: answer.channels,
        chunks: answer.chunks,
        slices: answer.slices,
        sliceBytes: answer.slice_bytes,
        predictedUs: answer.predicted_us,
        directAlgorithm: convert::name(answer.mapped.map_or("", |mapped| mapped.algorithm)),
        directPredictedUs: answer.mapped.map_or(0.0, |mapped| mapped.predicted_us),
        directInPlace: answer.mapped.map_or(0, |mapped| usize::from(mapped.in_place)),
    }
}

/// The flight record of this rank, as JSON: the last operations, and who waits for whom.
///
/// Like `snprintf`: the text and a NUL are written to `buffer` if they fit into `size` bytes, else
/// nothing is; `*needed` gets the bytes needed, with the NUL, in both cases. `buffer` may be NULL.
/// The record grows while calls run, so ask with room to spare. Never waits, from any thread.
///
/// `steps_done` of `steps` is how far an operation had come at its last long wait; both are null
/// where none was long, and for calls that run in kernels. A step is one of the plan's for a slice
/// (collectives through slots), a byte (messages, and the `v` forms that run as such; some bytes
/// where they are more than 2^32), or a peer that was met, the work, and a peer that has done its
/// part (collectives in each other's buffers).
///
/// # Safety
/// `buffer` is NULL or has room for `size` bytes; `needed` has room for a `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommDump(
    comm: ringComm_t,
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> ringResult_t {
    write(comm, Communicator::dump, buffer, size, needed)
}

/// The same operations as a trace: open the text as a file in ui.perfetto.dev or chrome://tracing.
///
/// JSON trace events: a process for each rank, a track for each communicator. Times are those of
/// the system's monotonic clock, so traces of one machine's ranks lie side by side. Buffer and
/// sizes as in `ringCommDump`. Never waits, from any thread.
///
/// # Safety
/// `buffer` is NULL or has room for `size` bytes; `needed` has room for a `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommTrace(
    comm: ringComm_t,
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> ringResult_t {
    write(comm, Communicator::trace, buffer, size, needed)
}

/// Write a text of a communicator's, if it fits.
fn write(
    comm: ringComm_t,
    text: fn(&Communicator) -> String,
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> ringResult_t {
    run_on(comm, |comm| {
        let out = convert::out(needed, "needed")?;
        out.set(convert::write_text(&text(&comm.communicator), buffer, size));
        Ok(())
    })
}
