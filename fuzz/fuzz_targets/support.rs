//! What several targets share: an input read piece by piece, memory overwritten by it, and
//! messages sent as a peer of any kind may send them.
#![allow(dead_code, reason = "no target uses all of it")]

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The bytes of an input that are not read yet.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn short(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// As many bytes as asked for, or what is left.
    pub fn some(&mut self, bytes: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        first
    }
}

/// Bytes in the words that [`patch`] writes.
pub const WORD: usize = 8;

/// Overwrite words of a block: a number of words, where the first goes, and the words. The highest
/// bit of the number is the caller's. `None` at the end of the input.
///
/// # Safety
/// `base` points to `bytes` bytes that may hold anything.
pub unsafe fn patch(input: &mut Input, base: *mut u8, bytes: usize) -> Option<()> {
    let words = usize::from(input.byte()? & 0x7f);
    let at = usize::from(input.short()?) * WORD;
    let given = input.some(words * WORD);
    let inside = given.len().min(bytes.saturating_sub(at));
    // SAFETY: only what lies inside the block is written.
    unsafe { base.wrapping_add(at).copy_from_nonoverlapping(given.as_ptr(), inside) };
    Some(())
}

/// Send bytes with any descriptors; whether they went.
pub fn send(socket: &OwnedFd, bytes: &[u8], fds: &[RawFd]) -> bool {
    let mut control = [0u64; 8];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: zero is a value of every field; the message points to live memory of the lengths that
    // it states, and the control block has room for eight descriptors.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let data = size_of_val(fds) as u32;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(data) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(data) as usize;
            let cells = libc::CMSG_DATA(header).cast::<RawFd>();
            cells.copy_from_nonoverlapping(fds.as_ptr(), fds.len());
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) >= 0
    }
}

/// Read the first and the last byte of a range, and write them again.
///
/// # Safety
/// Nothing but what is being tested says that the range is mapped.
pub unsafe fn touch(address: *mut u8, bytes: usize) {
    if let Some(last) = bytes.checked_sub(1) {
        for at in [0, last] {
            let cell = address.wrapping_add(at);
            // SAFETY: the caller's.
            unsafe { cell.write_volatile(cell.read_volatile()) };
        }
    }
}
