//! One peer's connection: what is posted to it, what comes from it, and the data sockets in
//! between.
#![allow(unsafe_code)]

use super::data_socket::{DataSocket, SocketBroken};
use super::endpoint::{NewDataSocket, Settings};
use super::inbound::Inbound;
use super::outbound::Outbound;
use super::slot_pool::SlotPool;
use crate::config::MOST_NSOCKS;
use crate::error::Result;
use crate::transport::fifo::{FifoShape, ReceivedMessage, Stamp};
use crate::transport::network::Connection;
use std::time::{Duration, Instant};

/// Slots of the receiving half: a reader takes a message as soon as it is there, so few are ever
/// full, and the sender's slots alone are as deep as plans are proved for.
const INBOUND_DEPTH: usize = 8;

/// How long a broken connection waits to be explained where the peer does not answer: it is gone,
/// and the news of its death or its last words are on their way, or its host is silent. As long as
/// its neighbours may take to find that out.
pub const EXPLANATION: Duration = Duration::from_secs(1);

/// Every how many polls data sockets other than the first are read: a short message usually is on
/// the first one.
const OTHER_SOCKETS: u32 = 4;

/// A bit for each data socket.
type Ended = u32;

/// Sockets at most: each of a peer's sockets may come again.
pub(super) const MOST_SOCKETS: usize = 2 * MOST_NSOCKS;
const _: () = assert!(MOST_SOCKETS <= Ended::BITS as usize);

/// A connection that is of no more use, why, and since when. The peer's death or failure, which
/// comes over another socket, says more than a closed one does: so the control plane is asked.
struct Breach {
    why: String,
    since: Instant,
    is_asked: bool,
    is_explained: bool,
}

/// The receiving half's part of the settings.
fn inbound_geometry(settings: Settings) -> FifoShape {
    let depth = settings.geometry.depth.min(INBOUND_DEPTH);
    FifoShape { depth, ..settings.geometry }
}

pub struct TcpConnection {
    outbound: Outbound,
    inbound: Inbound,
    data_sockets: Vec<DataSocket>,
    settings: Settings,
    broken: Option<Breach>,
    /// A bit for each data socket that gives nothing any more. Others may still hold what was sent
    /// before.
    ended: Ended,
    polls: u32,
}

impl TcpConnection {
    /// An error where there is no memory for its slots.
    pub fn new(settings: Settings) -> Result<TcpConnection> {
        let blocks = SlotPool::new(settings.geometry, 0)?;
        Ok(TcpConnection::of(settings, blocks, Inbound::blocks(inbound_geometry(settings))?))
    }

    /// One without slots, over which nothing goes; it takes no data sockets.
    pub fn bare(settings: Settings) -> TcpConnection {
        TcpConnection::of(settings, SlotPool::none(), SlotPool::none())
    }

    fn of(settings: Settings, out: SlotPool, into: SlotPool) -> TcpConnection {
        TcpConnection {
            outbound: Outbound::new(out, settings.geometry, settings.protection),
            inbound: Inbound::new(into, inbound_geometry(settings)),
            data_sockets: Vec::with_capacity(settings.data_sockets),
            settings,
            broken: None,
            ended: 0,
            polls: 0,
        }
    }

    pub fn is_bare(&self) -> bool {
        self.outbound.is_bare()
    }

    pub fn has_sockets(&self) -> bool {
        !self.data_sockets.is_empty()
    }

    /// Add one of the peer's sockets. One that is made anew does not replace the one that broke: of
    /// what had gone over that nobody knows how much has come. One that is too many is hung up on.
    pub fn add_socket(&mut self, data_socket: NewDataSocket) {
        if self.data_sockets.len() == MOST_SOCKETS {
            return;
        }
        self.data_sockets.push(DataSocket::new(
            data_socket.socket,
            self.settings.protection,
            &data_socket.keys,
        ));
        self.flush();
    }

    pub fn data_sockets(&self) -> impl Iterator<Item = &DataSocket> {
        self.data_sockets.iter()
    }

    /// End the data sockets once nothing is on its way over any: who finds the end of one has what
    /// came over the others.
    pub fn end(&self) {
        if self.data_sockets.len() == 1 || self.is_delivered() {
            self.data_sockets.iter().for_each(DataSocket::shutdown_write);
        }
    }

    /// Whether the peer's machine has all that was written.
    pub fn is_delivered(&self) -> bool {
        self.is_broken() || self.data_sockets.iter().all(DataSocket::is_delivered)
    }

    pub fn settle(&mut self, address: *const u8, bytes: usize) {
        self.outbound.settle(address, bytes);
    }

    /// See whether anybody is at the other end, which writing and reading do not tell.
    pub fn check_liveness(&mut self) {
        if self.data_sockets.iter_mut().any(DataSocket::is_silent) {
            self.mark_broken("nobody at its other end has answered for seconds");
        }
    }

    pub fn mark_broken(&mut self, why: &str) {
        let (why, since) = (why.to_string(), Instant::now());
        let (is_asked, is_explained) = (false, false);
        self.broken.get_or_insert(Breach { why, since, is_asked, is_explained });
    }

    /// Whether somebody has to be asked why it broke; says so once.
    pub fn is_to_be_explained(&mut self) -> bool {
        self.broken.as_mut().is_some_and(|breach| !std::mem::replace(&mut breach.is_asked, true))
    }

    /// All that others know of why it broke is known.
    pub fn explained(&mut self) {
        if let Some(breach) = &mut self.broken {
            breach.is_explained = true;
        }
    }

    /// Why the connection is of no more use, once nobody can say it better and nothing that was
    /// sent before is here or may come over a data socket that is open; a second after it broke at
    /// the latest.
    pub fn breach(&self, now: Instant) -> Option<&str> {
        let breach = self.broken.as_ref()?;
        let has_ended = self.ended.count_ones() as usize >= self.data_sockets.len();
        let is_over = breach.is_explained && has_ended && self.inbound.ready().is_none();
        let is_due = is_over || now.saturating_duration_since(breach.since) >= EXPLANATION;
        is_due.then_some(&breach.why)
    }

    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }
}

impl Connection for TcpConnection {
    fn try_reserve(&mut self, length: usize) -> Option<*mut u8> {
        if !self.outbound.has_room() {
            self.flush();
        }
        self.outbound.try_reserve(length)
    }

    fn post(&mut self, stamp: &Stamp, length: usize) {
        self.outbound.post(stamp, length);
        self.flush();
    }

    unsafe fn send_from(&mut self, stamp: &Stamp, payload: *const u8, length: usize) -> bool {
        if !self.outbound.has_room() {
            self.flush();
        }
        // SAFETY: the caller's promise.
        let lent = unsafe { self.outbound.send_zero_copy(stamp, payload, length) };
        if lent {
            self.flush();
        }
        lent
    }

    fn flush(&mut self) {
        if self.broken.is_some() {
            return;
        }
        for data_socket in &mut self.data_sockets {
            if let Err(why) = data_socket.write(&mut self.outbound) {
                return self.mark_broken(&why.to_string());
            }
        }
    }

    fn is_written(&self) -> bool {
        self.outbound.is_written()
    }

    fn receive_at(&mut self, address: *mut u8, length: usize, stamp: &Stamp) {
        self.inbound.want_at(address, length, stamp);
    }

    fn receive_anywhere(&mut self) {
        self.inbound.want_nowhere();
    }

    fn peek(&mut self) -> Option<(ReceivedMessage, bool)> {
        let ready = self.inbound.ready();
        if ready.is_some() {
            return ready;
        }
        self.polls = self.polls.wrapping_add(1);
        let all = self.broken.is_some() || self.polls.is_multiple_of(OTHER_SOCKETS);
        let ended = self.ended;
        let worth = |(index, data_socket): &(usize, &mut DataSocket)| {
            ended & 1 << index == 0 && (all || *index == 0 || data_socket.is_reading())
        };
        let mut failure = None;
        for (index, data_socket) in self.data_sockets.iter_mut().enumerate().filter(worth) {
            if let Err(why) = data_socket.read(&mut self.inbound) {
                self.ended |= 1 << index;
                failure = Some(why);
            }
        }
        if let Some(why) = failure {
            if matches!(why, SocketBroken::Damaged(_)) {
                self.ended = Ended::MAX;
            }
            self.mark_broken(&why.to_string());
        }
        self.inbound.ready()
    }

    fn free(&mut self) {
        self.inbound.free();
    }
}

#[cfg(test)]
mod tests {
    use super::super::SocketKeys;
    use super::super::frame::Frame;
    use super::*;
    use crate::config::Protection;
    use crate::transport::network::Lengths;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    /// A connection of two data sockets, and the other ends of both.
    fn connection() -> (TcpConnection, [TcpStream; 2]) {
        connection_of()
    }

    fn connection_of<const SOCKETS: usize>() -> (TcpConnection, [TcpStream; SOCKETS]) {
        let geometry = FifoShape { depth: 4, slot_bytes: 64 };
        let mut connection = TcpConnection::new(Settings {
            geometry,
            steps: Lengths { cut: 64, whole: 0 },
            messages: Lengths { cut: 64, whole: 0 },
            protection: Protection::Clear,
            data_sockets: 2,
        })
        .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ends = [(); SOCKETS].map(|()| {
            let end = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let socket = OwnedFd::from(listener.accept().unwrap().0);
            let keys = SocketKeys { send: [1; 32], receive: [2; 32] };
            connection.add_socket(NewDataSocket { peer: 1, socket, keys });
            end
        });
        (connection, ends)
    }

    fn message(position: u64) -> [u8; super::super::frame::FRAME_BYTES] {
        Frame { position, ..Frame::default() }.encode()
    }

    fn until(connection: &mut TcpConnection, is_done: impl Fn(&mut TcpConnection) -> bool) {
        let started = Instant::now();
        while !is_done(connection) {
            assert!(started.elapsed() < Duration::from_secs(60), "nothing happens any more");
        }
    }

    #[test]
    fn what_came_before_the_end_of_a_socket_is_read_from_the_others() {
        let (mut connection, [mut first, mut second]) = connection();
        second.write_all(&message(0)).unwrap();
        first.write_all(&message(1)).unwrap();
        drop(first);
        for _ in 0..2 {
            until(&mut connection, |connection| connection.peek().is_some());
            connection.free();
        }
        until(&mut connection, |connection| connection.peek().is_none() && connection.is_broken());
    }

    #[test]
    fn a_peer_that_lives_and_has_ended_one_socket_may_still_send_over_the_other() {
        let (mut connection, [first, mut second]) = connection();
        // No time passes.
        let now = Instant::now();
        drop(first);
        until(&mut connection, |connection| connection.peek().is_none() && connection.is_broken());
        connection.explained();
        assert!(connection.breach(now).is_none(), "the other data_socket is open");
        second.write_all(&message(0)).unwrap();
        until(&mut connection, |connection| connection.peek().is_some());
        connection.free();
        drop(second);
        until(&mut connection, |connection| {
            connection.peek().is_none() && connection.breach(now).is_some()
        });
    }

    #[test]
    fn a_peer_that_comes_again_and_again_gets_no_more_sockets_than_there_can_be() {
        let (mut connection, ends) = connection_of::<40>();
        let mut ends = ends.into_iter();
        let mut first = ends.next().unwrap();
        for mut surplus in &ends.as_slice()[MOST_SOCKETS - 1..] {
            surplus.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(surplus.read(&mut [0]).expect("an end"), 0, "it was hung up on");
        }
        let now = Instant::now();
        drop(ends);
        until(&mut connection, |connection| {
            connection.peek().is_none()
                && connection.ended.count_ones() as usize == connection.data_sockets.len() - 1
        });
        connection.explained();
        assert!(connection.breach(now).is_none(), "the first data_socket is open");
        first.write_all(&message(0)).unwrap();
        until(&mut connection, |connection| connection.peek().is_some());
    }

    #[test]
    fn sockets_end_when_all_of_them_have_delivered() {
        let (connection, [_first, second]) = connection();
        // The kernels of both ends hold less than this.
        let bytes = vec![0; 64 << 20];
        let data_socket = &connection.data_sockets[0];
        let sent = data_socket.send_unframed(&bytes).unwrap();
        assert!(sent > 0 && !connection.is_delivered());
        connection.end();
        second.set_nonblocking(true).unwrap();
        let error = (&second).read(&mut [0]).unwrap_err();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::WouldBlock,
            "the other data_socket has not ended"
        );
    }

    #[test]
    fn a_socket_that_ends_within_a_message_breaks_the_connection() {
        let (mut connection, [mut first, _second]) = connection();
        first.write_all(&message(0)[..9]).unwrap();
        drop(first);
        until(&mut connection, |connection| connection.peek().is_none() && connection.is_broken());
    }
}
