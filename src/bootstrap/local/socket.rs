//! Unix stream sockets under abstract names, with descriptors and credentials: the system calls.
//!
//! Every socket is non-blocking and closed on exec. Dropping one shuts it down first, so that a
//! copy in a forked child keeps neither the connection nor the name alive.
#![allow(unsafe_code)]

use super::MAX_FDS;
use crate::error::{Error, Result};
use crate::fork;
use crate::poll::poll;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

/// Control bytes for the most descriptors that a message may carry, in words for their alignment.
const CONTROL_WORDS: usize = 8;

pub(in crate::bootstrap) struct UnixSocket(OwnedFd);

/// Who is at the other end, as the kernel recorded it when the connection was made.
#[derive(Clone, Copy, Debug)]
pub(in crate::bootstrap) struct PeerCredentials {
    pub pid: u32,
    uid: u32,
}

impl PeerCredentials {
    /// Ranks run under one user; root may join anybody.
    pub fn is_ours(&self) -> bool {
        // SAFETY: no arguments, cannot fail.
        self.uid == 0 || self.uid == unsafe { libc::geteuid() }
    }
}

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
        // SAFETY: the descriptor is open; a failure only means that the peer is gone already.
        unsafe { libc::shutdown(self.raw(), libc::SHUT_RDWR) };
    }
}

/// A system call's result, or what it failed with.
fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(super) fn system(what: &str, error: &io::Error) -> Error {
    Error::System { what: what.into(), errno: error.raw_os_error().unwrap_or(0) }
}

/// The address of an abstract name, and its length.
fn address(name: &[u8]) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeroes is a valid socket address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    assert!(name.len() < address.sun_path.len(), "the name is longer than an address");
    for (cell, byte) in address.sun_path[1..].iter_mut().zip(name) {
        *cell = *byte as libc::c_char;
    }
    let length = size_of::<libc::sa_family_t>() + 1 + name.len();
    (address, length as libc::socklen_t)
}

fn socket() -> Result<UnixSocket> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = checked(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
        .map_err(|error| system("making a socket for the rendezvous", &error))?;
    fork::let_go_in_child(fd);
    // SAFETY: the descriptor is new and nobody else's.
    Ok(UnixSocket(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Listen under `name`; `None` if somebody does already.
pub(super) fn listen(name: &[u8]) -> Result<Option<UnixSocket>> {
    let socket = socket()?;
    let (address, length) = address(name);
    // SAFETY: the address is live and `length` bytes of it are set.
    match checked(unsafe { libc::bind(socket.raw(), (&raw const address).cast(), length) }) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => return Ok(None),
        Err(error) => return Err(system("binding the rendezvous socket", &error)),
    }
    // SAFETY: no pointers. SOMAXCONN: the kernel cuts it to what the machine allows.
    checked(unsafe { libc::listen(socket.raw(), libc::SOMAXCONN) })
        .map_err(|error| system("listening at the rendezvous", &error))?;
    Ok(Some(socket))
}

pub(super) fn connect(name: &[u8]) -> Result<Connected> {
    let socket = socket()?;
    let (address, length) = address(name);
    // SAFETY: the address is live and `length` bytes of it are set.
    match checked(unsafe { libc::connect(socket.raw(), (&raw const address).cast(), length) }) {
        Ok(_) => Ok(Connected::Yes(socket)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ECONNREFUSED | libc::ECONNRESET) => Ok(Connected::Nobody),
            Some(libc::EAGAIN | libc::EINTR) => Ok(Connected::Busy),
            _ => Err(system("connecting to the rendezvous", &error)),
        },
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
    pub fn of_user(user: libc::uid_t) -> Option<UnixSocket> {
        let act = move || {
            let unchanged = libc::uid_t::MAX;
            // SAFETY: no pointers. The call itself, unlike the C library's function of this name,
            // changes this thread only.
            let changed =
                unsafe { libc::syscall(libc::SYS_setresuid, unchanged, user, unchanged) == 0 };
            let pair = std::os::unix::net::UnixStream::pair;
            changed.then(|| UnixSocket(OwnedFd::from(pair().expect("a pair").0)))
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
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let none = std::ptr::null_mut();
        // SAFETY: accept4 permits NULL where the address is not wanted.
        match checked(unsafe { libc::accept4(self.raw(), none, std::ptr::null_mut(), flags) }) {
            Ok(fd) => {
                fork::let_go_in_child(fd);
                // SAFETY: the descriptor is new and nobody else's.
                Ok(Some(UnixSocket(unsafe { OwnedFd::from_raw_fd(fd) })))
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => Ok(None),
                _ => Err(error),
            },
        }
    }

    pub fn peer(&self) -> io::Result<PeerCredentials> {
        // SAFETY: all zeroes is a valid credential record.
        let mut cred: libc::ucred = unsafe { zeroed() };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let target = (&raw mut cred).cast();
        // SAFETY: `cred` is live and `length` is its size.
        checked(unsafe { libc::getsockopt(self.raw(), level, option, target, &raw mut length) })?;
        Ok(PeerCredentials { pid: cred.pid as u32, uid: cred.uid })
    }

    /// Send what fits now of `bytes`, with `fds` attached to the first of them.
    pub fn send(&self, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<usize> {
        assert!(fds.len() <= MAX_FDS && !bytes.is_empty());
        let mut control = [0u64; CONTROL_WORDS];
        let mut part =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: all zeroes is a valid message header.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let data = (fds.len() * size_of::<RawFd>()) as u32;
            message.msg_control = control.as_mut_ptr().cast();
            // SAFETY: CMSG_SPACE and the header accessors compute within `control`, which is
            // aligned and large enough for MAX_FDS descriptors.
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(data) as usize;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(data) as usize;
                let cells = libc::CMSG_DATA(header).cast::<RawFd>();
                for (index, fd) in fds.iter().enumerate() {
                    cells.add(index).write_unaligned(fd.as_raw_fd());
                }
            }
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the message points at live memory of the lengths it states.
        let sent = unsafe { libc::sendmsg(self.raw(), &raw const message, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Receive what is there of `bytes`, never more; 0 is the end of the stream. Without `fds`,
    /// descriptors that come along are closed by the kernel.
    pub fn receive(&self, bytes: &mut [u8], fds: Option<&mut Vec<OwnedFd>>) -> io::Result<usize> {
        let mut control = [0u64; CONTROL_WORDS];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: all zeroes is a valid message header.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if fds.is_some() {
            let data = (MAX_FDS * size_of::<RawFd>()) as u32;
            message.msg_control = control.as_mut_ptr().cast();
            // SAFETY: a computation only.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(data) } as usize;
        }
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        // SAFETY: the message points at live memory of the lengths it states.
        let got = unsafe { libc::recvmsg(self.raw(), &raw mut message, flags) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        if let Some(fds) = fds {
            take_descriptors(&message, fds);
            if message.msg_flags & libc::MSG_CTRUNC != 0 {
                // The kernel could not install them all: the table of descriptors is full.
                return Err(io::Error::from_raw_os_error(libc::EMFILE));
            }
        }
        Ok(got as usize)
    }
}

/// Own the descriptors that came with a message.
fn take_descriptors(message: &libc::msghdr, fds: &mut Vec<OwnedFd>) {
    // SAFETY: the kernel filled the control buffer that `message` still points at, the accessors
    // stay inside the length it set, and the descriptors in it are new and nobody else's.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let rights = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            if ((*header).cmsg_level, (*header).cmsg_type) == rights {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                for index in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Whether a call should simply be made again once the socket is ready.
pub(super) fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR))
}

/// One socket to wait for.
pub(super) fn entry(socket: &UnixSocket, events: libc::c_short) -> libc::pollfd {
    crate::poll::entry(socket.raw(), events)
}

/// Sleep until one socket is ready or `until` has come.
pub(super) fn wait(socket: &UnixSocket, events: libc::c_short, until: Instant) -> Result<()> {
    let ready = poll(&mut [entry(socket, events)], until);
    ready.map(|_| ()).map_err(|error| system("waiting at the rendezvous", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_this_user_and_of_root_are_ours() {
        let me = crate::bootstrap::process::user();
        let is_ours = |uid| PeerCredentials { pid: 1, uid }.is_ours();
        assert!(is_ours(me) && is_ours(0));
        assert!(!is_ours(me + 1) && !is_ours(u32::MAX - 1));
    }
}
