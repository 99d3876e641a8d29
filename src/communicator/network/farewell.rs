//! How the control thread of a rank ends: it waits for connections that are due, then tells its
//! last words.
//!
//! Others must be able to tell a rank that has left from one that died, so both waits are for them
//! and both are short.

use super::Worker;
use crate::communicator::network::descriptor::poll;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The longest that a rank which ends waits for its neighbours to have read its last words.
const FAREWELL: Duration = Duration::from_millis(200);

/// The longest that a rank which ends waits for neighbours that it never had a connection with:
/// only one that is stopped takes as long.
const LATE_LINKS: Duration = Duration::from_secs(1);

impl Worker {
    /// A rank may end before all its neighbours are connected. Those who come in vain would take it
    /// for dead, so they get a little time; who has gone itself is not waited for.
    pub(super) fn finish_links(&mut self) {
        let until = Instant::now() + LATE_LINKS;
        self.publish();
        loop {
            self.admit();
            self.advance_calls();
            self.read_all();
            self.tend();
            self.beat();
            self.write_all();
            // Asked right before the sleep: what has just come may be all that was missed, and then
            // nothing more comes to end the sleep.
            if Instant::now() >= until || !self.misses_links() {
                return;
            }
            self.next_beat = self.next_beat.min(until);
            self.sleep();
        }
    }

    /// Whether there is still to be a connection with somebody who lives.
    fn misses_links(&self) -> bool {
        let is_missed = |peer: &usize| {
            let gossip = &self.gossip;
            !gossip.is_linked(*peer) && !gossip.has_left(*peer) && !gossip.is_gone(*peer)
        };
        self.gossip.neighbours().iter().any(is_missed)
    }

    /// Tell the neighbours this rank's last words, and wait a little for them to be read.
    pub(super) fn say_goodbye(mut self) {
        let until = Instant::now() + FAREWELL;
        self.publish();
        let mut bytes = [0; 16 << 10];
        let mut entries = Vec::new();
        let mut shut = false;
        while Instant::now() < until && self.neighbours.iter().any(|n| n.socket.is_some()) {
            if !shut && self.write_all() {
                shut = true;
                let sockets = self.neighbours.iter().filter_map(|n| n.socket.as_ref());
                // One that has ended already is no harm.
                sockets.for_each(|socket| drop(socket.shutdown(Shutdown::Write)));
            }
            for neighbour in &mut self.neighbours {
                // Unread bytes would turn the end of a connection into a reset.
                while let Some(socket) = &mut neighbour.socket {
                    match socket.read(&mut bytes) {
                        Ok(count) if count > 0 => {}
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        _ => neighbour.socket = None,
                    }
                }
            }
            entries.clear();
            for neighbour in &self.neighbours {
                if let Some(socket) = &neighbour.socket {
                    let events = libc::POLLIN | if shut { 0 } else { libc::POLLOUT };
                    entries.push(libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 });
                }
            }
            if !entries.is_empty() {
                poll(&mut entries, until);
            }
        }
    }
}
