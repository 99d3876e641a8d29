//! Descriptors that are not mistaken for a program's input and output, and how many are left.

use crate::fork::ForkSafeMutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use std::os::fd::{AsRawFd, OwnedFd};

/// The first number that is nobody's input or output.
const FIRST: i32 = 3;

/// The same file under a number from 3 on. A program that runs with one of the others closed would
/// read and write what got that number.
pub fn above_stdio(descriptor: OwnedFd) -> rustix::io::Result<OwnedFd> {
    match descriptor.as_raw_fd() < FIRST {
        true => fcntl_dupfd_cloexec(&descriptor, FIRST),
        false => Ok(descriptor),
    }
}

/// One thread counts at a time: what two take at once would be missed by both.
static COUNTING: ForkSafeMutex<()> = ForkSafeMutex::new(());

/// How many descriptors, at most `most`, this process can have more at the moment; where that is
/// fewer, what the system answered to the next.
pub fn room_for(most: usize) -> (usize, rustix::io::Result<()>) {
    let _alone = COUNTING.lock();
    let mut taken = Vec::with_capacity(most);
    while taken.len() < most {
        let next = match taken.first() {
            None => eventfd(0, EventfdFlags::CLOEXEC),
            Some(first) => fcntl_dupfd_cloexec(first, FIRST),
        };
        match next {
            Ok(descriptor) => taken.push(descriptor),
            // A call that is refused altogether is told where it is needed.
            Err(Errno::PERM | Errno::NOSYS) if taken.is_empty() => break,
            Err(error) => return (taken.len(), Err(error)),
        }
    }
    (most, Ok(()))
}
