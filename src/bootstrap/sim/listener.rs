//! A listener and a rendezvous on the virtual network, for simulations that go on from there.

use super::crypto::toy;
use super::net::{Line, Party, Port, Shared};
use crate::bootstrap::allgather::LAST_WORDS;
use crate::bootstrap::allgather::client::AllgatherClient;
use crate::bootstrap::allgather::driver::{AllgatherDriver, Role};
use crate::bootstrap::allgather::message::PeerId as Named;
use crate::bootstrap::allgather::root::AllgatherRoot;
use crate::bootstrap::error::BootstrapError;
use crate::bootstrap::tcp::handshake::SharedSecret;
use crate::bootstrap::tcp::hello::{ANYONE, Hello, Purpose};
use crate::bootstrap::tcp::pending::{PendingPeers, ProvenConnection};
use crate::bootstrap::unique_id::UniqueId;
use std::net::SocketAddr;
use std::time::Instant;

/// Open until it is dropped.
pub struct Listener {
    pub port: Port,
    pub address: SocketAddr,
    pub secret: SharedSecret,
    lobby: PendingPeers<Line>,
    /// Who came for another purpose while the ranks met.
    kept: Vec<ProvenConnection<Line>>,
}

impl Listener {
    pub fn open(net: &Shared, owner: Party, address: SocketAddr, id: &UniqueId) -> Listener {
        net.borrow_mut().open_door(owner, address);
        let (secret, port) = (SharedSecret::with(id, toy), Port { net: net.clone(), owner });
        Listener {
            port,
            address,
            lobby: PendingPeers::new(secret.clone()),
            secret,
            kept: Vec::new(),
        }
    }

    /// A port of its owner's for connections that it makes.
    pub fn caller(&self) -> Port {
        Port { net: self.port.net.clone(), owner: self.port.owner }
    }

    pub fn advance(&mut self, now: Instant) -> Vec<ProvenConnection<Line>> {
        let mut arrivals = std::mem::take(&mut self.kept);
        arrivals.extend(self.lobby.advance(now, || Ok(self.port.accept())));
        arrivals
    }

    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        self.lobby.next_deadline(now)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.port.net.borrow_mut().close_door(self.port.owner);
    }
}

/// Who meets whom, and until when.
pub struct Guest {
    pub rank: usize,
    pub nranks: usize,
    pub mine: Vec<u8>,
    /// Where the first of them listens, unless it is this rank.
    pub root: Option<SocketAddr>,
    pub deadline: Instant,
    /// Another number for every process.
    pub note: u64,
}

/// One rank's rendezvous with the others.
pub struct Rendezvous {
    listener: Listener,
    host: AllgatherDriver<Port>,
    over: Option<Instant>,
}

impl Rendezvous {
    pub fn new(mut listener: Listener, guest: Guest, now: Instant) -> Rendezvous {
        let Guest { rank, nranks, mine, root, deadline, note } = guest;
        let me = Named { rank: rank as u32, pid: note as u32 };
        let (own, is_root) = ([listener.address], root.is_none());
        let role = match root {
            None => Role::Root(AllgatherRoot::of(me, nranks, &mine, now, deadline)),
            Some(root) => {
                Role::Member(AllgatherClient::new(me, nranks, &mine, &own, &[root], now, deadline))
            }
        };
        let (purpose, to) = (Purpose::Meet, ANYONE);
        let (nranks, detail) = (nranks as u32, me.pid);
        let greeting = Hello { purpose, rank: me.rank, to, nranks, detail, note };
        listener.lobby.set_rank(me.rank);
        if is_root {
            listener.lobby.set_root();
        }
        let host = AllgatherDriver::new(listener.caller(), listener.secret.clone(), greeting, role);
        Rendezvous { listener, host, over: None }
    }

    /// Go on; once it is over, what all have brought.
    pub fn advance(&mut self, now: Instant) -> Option<Result<Vec<Vec<u8>>, BootstrapError>> {
        for arrival in self.listener.advance(now) {
            match arrival.greeting.purpose {
                Purpose::Meet => self.host.admit(arrival, now),
                _ => self.listener.kept.push(arrival),
            }
        }
        self.host.advance(now);
        let outcome = self.host.outcome()?.clone();
        let until = *self.over.get_or_insert(now + LAST_WORDS);
        let is_over = self.host.is_quiet() || now >= until;
        let table = |host: &mut AllgatherDriver<Port>| {
            host.take_table().into_iter().map(|(_, payload)| payload).collect()
        };
        is_over.then(|| outcome.map(|()| table(&mut self.host)))
    }

    /// Whether it may still be called off.
    pub fn is_undecided(&self) -> bool {
        self.host.outcome().is_none()
    }

    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let host = self.host.next_deadline().filter(|_| self.over.is_none());
        [self.listener.next_deadline(now), host, self.over].into_iter().flatten().min()
    }

    pub fn into_gate(self) -> Listener {
        self.listener
    }
}
