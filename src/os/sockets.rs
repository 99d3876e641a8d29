//! What every socket of the library has in common: no call on it blocks, no program that is
//! executed sees it, and forked children let go of it.

use super::descriptors::above_stdio;
use crate::fork;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, acceptfrom_with, socket_with, sockopt,
};
use rustix::process::geteuid;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// As many waiting connections as the machine allows: the kernel cuts it.
pub const BACKLOG: i32 = i32::MAX;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A new stream socket.
pub fn stream(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    new(family, SocketType::STREAM)
}

/// A new datagram socket.
pub fn datagram(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    new(family, SocketType::DGRAM)
}

fn new(family: AddressFamily, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let socket = above_stdio(socket_with(family, kind, FLAGS, None)?)?;
    fork::let_go_in_child(socket.as_raw_fd());
    Ok(socket)
}

/// The next connection in a listener's queue, and where it comes from.
pub fn accept(listener: impl AsFd) -> rustix::io::Result<(OwnedFd, Option<SocketAddrAny>)> {
    let (socket, from) = acceptfrom_with(listener, FLAGS)?;
    let socket = above_stdio(socket)?;
    fork::let_go_in_child(socket.as_raw_fd());
    Ok((socket, from))
}

/// Who is at the other end of a Unix socket, as the kernel recorded it when the connection was
/// made.
#[derive(Clone, Copy, Debug)]
pub struct PeerCredentials {
    pub pid: u32,
    uid: u32,
}

impl PeerCredentials {
    pub fn of(socket: impl AsFd) -> io::Result<PeerCredentials> {
        let peer = sockopt::socket_peercred(socket)?;
        Ok(PeerCredentials { pid: peer.pid.as_raw_pid() as u32, uid: peer.uid.as_raw() })
    }

    /// Ranks run under one user; root may join anybody.
    pub fn is_ours(&self) -> bool {
        self.uid == 0 || self.is_same_user()
    }

    /// The user, where it is none of ours.
    pub fn stranger(&self) -> Option<u32> {
        (!self.is_ours()).then_some(self.uid)
    }

    pub fn is_same_user(&self) -> bool {
        self.uid == geteuid().as_raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_this_user_and_of_root_are_ours() {
        let me = geteuid().as_raw();
        let is_ours = |uid| PeerCredentials { pid: 1, uid }.is_ours();
        assert!(is_ours(me) && is_ours(0));
        assert!(!is_ours(me + 1) && !is_ours(u32::MAX - 1));
    }
}
