//! NCCL's interface to its variables.
#![allow(unsafe_code)]

use super::table::{VARIABLES, integer};
use super::{log, variable};
use crate::comm::{for_c, refuse, text_at};
use crate::query::text_for_caller;
use crate::types::*;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;

/// A handle is the variable's place in the table, counted from 1.
fn handle_of(key: &str) -> Option<ncclParamHandle_t> {
    let name = key.strip_prefix("NCCL_").unwrap_or(key);
    let at = VARIABLES.iter().position(|(known, _)| *known == name)?;
    Some(std::ptr::without_provenance_mut(at + 1))
}

fn name_of(handle: ncclParamHandle_t) -> Option<String> {
    let (name, _) = VARIABLES.get(handle.addr().checked_sub(1)?)?;
    Some(format!("NCCL_{name}"))
}

fn wrong(function: &str, why: &str) -> ncclResult_t {
    refuse(ncclInvalidArgument, format!("{function}: {why}"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamBind(
    out: *mut ncclParamHandle_t,
    key: *const c_char,
) -> ncclResult_t {
    const NAME: &str = "ncclParamBind";
    let Some(key) = text_at(key).filter(|_| !out.is_null()) else {
        return wrong(NAME, "out or key is NULL");
    };
    let Some(handle) = handle_of(&key) else {
        return wrong(NAME, &format!("{key} is no variable of NCCL's"));
    };
    // SAFETY: the caller's promise.
    unsafe { out.write_unaligned(handle) };
    ncclSuccess
}

/// The text of the variable that a handle names; "" where it is not set.
fn text_of(function: &str, handle: ncclParamHandle_t) -> Result<String, ncclResult_t> {
    let name = name_of(handle).ok_or_else(|| wrong(function, "the handle is none"))?;
    Ok(variable(&name).unwrap_or_default())
}

fn number<T: TryFrom<i64>>(function: &str, handle: ncclParamHandle_t, out: *mut T) -> ncclResult_t {
    if out.is_null() {
        return wrong(function, "out is NULL");
    }
    let text = match text_of(function, handle) {
        Ok(text) => text,
        Err(code) => return code,
    };
    match integer(&text).and_then(|number| T::try_from(number).ok()) {
        Some(number) => {
            // SAFETY: the caller's promise.
            unsafe { out.write_unaligned(number) };
            ncclSuccess
        }
        None if text.is_empty() => refuse(ncclInvalidUsage, format!("{function}: it is not set")),
        None => wrong(function, &format!("{text:?} is no number of this type")),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t {
    number("ncclParamGetI8", h, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t {
    number("ncclParamGetI16", h, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t {
    number("ncclParamGetI32", h, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t {
    number("ncclParamGetI64", h, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t {
    number("ncclParamGetU8", h, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t {
    number("ncclParamGetU16", h, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t {
    number("ncclParamGetU32", h, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t {
    number("ncclParamGetU64", h, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetStr(
    h: ncclParamHandle_t,
    out: *mut *const c_char,
) -> ncclResult_t {
    const NAME: &str = "ncclParamGetStr";
    if out.is_null() {
        return wrong(NAME, "out is NULL");
    }
    match text_of(NAME, h) {
        Ok(text) => {
            // SAFETY: the caller's promise.
            unsafe { out.write_unaligned(text_for_caller(&text)) };
            ncclSuccess
        }
        Err(code) => code,
    }
}

/// The text without a NUL, as many bytes as there is room for; `*len` is all of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGet(
    h: ncclParamHandle_t,
    out: *mut c_void,
    maxLen: c_int,
    len: *mut c_int,
) -> ncclResult_t {
    const NAME: &str = "ncclParamGet";
    if len.is_null() || (out.is_null() && maxLen > 0) || maxLen < 0 {
        return wrong(NAME, "out or len is NULL, or maxLen is negative");
    }
    match text_of(NAME, h) {
        Ok(text) => {
            let bytes = text.len().min(maxLen as usize);
            // SAFETY: there is room for `maxLen` bytes, and for a number.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast::<u8>(), bytes);
                len.write_unaligned(text.len() as c_int);
            }
            ncclSuccess
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetParameter(
    key: *const c_char,
    value: *mut *const c_char,
    valueLen: *mut c_int,
) -> ncclResult_t {
    const NAME: &str = "ncclParamGetParameter";
    let Some(key) = text_at(key).filter(|_| !value.is_null()) else {
        return wrong(NAME, "key or value is NULL");
    };
    let Some(name) = handle_of(&key).and_then(name_of) else {
        return wrong(NAME, &format!("{key} is no variable of NCCL's"));
    };
    let text = variable(&name).unwrap_or_default();
    // SAFETY: the caller's promise.
    unsafe {
        value.write_unaligned(text_for_caller(&text));
        if !valueLen.is_null() {
            valueLen.write_unaligned(text.len() as c_int);
        }
    }
    ncclSuccess
}

thread_local! {
    /// The names that this thread was handed last, and the table of their addresses.
    static KEYS: RefCell<(Vec<CString>, Vec<*const c_char>)> = RefCell::default();
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetAllParameterKeys(
    table: *mut *mut *const c_char,
    tableLen: *mut c_int,
) -> ncclResult_t {
    if table.is_null() || tableLen.is_null() {
        return wrong("ncclParamGetAllParameterKeys", "table or tableLen is NULL");
    }
    let fill = |keys: &RefCell<(Vec<CString>, Vec<*const c_char>)>| {
        let (names, places) = &mut *keys.borrow_mut();
        *names = VARIABLES.iter().map(|(name, _)| for_c(&format!("NCCL_{name}"))).collect();
        *places = names.iter().map(|name| name.as_ptr()).collect();
        places.as_mut_ptr()
    };
    let place = KEYS.try_with(fill).unwrap_or(null_mut());
    // SAFETY: the caller's promise.
    unsafe {
        table.write_unaligned(place);
        tableLen.write_unaligned(if place.is_null() { 0 } else { VARIABLES.len() as c_int });
    }
    ncclSuccess
}

/// Every variable that is set; with `NCCL_PARAM_DUMP_ALL` the others, too.
#[unsafe(no_mangle)]
pub extern "C" fn pncclParamDumpAll() {
    let all = variable("NCCL_PARAM_DUMP_ALL")
        .is_some_and(|value| matches!(&value.to_ascii_lowercase()[..], "1" | "true" | "yes"));
    for (name, _) in VARIABLES {
        let name = format!("NCCL_{name}");
        match variable(&name) {
            Some(value) => log::always(&format!("{name}={value}")),
            None if all => log::always(&format!("{name} is not set")),
            None => {}
        }
    }
}
