//! Factors of reductions that lie in a device's memory: read behind what their stream has before.
//!
//! The library reads a factor on the host when a call is made. So each call with such a reduction
//! first waits until its stream has come here, and copies the factor.
#![allow(unsafe_code)]

use crate::comm::{COMMS, Comm, ask, ring_text};
use crate::types::*;
use ringcomm::device::cuda::{Capture, Device, Event, RawStream, Recording, copy};
use ringcomm::error::{Error, Result};
use ringcomm::ffi::calls::red_op::ringRedOpCreatePreMulSum;
use ringcomm::ffi::types::{RawDataType, RawScalarResidence, ringResult_t};
use std::ffi::c_void;
use std::sync::Arc;

/// The first number of a reduction that a program made.
pub const FIRST_MADE: ncclRedOp_t = 1024;

/// The longest element.
const MOST_BYTES: usize = 8;

/// A factor on a device, and where the library looks for it.
pub struct DeviceScalar {
    op: ncclRedOp_t,
    at: usize,
    bytes: usize,
    here: Box<[u8; MOST_BYTES]>,
}

/// Make a reduction whose factor is in a device's memory.
pub fn create(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
) -> ncclResult_t {
    ask("ncclRedOpCreatePreMulSum", comm, |own, ring| {
        let bytes = ringcomm::ffi::convert::data_type(RawDataType(datatype))?.size();
        let at = scalar.expose_provenance();
        let mut kept = DeviceScalar { op: 0, at, bytes, here: Box::new([0; MOST_BYTES]) };
        let device = ring.communicator.device().expect("device memory needs a device");
        read(&mut kept, device, std::ptr::null_mut())?;
        let (here, residence) = (kept.here.as_mut_ptr().cast(), RawScalarResidence(0));
        let mut made = ringcomm::ffi::types::RawRedOp(0);
        // SAFETY: the box stays where it is until the communicator is gone.
        let result = unsafe {
            ringRedOpCreatePreMulSum(&mut made, here, RawDataType(datatype), residence, own.ring())
        };
        if result != ringResult_t::ringSuccess {
            return Err(Error::argument(ring_text()));
        }
        kept.op = made.0;
        own.device_scalars.lock().push(kept);
        ringcomm::ffi::convert::out(op, "op")?.set(made.0);
        Ok(())
    })
}

/// Whether a factor is where only a device reads.
pub fn is_on_device(scalar: *const c_void, comm: ncclComm_t) -> bool {
    let inside = COMMS.enter(comm.cast());
    let made = inside.and_then(|inside| ringcomm::ffi::object::enter(inside.ring()).ok());
    made.is_some_and(|made| made.communicator.check_on_host(scalar.cast(), "scalar").is_err())
}

/// Read the factor of a made reduction anew, if it is a device's.
#[cold]
pub fn refresh(
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Result<(), ncclResult_t> {
    let Some(inside) = COMMS.enter(comm.cast()) else { return Ok(()) };
    let own: &Arc<Comm> = &inside;
    let mut scalars = own.device_scalars.lock();
    let Some(scalar) = scalars.iter_mut().find(|scalar| scalar.op == op) else { return Ok(()) };
    let device =
        ringcomm::ffi::object::enter(own.ring()).ok().and_then(|made| made.communicator.device());
    let Some(device) = device else { return Ok(()) };
    read(scalar, device, stream.cast()).map_err(|error| own.refuse_by(&error))
}

/// The reduction is destroyed.
pub fn forget(op: ncclRedOp_t, comm: ncclComm_t) {
    if let Some(inside) = COMMS.enter(comm.cast()) {
        inside.device_scalars.lock().retain(|scalar| scalar.op != op);
    }
}

fn read(scalar: &mut DeviceScalar, device: i32, stream: RawStream) -> Result<()> {
    let device = Device::of_ordinal(device)?;
    let passed = {
        let _current = device.enter()?;
        if Capture::of(&device, stream)? != Capture::No {
            return Err(Error::usage(
                "a factor in a device's memory is read when a call is made, which a stream that is \
                 being captured does not allow; make the reduction with ncclScalarHostImmediate",
            ));
        }
        let from = std::ptr::with_exposed_provenance(scalar.at);
        // SAFETY: the caller's promise, and a box that outlives the wait below.
        unsafe { copy(&device, scalar.here.as_mut_ptr(), from, scalar.bytes, stream)? };
        let passed = Event::new(&device, Recording::Moment)?;
        passed.record(stream)?;
        passed
    };
    while !passed.has_passed()? {
        std::thread::yield_now();
    }
    Ok(())
}
