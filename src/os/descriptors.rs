//! Descriptors that are not mistaken for a program's input and output.

use rustix::io::fcntl_dupfd_cloexec;
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
