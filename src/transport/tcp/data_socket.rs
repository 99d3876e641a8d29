//! A data socket: one socket between two ranks, with the message it is writing and the one it is
//! reading.
#![allow(unsafe_code)]

use super::frame::{FRAME_BYTES, Frame};
use super::inbound::{FrameAdmission, Inbound, PayloadTarget};
use super::outbound::Outbound;
use super::protect::{SocketKeys, checksum};
use crate::config::Protection;
use crate::crypto::{Aead, TAG_BYTES};
use crate::os::tcp_liveness::AckWatch;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, RecvMsg, SendAncillaryBuffer, SendFlags, Shutdown, recvmsg,
    sendmsg, shutdown,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Bytes that a read may fetch beyond what is asked for: small messages come whole with one call,
/// and copying as much once more takes under a microsecond.
const AHEAD: usize = 16 << 10;

/// The longest words before all messages.
pub const MOST_GREETING: usize = AHEAD - 4;

/// While a message of this many bytes comes, only the next header is read ahead: what follows is
/// likely as long, and goes to its place without a copy.
const LONG: usize = 32 << 10;

/// Why a data socket is of no more use.
#[derive(Debug)]
pub enum SocketBroken {
    /// The peer closed it.
    Closed,
    System(io::Error),
    /// Bytes came that no right peer sends.
    Damaged(&'static str),
}

impl std::fmt::Display for SocketBroken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SocketBroken::Closed => write!(f, "the other end closed it"),
            SocketBroken::System(error) => write!(f, "{error}"),
            SocketBroken::Damaged(what) => write!(f, "{what}"),
        }
    }
}

/// A payload that is coming.
struct Body {
    frame: Frame,
    header: [u8; FRAME_BYTES],
    place: PayloadTarget,
    /// What follows the payload, where tags do.
    tag: [u8; TAG_BYTES],
    /// Bytes of payload and tag that have come.
    done: usize,
}

impl Body {
    /// What is still to come of the payload, and of a tag of so many bytes.
    ///
    /// # Safety
    /// The place is where the payload goes, and nobody else's until the message is finished.
    unsafe fn rest(&mut self, tag: usize) -> [&mut [u8]; 2] {
        let length = self.frame.length as usize;
        let (have, of_tag) = (self.done.min(length), self.done.saturating_sub(length));
        // SAFETY: the caller's promise; the place has room for the payload.
        let payload = unsafe {
            std::slice::from_raw_parts_mut(self.place.address.wrapping_add(have), length - have)
        };
        [payload, &mut self.tag[of_tag..tag]]
    }
}

pub struct DataSocket {
    socket: OwnedFd,
    protection: Protection,
    seals: Option<Aead>,
    opens: Option<Aead>,
    /// The position being written and how many bytes of it are the kernel's.
    writing: Option<(u64, usize)>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    body: Option<Body>,
    /// The next frame waits for its slot.
    stalled: bool,
    /// The peer's words before all messages are still to come; to be given with them.
    awaits_greeting: Option<SocketKeys>,
    silence: AckWatch,
}

// SAFETY: a body's place is a slot of the connection or the running call's memory; the thread that
// runs the call owns the data socket.
unsafe impl Send for DataSocket {}

impl DataSocket {
    pub fn new(socket: OwnedFd, protection: Protection, keys: &SocketKeys) -> DataSocket {
        let has_tags = protection == Protection::Encrypted;
        DataSocket {
            socket,
            protection,
            seals: has_tags.then(|| Aead::new(&keys.send)),
            opens: has_tags.then(|| Aead::new(&keys.receive)),
            writing: None,
            buffer: vec![0; AHEAD].into(),
            start: 0,
            end: 0,
            body: None,
            stalled: false,
            awaits_greeting: None,
            silence: AckWatch::default(),
        }
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Write what no right end writes.
    #[cfg(test)]
    pub fn send_unframed(&self, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT)
    }

    /// Whether a read could lead anywhere.
    pub fn wants_input(&self) -> bool {
        !self.stalled
    }

    /// Whether a message has begun to come, or waits for its slot.
    pub fn is_reading(&self) -> bool {
        self.stalled || self.body.is_some() || self.start < self.end
    }

    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// The position of the message that is being written.
    pub fn position(&self) -> Option<u64> {
        self.writing.map(|(position, _)| position)
    }

    /// Say that nothing more is written, so that the other end acknowledges at once what came.
    pub fn shutdown_write(&self) {
        // One that has ended already is no harm.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    /// Whether the other end's kernel has every byte that was written.
    pub fn is_delivered(&self) -> bool {
        let mut unacknowledged: libc::c_int = 0;
        // SAFETY: the call writes one integer. A socket that is of no more use delivers nothing.
        let result = unsafe { libc::ioctl(self.fd(), libc::TIOCOUTQ, &raw mut unacknowledged) };
        result != 0 || unacknowledged == 0
    }

    /// Whether nothing that is written is acknowledged any more, however often it is sent.
    pub fn is_silent(&mut self) -> bool {
        self.silence.is_silent(self.socket.as_raw_fd())
    }

    /// Write words before all messages, at once, since they are few, and await the peer's.
    pub fn greet(&mut self, words: &[u8], keys: SocketKeys) -> Result<(), SocketBroken> {
        self.awaits_greeting = Some(keys);
        let length = (words.len() as u32).to_le_bytes();
        match send(&self.socket, [&length, words, &[]], 0) {
            Ok(sent) if sent == length.len() + words.len() => Ok(()),
            Ok(_) => Err(SocketBroken::Damaged("its first words did not fit the socket")),
            Err(error) => Err(SocketBroken::System(error.into())),
        }
    }

    /// The peer's words before all messages, when they have come, and the socket's keys.
    pub fn take_greeting(&mut self) -> Result<Option<(Vec<u8>, SocketKeys)>, SocketBroken> {
        let Some(keys) = self.awaits_greeting.take() else { return Ok(None) };
        let end = self.end;
        let got = receive(&self.socket, [&mut self.buffer[end..], &mut [], &mut []])?;
        self.end += got.unwrap_or(0);
        let have = &self.buffer[self.start..self.end];
        if let Some((length, rest)) = have.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > MOST_GREETING {
                return Err(SocketBroken::Damaged("its first words are too long"));
            }
            if let Some(words) = rest.get(..length).map(<[u8]>::to_vec) {
                self.start += 4 + length;
                return Ok(Some((words, keys)));
            }
        }
        self.awaits_greeting = Some(keys);
        Ok(None)
    }

    /// Write what is posted, as far as the socket takes it; or no more than was begun.
    pub fn write(&mut self, outbound: &mut Outbound, begins: bool) -> Result<(), SocketBroken> {
        loop {
            let (position, done) = match self.writing {
                Some(writing) => writing,
                None if !begins => return Ok(()),
                None => match outbound.take(self.seals.as_ref()) {
                    Some(position) => (position, 0),
                    None => return Ok(()),
                },
            };
            self.writing = Some((position, done));
            let message = outbound.message(position);
            let tag = if self.seals.is_some() { TAG_BYTES } else { 0 };
            let total = FRAME_BYTES + message.length + tag;
            // SAFETY: the payload is valid until the message is done.
            let payload =
                unsafe { std::slice::from_raw_parts(message.payload.cast_const(), message.length) };
            match send(&self.socket, [&message.header, payload, &message.tag[..tag]], done) {
                Ok(sent) if done + sent == total => {
                    outbound.done(position);
                    self.writing = None;
                }
                Ok(sent) => self.writing = Some((position, done + sent)),
                Err(error) if is_not_yet(error) => return Ok(()),
                Err(error) => return Err(SocketBroken::System(error.into())),
            }
        }
    }

    /// Read until the connection's next message is there or the socket is empty.
    pub fn read(&mut self, inbound: &mut Inbound) -> Result<(), SocketBroken> {
        self.stalled = false;
        while inbound.ready().is_none() && self.awaits_greeting.is_none() {
            let advanced = match self.body {
                Some(_) => self.read_body(inbound)?,
                None => self.read_header(inbound)?,
            };
            if !advanced {
                break;
            }
        }
        Ok(())
    }

    /// Begin the next message; whether it was there.
    fn read_header(&mut self, inbound: &mut Inbound) -> Result<bool, SocketBroken> {
        if self.end - self.start < FRAME_BYTES {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let free = &mut self.buffer[self.end..];
            match receive(&self.socket, [&mut [], &mut [], free])? {
                None => return Ok(false),
                Some(got) => self.end += got,
            }
            if self.end - self.start < FRAME_BYTES {
                return Ok(true);
            }
        }
        let header: [u8; FRAME_BYTES] =
            self.buffer[self.start..self.start + FRAME_BYTES].try_into().expect("a header's bytes");
        let frame = Frame::decode(&header).map_err(SocketBroken::Damaged)?;
        match inbound.admit(&frame).map_err(SocketBroken::Damaged)? {
            FrameAdmission::Later => {
                self.stalled = true;
                Ok(false)
            }
            FrameAdmission::Into(place) => {
                self.start += FRAME_BYTES;
                let tag = [0; TAG_BYTES];
                self.body = Some(Body { frame, header, place, tag, done: 0 });
                Ok(true)
            }
        }
    }

    /// Go on with the message that is coming; whether bytes came.
    fn read_body(&mut self, inbound: &mut Inbound) -> Result<bool, SocketBroken> {
        let tag = if self.opens.is_some() { TAG_BYTES } else { 0 };
        let body = self.body.as_mut().expect("a message is coming");
        let total = body.frame.length as usize + tag;
        // SAFETY: the place was admitted for this message.
        let parts = unsafe { body.rest(tag) };
        let mut came = 0;
        for part in parts {
            let have = (self.end - self.start).min(part.len());
            part[..have].copy_from_slice(&self.buffer[self.start..self.start + have]);
            self.start += have;
            came += have;
        }
        body.done += came;
        if body.done < total {
            (self.start, self.end) = (0, 0);
            let ahead = if total >= LONG { FRAME_BYTES } else { AHEAD };
            let left = total - body.done;
            // SAFETY: as above.
            let [payload, tag] = unsafe { body.rest(tag) };
            match receive(&self.socket, [payload, tag, &mut self.buffer[..ahead]])? {
                None => return Ok(false),
                Some(got) => {
                    let here = got.min(left);
                    body.done += here;
                    self.end = got - here;
                }
            }
            if body.done < total {
                return Ok(true);
            }
        }
        self.finish(inbound)?;
        Ok(true)
    }

    /// Check the message that is all there and hand it over.
    fn finish(&mut self, inbound: &mut Inbound) -> Result<(), SocketBroken> {
        let body = self.body.take().expect("a message has come");
        let length = body.frame.length as usize;
        // SAFETY: the bytes were just read there.
        let payload = unsafe { std::slice::from_raw_parts_mut(body.place.address, length) };
        let cipher = self.opens.as_ref();
        verify(self.protection, cipher, (&body.frame, &body.header, &body.tag), payload)
            .map_err(SocketBroken::Damaged)?;
        inbound.arrived(&body.frame, body.place);
        Ok(())
    }
}

/// Whether a message is as the peer sent it; an encrypted one is opened where it lies.
pub fn verify(
    protection: Protection,
    cipher: Option<&Aead>,
    (frame, header, tag): (&Frame, &[u8; FRAME_BYTES], &[u8; TAG_BYTES]),
    payload: &mut [u8],
) -> Result<(), &'static str> {
    let checks = protection == Protection::Checksum && !payload.is_empty();
    match cipher {
        Some(cipher) if !cipher.open(frame.position, header, payload, tag) => {
            Err("a message was not sealed by the peer")
        }
        None if checks && checksum(payload) != frame.payload_check => {
            Err("a message was damaged on the way (its checksum differs)")
        }
        _ => Ok(()),
    }
}

fn is_not_yet(error: Errno) -> bool {
    matches!(error, Errno::AGAIN | Errno::INTR)
}

/// Send what follows the first `done` bytes of three blocks.
fn send(socket: &OwnedFd, blocks: [&[u8]; 3], done: usize) -> Result<usize, Errno> {
    let mut slices = blocks.map(IoSlice::new);
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, done);
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, rest, &mut SendAncillaryBuffer::default(), flags)
}

/// Receive into these, one after the other; `None` where nothing is there.
fn receive(socket: &OwnedFd, into: [&mut [u8]; 3]) -> Result<Option<usize>, SocketBroken> {
    let mut slices = into.map(IoSliceMut::new);
    let mut none = RecvAncillaryBuffer::default();
    match recvmsg(socket, &mut slices, &mut none, RecvFlags::DONTWAIT) {
        Ok(RecvMsg { bytes: 0, .. }) => Err(SocketBroken::Closed),
        Ok(got) => Ok(Some(got.bytes)),
        Err(error) if is_not_yet(error) => Ok(None),
        Err(error) => Err(SocketBroken::System(error.into())),
    }
}
