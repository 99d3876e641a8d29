//! One rank's rendezvous on connections: it turns bytes into events and actions into bytes.
//!
//! No call waits and none asks for the time: whoever drives a host, a loop around `poll` or a
//! simulation, calls [`AllgatherDriver::advance`] when something may have come or a deadline has
//! passed.

use super::client::AllgatherClient;
use super::message::AllgatherMessage;
use super::protocol::{ConnectionId, PeerTable, TreeAction, TreeEvent};
use super::root::AllgatherRoot;
use crate::bootstrap::error::BootstrapError;
use crate::bootstrap::tcp::connect::Connecting;
use crate::bootstrap::tcp::handshake::SharedSecret;
use crate::bootstrap::tcp::hello::{Hello, Purpose};
use crate::bootstrap::tcp::pending::ProvenConnection;
use crate::bootstrap::tcp::secure_frame::{Framed, StreamEnd};
use crate::bootstrap::tcp::stream_traits::Network;
use crate::error::Result;
use crate::os::tcp_liveness::{AckWatch, LOOK};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// What a rank is in the rendezvous.
pub enum Role {
    Root(AllgatherRoot),
    Member(AllgatherClient),
}

impl Role {
    fn on(&mut self, event: TreeEvent, now: Instant) {
        match self {
            Role::Root(registry) => registry.on(event, now),
            Role::Member(member) => member.on(event, now),
        }
    }

    fn tick(&mut self, now: Instant) {
        match self {
            Role::Root(registry) => registry.tick(now),
            Role::Member(member) => member.tick(now),
        }
    }

    fn take_actions(&mut self) -> Vec<TreeAction> {
        match self {
            Role::Root(registry) => registry.take_actions(),
            Role::Member(member) => member.take_actions(),
        }
    }

    fn outcome(&self) -> Option<&Result<(), BootstrapError>> {
        match self {
            Role::Root(registry) => registry.outcome(),
            Role::Member(member) => member.outcome(),
        }
    }
}

struct DriverConnection<S> {
    framed: Framed<S>,
    queue: VecDeque<AllgatherMessage>,
    /// To be closed once everything has left.
    hanging: bool,
    silence: AckWatch,
}

/// One rank's rendezvous.
pub struct AllgatherDriver<N: Network> {
    network: N,
    secret: SharedSecret,
    /// What it says when it dials.
    greeting: Hello,
    role: Role,
    wires: BTreeMap<ConnectionId, DriverConnection<N::Stream>>,
    dial: Option<Connecting<N::Stream>>,
    next: ConnectionId,
    /// When to see again whether somebody is at the other ends, where there are any.
    next_look: Option<Instant>,
}

impl<N: Network> AllgatherDriver<N> {
    pub fn new(
        network: N,
        secret: SharedSecret,
        greeting: Hello,
        role: Role,
    ) -> AllgatherDriver<N> {
        let wires = BTreeMap::new();
        AllgatherDriver {
            network,
            secret,
            greeting,
            role,
            wires,
            dial: None,
            next: 1,
            next_look: None,
        }
    }

    /// Somebody came through the listener for the rendezvous.
    pub fn admit(&mut self, arrival: ProvenConnection<N::Stream>, now: Instant) {
        debug_assert_eq!(arrival.greeting.purpose, Purpose::Meet);
        let (greeting, took) = (arrival.greeting.clone(), arrival.took);
        let link = self.connect(arrival, now);
        self.role.on(TreeEvent::Came { link, greeting, took }, now);
    }

    fn connect(&mut self, arrival: ProvenConnection<N::Stream>, now: Instant) -> ConnectionId {
        let link = self.next;
        self.next += 1;
        self.network.enable_keepalive(&arrival.stream);
        self.next_look.get_or_insert(now + LOOK);
        let framed = Framed::new(arrival.stream, &arrival.keys);
        let (queue, silence) = (VecDeque::new(), AckWatch::default());
        self.wires.insert(link, DriverConnection { framed, queue, hanging: false, silence });
        link
    }

    /// Do all that can be done now.
    pub fn advance(&mut self, now: Instant) {
        self.look(now);
        loop {
            self.advance_dial(now);
            self.listen(now);
            self.role.tick(now);
            let actions = self.role.take_actions();
            let idle = actions.is_empty();
            for action in actions {
                self.act(action, now);
            }
            self.push();
            if idle {
                return;
            }
        }
    }

    /// See now and then whether what was said still gets anywhere. Who is silent is lost.
    fn look(&mut self, now: Instant) {
        if self.wires.is_empty() {
            self.next_look = None;
            return;
        }
        if now < *self.next_look.get_or_insert(now + LOOK) {
            return;
        }
        self.next_look = Some(now + LOOK);
        let network = &self.network;
        let is_silent = |wire: &mut DriverConnection<N::Stream>| {
            network.is_silent(&wire.framed.stream, &mut wire.silence)
        };
        let wires = self.wires.iter_mut();
        let silent: Vec<ConnectionId> =
            wires.filter_map(|(link, wire)| is_silent(wire).then_some(*link)).collect();
        for link in silent {
            self.wires.remove(&link);
            self.role.on(TreeEvent::Lost { link }, now);
        }
    }

    fn advance_dial(&mut self, now: Instant) {
        let Some(dial) = &mut self.dial else { return };
        match dial.advance(now, &mut self.network) {
            Ok(None) => {}
            Ok(Some(arrival)) => {
                self.dial = None;
                let link = self.connect(arrival, now);
                self.role.on(TreeEvent::Reached { link }, now);
            }
            Err(error) => {
                self.dial = None;
                self.role.on(TreeEvent::Unreachable { error }, now);
            }
        }
    }

    /// Take what has come on every connection.
    fn listen(&mut self, now: Instant) {
        let links: Vec<ConnectionId> = self.wires.keys().copied().collect();
        for link in links {
            while let Some(event) = self.hear(link) {
                let last = match &event {
                    TreeEvent::Said { message, .. } => {
                        matches!(message, AllgatherMessage::Failure(_))
                    }
                    _ => true,
                };
                if last {
                    self.wires.remove(&link);
                }
                self.role.on(event, now);
                if last {
                    break;
                }
            }
        }
    }

    fn hear(&mut self, link: ConnectionId) -> Option<TreeEvent> {
        let wire = self.wires.get_mut(&link)?;
        match wire.framed.pull() {
            Ok(None) => None,
            Ok(Some(frame)) => Some(match AllgatherMessage::decode(&frame) {
                Ok(message) => TreeEvent::Said { link, message },
                Err(why) => TreeEvent::Garbled { link, why },
            }),
            Err(StreamEnd::Closed(_)) => Some(TreeEvent::Lost { link }),
            Err(StreamEnd::Garbled(why)) => Some(TreeEvent::Garbled { link, why }),
        }
    }

    fn act(&mut self, action: TreeAction, now: Instant) {
        match action {
            TreeAction::Say { link, message } => {
                if let Some(wire) = self.wires.get_mut(&link) {
                    wire.queue.push_back(message);
                }
            }
            TreeAction::Hang { link } => {
                if let Some(wire) = self.wires.get_mut(&link) {
                    wire.hanging = true;
                }
            }
            TreeAction::Dial { to, rank, was_open, until } => {
                let greeting = Hello { to: rank, ..self.greeting.clone() };
                let secret = self.secret.clone();
                let to = self.network.routes(&to);
                let dial = Connecting::new(secret, &to, greeting, now, until);
                self.dial = Some(if was_open { dial.fail_if_refused() } else { dial });
            }
        }
    }

    /// Send what the connections take. A failure to send is left to the receiving side, which
    /// finds the other's last words or its end.
    fn push(&mut self) {
        self.wires.retain(|_, wire| {
            loop {
                match wire.framed.push() {
                    Ok(true) => match wire.queue.pop_front() {
                        Some(message) => wire.framed.begin(&message.encode()),
                        None => return !wire.hanging,
                    },
                    Ok(false) => return true,
                    Err(_) => {
                        wire.queue.clear();
                        return !wire.hanging;
                    }
                }
            }
        });
    }

    /// Whether somebody has come whom the listener cannot let in, and why; `is_starved`: though no
    /// stranger has what it lacks.
    pub fn set_shortage(&mut self, errno: Option<i32>, is_starved: bool, now: Instant) {
        if let Role::Root(registry) = &mut self.role {
            registry.set_shortage(errno, is_starved, now);
        }
    }

    pub fn outcome(&self) -> Option<&Result<(), BootstrapError>> {
        self.role.outcome()
    }

    /// Whether everybody who is to be told has been. After a failure: whether the others have
    /// hung up, since what they had still sent would take our last words with it.
    pub fn is_quiet(&self) -> bool {
        let failed = self.outcome().is_some_and(|outcome| outcome.is_err());
        let busy =
            |wire: &DriverConnection<N::Stream>| wire.framed.is_sending() || !wire.queue.is_empty();
        if failed { self.wires.is_empty() } else { !self.wires.values().any(busy) }
    }

    /// Whether every rank's contribution is here.
    #[cfg(test)]
    pub fn has_table(&self) -> bool {
        match &self.role {
            Role::Root(registry) => registry.has_table(),
            Role::Member(member) => member.has_table(),
        }
    }

    pub fn take_table(&mut self) -> PeerTable {
        match &mut self.role {
            Role::Root(registry) => registry.take_table(),
            Role::Member(member) => member.take_table(),
        }
    }

    /// When [`AllgatherDriver::advance`] has something to do though nothing arrives; `None` if
    /// never.
    pub fn next_deadline(&self) -> Option<Instant> {
        let dial = self.dial.as_ref().map(Connecting::next_deadline);
        let role = match &self.role {
            Role::Root(registry) => registry.next_deadline(),
            Role::Member(member) => Some(member.next_deadline()),
        };
        [dial, role, self.next_look].into_iter().flatten().min()
    }

    /// Every stream, with whether it has something to send.
    pub fn streams(&self) -> impl Iterator<Item = (&N::Stream, bool)> {
        let wires = self.wires.values().map(|wire| (&wire.framed.stream, wire.framed.is_sending()));
        wires.chain(self.dial.iter().flat_map(Connecting::streams))
    }
}
