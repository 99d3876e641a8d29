//! The root of a rendezvous: it knows who has come, gives every rank its place, and holds the
//! table.

use super::message::{AllgatherMessage, NO_RANK, PeerId, RankContribution, entries};
use super::protocol::{
    ARITY, Branches, ConnectionId, PeerTable, TreeAction, TreeEvent, died, garbled, into_unmet,
    name, out_of_turn, refused, table_messages,
};
use crate::bootstrap::error::BootstrapError;
use crate::bootstrap::local::wire::Failure;
use crate::bootstrap::process::out_of_sockets;
use crate::bootstrap::tcp::hello::Hello;
use crate::error::Result;
use crate::host;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a contact that was cut off before it had said anything may take to come again: its
/// handshake (which it makes again, after half of one to learn of the cut and one to connect) a few
/// times over, and a time in which a busy machine may not run its process; no more, as the others
/// of one that died are to know within a tenth of a second. A wide network's handshake takes a
/// third.
fn return_time(handshake: Duration) -> Duration {
    (Duration::from_millis(70) + 4 * handshake).min(Duration::from_millis(1500))
}

/// How long a root that has no descriptor for the next rank waits for one.
const STARVED: Duration = Duration::from_secs(1);

/// What the root knows of a rank that has come.
struct ArrivedRank {
    who: PeerId,
    /// Drawn by the rank's process, so that a second process under its number is found out.
    note: u64,
    link: ConnectionId,
    /// How long its handshake took.
    took: Duration,
    state: MemberState,
    /// Empty before it has said so.
    host: Box<str>,
    listener: Vec<SocketAddr>,
    /// How many came before it.
    order: usize,
    payload: Option<Vec<u8>>,
    /// Whether it has the whole table.
    done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberState {
    /// Proved, and has not said that it is here.
    Greeted,
    /// Told its place, and not there yet.
    Sent,
    /// In the tree.
    Attached,
}

/// A rendezvous as its root sees it.
pub struct AllgatherRoot {
    me: PeerId,
    nranks: Option<usize>,
    known: BTreeMap<u32, ArrivedRank>,
    links: BTreeMap<ConnectionId, u32>,
    /// Ranks in the order of their places.
    order: Vec<u32>,
    offered: usize,
    /// Ranks that have the whole table.
    finished: usize,
    below: Branches,
    started: Instant,
    deadline: Option<Instant>,
    patience: Duration,
    /// Cut off before they had said anything, and when that becomes their death.
    suspects: Vec<(Instant, u32)>,
    /// Why somebody who has come cannot be let in.
    shortage: Option<i32>,
    /// When the rendezvous is given up for that.
    starves_at: Option<Instant>,
    table: PeerTable,
    actions: Vec<TreeAction>,
    failure: Option<Failure>,
    outcome: Option<Result<(), BootstrapError>>,
}

impl AllgatherRoot {
    /// A root that is no rank; it learns the number of ranks from the first that comes, and from
    /// then on waits for `patience` at most.
    pub fn apart(pid: u32, now: Instant, patience: Duration) -> AllgatherRoot {
        AllgatherRoot {
            me: PeerId { rank: NO_RANK, pid },
            nranks: None,
            known: BTreeMap::new(),
            links: BTreeMap::new(),
            order: Vec::new(),
            offered: 0,
            finished: 0,
            below: Branches::default(),
            started: now,
            deadline: None,
            patience,
            suspects: Vec::new(),
            shortage: None,
            starves_at: None,
            table: Vec::new(),
            actions: Vec::new(),
            failure: None,
            outcome: None,
        }
    }

    /// A rank that is the root.
    pub fn of(
        me: PeerId,
        nranks: usize,
        mine: &[u8],
        now: Instant,
        deadline: Instant,
    ) -> AllgatherRoot {
        let patience = deadline.saturating_duration_since(now);
        let mut root = AllgatherRoot::apart(me.pid, now, patience);
        let own = ArrivedRank {
            who: me,
            note: 0,
            link: 0,
            took: Duration::ZERO,
            state: MemberState::Attached,
            host: host::name().into(),
            listener: Vec::new(),
            order: 0,
            payload: Some(mine.to_vec()),
            done: true,
        };
        root.known.insert(me.rank, own);
        AllgatherRoot {
            me,
            nranks: Some(nranks),
            offered: 1,
            finished: 1,
            deadline: Some(deadline - margin(patience)),
            ..root
        }
    }

    pub fn outcome(&self) -> Option<&Result<(), BootstrapError>> {
        self.outcome.as_ref()
    }

    /// Whether every rank's contribution is here.
    #[cfg(test)]
    pub fn has_table(&self) -> bool {
        Some(self.table.len()) == self.nranks
    }

    pub fn take_table(&mut self) -> PeerTable {
        std::mem::take(&mut self.table)
    }

    pub fn take_actions(&mut self) -> Vec<TreeAction> {
        std::mem::take(&mut self.actions)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let suspects = self.suspects.iter().map(|(until, _)| *until);
        suspects.chain(self.deadline).chain(self.starves_at).min()
    }

    /// Whether somebody has come who cannot be let in, and why. Who is missing at the deadline may
    /// be that one, and who does not go on may wait for it.
    /// Where no stranger holds what it lacks, it is not waited for until then: that the program
    /// gives some back is less likely than that its limit is too low.
    pub fn set_shortage(&mut self, errno: Option<i32>, is_starved: bool, now: Instant) {
        self.shortage = errno;
        match is_starved {
            true => drop(self.starves_at.get_or_insert(now + STARVED)),
            false => self.starves_at = None,
        }
    }

    fn say(&mut self, link: ConnectionId, message: AllgatherMessage) {
        self.actions.push(TreeAction::Say { link, message });
    }

    pub fn tick(&mut self, now: Instant) {
        if self.outcome.is_some() {
            return;
        }
        if let Some((_, rank)) = self.suspects.iter().find(|(until, _)| now >= *until) {
            return self.fail(died(self.known[rank].who));
        }
        let (Some(deadline), Some(nranks)) = (self.deadline, self.nranks) else { return };
        if self.starves_at.is_none_or(|at| now < at) && now < deadline {
            return;
        }
        if let Some(errno) = self.shortage {
            let what = out_of_sockets(&name(PeerId { pid: 0, ..self.me }), errno);
            return self.fail(refused(self.me, errno, what));
        }
        let waited_ms = now.saturating_duration_since(self.started).as_millis() as u64;
        let missing: Vec<u32> =
            (0..nranks as u32).filter(|rank| !self.known.contains_key(rank)).collect();
        if missing.is_empty() {
            let PeerId { rank, pid } = self.stuck();
            let host = "".into();
            self.fail(Failure::Stuck { rank, pid, host, waited_ms });
        } else {
            self.fail(Failure::Missing { waited_ms, missing, unlisted: 0 });
        }
    }

    /// Who holds up a rendezvous that all have come to.
    fn stuck(&self) -> PeerId {
        // Of the ranks whose contribution is not here, the one that is highest in the tree; of
        // those that have not taken the table, if all have contributed.
        let highest = |silent: fn(&&ArrivedRank) -> bool| {
            self.known.values().filter(silent).min_by_key(|known| known.order)
        };
        let mute = highest(|known| known.payload.is_none());
        let Some(highest) = mute.or_else(|| highest(|known| !known.done)) else {
            return self.me;
        };
        match highest.state {
            // It gave its contribution to its parent, which has not passed it on.
            MemberState::Attached if highest.order >= ARITY && highest.payload.is_none() => {
                self.parent(highest.order).who
            }
            _ => highest.who,
        }
    }

    /// The parent of the rank in a place that is not directly below the root.
    fn parent(&self, order: usize) -> &ArrivedRank {
        &self.known[&self.order[order / ARITY - 1]]
    }

    fn fail(&mut self, failure: Failure) {
        if self.outcome.is_some() {
            return;
        }
        let failure = self.with_host(failure);
        let message = AllgatherMessage::Failure(failure.clone());
        let open: Vec<ConnectionId> = self.links.keys().copied().collect();
        for link in open {
            self.say(link, message.clone());
        }
        let nranks = self.nranks.unwrap_or(0);
        self.outcome = Some(Err(into_unmet(failure.clone(), self.me.rank, nranks)));
        self.failure = Some(failure);
    }

    /// A failure with the host of the rank that it is about: whoever found out may not know it.
    fn with_host(&self, mut failure: Failure) -> Failure {
        if let Failure::Died { rank, host, .. } | Failure::Stuck { rank, host, .. } = &mut failure
            && let Some(known) = self.known.get(&*rank)
        {
            *host = known.host.clone();
        }
        failure
    }

    pub fn on(&mut self, event: TreeEvent, now: Instant) {
        if let Some(failure) = &self.failure {
            // Whoever comes late is told why at once.
            if let TreeEvent::Came { link, .. } = event {
                let message = AllgatherMessage::Failure(failure.clone());
                self.say(link, message);
            }
            return;
        }
        if self.outcome.is_some() {
            return;
        }
        match event {
            TreeEvent::Came { link, greeting, took } => self.came(link, &greeting, took, now),
            TreeEvent::Said { link, message } => self.heard(link, message, now),
            TreeEvent::Lost { link } => self.lost(link, now),
            TreeEvent::Garbled { link, why } => {
                let Some(who) = self.who(link) else { return };
                self.fail(garbled(self.me, &name(who), why));
            }
            TreeEvent::Reached { .. } | TreeEvent::Unreachable { .. } => {
                unreachable!("nobody is dialled")
            }
        }
    }

    fn who(&self, link: ConnectionId) -> Option<PeerId> {
        let rank = self.links.get(&link)?;
        self.known.get(rank).map(|known| known.who)
    }

    fn came(&mut self, link: ConnectionId, greeting: &Hello, took: Duration, now: Instant) {
        let (rank, note) = (greeting.rank, greeting.note);
        let who = PeerId { rank, pid: greeting.detail };
        self.links.insert(link, rank);
        if let Some(failure) = self.refusal(who, greeting) {
            return self.fail(failure);
        }
        self.nranks = Some(greeting.nranks as usize);
        self.deadline.get_or_insert(now + self.patience);
        if let Some(before) = self.known.get_mut(&rank) {
            if before.order != usize::MAX {
                // It lost a connection that the tree or its place was already built on.
                return self.fail(died(who));
            }
            // The same process again: its first contact was cut off.
            let old = std::mem::replace(&mut before.link, link);
            self.suspects.retain(|(_, suspect)| *suspect != rank);
            self.links.remove(&old);
            self.actions.push(TreeAction::Hang { link: old });
            return;
        }
        let (state, order) = (MemberState::Greeted, usize::MAX);
        let known = ArrivedRank {
            who,
            note,
            link,
            took,
            state,
            host: "".into(),
            listener: Vec::new(),
            order,
            payload: None,
            done: false,
        };
        self.known.insert(rank, known);
    }

    /// Why a rank cannot be one of ours.
    fn refusal(&self, who: PeerId, greeting: &Hello) -> Option<Failure> {
        let theirs = greeting.nranks as usize;
        let text = if let Some(nranks) = self.nranks.filter(|nranks| *nranks != theirs) {
            let other = self.known.values().map(|known| known.who).min_by_key(|who| who.rank);
            format!(
                "{} was started with {theirs} ranks, but {} with {nranks}; every rank must give \
                 the same number",
                name(who),
                other.map_or("the others".into(), name)
            )
        } else if who.rank as usize >= theirs || theirs > i32::MAX as usize {
            format!("{} is not one of {theirs} ranks, numbered from 0", name(who))
        } else {
            let before = self.known.get(&who.rank)?;
            if before.note == greeting.note && before.who.rank != self.me.rank {
                return None;
            }
            format!(
                "rank {} came twice: pid {} and pid {}; every rank needs a number of its own",
                who.rank, before.who.pid, who.pid
            )
        };
        Some(Failure::Usage { text })
    }

    fn lost(&mut self, link: ConnectionId, now: Instant) {
        let Some(rank) = self.links.remove(&link) else { return };
        let Some(known) = self.known.get_mut(&rank).filter(|known| known.link == link) else {
            return;
        };
        let who = known.who;
        match known.state {
            MemberState::Greeted => self.suspects.push((now + return_time(known.took), rank)),
            MemberState::Sent => self.fail(died(who)),
            MemberState::Attached if self.below.who(link).is_some() => self.fail(died(who)),
            MemberState::Attached => {}
        }
    }

    fn heard(&mut self, link: ConnectionId, message: AllgatherMessage, now: Instant) {
        let Some(rank) = self.links.get(&link).copied() else { return };
        let Some(who) = self.who(link) else { return };
        let below = self.below.who(link).is_some();
        match message {
            AllgatherMessage::Failure(failure) => self.fail(failure),
            AllgatherMessage::Here { pid, remaining_ms, host, addresses } => {
                let remaining = Duration::from_millis(remaining_ms.into());
                let until = now + remaining - margin(remaining);
                self.deadline = Some(self.deadline.map_or(until, |known| known.min(until)));
                self.known.get_mut(&rank).expect("its link is known").host = host;
                self.place(rank, pid, addresses);
            }
            AllgatherMessage::Attached => {
                let known = self.known.get_mut(&rank).expect("its link is known");
                known.state = MemberState::Attached;
                self.links.remove(&link);
                self.actions.push(TreeAction::Hang { link });
            }
            AllgatherMessage::Offers(body) if below && self.table.is_empty() => {
                for RankContribution { from, payload } in
                    entries(&body).expect("decoding looked at it")
                {
                    self.offer(from, payload);
                }
                self.spread();
            }
            AllgatherMessage::Done { rank } if below && !self.table.is_empty() => self.finish(rank),
            _ => self.fail(out_of_turn(&name(who))),
        }
    }

    /// Tell a rank where it belongs.
    fn place(&mut self, rank: u32, pid: u32, listener: Vec<SocketAddr>) {
        let known = self.known.get_mut(&rank).expect("its link is known");
        if known.order == usize::MAX {
            known.order = self.order.len();
            self.order.push(rank);
        }
        (known.who.pid, known.listener) = (pid, listener);
        let (order, link, who) = (known.order, known.link, known.who);
        if order < ARITY {
            known.state = MemberState::Attached;
            self.below.add(link, who);
            let parent = self.me;
            return self.say(link, AllgatherMessage::Adopted { parent, depth: 1 });
        }
        known.state = MemberState::Sent;
        let above = self.parent(order);
        let (parent, addresses) = (above.who, above.listener.clone());
        self.say(link, AllgatherMessage::Place { root: self.me, parent, addresses });
    }

    fn offer(&mut self, from: PeerId, payload: &[u8]) {
        match self.known.get_mut(&from.rank) {
            Some(known) if known.payload.is_none() => {
                // Its contact may still have to say so.
                if known.state == MemberState::Sent {
                    known.state = MemberState::Attached;
                }
                known.payload = Some(payload.to_vec());
                self.offered += 1;
            }
            _ => self.fail(out_of_turn(&name(from))),
        }
    }

    /// Once everybody has offered, everybody gets everything.
    fn spread(&mut self) {
        let Some(nranks) = self.nranks.filter(|nranks| *nranks == self.offered) else { return };
        if self.outcome.is_some() {
            return;
        }
        for rank in 0..nranks as u32 {
            let known = self.known.get_mut(&rank).expect("every rank has offered");
            let payload = known.payload.clone().expect("every rank has offered");
            self.table.push((known.who, payload));
        }
        for message in table_messages(&self.table) {
            self.below.say(&message, &mut self.actions);
        }
    }

    /// A rank has everything; once all have, all may go.
    fn finish(&mut self, rank: u32) {
        match self.known.get_mut(&rank).filter(|known| !known.done) {
            Some(known) => known.done = true,
            None => return self.fail(out_of_turn(&name(PeerId { rank, pid: 0 }))),
        }
        self.finished += 1;
        if Some(self.finished) == self.nranks {
            self.below.say(&AllgatherMessage::Go, &mut self.actions);
            self.outcome = Some(Ok(()));
        }
    }
}

/// How long before a rank's own deadline the verdict is spoken, so that it arrives in time.
pub fn margin(remaining: Duration) -> Duration {
    (remaining / 10).min(Duration::from_secs(1))
}

#[cfg(test)]
#[path = "tests/root.rs"]
mod tests;
