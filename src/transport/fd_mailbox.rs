//! How a rank gets descriptors of its peers' memory after the communicator is made.
//!
//! A mailbox is one end of a socket pair; the other end is handed to every peer of the machine, who
//! all post into it. A message is whole or absent, and nobody ever blocks: a sender whose message
//! does not fit is told so and moves its data another way. A message whose descriptors a rank has
//! no room for stays where it is until there is: a sender sends a descriptor once.
#![allow(unsafe_code)]

use super::shm_export;
use crate::error::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

/// The words of a message: what its memory is called, and its bytes.
const WORDS: usize = 2;

/// Descriptors of one message at most: far fewer than the kernel's 253, and so many that the pieces
/// of a buffer are a few messages.
const MOST: usize = 64;

/// Room for the descriptors of a message, aligned as the kernel's header for them: 16 bytes on
/// 64-bit Linux.
type Ancillary = MaybeUninit<[u64; 2 + MOST / 2]>;

/// Bytes that so many descriptors take in a message, with their header.
fn space(ndescriptors: usize) -> usize {
    // SAFETY: arithmetic on a number.
    unsafe { libc::CMSG_SPACE((ndescriptors * size_of::<RawFd>()) as u32) as usize }
}

/// Memory that a peer sent: what it is called, and one piece of so many bytes for each descriptor.
#[derive(Debug)]
pub struct Sent {
    pub name: u64,
    pub bytes: usize,
    pub descriptors: Vec<OwnedFd>,
}

impl Sent {
    /// A region, which is one file: its number, bytes and descriptor.
    pub fn region(mut self) -> Result<(u64, usize, OwnedFd)> {
        match (self.descriptors.pop(), self.descriptors.is_empty()) {
            (Some(descriptor), true) => Ok((self.name, self.bytes, descriptor)),
            _ => Err(Error::usage("a peer sent a region that is not one file")),
        }
    }
}

/// The reading end, which a rank keeps.
pub struct Mailbox(OwnedFd);

/// The writing end, of which each peer has a copy.
pub struct MailboxSender(OwnedFd);

impl Mailbox {
    /// A mailbox, and the descriptor to hand to the peers.
    pub fn pair() -> Result<(Mailbox, OwnedFd)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the array has room for both descriptors, which are then ours.
        unsafe {
            if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) != 0 {
                return Err(Error::system("making a mailbox (socketpair)"));
            }
            Ok((Mailbox(OwnedFd::from_raw_fd(ends[0])), OwnedFd::from_raw_fd(ends[1])))
        }
    }

    /// The next memory that a peer sent; `None` if there is none now. Where this process can open
    /// no more descriptors, that is the error, and the message can be had once it can.
    pub fn receive(&self) -> Result<Option<Sent>> {
        let (mut words, mut ancillary) = ([0u64; WORDS], Ancillary::uninit());
        let mut part =
            libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(&words) };
        let mut message = envelope(&mut part, &mut ancillary, MOST);
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message points to the room above.
        let got = unsafe { libc::recvmsg(self.0.as_raw_fd(), &mut message, flags) };
        if got < 0 {
            let error = std::io::Error::last_os_error();
            return match error.kind() {
                std::io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(Error::system("reading a mailbox")),
            };
        }
        // SAFETY: the kernel filled the message.
        let descriptors = unsafe { descriptors_of(&message) };
        let is_lacking = message.msg_flags & libc::MSG_CTRUNC != 0 && descriptors.len() < MOST;
        if is_lacking && message.msg_flags & libc::MSG_TRUNC == 0 {
            let what = "taking a descriptor of memory that a peer shares (close files, or allow \
                        this process more of them: ulimit -n)";
            return Err(Error::System { what: what.into(), errno: libc::EMFILE });
        }
        // What was looked at is taken out; its descriptors are here.
        // SAFETY: no room is named.
        unsafe { libc::recv(self.0.as_raw_fd(), null_mut(), 0, libc::MSG_DONTWAIT) };
        if got == 0 && descriptors.is_empty() {
            // Every peer has closed its end.
            return Ok(None);
        }
        // Of a longer message `got` counts only what there was room for.
        let is_cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        if is_cut || got as usize != size_of_val(&words) || descriptors.is_empty() {
            return Err(Error::usage("a peer sent a malformed message to this rank's mailbox"));
        }
        Ok(Some(Sent { name: words[0], bytes: words[1] as usize, descriptors }))
    }
}

impl MailboxSender {
    /// The sending end behind the descriptor that a peer handed out.
    pub fn new(descriptor: OwnedFd) -> MailboxSender {
        MailboxSender(descriptor)
    }

    /// Send a region of this process. An error means that the peer does not have it: its mailbox is
    /// full, or the peer or the region is gone.
    pub fn send(&self, region: u64) -> Result<()> {
        let (bytes, descriptor) = shm_export::descriptor(region)?;
        self.hand(region, bytes, &[descriptor.as_fd()])
    }

    /// Send pieces of memory by their descriptors, each of so many bytes. An error means that the
    /// peer does not have all of them.
    pub fn hand(&self, name: u64, bytes: usize, descriptors: &[BorrowedFd]) -> Result<()> {
        descriptors.chunks(MOST).try_for_each(|some| self.post(name, bytes, some))
    }

    fn post(&self, name: u64, bytes: usize, descriptors: &[BorrowedFd]) -> Result<()> {
        let mut words = [name, bytes as u64];
        let mut ancillary = Ancillary::new([0; 2 + MOST / 2]);
        let mut part =
            libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(&words) };
        let message = envelope(&mut part, &mut ancillary, descriptors.len());
        let length = size_of_val(descriptors) as u32;
        // SAFETY: the ancillary room holds one header with as many descriptors, as `envelope` says.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            let first = libc::CMSG_DATA(header).cast::<RawFd>();
            for (index, descriptor) in descriptors.iter().enumerate() {
                first.add(index).write_unaligned(descriptor.as_raw_fd());
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message points to the room above.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, flags) };
        if sent == size_of_val(&words) as isize {
            return Ok(());
        }
        Err(Error::system("sending a peer a descriptor of memory"))
    }
}

/// A message of one part, with ancillary room for so many descriptors, of the most there may be.
fn envelope(
    part: &mut libc::iovec,
    ancillary: &mut Ancillary,
    ndescriptors: usize,
) -> libc::msghdr {
    assert!(space(ndescriptors) <= size_of::<Ancillary>());
    // SAFETY: zero is a value of every field; the structure may have padding, hence not a literal.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.as_mut_ptr().cast();
    message.msg_controllen = space(ndescriptors) as _;
    message
}

/// Take every descriptor of a message, so that one too many is closed and not leaked.
///
/// # Safety
/// `recvmsg` filled the message, and nobody else takes its descriptors.
unsafe fn descriptors_of(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the headers and their lengths are the kernel's.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    let raw = first.add(index).read_unaligned();
                    descriptors.push(OwnedFd::from_raw_fd(raw));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    descriptors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Post `bytes` with one descriptor, and read the mailbox.
    fn post(bytes: &[u8]) -> Result<Option<Sent>> {
        let (mailbox, sender) = Mailbox::pair()?;
        let mut part =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut ancillary = Ancillary::new([0; 2 + MOST / 2]);
        let message = envelope(&mut part, &mut ancillary, 1);
        // SAFETY: as in `MailboxSender::post`; the message points to live memory.
        let sent = unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(sender.as_raw_fd());
            libc::sendmsg(sender.as_raw_fd(), &message, libc::MSG_DONTWAIT)
        };
        assert_eq!(sent, bytes.len() as isize);
        mailbox.receive()
    }

    #[test]
    fn many_descriptors_come_in_few_messages() {
        let (mailbox, end) = Mailbox::pair().unwrap();
        let (sender, count) = (MailboxSender::new(end.try_clone().unwrap()), 2 * MOST + 1);
        sender.hand(5, 4096, &vec![end.as_fd(); count]).unwrap();
        let mut came = Vec::new();
        while let Some(sent) = mailbox.receive().unwrap() {
            assert_eq!((sent.name, sent.bytes), (5, 4096));
            came.push(sent.descriptors.len());
        }
        assert_eq!(came, [MOST, MOST, 1]);
    }

    /// What follows a message's first words must not pass for nothing, though it is cut off.
    #[test]
    fn a_message_of_any_other_length_is_refused() {
        let sent = post(&[1; 16]).unwrap().expect("it was sent");
        assert_eq!((sent.name, sent.bytes), (0x0101_0101_0101_0101, 0x0101_0101_0101_0101));
        for length in [1, 8, 15, 17, 24, 32, 4096] {
            let error = post(&vec![1; length]).expect_err("no memory is announced so");
            assert!(error.to_string().contains("malformed"), "{length} bytes: {error}");
        }
    }
}
