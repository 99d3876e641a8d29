//! A rank that is not the root: contact the root, find its place in the tree, give and take.

use super::message::{Entry, Message, Party, entries, entry_bytes, push_entry};
use super::root::margin;
use super::tree::{
    Action, Branches, Event, Link, Table, died, garbled, into_unmet, name, out_of_turn,
    own_failure, refused,
};
use crate::bootstrap::error::{Cause, Unmet};
use crate::bootstrap::local::wire::Failure;
use crate::error::{Error, Result};
use crate::host;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How far a rank has come.
enum Stage {
    /// Dialling the root; `again` after it had hung up once.
    Contacting,
    /// The root knows us and has to say where we belong.
    Placing { contact: Link },
    /// Dialling the parent; the contact stays open until we have it.
    Joining { contact: Link, root: Party, parent: Party },
    /// The parent has let us in and has to take us.
    Greeting { contact: Link, root: Party, up: Link, parent: Party },
    /// In the tree.
    Placed { up: Link, parent: Party, depth: u32 },
    /// Everybody has everything, or the meeting has failed.
    Over,
}

/// A meeting as one rank sees it.
pub struct Member {
    me: Party,
    nranks: usize,
    gate: Vec<SocketAddr>,
    root: Vec<SocketAddr>,
    started: Instant,
    deadline: Instant,
    /// How long before the deadline the root speaks.
    margin: Duration,
    stage: Stage,
    below: Branches,
    /// Through the gate, and not yet asked to join.
    visitors: Vec<(Link, Party)>,
    /// For the parent, until there is one.
    upward: Vec<Message>,
    /// The table, in parts as they came, and how many ranks that is.
    parts: Vec<Arc<[u8]>>,
    received: usize,
    actions: Vec<Action>,
    outcome: Option<Result<(), Unmet>>,
}

impl Member {
    pub fn new(
        me: Party,
        nranks: usize,
        mine: &[u8],
        gate: &[SocketAddr],
        root: &[SocketAddr],
        now: Instant,
        deadline: Instant,
    ) -> Member {
        let mut body = Vec::with_capacity(entry_bytes(mine));
        push_entry(&mut body, &Entry { from: me, payload: mine });
        let (to, rank, until) = (root.to_vec(), crate::bootstrap::tcp::hello::ROOT, deadline);
        let dial = Action::Dial { to, rank, was_open: false, until };
        Member {
            me,
            nranks,
            gate: gate.to_vec(),
            root: root.to_vec(),
            started: now,
            deadline,
            margin: margin(deadline.saturating_duration_since(now)),
            stage: Stage::Contacting,
            below: Branches::default(),
            visitors: Vec::new(),
            upward: vec![Message::Offers(Arc::from(body))],
            parts: Vec::new(),
            received: 0,
            actions: vec![dial],
            outcome: None,
        }
    }

    pub fn outcome(&self) -> Option<&Result<(), Unmet>> {
        self.outcome.as_ref()
    }

    /// Whether every rank's contribution is here.
    #[cfg(test)]
    pub fn has_table(&self) -> bool {
        self.received == self.nranks
    }

    pub fn take_table(&mut self) -> Table {
        let mut table = Vec::with_capacity(self.received);
        for part in std::mem::take(&mut self.parts) {
            let found = entries(&part).expect("decoding looked at it");
            table.extend(found.iter().map(|entry| (entry.from, entry.payload.to_vec())));
        }
        table
    }

    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub fn next_deadline(&self) -> Instant {
        match self.stage {
            Stage::Joining { .. } | Stage::Greeting { .. } => self.verdict(0),
            Stage::Placed { depth, .. } => self.verdict(depth),
            _ => self.deadline,
        }
    }

    fn say(&mut self, link: Link, message: Message) {
        self.actions.push(Action::Say { link, message });
    }

    pub fn tick(&mut self, now: Instant) {
        if now < self.next_deadline() || self.outcome.is_some() {
            return;
        }
        // Below a rank that is stuck all wait, and speak from the top down: the first that does
        // names its parent.
        let who = match &self.stage {
            Stage::Joining { parent, .. }
            | Stage::Greeting { parent, .. }
            | Stage::Placed { parent, .. } => *parent,
            _ => Party { rank: super::message::NO_RANK, pid: 0 },
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
    fn stuck(&mut self, who: Party, now: Instant) {
        let waited_ms = now.saturating_duration_since(self.started).as_millis() as u64;
        let Party { rank, pid } = who;
        if rank == super::message::NO_RANK {
            let what = format!(
                "rank {} waited {waited_ms} ms for {} other ranks, and the root at {:?} did not \
                 say who is missing",
                self.me.rank,
                self.nranks - 1,
                self.root
            );
            let failure = refused(self.me, libc::ETIMEDOUT, what);
            self.fail_waiting(failure, Cause::Late);
        } else {
            self.fail(Failure::Stuck { rank, pid, host: "".into(), waited_ms }, None);
        }
    }

    /// The meeting is over: tell everybody but the one who told us.
    fn fail(&mut self, failure: Failure, except: Option<Link>) {
        if self.outcome.is_some() {
            return;
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let own = match stage {
            Stage::Contacting | Stage::Over => [None, None],
            Stage::Placing { contact } | Stage::Joining { contact, .. } => [Some(contact), None],
            Stage::Greeting { contact, up, .. } => [Some(contact), Some(up)],
            Stage::Placed { up, .. } => [Some(up), None],
        };
        let visitors = self.visitors.iter().map(|(link, _)| *link);
        let all = own.into_iter().flatten().chain(self.below.links()).chain(visitors);
        for link in all.filter(|link| Some(*link) != except) {
            let message = Message::Failure(failure.clone());
            self.actions.push(Action::Say { link, message });
        }
        self.outcome = Some(Err(into_unmet(failure, self.me.rank, self.nranks)));
    }

    /// As [`Member::fail`], where this rank's own words are for what it waited for in vain.
    fn fail_waiting(&mut self, failure: Failure, cause: Cause) {
        self.fail(failure, None);
        if let Some(Err(unmet)) = &mut self.outcome {
            unmet.cause = cause;
        }
    }

    pub fn on(&mut self, event: Event, now: Instant) {
        if self.outcome.is_some() {
            return;
        }
        match event {
            Event::Came { link, greeting, .. } => {
                let who = Party { rank: greeting.rank, pid: greeting.lane };
                self.visitors.push((link, who));
            }
            Event::Reached { link } => self.reached(link, now),
            Event::Unreachable { error } => match self.stage {
                Stage::Joining { parent, .. } if is_time(&error) => self.stuck(parent, now),
                _ => self.fail_waiting(own_failure(self.me, &error), Cause::There),
            },
            Event::Said { link, message } => self.heard(link, message),
            Event::Lost { link } => self.lost(link),
            Event::Garbled { link, why } => {
                let failure = garbled(self.me, &self.called(link), why);
                self.fail(failure, Some(link));
            }
        }
    }

    fn who(&self, link: Link) -> Party {
        let visitor = self.visitors.iter().find(|(other, _)| *other == link);
        let below = self.below.who(link).or(visitor.map(|(_, who)| *who));
        below.unwrap_or(match self.stage {
            Stage::Greeting { up, parent, .. } | Stage::Placed { up, parent, .. } if up == link => {
                parent
            }
            _ => Party { rank: super::message::NO_RANK, pid: 0 },
        })
    }

    /// Who is at the other end, for a text: of a root that is no rank the place is known.
    fn called(&self, link: Link) -> String {
        match self.who(link) {
            Party { rank: super::message::NO_RANK, .. } => {
                let places: Vec<String> = self.root.iter().map(SocketAddr::to_string).collect();
                format!("the root at {}", places.join(", "))
            }
            who => name(who),
        }
    }

    fn reached(&mut self, link: Link, now: Instant) {
        match self.stage {
            Stage::Contacting => {
                let remaining = self.deadline.saturating_duration_since(now);
                let remaining_ms = remaining.as_millis().min(u32::MAX.into()) as u32;
                let (pid, addresses) = (self.me.pid, self.gate.clone());
                let host = host::name().into();
                self.say(link, Message::Here { pid, remaining_ms, host, addresses });
                self.stage = Stage::Placing { contact: link };
            }
            Stage::Joining { contact, root, parent } => {
                self.say(link, Message::Join { pid: self.me.pid });
                self.stage = Stage::Greeting { contact, root, up: link, parent };
            }
            _ => self.actions.push(Action::Hang { link }),
        }
    }

    fn lost(&mut self, link: Link) {
        if let Some(Party { rank, pid }) = self.below.who(link) {
            return self.fail(died(Party { rank, pid }), Some(link));
        }
        // Whoever was not taken yet has its contact with the root, which sees what becomes of it.
        self.visitors.retain(|(other, _)| *other != link);
        match self.stage {
            Stage::Placing { contact } if contact == link => {
                // Perhaps the contact was cut off while it was made: the root tells, or is gone.
                let (to, rank) = (self.root.clone(), crate::bootstrap::tcp::hello::ROOT);
                let until = self.deadline;
                self.actions.push(Action::Dial { to, rank, was_open: true, until });
                self.stage = Stage::Contacting;
            }
            Stage::Joining { contact, root, .. } | Stage::Greeting { contact, root, .. }
                if contact == link =>
            {
                self.fail(died(root), Some(link));
            }
            Stage::Greeting { up, parent, .. } | Stage::Placed { up, parent, .. } if up == link => {
                self.fail(died(parent), Some(link));
            }
            _ => {}
        }
    }

    fn heard(&mut self, link: Link, message: Message) {
        if let Message::Failure(failure) = message {
            return self.fail(failure, Some(link));
        }
        if let Some(at) = self.visitors.iter().position(|(other, _)| *other == link) {
            return self.heard_visitor(at, message);
        }
        if self.below.who(link).is_some() {
            return self.heard_child(link, message);
        }
        match (&self.stage, message) {
            (Stage::Placing { contact }, Message::Adopted { parent, depth })
                if *contact == link =>
            {
                self.placed(link, parent, depth);
            }
            (Stage::Placing { contact }, Message::Place { root, parent, addresses })
                if *contact == link =>
            {
                // A parent that is gone is told by the root, which knows whether it died.
                let (to, rank, until) = (addresses, parent.rank, self.verdict(0));
                self.actions.push(Action::Dial { to, rank, was_open: false, until });
                self.stage = Stage::Joining { contact: link, root, parent };
            }
            (Stage::Greeting { contact, up, .. }, Message::Adopted { parent, depth })
                if *up == link =>
            {
                let contact = *contact;
                self.say(contact, Message::Attached);
                self.actions.push(Action::Hang { link: contact });
                self.placed(link, parent, depth);
            }
            (Stage::Placed { up, .. }, Message::Table { first, count, body }) if *up == link => {
                self.take_part(first, count, body);
            }
            (Stage::Placed { up, .. }, Message::Go)
                if *up == link && self.received == self.nranks =>
            {
                self.below.say(&Message::Go, &mut self.actions);
                self.stage = Stage::Over;
                self.outcome = Some(Ok(()));
            }
            _ => self.fail(out_of_turn(&self.called(link)), None),
        }
    }

    fn heard_visitor(&mut self, at: usize, message: Message) {
        let (link, who) = self.visitors.remove(at);
        match message {
            Message::Join { .. } => {
                self.below.add(link, who);
                if let Stage::Placed { depth, .. } = self.stage {
                    self.say(link, Message::Adopted { parent: self.me, depth: depth + 1 });
                }
            }
            _ => self.fail(out_of_turn(&name(who)), None),
        }
    }

    fn heard_child(&mut self, link: Link, message: Message) {
        match (&message, &self.stage) {
            (Message::Offers(_) | Message::Done { .. }, Stage::Placed { up, .. }) => {
                self.say(*up, message);
            }
            (Message::Offers(_), _) => self.upward.push(message),
            _ => self.fail(out_of_turn(&self.called(link)), None),
        }
    }

    fn placed(&mut self, up: Link, parent: Party, depth: u32) {
        self.stage = Stage::Placed { up, parent, depth };
        for child in self.below.links() {
            let message = Message::Adopted { parent: self.me, depth: depth + 1 };
            self.actions.push(Action::Say { link: child, message });
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
        self.below.say(&Message::Table { first, count, body }, &mut self.actions);
        if let (true, Stage::Placed { up, .. }) = (self.received == self.nranks, &self.stage) {
            self.say(*up, Message::Done { rank: self.me.rank });
        }
    }
}

/// Whether a dial failed because its time was over, not because the gate is gone.
fn is_time(error: &Error) -> bool {
    matches!(error, Error::System { errno: libc::ETIMEDOUT, .. })
}
