//! Sleeping on descriptors: one `poll`, and the event that ends a sleep from another thread.
#![allow(unsafe_code)]

use super::descriptors::above_stdio;
use crate::error::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// The longest sleep at once; whoever wants more sleeps again.
const LONGEST: Duration = Duration::from_secs(60);

/// A descriptor to sleep on. The entry is libc's: rustix's borrows its descriptor, and lists of
/// these live longer than some of those.
pub fn entry(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// Sleep until a descriptor is ready or `until` has come; how many are ready. A signal ends the
/// sleep early, which harms nobody: who sleeps looks at its condition and sleeps again.
pub fn poll(entries: &mut [libc::pollfd], until: Instant) -> io::Result<usize> {
    poll_for(entries, until.saturating_duration_since(Instant::now()))
}

/// The same for so long at most.
pub fn poll_for(entries: &mut [libc::pollfd], time: Duration) -> io::Result<usize> {
    let time = time.min(LONGEST);
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    };
    let (first, count) = (entries.as_mut_ptr(), entries.len() as libc::nfds_t);
    // SAFETY: the pointer and length are those of a live slice, and the time outlives the call.
    let ready = unsafe { libc::ppoll(first, count, &time, std::ptr::null()) };
    match usize::try_from(ready) {
        Ok(ready) => Ok(ready),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            error => Err(error),
        },
    }
}

/// Wakes a thread that sleeps in `poll`.
pub struct EventFd(OwnedFd);

impl EventFd {
    pub fn new() -> Result<EventFd> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.and_then(above_stdio)
            .map(EventFd)
            .map_err(|error| Error::os("making an eventfd", error))
    }

    pub fn raise(&self) {
        // A full one is raised anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub fn lower(&self) {
        // One that was not raised stays so.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_ends_a_sleep_until_it_is_lowered() {
        let event = EventFd::new().unwrap();
        let mut entries = [entry(event.raw(), libc::POLLIN)];
        assert_eq!(poll_for(&mut entries, Duration::ZERO).unwrap(), 0);
        event.raise();
        event.raise();
        let started = Instant::now();
        assert_eq!(poll_for(&mut entries, Duration::from_secs(50)).unwrap(), 1);
        assert!(started.elapsed() < Duration::from_secs(40));
        event.lower();
        let until = Instant::now() + Duration::from_millis(5);
        assert_eq!(poll(&mut entries, until).unwrap(), 0);
        assert!(Instant::now() >= until && entries[0].revents == 0);
    }
}
