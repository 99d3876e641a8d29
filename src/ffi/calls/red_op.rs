//! `ringRedOpCreatePreMulSum`: making reductions with a factor.
#![allow(unsafe_code)]

use crate::ffi::boundary::run_on;
use crate::ffi::convert;
use crate::ffi::reductions::{Factor, PreMulSum, number};
use crate::ffi::types::*;
use std::ffi::c_void;

/// Make a reduction that multiplies each rank's input by a scalar of that rank before summing.
///
/// `scalar` points to one element of type `datatype`. With `ringScalarHostImmediate` it is read
/// before this function returns; with `ringScalarDevice` by every call that uses the reduction,
/// when it is called, and must stay valid until `ringRedOpDestroy`. The reduction goes with this
/// communicator and this type only; each rank makes its own, and the scalars may differ.
///
/// `*op` is written on success: a number from 1024. Errors: `ringInvalidArgument` for NULL, an
/// unknown type or residence, bool, or a 64-bit integer of more than 53 significant bits.
///
/// # Safety
/// `op` has room for a `ringRedOp_t`; `scalar` is valid as said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringRedOpCreatePreMulSum(
    op: *mut RawRedOp,
    scalar: *mut c_void,
    datatype: RawDataType,
    residence: RawScalarResidence,
    comm: ringComm_t,
) -> ringResult_t {
    run_on(comm, |comm| {
        let op = convert::out(op, "op")?;
        let data_type = convert::data_type(datatype)?;
        comm.communicator.check_on_host(scalar.cast(), "scalar")?;
        let value = number(scalar, data_type)?;
        let factor = if convert::is_immediate(residence)? {
            Factor::Known(value)
        } else {
            Factor::At(scalar.expose_provenance())
        };
        op.set(comm.reductions.make(PreMulSum { data_type, factor })?);
        Ok(())
    })
}

/// Destroy a reduction of `ringRedOpCreatePreMulSum`. Calls that were made with it are not touched.
///
/// Errors: `ringInvalidArgument` where it is none of this communicator, or was destroyed.
///
/// # Safety
/// Safe for any arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringRedOpDestroy(op: RawRedOp, comm: ringComm_t) -> ringResult_t {
    run_on(comm, |comm| comm.reductions.destroy(op))
}
