//! Unix stream sockets under abstract names, with descriptors and credentials: the system calls.
//!
//! Every socket is non-blocking and closed on exec. Dropping one shuts it down first, so that a
//! copy in a forked child keeps neither the connection nor the name alive.

use super::MAX_FDS;
use crate::error::{Error, Result};
use crate::os::descriptors::above_stdio;
use crate::os::poll::poll;
use crate::os::sockets::{self, BACKLOG, PeerCredentials};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, bind,
    listen as listen_on, recvmsg, sendmsg, shutdown,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Instant;

/// Room for the most descriptors that a message may carry.
const ROOM: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

pub(in crate::bootstrap) struct UnixSocket(OwnedFd);

/// What a try to connect came to.
pub(super) enum Connected {
    Yes(UnixSocket),
    /// Nobody listens under the name.
    Nobody,
    /// The listener's queue is full.
    Busy,
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // A failure only means that the peer is gone already.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

/// The address of an abstract name.
fn address(name: &[u8]) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name).expect("names are shorter than an address")
}

fn socket() -> Result<UnixSocket> {
    let made = sockets::stream(AddressFamily::UNIX).map(UnixSocket);
    made.map_err(|error| Error::os("making a socket for the rendezvous", error))
}

/// Listen under `name`; `None` if somebody does already.
pub(super) fn listen(name: &[u8]) -> Result<Option<UnixSocket>> {
    let socket = socket()?;
    match bind(&socket.0, &address(name)) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Ok(None),
        Err(error) => return Err(Error::os("binding the rendezvous socket", error)),
    }
    listen_on(&socket.0, BACKLOG)
        .map_err(|error| Error::os("listening at the rendezvous", error))?;
    Ok(Some(socket))
}

pub(super) fn connect(name: &[u8]) -> Result<Connected> {
    let socket = socket()?;
    match rustix::net::connect(&socket.0, &address(name)) {
        Ok(()) => Ok(Connected::Yes(socket)),
        Err(Errno::CONNREFUSED | Errno::CONNRESET) => Ok(Connected::Nobody),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Connected::Busy),
        Err(error) => Err(Error::os("connecting to the rendezvous", error)),
    }
}

#[cfg(test)]
impl From<OwnedFd> for UnixSocket {
    fn from(fd: OwnedFd) -> UnixSocket {
        UnixSocket(fd)
    }
}

#[cfg(test)]
impl UnixSocket {
    /// A connection whose other end is of this user; none where this one may not act as it.
    pub fn of_user(user: u32) -> Option<UnixSocket> {
        let pair = std::os::unix::net::UnixStream::pair;
        UnixSocket::made_by(user, move || UnixSocket(OwnedFd::from(pair().expect("a pair").0)))
    }

    /// What this user makes; none where this one may not act as it.
    pub fn made_by(
        user: u32,
        make: impl FnOnce() -> UnixSocket + Send + 'static,
    ) -> Option<UnixSocket> {
        let act = move || {
            use rustix::thread::{Uid, set_thread_res_uid};
            let unchanged = Uid::from_raw_unchecked(u32::MAX);
            // This thread only, unlike the C library's function of this name.
            let changed = set_thread_res_uid(unchanged, Uid::from_raw(user), unchanged).is_ok();
            changed.then(make)
        };
        std::thread::spawn(act).join().expect("no panic")
    }
}

impl UnixSocket {
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The next connection in the queue, if there is one.
    pub fn accept(&self) -> io::Result<Option<UnixSocket>> {
        match sockets::accept(&self.0) {
            Ok((socket, _)) => Ok(Some(UnixSocket(socket))),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn peer(&self) -> io::Result<PeerCredentials> {
        PeerCredentials::of(&self.0)
    }

    /// The user at the other end, where it is none of ours.
    pub(super) fn stranger(&self) -> Option<u32> {
        self.peer().ok()?.stranger()
    }

    /// Send what fits now of `bytes`, with `fds` attached to the first of them.
    pub fn send(&self, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<usize> {
        assert!(fds.len() <= MAX_FDS && !bytes.is_empty());
        let fds: Vec<BorrowedFd> = fds.iter().map(AsFd::as_fd).collect();
        let mut room = [MaybeUninit::uninit(); ROOM];
        let mut ancillary = SendAncillaryBuffer::new(&mut room);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "there is room");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, flags)?)
    }

    /// Receive what is there of `bytes`, never more; 0 is the end of the stream. Without `fds`,
    /// descriptors that come along are closed by the kernel.
    pub fn receive(&self, bytes: &mut [u8], fds: Option<&mut Vec<OwnedFd>>) -> io::Result<usize> {
        let mut room = [MaybeUninit::uninit(); ROOM];
        let room = if fds.is_some() { &mut room[..] } else { &mut [] };
        let mut ancillary = RecvAncillaryBuffer::new(room);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = recvmsg(&self.0, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)?;
        if let Some(fds) = fds {
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(came) = message {
                    for descriptor in came {
                        fds.push(above_stdio(descriptor)?);
                    }
                }
            }
            if got.flags.contains(ReturnFlags::CTRUNC) {
                // The kernel could not install them all: the table of descriptors is full.
                return Err(Errno::MFILE.into());
            }
        }
        Ok(got.bytes)
    }
}

/// Whether a call should simply be made again once the socket is ready.
pub(super) fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR))
}

/// One socket to wait for.
pub(super) fn entry(socket: &UnixSocket, events: libc::c_short) -> libc::pollfd {
    crate::os::poll::entry(socket.raw(), events)
}

/// Sleep until one socket is ready or `until` has come.
pub(super) fn wait(socket: &UnixSocket, events: libc::c_short, until: Instant) -> Result<()> {
    let ready = poll(&mut [entry(socket, events)], until);
    ready.map(|_| ()).map_err(|error| Error::os("waiting at the rendezvous", error))
}
