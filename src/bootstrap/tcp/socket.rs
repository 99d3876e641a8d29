//! TCP sockets: the system calls.
//!
//! Every socket is non-blocking, closed on exec and sends small messages at once.

use super::interface::{interfaces, reachable};
use super::stream_traits::{ByteStream, Network};
use crate::fork::ForkSafeMutex;
use crate::os::poll::{entry, poll};
use crate::os::sockets::{self, BACKLOG};
use crate::os::tcp_liveness::AckWatch;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, bind, getpeername, getsockname,
    listen, recv, send, shutdown, sockopt,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// How long the kernel tries to get bytes to a neighbour that acknowledges nothing: with the
/// heartbeat or the question before it, a partition is found within eight seconds. It also is how
/// long a neighbour's window may be closed, whoever answers for it: so it must never be.
pub const USER_TIMEOUT: Duration = Duration::from_secs(6);

/// Silence before the kernel asks whether the other end is there.
pub const KEEPALIVE: Duration = Duration::from_secs(2);

/// The same for connections that carry data or a rendezvous, in which nothing may be said for
/// minutes: the kernel asks after two seconds, then every second, and gives up after five questions
/// in vain.
const DATA_QUESTIONS: u32 = 5;

/// A connection.
pub struct TcpSocket(OwnedFd);

/// The kernel's network.
pub struct OsNetwork;

/// This machine's address on the network by which the last root was reached: of several networks it
/// is the one that leads to the other hosts.
static PREFERRED: ForkSafeMutex<Option<IpAddr>> = ForkSafeMutex::new(None);

/// This machine's address from which the kernel would send there. Nothing is sent.
fn source(to: &SocketAddr) -> Option<IpAddr> {
    let asking = sockets::datagram(family(to)).ok()?;
    rustix::net::connect(&asking, to).ok()?;
    Some(local_address(&asking).ok()?.ip())
}

fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    Ok(sockets::stream(family(address))?)
}

/// An address as the kernel gave it; a socket for both families shows IPv4 peers in IPv6 form.
fn ip_address(address: &SocketAddrAny) -> Option<SocketAddr> {
    match SocketAddr::try_from(address.clone()).ok()? {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => Some(SocketAddr::new(IpAddr::V4(ip), v6.port())),
            None => Some(v6.into()),
        },
        v4 => Some(v4),
    }
}

impl Network for OsNetwork {
    type Stream = TcpSocket;

    fn connect(&mut self, to: &SocketAddr) -> io::Result<TcpSocket> {
        let fd = socket(to)?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        match rustix::net::connect(&fd, to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpSocket(fd)),
            Err(error) => Err(error.into()),
        }
    }

    fn routes(&self, to: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut all = reachable(to);
        let preferred = *PREFERRED.lock();
        if all.len() > 1 && preferred.is_some() {
            // Stable: what the kernel sends another way keeps its order.
            all.sort_by_key(|to| source(to) != preferred);
        }
        all
    }

    fn prefer(&self, socket: &TcpSocket) {
        let own = local_address(&socket.0).ok().map(|own| own.ip());
        *PREFERRED.lock() = own.filter(|own| !own.is_loopback());
    }

    fn interface_to(&self, to: &SocketAddr) -> Option<String> {
        let own = source(to)?;
        let all = interfaces().ok()?;
        all.into_iter().find(|one| one.address.ip() == own).map(|one| one.name)
    }

    fn watch(&self, socket: &TcpSocket) {
        // Only a socket that has ended already refuses an option, and its next use says so.
        let _ = sockopt::set_socket_keepalive(&socket.0, true);
        let _ = sockopt::set_tcp_keepidle(&socket.0, KEEPALIVE);
        let _ = sockopt::set_tcp_keepintvl(&socket.0, KEEPALIVE);
        let _ = sockopt::set_tcp_user_timeout(&socket.0, USER_TIMEOUT.as_millis() as u32);
    }

    fn enable_keepalive(&self, socket: &TcpSocket) {
        socket.ask();
    }

    fn is_silent(&self, socket: &TcpSocket, before: &mut AckWatch) -> bool {
        before.is_silent(socket.raw())
    }
}

impl TcpSocket {
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Let the kernel end the connection some seconds after nobody answers any more, where nothing
    /// is on its way; that of a process that is stopped answers.
    pub fn ask(&self) {
        // As above, a refusal is no harm.
        let _ = sockopt::set_socket_keepalive(&self.0, true);
        let _ = sockopt::set_tcp_keepidle(&self.0, KEEPALIVE);
        let _ = sockopt::set_tcp_keepintvl(&self.0, Duration::from_secs(1));
        let _ = sockopt::set_tcp_keepcnt(&self.0, DATA_QUESTIONS);
        // It may have been watched while it was made.
        let _ = sockopt::set_tcp_user_timeout(&self.0, 0);
    }

    /// Let what goes no further than this machine leave at once: a congestion control that paces,
    /// as BBR does, keeps to a rate that it has seen, and a connection that once was slower stays
    /// so, at half of what memory gives (`benches/results/messages-2026-11-25.txt`). Between
    /// machines the administrator's choice stands.
    pub fn disable_pacing(&self) {
        let theirs = getpeername(&self.0).ok().flatten().and_then(|theirs| ip_address(&theirs));
        let ends = local_address(&self.0).ok().zip(theirs);
        if ends.is_some_and(|(mine, their)| mine.ip() == their.ip() || their.ip().is_loopback()) {
            // Every kernel has this one, and lets everybody use it by default; where that was
            // changed, the connection stays as it was.
            let _ = sockopt::set_tcp_congestion(&self.0, "reno");
        }
    }

    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Take in no more than about so many bytes that nobody reads.
    #[cfg(test)]
    pub fn narrow(&self, bytes: usize) {
        sockopt::set_socket_recv_buffer_size(&self.0, bytes).expect("narrower");
    }
}

impl ByteStream for TcpSocket {
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let got = recv(&self.0, bytes, RecvFlags::DONTWAIT);
        got.map(|(_, count)| count).map_err(connecting)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map_err(connecting)
    }

    fn finish(&mut self) {
        // One that has ended already is no harm.
        let _ = shutdown(&self.0, Shutdown::Write);
    }
}

/// A socket that is not connected yet takes and gives nothing yet.
fn connecting(error: Errno) -> io::Error {
    match error {
        Errno::NOTCONN => io::ErrorKind::WouldBlock.into(),
        error => error.into(),
    }
}

fn local_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    ip_address(&getsockname(socket)?).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// A socket that has an address of this machine.
fn bound(at: &SocketAddr) -> io::Result<OwnedFd> {
    let fd = socket(at)?;
    // A job that starts again must not wait for the connections of the one before.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, !at.ip().is_unspecified())?;
    }
    bind(&fd, at)?;
    Ok(fd)
}

/// Whether these are addresses of this machine at which nobody listens any more. Nobody notices
/// that it was asked.
pub fn is_deserted(listener: &[SocketAddr]) -> bool {
    !listener.is_empty() && listener.iter().all(|at| bound(at).is_ok())
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
        listen(&fd, BACKLOG)?;
        let port = local_address(&fd)?.port();
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
        let (fd, from) = match sockets::accept(&self.fd) {
            Ok(accepted) => accepted,
            // Without a free descriptor it fails also where nobody has come.
            Err(error) if PASSING.contains(&error) || !self.is_called() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let from = from.and_then(|from| ip_address(&from));
        let from = from.unwrap_or(SocketAddr::new(IpAddr::from([0; 4]), 0));
        // Only a connection that has ended already refuses the option; its first use says so.
        let _ = sockopt::set_tcp_nodelay(&fd, true);
        Ok(Some((TcpSocket(fd), from)))
    }
}

/// Errors of `accept` that belong to one connection, which failed before it was taken.
const PASSING: [Errno; 11] = [
    Errno::AGAIN,
    Errno::INTR,
    Errno::CONNABORTED,
    // Errors of the network that the kernel passes on from the connection: accept(2).
    Errno::NETDOWN,
    Errno::PROTO,
    Errno::NOPROTOOPT,
    Errno::HOSTDOWN,
    Errno::NONET,
    Errno::HOSTUNREACH,
    Errno::OPNOTSUPP,
    Errno::NETUNREACH,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_on_the_network_of_the_root_come_first() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (other, same) = (at("[2001:db8::1]:1"), at("127.0.0.5:1"));
        let before = PREFERRED.lock().replace(at("127.0.0.1:0").ip());
        let routes = OsNetwork.routes(&[other, same]);
        *PREFERRED.lock() = before;
        assert_eq!(routes, [same, other]);
    }
}
