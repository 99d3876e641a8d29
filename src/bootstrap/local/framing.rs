//! Frames put together from whatever pieces a socket gives, without ever waiting.
//!
//! It never asks the socket for a byte beyond the frame it is reading, so descriptors, which travel
//! with the first byte of their frame, always arrive with the frame they belong to.

use super::socket::{UnixSocket, is_not_yet};
use super::wire::{FrameHeader, HEADER};
use std::io;
use std::os::fd::OwnedFd;

/// A frame that arrived whole.
pub(in crate::bootstrap) struct Arrived {
    pub header: FrameHeader,
    pub body: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// The frame being read from one proven peer.
pub(super) struct FrameReader {
    head: [u8; HEADER],
    header: Option<FrameHeader>,
    /// Bytes of the head, or of the body once the header is known.
    have: usize,
    body: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl FrameReader {
    pub fn new() -> FrameReader {
        FrameReader { head: [0; HEADER], header: None, have: 0, body: Vec::new(), fds: Vec::new() }
    }

    /// The next frame; `None` if the rest of it has not come yet. The end of the stream and a frame
    /// that cannot be one are errors.
    pub fn advance(&mut self, socket: &UnixSocket) -> io::Result<Option<Arrived>> {
        loop {
            let target = match self.header {
                None => &mut self.head[self.have..],
                Some(_) => &mut self.body[self.have..],
            };
            if !target.is_empty() {
                match socket.receive(target, Some(&mut self.fds)) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(got) => self.have += got,
                    Err(error) if is_not_yet(&error) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            match self.header {
                None if self.have == HEADER => {
                    let header = FrameHeader::decode(&self.head)
                        .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
                    self.body = vec![0; header.bytes as usize];
                    (self.header, self.have) = (Some(header), 0);
                }
                Some(header) if self.have == self.body.len() => {
                    let done = std::mem::replace(self, FrameReader::new());
                    return Ok(Some(Arrived { header, body: done.body, fds: done.fds }));
                }
                _ => {}
            }
        }
    }
}
