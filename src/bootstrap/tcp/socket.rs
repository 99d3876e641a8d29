//! TCP sockets: the system calls.
//!
//! Every socket is non-blocking, closed on exec and sends small messages at once.
#![allow(unsafe_code)]

use super::interface::{reachable, socket_address};
use super::io::{ByteStream, Network};
use crate::fork;
use crate::poll::{entry, poll};
use crate::tcp_liveness::AckWatch;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// How long the kernel tries to get bytes to a neighbour that acknowledges nothing: with the
/// heartbeat or the question before it, a partition is found within eight seconds. It also is how
/// long a neighbour's window may be closed, whoever answers for it: so it must never be.
pub const USER_TIMEOUT: Duration = Duration::from_secs(6);

/// Seconds of silence before the kernel asks whether the other end is there.
pub const KEEPALIVE_S: libc::c_int = 2;

/// The same for connections that carry data or a meeting, in which nothing may be said for
/// minutes: the kernel asks after two seconds, then every second, and gives up after five questions
/// in vain.
const DATA_QUESTIONS: libc::c_int = 5;

/// A connection.
pub struct TcpSocket(OwnedFd);

/// The kernel's network.
pub struct KernelNetwork;

/// A system call's result, or what it failed with.
fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An address as the kernel wants it, and its length.
fn raw_address(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeroes is a valid address.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let length = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is as large and as aligned as any address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the storage is as large and as aligned as any address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}

fn set(fd: RawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is live and `length` is its size.
    checked(unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), length) })
        .map(drop)
}

fn set_all(fd: RawFd, options: &[(libc::c_int, libc::c_int, libc::c_int)]) {
    for (level, option, value) in options {
        // Only a socket that has ended already refuses an option, and its next use says so.
        let _ = set(fd, *level, *option, *value);
    }
}

fn socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = checked(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    fork::let_go_in_child(fd);
    Ok(socket)
}

impl Network for KernelNetwork {
    type Stream = TcpSocket;

    fn connect(&mut self, to: &SocketAddr) -> io::Result<TcpSocket> {
        let fd = socket(to)?;
        set(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        let (address, length) = raw_address(to);
        // SAFETY: the address is live and `length` bytes of it are set.
        match checked(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), length) })
        {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(TcpSocket(fd)),
        }
    }

    fn routes(&self, to: &[SocketAddr]) -> Vec<SocketAddr> {
        reachable(to)
    }

    fn watch(&self, socket: &TcpSocket) {
        let options = [
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_S),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_S),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, USER_TIMEOUT.as_millis() as libc::c_int),
        ];
        set_all(socket.raw(), &options);
    }

    fn ask(&self, socket: &TcpSocket) {
        socket.ask();
    }

    fn is_silent(&self, socket: &TcpSocket, before: &mut AckWatch) -> bool {
        before.is_at(socket.raw())
    }
}

impl TcpSocket {
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Let the kernel end the connection some seconds after nobody answers any more, where nothing
    /// is on its way; that of a process that is stopped answers.
    pub fn ask(&self) {
        set_all(
            self.raw(),
            &[
                (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
                (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_S),
                (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1),
                (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, DATA_QUESTIONS),
                // As it may have been watched while it was made.
                (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
            ],
        );
    }

    /// Let what goes no further than this machine leave at once: a congestion control that paces,
    /// as BBR does, keeps to a rate that it has seen, and a connection that once was slower stays
    /// so, at half of what memory gives (`benches/results/messages-2026-11-25.txt`). Between
    /// machines the administrator's choice stands.
    pub fn hasten(&self) {
        let fd = self.raw();
        let ends = local_address(fd).and_then(|mine| Ok([mine, address(fd, libc::getpeername)?]));
        if ends.is_ok_and(|[mine, theirs]| mine.ip() == theirs.ip() || theirs.ip().is_loopback()) {
            let (name, level, option) = (c"reno", libc::IPPROTO_TCP, libc::TCP_CONGESTION);
            let length = name.count_bytes() as libc::socklen_t;
            // SAFETY: the name is live and `length` bytes long. Every kernel has this one, and lets
            // everybody use it by default; where that was changed, the connection stays as it was.
            unsafe { libc::setsockopt(fd, level, option, name.as_ptr().cast(), length) };
        }
    }

    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Take in no more than about so many bytes that nobody reads.
    #[cfg(test)]
    pub fn narrow(&self, bytes: usize) {
        set(self.raw(), libc::SOL_SOCKET, libc::SO_RCVBUF, bytes as libc::c_int).expect("narrower");
    }
}

impl ByteStream for TcpSocket {
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the pointer and length are those of a live slice.
        let got = unsafe { libc::recv(self.raw(), bytes.as_mut_ptr().cast(), bytes.len(), flags) };
        if got < 0 { Err(connecting(io::Error::last_os_error())) } else { Ok(got as usize) }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the pointer and length are those of a live slice.
        let sent = unsafe { libc::send(self.raw(), bytes.as_ptr().cast(), bytes.len(), flags) };
        if sent < 0 { Err(connecting(io::Error::last_os_error())) } else { Ok(sent as usize) }
    }

    fn finish(&mut self) {
        // SAFETY: no pointers. One that has ended already is no harm.
        unsafe { libc::shutdown(self.raw(), libc::SHUT_WR) };
    }
}

/// A socket that is not connected yet takes and gives nothing yet.
fn connecting(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOTCONN) => io::ErrorKind::WouldBlock.into(),
        _ => error,
    }
}

fn local_address(fd: RawFd) -> io::Result<SocketAddr> {
    address(fd, libc::getsockname)
}

/// What `getsockname` or `getpeername` says.
type Ask =
    unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn address(fd: RawFd, ask: Ask) -> io::Result<SocketAddr> {
    // SAFETY: all zeroes is a valid address.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let target = (&raw mut storage).cast();
    // SAFETY: the storage is live and `length` is its size.
    checked(unsafe { ask(fd, target, &raw mut length) })?;
    // SAFETY: the kernel wrote an address.
    let address = unsafe { socket_address((&raw const storage).cast()) };
    address.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// How a socket finds out how fast it may send.
#[cfg(test)]
pub fn congestion_control(fd: RawFd) -> String {
    let mut name = [0u8; 16];
    let mut length = name.len() as libc::socklen_t;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
    let target = name.as_mut_ptr().cast();
    // SAFETY: the name is live and `length` bytes long.
    checked(unsafe { libc::getsockopt(fd, level, option, target, &raw mut length) }).unwrap();
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// A socket that has an address of this machine.
fn bound(at: &SocketAddr) -> io::Result<OwnedFd> {
    let fd = socket(at)?;
    // A job that starts again must not wait for the connections of the one before.
    set(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if at.is_ipv6() {
        let only = libc::c_int::from(!at.ip().is_unspecified());
        set(fd.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only)?;
    }
    let (address, length) = raw_address(at);
    // SAFETY: the address is live and `length` bytes of it are set.
    checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(fd)
}

/// Whether these are addresses of this machine at which nobody listens any more. Nobody notices
/// that it was asked.
pub fn is_deserted(gate: &[SocketAddr]) -> bool {
    !gate.is_empty() && gate.iter().all(|at| bound(at).is_ok())
}

/// A socket that connections come to.
pub struct Listener {
    fd: OwnedFd,
    port: u16,
}

impl Listener {
    /// Listen at one address; port 0 takes what the kernel gives. An unspecified IPv6 address
    /// serves both families.
    pub fn bind(at: &SocketAddr) -> io::Result<Listener> {
        let fd = bound(at)?;
        // SAFETY: no pointers. SOMAXCONN: the kernel cuts it to what the machine allows.
        checked(unsafe { libc::listen(fd.as_raw_fd(), libc::SOMAXCONN) })?;
        let port = local_address(fd.as_raw_fd())?.port();
        Ok(Listener { fd, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether somebody waits to be let in.
    fn is_called(&self) -> bool {
        let mut entries = [entry(self.raw(), libc::POLLIN)];
        poll(&mut entries, Instant::now()).is_ok() && entries[0].revents != 0
    }

    /// The next connection in the queue, if there is one, and where it comes from.
    pub fn accept(&self) -> io::Result<Option<(TcpSocket, SocketAddr)>> {
        // SAFETY: all zeroes is a valid address.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let target = (&raw mut storage).cast();
        // SAFETY: the storage is live and `length` is its size.
        let fd = match checked(unsafe { libc::accept4(self.raw(), target, &raw mut length, flags) })
        {
            Ok(fd) => fd,
            // Without a free descriptor it fails also where nobody has come.
            Err(error) if is_passing(&error) || !self.is_called() => return Ok(None),
            Err(error) => return Err(error),
        };
        // SAFETY: the descriptor is new and nobody else's.
        let socket = TcpSocket(unsafe { OwnedFd::from_raw_fd(fd) });
        fork::let_go_in_child(fd);
        // SAFETY: the kernel wrote an address.
        let from = unsafe { socket_address((&raw const storage).cast()) };
        let from = from.unwrap_or(SocketAddr::new(IpAddr::from([0; 4]), 0));
        // Only a connection that has ended already refuses the option; its first use says so.
        let _ = set(socket.raw(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        Ok(Some((socket, from)))
    }
}

/// Whether an error of `accept` belongs to one connection that failed before it was taken.
fn is_passing(error: &io::Error) -> bool {
    const PASSING: [libc::c_int; 11] = [
        libc::EAGAIN,
        libc::EINTR,
        libc::ECONNABORTED,
        // Errors of the network that the kernel passes on from the connection: accept(2).
        libc::ENETDOWN,
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::EHOSTUNREACH,
        libc::EOPNOTSUPP,
        libc::ENETUNREACH,
    ];
    error.raw_os_error().is_some_and(|errno| PASSING.contains(&errno))
}
