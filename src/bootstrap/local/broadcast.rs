//! What the coordinator tells every member: all contributions, encoded once for all of them.
//!
//! The bytes are the same for everybody; only the descriptors differ, since a rank of the same
//! process has no use for copies of them. So a member's stream is the shared bytes, sent in pieces
//! that begin where descriptors have to be attached.

use super::socket::{UnixSocket, is_not_yet};
use super::wire::{self, FrameHeader, FrameKind};
use super::{Member, ProcessOrigin};
use std::io;
use std::os::fd::OwnedFd;

pub(super) struct TableBroadcast<'a> {
    bytes: Vec<u8>,
    /// Where each rank's frame begins.
    starts: Vec<usize>,
    members: &'a [Member],
}

/// How far one member's stream has come: a part of the bulletin, then a last frame.
#[derive(Default)]
pub(super) struct Outbox {
    at: usize,
    end: usize,
    last: Vec<u8>,
    last_at: usize,
}

impl<'a> TableBroadcast<'a> {
    pub fn new(members: &'a [Member]) -> TableBroadcast<'a> {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for (rank, member) in members.iter().enumerate() {
            starts.push(bytes.len());
            let header = FrameHeader {
                kind: FrameKind::Member,
                fds: member.fds.len() as u16,
                bytes: 0,
                process: member.process,
                rank: rank as u32,
                pid: member.pid,
            };
            bytes.extend(wire::frame(header, &member.payload));
        }
        TableBroadcast { bytes, starts, members }
    }

    fn has_fds_for(&self, rank: usize, reader: ProcessOrigin) -> bool {
        let member = &self.members[rank];
        !member.origin().is(reader) && !member.fds.is_empty()
    }

    /// The piece that begins at `at`, for the member `reader`, and its descriptors.
    fn piece(&self, at: usize, end: usize, reader: ProcessOrigin) -> (&[u8], &[OwnedFd]) {
        // The first frame that begins at or after `at`.
        let next = self.starts.partition_point(|start| *start < at);
        let mut fds: &[OwnedFd] = &[];
        let mut rest = next;
        if self.starts.get(next) == Some(&at) {
            rest += 1;
            if self.has_fds_for(next, reader) {
                fds = &self.members[next].fds;
            }
        }
        let stop = (rest..self.starts.len()).find(|rank| self.has_fds_for(*rank, reader));
        let stop = stop.map_or(end, |rank| self.starts[rank].min(end));
        (&self.bytes[at..stop], fds)
    }
}

impl Outbox {
    /// Send the whole bulletin.
    pub fn publish(&mut self, bulletin: &TableBroadcast) {
        self.end = bulletin.bytes.len();
    }

    /// Stop after the frame being sent, and then send `frame`.
    pub fn finish_with(&mut self, bulletin: Option<&TableBroadcast>, frame: &[u8]) {
        if let Some(bulletin) = bulletin {
            let next = bulletin.starts.partition_point(|start| *start < self.at);
            self.end = bulletin.starts.get(next).map_or(self.end, |start| (*start).min(self.end));
        }
        self.last = frame.to_vec();
    }

    pub fn is_empty(&self) -> bool {
        self.at == self.end && self.last_at == self.last.len()
    }

    /// Send what the socket takes. True: too many descriptors are under way, try again soon.
    pub fn push(
        &mut self,
        socket: &UnixSocket,
        bulletin: Option<&TableBroadcast>,
        reader: ProcessOrigin,
    ) -> io::Result<bool> {
        while !self.is_empty() {
            let (piece, fds) = match bulletin {
                Some(bulletin) if self.at < self.end => bulletin.piece(self.at, self.end, reader),
                _ => (&self.last[self.last_at..], &[][..]),
            };
            match socket.send(piece, fds) {
                Ok(sent) if self.at < self.end => self.at += sent,
                Ok(sent) => self.last_at += sent,
                Err(error) if is_not_yet(&error) => return Ok(false),
                Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}
