//! A rank that is not the root: contact the root, find its place in the tree, give and take.

use super::message::{
    AllgatherMessage, PeerId, RankContribution, entries, entry_bytes, push_entry,
};
use super::protocol::{
    Branches, ConnectionId, PeerTable, TreeAction, TreeEvent, died, garbled, into_unmet, name,
    out_of_turn, own_failure, refused,
};
use super::root::margin;
use crate::bootstrap::error::BootstrapError;
use crate::bootstrap::local::wire::Failure;
use crate::error::{Error, Result};
use crate::host;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How far a rank has come.
enum ClientStage {
    /// Dialling the root; `again` after it had hung up once.
    Contacting,
    /// The root knows us and has to say where we belong.
    Placing { contact: ConnectionId },
    /// Dialling the parent; the contact stays open until we have it.
    Joining { contact: ConnectionId, root: PeerId, parent: PeerId },
    /// The parent has let us in and has to take us.
    Greeting { contact: ConnectionId, root: PeerId, up: ConnectionId, parent: PeerId },
    /// In the tree.
    Placed { up: ConnectionId, parent: PeerId, depth: u32 },
    /// Everybody has everything, or the rendezvous has failed.
    Over,
}

/// A rendezvous as one rank sees it.
pub struct AllgatherClient {
    me: PeerId,
    nranks: usize,
    listener: Vec<SocketAddr>,
    root: Vec<SocketAddr>,
    started: Instant,
    deadline: Instant,
    /// How long before the deadline the root speaks.
    margin: Duration,
    stage: ClientStage,
    below: Branches,
    /// Through the listener, and not yet asked to join.
    visitors: Vec<(ConnectionId, PeerId)>,
    /// For the parent, until there is one.
    upward: Vec<AllgatherMessage>,
    /// The table, in parts as they came, and how many ranks that is.
    parts: Vec<Arc<[u8]>>,
    received: usize,
    actions: Vec<TreeAction>,
    outcome: Option<Result<(), BootstrapError>>,
}

impl AllgatherClient {
    pub fn new(
        me: PeerId,
        nranks: usize,
        mine: &[u8],
        listener: &[SocketAddr],
        root: &[SocketAddr],
        now: Instant,
        deadline: Instant,
    ) -> AllgatherClient {
        let mut body = Vec::with_capacity(entry_bytes(mine));
        push_entry(&mut body, &RankContribution { from: me, payload: mine });
        let (to, rank, until) = (root.to_vec(), crate::bootstrap::tcp::hello::ROOT, deadline);
        let dial = TreeAction::Dial { to, rank, was_open: false, until };
        AllgatherClient {
            me,
            nranks,
            listener: listener.to_vec(),
            root: root.to_vec(),
            started: now,
            deadline,
            margin: margin(deadline.saturating_duration_since(now)),
            stage: ClientStage::Contacting,
            below: Branches::default(),
            visitors: Vec::new(),
            upward: vec![AllgatherMessage::Offers(Arc::from(body))],
            parts: Vec::new(),
            received: 0,
            actions: vec![dial],
            outcome: None,
        }
    }

    pub fn outcome(&self) -> Option<&Result<(), BootstrapError>> {
        self.outcome.as_ref()
    }

    /// Whether every rank's contribution is here.
    #[cfg(test)]
    pub fn has_table(&self) -> bool {
        self.received == self.nranks
    }

    pub fn take_table(&mut self) -> PeerTable {
        let mut table = Vec::with_capacity(self.received);
        for part in std::mem::take(&mut self.parts) {
            let found = entries(&part).expect("decoding looked at it");
            table.extend(found.iter().map(|entry| (entry.from, entry.payload.to_vec())));
        }
        table
    }

    pub fn take_actions(&mut self) -> Vec<TreeAction> {
        std::mem::take(&mut self.actions)
    }

    pub fn next_deadline(&self) -> Instant {
        match self.stage {
            ClientStage::Joining { .. } | ClientStage::Greeting { .. } => self.verdict(0),
            ClientStage::Placed { depth, .. } => self.verdict(depth),
            _ => self.deadline,
        }
    }

    fn say(&mut self, link: ConnectionId, message: AllgatherMessage) {
        self.actions.push(TreeAction::Say { link, message });
    }

    pub fn tick(&mut self, now: Instant) {
        if now < self.next_deadline() || self.outcome.is_some() {
            return;
        }
        // Below a rank that is stuck all wait, and speak from the top down: the first that does
        // names its parent.
        let who = match &self.stage {
            ClientStage::Joining { parent, .. }
            | ClientStage::Greeting { parent, .. }
            | ClientStage::Placed { parent, .. } => *parent,
            _ => PeerId { rank: super::message::NO_RANK, pid: 0 },
        };
        self.stuck(who, now);
    }

    /// When a rank so deep in the tree gives up: after the root has spoken, those above it first,
    /// and before its deadline. At 0, while it looks for its parent: before the root speaks, so
    /// that the root can tell everybody.
    fn verdict(&self, depth: u32) -> Instant {
        match depth {
            0 => self.deadline - 2 * self.margin,
            _ => self.deadline - self.margin / (1 << depth.min(16)),
        }
    }

    /// `who` has come and does not go on.
    fn stuck(&mut self, who: PeerId, now: Instant) {
        let waited_ms = now.saturating_duration_since(self.started).as_millis() as u64;
        let PeerId { rank, pid } = who;
        if rank != super::message::NO_RANK {
            return self.fail(Failure::Stuck { rank, pid, host: "".into(), waited_ms }, None);
        }
        let why = format!(
            "rank {} waited for {} other ranks, and the root did not say who is missing",
            self.me.rank,
            self.nranks - 1
        );
        self.fail(refused(self.me, libc::ETIMEDOUT, why.clone()), None);
        let place = format!("the root at {:?}", self.root);
        self.outcome = Some(Err(BootstrapError::late(Error::NotMet { place, why, waited_ms })));
    }

    /// The rendezvous is over: tell everybody but the one who told us.
    fn fail(&mut self, failure: Failure, except: Option<ConnectionId>) {
        if self.outcome.is_some() {
            return;
        }
        let stage = std::mem::replace(&mut self.stage, ClientStage::Over);
        let own = match stage {
            ClientStage::Contacting | ClientStage::Over => [None, None],
            ClientStage::Placing { contact } | ClientStage::Joining { contact, .. } => {
                [Some(contact), None]
            }
            ClientStage::Greeting { contact, up, .. } => [Some(contact), Some(up)],
            ClientStage::Placed { up, .. } => [Some(up), None],
        };
        let visitors = self.visitors.iter().map(|(link, _)| *link);
        let all = own.into_iter().flatten().chain(self.below.links()).chain(visitors);
        for link in all.filter(|link| Some(*link) != except) {
            let message = AllgatherMessage::Failure(failure.clone());
            self.actions.push(TreeAction::Say { link, message });
        }
        self.outcome = Some(Err(into_unmet(failure, self.me.rank, self.nranks)));
    }

    pub fn on(&mut self, event: TreeEvent, now: Instant) {
        if self.outcome.is_some() {
            return;
        }
        match event {
            TreeEvent::Came { link, greeting, .. } => {
                let who = PeerId { rank: greeting.rank, pid: greeting.detail };
                self.visitors.push((link, who));
            }
            TreeEvent::Reached { link } => self.reached(link, now),
            TreeEvent::Unreachable { error } => match self.stage {
                ClientStage::Joining { parent, .. } if is_time(&error) => self.stuck(parent, now),
                _ => {
                    self.fail(own_failure(self.me, &error), None);
                    self.outcome = Some(Err(BootstrapError::there(error)));
                }
            },
            TreeEvent::Said { link, message } => self.heard(link, message),
            TreeEvent::Lost { link } => self.lost(link),
            TreeEvent::Garbled { link, why } => {
                let failure = garbled(self.me, &self.called(link), why);
                self.fail(failure, Some(link));
            }
        }
    }

    fn who(&self, link: ConnectionId) -> PeerId {
        let visitor = self.visitors.iter().find(|(other, _)| *other == link);
        let below = self.below.who(link).or(visitor.map(|(_, who)| *who));
        below.unwrap_or(match self.stage {
            ClientStage::Greeting { up, parent, .. } | ClientStage::Placed { up, parent, .. }
                if up == link =>
            {
                parent
            }
            _ => PeerId { rank: super::message::NO_RANK, pid: 0 },
        })
    }

    /// Who is at the other end, for a text: of a root that is no rank the place is known.
    fn called(&self, link: ConnectionId) -> String {
        match self.who(link) {
            PeerId { rank: super::message::NO_RANK, .. } => {
                let places: Vec<String> = self.root.iter().map(SocketAddr::to_string).collect();
                format!("the root at {}", places.join(", "))
            }
            who => name(who),
        }
    }

    fn reached(&mut self, link: ConnectionId, now: Instant) {
        match self.stage {
            ClientStage::Contacting => {
                let remaining = self.deadline.saturating_duration_since(now);
                let remaining_ms = remaining.as_millis().min(u32::MAX.into()) as u32;
                let (pid, addresses) = (self.me.pid, self.listener.clone());
                let host = host::name().into();
                self.say(link, AllgatherMessage::Here { pid, remaining_ms, host, addresses });
                self.stage = ClientStage::Placing { contact: link };
            }
            ClientStage::Joining { contact, root, parent } => {
                self.say(link, AllgatherMessage::Join { pid: self.me.pid });
                self.stage = ClientStage::Greeting { contact, root, up: link, parent };
            }
            _ => self.actions.push(TreeAction::Hang { link }),
        }
    }

    fn lost(&mut self, link: ConnectionId) {
        if let Some(PeerId { rank, pid }) = self.below.who(link) {
            return self.fail(died(PeerId { rank, pid }), Some(link));
        }
        // Whoever was not taken yet has its contact with the root, which sees what becomes of it.
        self.visitors.retain(|(other, _)| *other != link);
        match self.stage {
            ClientStage::Placing { contact } if contact == link => {
                // Perhaps the contact was cut off while it was made: the root tells, or is gone.
                let (to, rank) = (self.root.clone(), crate::bootstrap::tcp::hello::ROOT);
                let until = self.deadline;
                self.actions.push(TreeAction::Dial { to, rank, was_open: true, until });
                self.stage = ClientStage::Contacting;
            }
            ClientStage::Joining { contact, root, .. }
            | ClientStage::Greeting { contact, root, .. }
                if contact == link =>
            {
                self.fail(died(root), Some(link));
            }
            ClientStage::Greeting { up, parent, .. } | ClientStage::Placed { up, parent, .. }
                if up == link =>
            {
                self.fail(died(parent), Some(link));
            }
            _ => {}
        }
    }

    fn heard(&mut self, link: ConnectionId, message: AllgatherMessage) {
        if let AllgatherMessage::Failure(failure) = message {
            return self.fail(failure, Some(link));
        }
        if let Some(at) = self.visitors.iter().position(|(other, _)| *other == link) {
            return self.heard_visitor(at, message);
        }
        if self.below.who(link).is_some() {
            return self.heard_child(link, message);
        }
        match (&self.stage, message) {
            (ClientStage::Placing { contact }, AllgatherMessage::Adopted { parent, depth })
                if *contact == link =>
            {
                self.placed(link, parent, depth);
            }
            (
                ClientStage::Placing { contact },
                AllgatherMessage::Place { root, parent, addresses },
            ) if *contact == link => {
                // A parent that is gone is told by the root, which knows whether it died.
                let (to, rank, until) = (addresses, parent.rank, self.verdict(0));
                self.actions.push(TreeAction::Dial { to, rank, was_open: false, until });
                self.stage = ClientStage::Joining { contact: link, root, parent };
            }
            (
                ClientStage::Greeting { contact, up, .. },
                AllgatherMessage::Adopted { parent, depth },
            ) if *up == link => {
                let contact = *contact;
                self.say(contact, AllgatherMessage::Attached);
                self.actions.push(TreeAction::Hang { link: contact });
                self.placed(link, parent, depth);
            }
            (ClientStage::Placed { up, .. }, AllgatherMessage::Table { first, count, body })
                if *up == link =>
            {
                self.take_part(first, count, body);
            }
            (ClientStage::Placed { up, .. }, AllgatherMessage::Go)
                if *up == link && self.received == self.nranks =>
            {
                self.below.say(&AllgatherMessage::Go, &mut self.actions);
                self.stage = ClientStage::Over;
                self.outcome = Some(Ok(()));
            }
            _ => self.fail(out_of_turn(&self.called(link)), None),
        }
    }

    fn heard_visitor(&mut self, at: usize, message: AllgatherMessage) {
        let (link, who) = self.visitors.remove(at);
        match message {
            AllgatherMessage::Join { .. } => {
                self.below.add(link, who);
                if let ClientStage::Placed { depth, .. } = self.stage {
                    self.say(link, AllgatherMessage::Adopted { parent: self.me, depth: depth + 1 });
                }
            }
            _ => self.fail(out_of_turn(&name(who)), None),
        }
    }

    fn heard_child(&mut self, link: ConnectionId, message: AllgatherMessage) {
        match (&message, &self.stage) {
            (
                AllgatherMessage::Offers(_) | AllgatherMessage::Done { .. },
                ClientStage::Placed { up, .. },
            ) => {
                self.say(*up, message);
            }
            (AllgatherMessage::Offers(_), _) => self.upward.push(message),
            _ => self.fail(out_of_turn(&self.called(link)), None),
        }
    }

    fn placed(&mut self, up: ConnectionId, parent: PeerId, depth: u32) {
        self.stage = ClientStage::Placed { up, parent, depth };
        for child in self.below.links() {
            let message = AllgatherMessage::Adopted { parent: self.me, depth: depth + 1 };
            self.actions.push(TreeAction::Say { link: child, message });
        }
        for message in std::mem::take(&mut self.upward) {
            self.say(up, message);
        }
    }

    fn take_part(&mut self, first: u32, count: u32, body: Arc<[u8]>) {
        self.received += count as usize;
        if first as usize + count as usize != self.received || self.received > self.nranks {
            let text = "the root sent a table out of order".into();
            return self.fail(Failure::Usage { text }, None);
        }
        self.parts.push(body.clone());
        self.below.say(&AllgatherMessage::Table { first, count, body }, &mut self.actions);
        if let (true, ClientStage::Placed { up, .. }) = (self.received == self.nranks, &self.stage)
        {
            self.say(*up, AllgatherMessage::Done { rank: self.me.rank });
        }
    }
}

/// Whether a dial failed because its time was over, not because the listener is gone.
fn is_time(error: &Error) -> bool {
    matches!(error, Error::System { errno: libc::ETIMEDOUT, .. })
}
