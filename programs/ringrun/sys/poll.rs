//! Waiting for several descriptors at once, and what a descriptor passes on.
#![allow(unsafe_code)]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The descriptors of one wait.
#[derive(Default)]
pub struct Watch(Vec<libc::pollfd>);

impl Watch {
    /// Wait for something to read, or for the other end to go. Returns the place to ask about.
    pub fn reading(&mut self, file: &impl AsFd) -> usize {
        self.add(file, libc::POLLIN)
    }

    /// Wait for room to write.
    pub fn writing(&mut self, file: &impl AsFd) -> usize {
        self.add(file, libc::POLLOUT)
    }

    fn add(&mut self, file: &impl AsFd, events: i16) -> usize {
        self.0.push(libc::pollfd { fd: file.as_fd().as_raw_fd(), events, revents: 0 });
        self.0.len() - 1
    }

    /// Wait until one is ready or the time is over.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // Rounded up: a wait that ends a fraction early would be repeated until it is not.
        let ms = timeout
            .map_or(-1, |time| time.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32);
        // SAFETY: the pointer and the count are those of a live vector.
        let result = unsafe { libc::poll(self.0.as_mut_ptr(), self.0.len() as libc::nfds_t, ms) };
        match result {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
            _ => Ok(()),
        }
    }

    /// Whether the descriptor at a place has something, an end or an error included.
    pub fn is_ready(&self, place: Option<usize>) -> bool {
        place.is_some_and(|place| self.0[place].revents != 0)
    }
}

/// Let reads and writes return at once. Only for pipes of our own: the setting belongs to the open
/// file, which others may share.
pub fn set_nonblocking(file: &impl AsFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(file, true)?)
}

/// Take over a descriptor that the parent left to this process under a number; processes that this
/// one starts do not get it.
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call touches no memory and fails for a number that is no descriptor.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the parent left it to nothing else in this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a terminal would stop this process for reading from it: it is in the background.
pub fn is_background_terminal(file: &impl AsFd) -> bool {
    rustix::termios::tcgetpgrp(file)
        .is_ok_and(|foreground| foreground != rustix::process::getpgrp())
}

/// What one read gave.
pub enum Chunk {
    /// So many bytes of the buffer.
    Bytes(usize),
    /// Nothing for now.
    NotYet,
    End,
}

pub fn read(file: &mut impl Read, buffer: &mut [u8]) -> Chunk {
    match file.read(buffer) {
        Ok(0) => Chunk::End,
        Ok(count) => Chunk::Bytes(count),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Chunk::NotYet,
            // Nothing more can be had from it.
            _ => Chunk::End,
        },
    }
}

/// Bytes that wait to be written to a descriptor that does not block.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    /// So many of them are written.
    done: usize,
}

impl Outbox {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - self.done
    }

    /// Write what the other end takes; returns how many bytes that was.
    pub fn flush(&mut self, out: &mut impl Write) -> io::Result<usize> {
        let before = self.done;
        while self.len() > 0 {
            match out.write(&self.bytes[self.done..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.done += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let written = self.done - before;
        // Moved to the front seldom enough that it costs less than the writing.
        if self.done * 2 >= self.bytes.len() {
            self.bytes.drain(..self.done);
            self.done = 0;
        }
        Ok(written)
    }
}
