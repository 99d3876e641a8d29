//! The control thread: one `poll` over the listener, the connections of its [`Plane`] and its
//! orders.

use super::handle::{Commands, Start};
use super::state_machine::{ControlIdentity, Plane};
use crate::bootstrap::tcp::{AuthListener, OsNetwork, SharedSecret};
use crate::os::poll::{entry, poll};
use crate::sync::atomic::Ordering::*;
use crate::transport::tcp::{NewDataSocket, SocketInbox, SocketKeys};
use std::sync::Arc;
use std::time::Instant;

pub struct Worker {
    plane: Plane<OsNetwork>,
    listener: AuthListener,
    inbox: Arc<SocketInbox>,
    /// Data sockets to a peer.
    data_sockets: usize,
    commands: Arc<Commands>,
    /// What is polled, and the neighbours whose sockets are the last of it.
    entries: Vec<libc::pollfd>,
    polled: Vec<usize>,
}

impl Worker {
    pub(super) fn new(start: Start, commands: Arc<Commands>) -> Worker {
        let Start { rank, id, listener, addresses, remote, pages, inbox, data_sockets, timeout } =
            start;
        let seat = ControlIdentity {
            rank,
            secret: SharedSecret::new(&id),
            addresses,
            remote,
            pages,
            timeout,
        };
        let plane = Plane::new(seat, OsNetwork, Instant::now());
        Worker {
            plane,
            listener,
            inbox,
            data_sockets,
            commands,
            entries: Vec::new(),
            polled: Vec::new(),
        }
    }

    pub(super) fn run(mut self) {
        loop {
            self.run_commands();
            #[cfg(test)]
            match self.commands.harm.lock().take() {
                Some(super::handle::ConnectionFault::Vanish) => return,
                Some(super::handle::ConnectionFault::Cut) => self.plane.cut(),
                Some(super::handle::ConnectionFault::Stop(time)) => {
                    // Doubled by the kernel to what it gives unless it is told otherwise.
                    self.plane.links().for_each(|(_, socket, _)| socket.narrow(64 << 10));
                    std::thread::sleep(time);
                }
                None => {}
            }
            let arrivals = if self.plane.receives() { self.listener.advance() } else { Vec::new() };
            let wakes = self.plane.advance(Instant::now(), arrivals, &self.polled);
            self.deliver();
            if wakes {
                self.inbox.wake();
            }
            if self.plane.is_over() {
                return;
            }
            self.sleep();
        }
    }

    /// Do what was ordered.
    fn run_commands(&mut self) {
        self.commands.event.lower();
        if self.plane.is_leaving() {
            return;
        }
        let now = Instant::now();
        // Acquire: pairs with the Release in `ControlThread::drop`.
        if self.commands.stop.load(Acquire) {
            return self.plane.leave(now);
        }
        // Acquire: pairs with the Release in `Publisher::publish`.
        if self.commands.publish.swap(false, Acquire) {
            self.plane.publish();
        }
        let peers = std::mem::take(&mut *self.commands.connect.lock());
        peers.into_iter().for_each(|peer| self.plane.connect(peer, self.data_sockets as u32, now));
        let peers = std::mem::take(&mut *self.commands.ask.lock());
        peers.into_iter().for_each(|peer| self.plane.ask(peer, now));
    }

    /// Hand connections and answers to the data plane.
    fn deliver(&mut self) {
        for peer in self.plane.take_explained() {
            self.inbox.report_explained(peer);
        }
        for data_socket in self.plane.take_data_connections() {
            let peer = data_socket.peer;
            match data_socket.outcome {
                Ok(arrival) => {
                    arrival.stream.ask();
                    arrival.stream.disable_pacing();
                    let keys =
                        SocketKeys { send: arrival.keys.send, receive: arrival.keys.receive };
                    self.inbox.push(NewDataSocket { peer, socket: arrival.stream.into_fd(), keys });
                }
                Err(why) => self.inbox.report_failure(peer, why.to_string()),
            }
        }
    }

    /// Sleep until there is something to do.
    fn sleep(&mut self) {
        let writes = |is_writing| if is_writing { libc::POLLOUT } else { 0 };
        let Worker { plane, entries, polled, .. } = self;
        entries.clear();
        entries.push(entry(self.commands.event.raw(), libc::POLLIN));
        let mut until = plane.next_deadline();
        if plane.receives() {
            self.listener.poll_fds(entries);
            until = self.listener.next_deadline().map_or(until, |at| until.min(at));
        }
        // One that is being connected has room once it is.
        let dials = plane.calls().map(|(socket, sends)| {
            entry(socket.raw(), if sends { libc::POLLOUT } else { libc::POLLIN })
        });
        entries.extend(dials);
        polled.clear();
        for (peer, socket, is_full) in plane.links() {
            entries.push(entry(socket.raw(), libc::POLLIN | writes(is_full)));
            polled.push(peer);
        }
        // An error ends the sleep early.
        let _ = poll(entries, until);
        let first = entries.len() - polled.len();
        let mut results = entries[first..].iter();
        let has_news = |entry: &libc::pollfd| entry.revents & !libc::POLLOUT != 0;
        polled.retain(|_| results.next().is_some_and(has_news));
    }
}
