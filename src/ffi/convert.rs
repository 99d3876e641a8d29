//! Every cast from C to Rust: numbers that must be enums, pointers that must be there, counts.
//!
//! What comes out of here is checked; the functions above never look at a raw value.
#![allow(unsafe_code)]
// Public for interfaces of the workspace alone; what a C caller promises holds for all of it.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use crate::bootstrap::UniqueId;
use crate::error::{Error, Result};
use crate::ffi::types::{RawCollective, RawDataType, RawRedOp, RawScalarResidence, ringUniqueId};
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};
use std::ffi::{CStr, c_char, c_int};

/// One more than the largest number of a data type or built-in reduction.
const NUMBERS: usize = 67;

/// Data types by number: a lookup at every call, so an index instead of a search.
static DATA_TYPES: [Option<DataType>; NUMBERS] = {
    let mut table = [None; NUMBERS];
    let mut i = 0;
    while i < DataType::ALL.len() {
        table[DataType::ALL[i] as usize] = Some(DataType::ALL[i]);
        i += 1;
    }
    table
};

/// Built-in reductions by number.
static REDUCTIONS: [Option<ReduceOp>; NUMBERS] = {
    let mut table = [None; NUMBERS];
    let mut i = 0;
    while i < ReduceOp::ALL.len() {
        table[ReduceOp::ALL[i] as usize] = Some(ReduceOp::ALL[i]);
        i += 1;
    }
    table
};

fn by_number<T: Copy>(table: &[Option<T>], number: i32) -> Option<T> {
    *table.get(usize::try_from(number).ok()?)?
}

#[cold]
fn unknown(what: &str, number: i32) -> Error {
    Error::argument(format!("{number} is no {what}; ringcomm.h lists them"))
}

#[inline]
pub fn data_type(raw: RawDataType) -> Result<DataType> {
    by_number(&DATA_TYPES, raw.0).ok_or_else(|| unknown("data type", raw.0))
}

/// A built-in reduction that is defined on the type.
#[inline]
pub fn reduction(raw: RawRedOp, data_type: DataType) -> Result<ReduceOp> {
    let op = by_number(&REDUCTIONS, raw.0).ok_or_else(|| unknown("reduction", raw.0))?;
    if op.supports(data_type) { Ok(op) } else { Err(undefined(op, data_type)) }
}

#[cold]
fn undefined(op: ReduceOp, data_type: DataType) -> Error {
    Error::argument(format!("{op} is not defined on {data_type}"))
}

pub fn collective(raw: RawCollective) -> Result<Collective> {
    usize::try_from(raw.0)
        .ok()
        .and_then(|number| Collective::ALL.get(number).copied())
        .ok_or_else(|| unknown("collective", raw.0))
}

/// Whether a scalar is read at once.
pub fn is_immediate(raw: RawScalarResidence) -> Result<bool> {
    match raw.0 {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(unknown("scalar residence", other)),
    }
}

/// A rank of a communicator of `nranks`; `what` is the argument's name.
#[inline]
pub fn rank(raw: c_int, nranks: usize, what: &str) -> Result<usize> {
    match usize::try_from(raw) {
        Ok(rank) if rank < nranks => Ok(rank),
        _ => Err(no_rank(raw, nranks, what)),
    }
}

#[cold]
fn no_rank(raw: c_int, nranks: usize, what: &str) -> Error {
    Error::argument(format!(
        "{what} {raw} is not a rank of this communicator; ranks are 0 to {}",
        nranks - 1
    ))
}

/// A number of ranks: at least one.
pub fn number_of_ranks(raw: c_int) -> Result<usize> {
    match usize::try_from(raw) {
        Ok(nranks) if nranks > 0 => Ok(nranks),
        _ => Err(Error::argument(format!("a communicator of {raw} ranks; it needs one at least"))),
    }
}

/// Check that the buffer's length in bytes can be one.
#[inline(always)]
pub fn bytes(count: usize, data_type: DataType) -> Result<usize> {
    let bytes = count.checked_mul(data_type.size()).filter(|bytes| *bytes <= isize::MAX as usize);
    bytes.ok_or_else(|| too_many(count, data_type))
}

#[cold]
fn too_many(count: usize, data_type: DataType) -> Error {
    Error::argument(format!("{count} elements of {data_type} are more than memory holds"))
}

/// A place for a result, checked to be there; written by [`Out::set`], on success only.
pub struct Out<T>(std::ptr::NonNull<T>);

/// Check an out-parameter; `what` is its name.
#[inline]
pub fn out<T>(pointer: *mut T, what: &str) -> Result<Out<T>> {
    std::ptr::NonNull::new(pointer).map(Out).ok_or_else(|| missing(what))
}

impl<T> Out<T> {
    #[inline]
    pub fn set(self, value: T) {
        // SAFETY: not NULL, and the C caller promises room for a `T`. Unaligned costs nothing here
        // and forgives a packed structure.
        unsafe { self.0.as_ptr().write_unaligned(value) }
    }
}

#[cold]
fn missing(what: &str) -> Error {
    Error::argument(format!("{what} is NULL; pass an address"))
}

/// Read a value that C passes by address.
pub fn read<T: Copy>(pointer: *const T, what: &str) -> Result<T> {
    if pointer.is_null() {
        return Err(missing(what));
    }
    // SAFETY: not NULL, and the C caller promises a `T` there.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Read an array of `len` values into `into`, which keeps its memory from call to call.
pub fn read_array<T: Copy>(
    pointer: *const T,
    len: usize,
    what: &str,
    into: &mut Vec<T>,
) -> Result<()> {
    into.clear();
    if len == 0 {
        return Ok(());
    }
    if pointer.is_null() {
        return Err(missing(what));
    }
    if !pointer.is_aligned() {
        return Err(Error::argument(format!("{what} is not aligned")));
    }
    // SAFETY: not NULL, aligned, and the C caller promises `len` values there.
    into.extend_from_slice(unsafe { std::slice::from_raw_parts(pointer, len) });
    Ok(())
}

/// Copy the first `bytes` bytes of a C structure into a Rust one that holds defaults.
///
/// `T` must be plain data: any bytes are a value of it.
pub fn read_prefix<T: Copy>(pointer: *const T, bytes: usize, into: &mut T) {
    assert!(bytes <= size_of::<T>() && !pointer.is_null());
    // SAFETY: the caller read the structure's own size field, which says that `bytes` are there.
    unsafe {
        std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut *into).cast::<u8>(), bytes);
    }
}

/// Write the first `bytes` bytes of `value` to where a C program has that much room.
pub fn write_prefix<T: Copy>(pointer: *mut T, bytes: usize, value: &T) {
    assert!(bytes <= size_of::<T>() && !pointer.is_null());
    // SAFETY: the structure's own size field says that there is room for `bytes`.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), pointer.cast(), bytes);
    }
}

/// Write `text` and a NUL to a buffer of `size` bytes if it fits; returns the bytes needed.
pub fn write_text(text: &str, buffer: *mut c_char, size: usize) -> usize {
    let needed = text.len() + 1;
    if !buffer.is_null() && needed <= size {
        // SAFETY: not NULL, and the C caller promises `size` bytes there.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), text.len());
            buffer.add(text.len()).write(0);
        }
    }
    needed
}

/// Write as much of `text` as a buffer of `size` bytes holds beside the NUL that closes it.
pub fn write_cut(text: &str, buffer: *mut c_char, size: usize) {
    let room = size.saturating_sub(1).min(text.len());
    // Not in the middle of a character.
    let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    if size > 0 {
        write_text(&text[..end], buffer, size);
    }
}

/// An optional C string; NULL and the empty text are `None`.
pub fn text(pointer: *const c_char, what: &str) -> Result<Option<String>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, and the C caller promises a closed C string.
    let text = unsafe { CStr::from_ptr(pointer) };
    let text = text.to_str().map_err(|_| Error::argument(format!("{what} is not UTF-8")))?;
    Ok((!text.is_empty()).then(|| text.to_string()))
}

/// A name as a fixed array closed by a NUL; what does not fit is cut off.
pub fn name<const N: usize>(text: &str) -> [c_char; N] {
    let mut name = [0; N];
    for (target, source) in name[..N - 1].iter_mut().zip(text.bytes()) {
        *target = source as c_char;
    }
    name
}

/// Check an array of out-parameters.
pub fn out_array<T>(pointer: *mut T, len: usize, what: &str) -> Result<Vec<Out<T>>> {
    (0..len)
        .map(|i| out(pointer, what).map(|_| pointer.wrapping_add(i)))
        .map(|place| out(place?, what))
        .collect()
}

/// The library's unique id from C's bytes.
pub fn unique_id(raw: &ringUniqueId) -> Result<UniqueId> {
    UniqueId::from_bytes(&raw.internal.map(|byte| byte as u8))
}

pub fn unique_id_to_c(id: &UniqueId) -> ringUniqueId {
    ringUniqueId { internal: id.as_bytes().map(|byte| byte as c_char) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_and_op_comes_back_from_its_number_and_nothing_else_does() {
        let (mut types, mut ops) = (0, 0);
        for number in (-2000..2000).chain([i32::MIN, i32::MAX]) {
            if let Ok(found) = data_type(RawDataType(number)) {
                assert_eq!(found as i32, number);
                types += 1;
            }
            if let Ok(found) = reduction(RawRedOp(number), DataType::Int32) {
                assert_eq!(found as i32, number);
                ops += 1;
            }
        }
        assert_eq!((types, ops), (DataType::ALL.len(), ReduceOp::ALL.len()));
    }

    #[test]
    fn a_reduction_that_the_type_does_not_have_is_refused() {
        let error = reduction(RawRedOp(64), DataType::Float32).unwrap_err();
        assert!(error.to_string().contains("band is not defined on float"), "{error}");
    }

    #[test]
    fn ranks_and_sizes_out_of_range_are_refused() {
        assert_eq!(rank(2, 3, "root").unwrap(), 2);
        for bad in [-1, 3, i32::MAX] {
            let text = rank(bad, 3, "root").unwrap_err().to_string();
            assert!(
                text.contains(&format!(
                    "root {bad} is not a rank of this communicator; ranks are 0 to 2"
                )),
                "{text}"
            );
        }
        assert!(bytes(usize::MAX / 4, DataType::Float32).is_err());
        assert!(bytes(usize::MAX / 2, DataType::Float64).is_err());
        assert_eq!(bytes(3, DataType::Float64).unwrap(), 24);
    }

    #[test]
    fn text_is_written_only_if_it_fits() {
        let mut buffer = [1; 6];
        assert_eq!(write_text("hello", buffer.as_mut_ptr(), 5), 6);
        assert_eq!(buffer, [1; 6]);
        assert_eq!(write_text("hello", buffer.as_mut_ptr(), 6), 6);
        assert_eq!(buffer.map(|c| c as u8), *b"hello\0");
        assert_eq!(write_text("hello", std::ptr::null_mut(), 100), 6);
    }

    #[test]
    fn text_is_cut_between_characters_and_closed() {
        let cut = |text: &str| {
            let mut buffer = [1; 5];
            write_cut(text, buffer.as_mut_ptr(), 4);
            buffer.map(|c| c as u8)
        };
        assert_eq!(cut("rings"), *b"rin\0\x01");
        assert_eq!(cut("aré"), *b"ar\0\x01\x01");
        assert_eq!(cut(""), *b"\0\x01\x01\x01\x01");
        write_cut("text", std::ptr::null_mut(), 4);
        let mut one = [1];
        write_cut("text", one.as_mut_ptr(), 0);
        assert_eq!(one, [1]);
    }

    #[test]
    fn a_name_too_long_is_cut_and_still_closed() {
        assert_eq!(name::<4>("ring").map(|c| c as u8), *b"rin\0");
        assert_eq!(name::<8>("ring").map(|c| c as u8), *b"ring\0\0\0\0");
    }
}
