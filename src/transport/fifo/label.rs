//! A message's label in its slot, which both ends write and read word by word.
//!
//! Models see the accesses as those of one cell: what orders them is the position of the message.
#![allow(unsafe_code)]

use super::Stamp;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What the header says of a message.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Label {
    pub communicator: u32,
    pub epoch: u32,
    pub sequence: u64,
    pub fingerprint: u64,
    pub source: u32,
    /// Payload bytes.
    pub length: u32,
}

impl Label {
    /// Write the label of a message, word by word.
    ///
    /// The call has just written the stamp. A compiler left to itself reads two of its words by
    /// one load of twice the width, which has to wait until both stores have left the core's
    /// buffer, behind those to lines that another core has.
    ///
    /// # Safety
    /// The label is memory of a ring.
    #[inline]
    pub unsafe fn write(label: *mut Label, stamp: &Stamp, length: u32) {
        // SAFETY: the caller's promise. Peers may write there, right or wrong: hence atomics,
        // relaxed, as the position of the message orders them.
        unsafe {
            word(&raw mut (*label).length).store(length, Relaxed);
            // See `ReceivedMessage::matches`.
            if !cfg!(ringcomm_unchecked) {
                word(&raw mut (*label).communicator).store(stamp.communicator, Relaxed);
                word(&raw mut (*label).epoch).store(stamp.epoch, Relaxed);
                long(&raw mut (*label).sequence).store(stamp.sequence, Relaxed);
                long(&raw mut (*label).fingerprint).store(stamp.fingerprint, Relaxed);
                word(&raw mut (*label).source).store(stamp.source, Relaxed);
            }
        }
    }

    /// Copy a label, each word once: a wrong peer may change it meanwhile.
    ///
    /// # Safety
    /// As for `write`.
    #[inline]
    pub unsafe fn read(label: *const Label) -> Label {
        let label = label.cast_mut();
        // SAFETY: as in `write`.
        unsafe {
            Label {
                communicator: word(&raw mut (*label).communicator).load(Relaxed),
                epoch: word(&raw mut (*label).epoch).load(Relaxed),
                sequence: long(&raw mut (*label).sequence).load(Relaxed),
                fingerprint: long(&raw mut (*label).fingerprint).load(Relaxed),
                source: word(&raw mut (*label).source).load(Relaxed),
                length: word(&raw mut (*label).length).load(Relaxed),
            }
        }
    }
}

/// # Safety
/// Aligned memory that stays as long as the reference.
#[inline]
unsafe fn word<'a>(place: *mut u32) -> &'a AtomicU32 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU32::from_ptr(place) }
}

/// # Safety
/// As for `word`.
#[inline]
unsafe fn long<'a>(place: *mut u64) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(place) }
}
