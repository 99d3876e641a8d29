//! How a rank gets descriptors of its peers' memory after the communicator is made.
//!
//! A mailbox is one end of a socket pair; the other end is handed to every peer of the machine, who
//! all post into it. A message is whole or absent, and nobody ever blocks: a sender whose message
//! does not fit is told so and moves its data another way. A message whose descriptors a rank has
//! no room for stays where it is until there is: a sender sends a descriptor once.

use super::shm_export;
use crate::error::{Error, Result};
use crate::fork;
use crate::os::descriptors::above_stdio;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg,
    sendmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The words of a message: what its memory is called, and its bytes.
const WORDS: usize = 2;

/// Descriptors of one message at most: far fewer than the kernel's 253, and so many that the pieces
/// of a buffer are a few messages.
const MOST: usize = 64;

/// Bytes of a message's words.
const WORD_BYTES: usize = WORDS * size_of::<u64>();

/// Room for the descriptors of a message, with the kernel's header for them.
const ROOM: usize = rustix::cmsg_space!(ScmRights(MOST));

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
pub struct MailboxSender(Arc<OwnedFd>);

impl Mailbox {
    /// A mailbox, and the descriptor to hand to the peers.
    pub fn pair() -> Result<(Mailbox, OwnedFd)> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (reader, writer) = socketpair(family, kind, SocketFlags::CLOEXEC, None)
            .map_err(|error| Error::os("making a mailbox (socketpair)", error))?;
        let [reader, writer] = [reader, writer].map(above_stdio);
        let failed = |error| Error::os("making a mailbox", error);
        let (reader, writer) = (reader.map_err(failed)?, writer.map_err(failed)?);
        // It ends with this process, whatever children do.
        fork::let_go_in_child(reader.as_raw_fd());
        Ok((Mailbox(reader), writer))
    }

    /// The next memory that a peer sent; `None` if there is none now. Where this process can open
    /// no more descriptors, that is the error, and the message can be had once it can.
    pub fn receive(&self) -> Result<Option<Sent>> {
        let (mut bytes, mut room) = ([0; WORD_BYTES], [MaybeUninit::uninit(); ROOM]);
        let mut ancillary = RecvAncillaryBuffer::new(&mut room);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)
        {
            Ok(got) => got,
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(Error::os("reading a mailbox", error)),
        };
        // All are taken, so that one too many is closed and not leaked.
        let descriptors: Vec<OwnedFd> = ancillary
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .map(above_stdio)
            .collect::<Result<_, _>>()
            .map_err(|error| Error::os("taking a descriptor that a peer sent", error))?;
        let (is_long, lacks) =
            (got.flags.contains(ReturnFlags::TRUNC), got.flags.contains(ReturnFlags::CTRUNC));
        if lacks && !is_long && descriptors.len() < MOST {
            let what = "taking a descriptor of memory that a peer shares (close files, or allow \
                        this process more of them: ulimit -n)";
            return Err(Error::os(what, Errno::MFILE));
        }
        // What was looked at is taken out; its descriptors are here.
        let _ = recv(&self.0, &mut [0; 0], RecvFlags::DONTWAIT);
        if got.bytes == 0 && descriptors.is_empty() {
            // Every peer has closed its end.
            return Ok(None);
        }
        // Of a longer message only what there was room for is counted.
        if is_long || lacks || got.bytes != WORD_BYTES || descriptors.is_empty() {
            return Err(Error::usage("a peer sent a malformed message to this rank's mailbox"));
        }
        let word = |at: usize| {
            u64::from_ne_bytes(bytes[8 * at..8 * at + 8].try_into().expect("eight bytes"))
        };
        Ok(Some(Sent { name: word(0), bytes: word(1) as usize, descriptors }))
    }
}

impl MailboxSender {
    /// The end itself, which shows that the mailbox is closed.
    pub fn lifeline(&self) -> Arc<OwnedFd> {
        self.0.clone()
    }

    /// The sending end behind the descriptor that a peer handed out.
    pub fn new(descriptor: OwnedFd) -> MailboxSender {
        MailboxSender(Arc::new(descriptor))
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
        let mut words = [0; WORD_BYTES];
        words[..8].copy_from_slice(&name.to_ne_bytes());
        words[8..].copy_from_slice(&(bytes as u64).to_ne_bytes());
        match post(self.0.as_fd(), &words, descriptors) {
            Ok(WORD_BYTES) => Ok(()),
            Ok(_) => Err(Error::Internal("a mailbox took half a message".into())),
            Err(error) => Err(Error::os("sending a peer a descriptor of memory", error)),
        }
    }
}

/// Send a message with these descriptors, if it fits now.
fn post(to: BorrowedFd, bytes: &[u8], descriptors: &[BorrowedFd]) -> Result<usize, Errno> {
    let mut room = [MaybeUninit::uninit(); ROOM];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)), "at most {MOST}");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Post `bytes` with one descriptor, and read the mailbox.
    fn posted(bytes: &[u8]) -> Result<Option<Sent>> {
        let (mailbox, sender) = Mailbox::pair()?;
        assert_eq!(post(sender.as_fd(), bytes, &[sender.as_fd()]), Ok(bytes.len()));
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
        let sent = posted(&[1; 16]).unwrap().expect("it was sent");
        assert_eq!((sent.name, sent.bytes), (0x0101_0101_0101_0101, 0x0101_0101_0101_0101));
        for length in [1, 8, 15, 17, 24, 32, 4096] {
            let error = posted(&vec![1; length]).expect_err("no memory is announced so");
            assert!(error.to_string().contains("malformed"), "{length} bytes: {error}");
        }
    }
}
