//! Why calls failed, for whoever asks: with NCCL's names, by thread and for the process.
#![allow(unsafe_code)]

use ringcomm::ffi::comm::query::ringGetLastError;
use ringcomm::ffi::types::ringComm_t;
use ringcomm::sync::Mutex;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

thread_local! {
    /// The text of this thread's last failed call.
    static LAST: RefCell<CString> = RefCell::default();
}

/// The text of the process's last failed call, for threads that made none.
static LAST_OF_ALL: Mutex<Option<CString>> = Mutex::new(None);

pub fn keep(text: CString) {
    *LAST_OF_ALL.lock() = Some(text.clone());
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// The text of this thread's last failed call.
pub fn last_text() -> CString {
    let own = LAST.try_with(|last| last.borrow().clone()).unwrap_or_default();
    match own.is_empty() {
        true => LAST_OF_ALL.lock().clone().unwrap_or_default(),
        false => own,
    }
}

/// A text with a NUL cannot reach C whole.
pub fn for_c(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// The library's text for its communicator, or for the thread, with NCCL's names in it.
pub fn words_of(ring: ringComm_t) -> CString {
    // SAFETY: never NULL, and valid until the thread asks again.
    let text = unsafe { CStr::from_ptr(ringGetLastError(ring)) };
    for_c(&with_nccl_names(&text.to_string_lossy()).replace("ringcomm.h", "nccl.h"))
}

/// The text of the thread's last failed call of the library's.
pub fn ring_text() -> String {
    words_of(null_mut()).to_string_lossy().into_owned()
}

/// `ringGroupEnd` is `ncclGroupEnd` to whoever calls that.
fn with_nccl_names(text: &str) -> String {
    let mut rest = text;
    let mut named = String::with_capacity(text.len());
    while let Some(at) = rest.find("ring") {
        let (before, from) = rest.split_at(at);
        let begins = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let is_ours = begins && from[4..].starts_with(|c: char| c.is_ascii_uppercase());
        named += before;
        named += if is_ours { "nccl" } else { "ring" };
        rest = &from[4..];
    }
    named + rest
}

/// Text of the caller's, if there is one.
pub fn text_at(text: *const c_char) -> Option<String> {
    // SAFETY: the caller promises a C string or NULL.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_the_functions_that_were_called() {
        assert_eq!(
            with_nccl_names("ringAllReduce: end ringGroupEnd"),
            "ncclAllReduce: end ncclGroupEnd"
        );
        for same in ["ringcomm", "a string", "stringRing", "ring", "during"] {
            assert_eq!(with_nccl_names(same), same);
        }
    }
}
