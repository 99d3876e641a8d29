//! The control thread's descriptors: the event that wakes it, its sleep.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

/// Wakes a thread that sleeps in `poll`.
pub struct EventFd(OwnedFd);

impl EventFd {
    pub fn new() -> Result<EventFd> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::system("making an eventfd"));
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn raise(&self) {
        let one = 1u64;
        // SAFETY: eight bytes, as an eventfd takes them; a full one is raised anyway.
        unsafe { libc::write(self.raw(), (&raw const one).cast(), 8) };
    }

    pub fn lower(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes, as an eventfd gives them.
        unsafe { libc::read(self.raw(), (&raw mut count).cast(), 8) };
    }

    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Sleep until a descriptor is ready or `until` has come.
pub fn poll(entries: &mut [libc::pollfd], until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    // A millisecond more than the whole ones left, so that the last one is not spun away.
    let ms = if left.is_zero() { 0 } else { left.as_millis().min(60_000) as libc::c_int + 1 };
    // SAFETY: the pointer and length are those of a live slice. A signal, or the kernel's lack of
    // memory, ends the sleep early, which harms nobody.
    unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, ms) };
}
