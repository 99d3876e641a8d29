//! What a waiting rank looks at: its own abort, its peers' failures, deaths and calls, the
//! deadline.
//!
//! Only consulted once a wait has become long, so it may read every peer's page and ask the kernel.

use crate::bootstrap::{Blame, BootstrapError};
use crate::communicator::call::fingerprint;
use crate::communicator::call::rank_state;
use crate::communicator::call::signature::CallSignature;
use crate::communicator::control_plane::Publisher;
use crate::communicator::observe::timeline::TimelineWriter;
use crate::error::{Error, Operation, RankProcess, Result};
use crate::executor::control_block::Life;
use crate::executor::links::Pages;
use crate::sync::atomic::{AtomicBool, Ordering::*};
use crate::transport::fifo::Stamp;
use crate::transport::pidfd::{Liveness, ReadableProcess};
use crate::transport::wait::WaitCheck;
use std::cell::Cell;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The parts of a communicator that a watch needs; shared with threads that look on.
pub struct CommHealth {
    pub pages: Pages,
    pub liveness: Liveness,
    /// By rank: the process whose memory the kernel reads for this one.
    pub processes: Vec<Option<ReadableProcess>>,
    pub aborted: AtomicBool,
    pub timeout: Duration,
    /// The same while the communicator is made.
    pub init_timeout: Duration,
    /// Tells ranks on other hosts what this rank's page says, where there are any.
    pub publisher: Option<Publisher>,
    /// Where its operations are written down as they happen.
    pub track: Option<TimelineWriter>,
    /// The thread that made all its ranks, where one did.
    pub maker: Option<ThreadId>,
    /// All ranks are threads of this process.
    pub together: bool,
}

/// What a thread is told that may be waiting for itself.
pub(in crate::communicator) const GROUP_THEM: &str = "one thread that drives several ranks \
    puts their calls between ringGroupStart and ringGroupEnd";

/// How long the news of a death may take to come after a rank that left for it: it is spread within
/// ten milliseconds where control connections are made, a tenth of a second where one still has to
/// be; the rest is for a machine that does not run everybody at once.
const NEWS: Duration = Duration::from_millis(1500);

impl CommHealth {
    /// What would break the next operation: a peer that has failed, or died without leaving.
    pub fn peer_error(&self) -> Option<Error> {
        let own = self.pages.of(self.pages.rank);
        let told = || own.failure().0.filter(|culprit| *culprit != self.pages.rank);
        if own.life() == Life::Failed && told().is_some() {
            return Some(self.remote(self.pages.rank, None));
        }
        self.trouble_among(|_| true)
    }

    /// The same among the ranks that `matters` names.
    pub fn trouble_among(&self, matters: impl Fn(usize) -> bool) -> Option<Error> {
        let pages = &self.pages;
        let mut others =
            (0..pages.nranks()).filter(|other| *other != pages.rank && matters(*other));
        if let Some(peer) = others.find(|peer| pages.of(*peer).life() == Life::Failed) {
            return Some(self.remote(peer, None));
        }
        self.unannounced_death(matters).map(|dead| self.ended(dead, None))
    }

    /// The error for a rank whose process has ended. It may have failed, said so and ended since
    /// its page was looked at.
    fn ended(&self, dead: usize, operation: Option<Operation>) -> Error {
        match self.pages.of(dead).life() {
            Life::Failed => self.remote(dead, operation),
            _ => self.death(dead, operation),
        }
    }

    /// The error for a rank that is gone without a word.
    fn death(&self, dead: usize, operation: Option<Operation>) -> Error {
        let (rank, peer) = (self.pages.rank, self.who(dead));
        match self.pages.of(dead).unreached() {
            Some((by, why)) if by < self.pages.nranks() => {
                Error::Unreached { rank, peer, operation, by, why: why.into() }
            }
            _ => Error::PeerDied { rank, peer, operation },
        }
    }

    /// A rank that has died without leaving, of those that `matters` names.
    fn unannounced_death(&self, matters: impl Fn(usize) -> bool) -> Option<usize> {
        let missed = |dead: &usize| matters(*dead) && self.pages.of(*dead).life() != Life::Left;
        self.dead().into_iter().find(missed)
    }

    /// The error for one of `ranks` that has died without leaving.
    pub fn death_among(&self, ranks: &[usize]) -> Option<Error> {
        let dead = self.unannounced_death(|rank| ranks.contains(&rank))?;
        Some(self.death(dead, None))
    }

    /// The error for a peer that has failed: it tells what it was told, so that a chain of ranks
    /// names the first cause and not the way it took.
    fn remote(&self, peer: usize, operation: Option<Operation>) -> Error {
        let (culprit, text) = self.pages.of(peer).failure();
        // What this rank has told may come back between two looks at its own flag.
        // Acquire: pairs with the Release in `Communicator::abort`.
        if culprit == Some(self.pages.rank) && self.aborted.load(Acquire) {
            return Error::Aborted { rank: self.pages.rank, operation };
        }
        let culprit = culprit.filter(|culprit| *culprit < self.pages.nranks());
        let peer = self.who(culprit.unwrap_or(peer));
        Error::Remote { rank: self.pages.rank, peer, operation, text }
    }

    /// What a wait for `peer` at its deadline may be due to: this thread made both, and gives their
    /// calls to threads of their own, or would have to make them in a group.
    fn hint(&self, peer: usize) -> String {
        match self.maker == Some(thread::current().id()) {
            true => {
                format!("; this thread made rank {peer} and may have to call it, too: {GROUP_THEM}")
            }
            false => String::new(),
        }
    }

    /// This rank's page has news.
    pub fn publish(&self) {
        self.publisher.iter().for_each(Publisher::publish);
    }

    pub fn who(&self, rank: usize) -> RankProcess {
        let page = self.pages.of(rank);
        RankProcess { rank, host: page.host().into(), pid: page.pid.load(Relaxed) }
    }

    /// The ranks whose processes have ended, here or on other machines. Allocates only if there
    /// are any.
    pub fn dead(&self) -> Vec<usize> {
        let mut dead = self.liveness.dead();
        let has_left = |rank: &usize| self.pages.of(*rank).life() == Life::Left;
        dead.extend(self.liveness.cut().into_iter().filter(|rank| !has_left(rank)));
        let gone = (0..self.pages.nranks()).filter(|rank| self.pages.of(*rank).is_gone());
        dead.extend(gone);
        dead
    }

    /// Whether one of `ranks` has ended, so that they can do nothing together any more.
    pub fn any_dead(&self, ranks: &[usize]) -> bool {
        self.dead().iter().any(|dead| ranks.contains(dead))
    }

    /// The error for a rendezvous of `ranks` that failed here: on another rank's account, the news
    /// of its death is waited for, which tells more than what its end looks like from afar.
    pub fn with_cause(&self, ranks: &[usize], unmet: BootstrapError) -> Error {
        let BootstrapError { error, cause } = unmet;
        let is_anothers = matches!(cause, Blame::There | Blame::CalledOff);
        let started = Instant::now();
        loop {
            match self.dead_peer_error(ranks) {
                Some(casualty) => return casualty,
                None if !is_anothers || started.elapsed() > NEWS => return error,
                None => thread::sleep(NEWS / 100),
            }
        }
    }

    /// Why something that all of `ranks` have to do together has failed, if one of them has ended:
    /// best one that died. One that failed first ended for a reason, which it told; one that left
    /// may have seen a death that is not known here yet.
    pub fn dead_peer_error(&self, ranks: &[usize]) -> Option<Error> {
        let cause = |dead: &usize| match self.pages.of(*dead).life() {
            Life::Working => 0,
            Life::Failed => 1,
            Life::Left => 2,
        };
        let started = Instant::now();
        let dead = loop {
            let dead = self.dead().into_iter().filter(|dead| ranks.contains(dead));
            let dead = dead.min_by_key(cause)?;
            if cause(&dead) < 2 || started.elapsed() > NEWS {
                break dead;
            }
            thread::sleep(NEWS / 100);
        };
        Some(self.ended(dead, None))
    }
}

/// Earlier calls that are compared too: ranks that only send may all be through with a call before
/// one of them can know that it was not the same. As many as a connection has slots.
pub(super) const LOOK_BACK: u64 = crate::transport::DEPTH as u64;

/// How often a rank that has waited so long has told other hosts: first after 50 ms, which is no
/// ordinary wait any more, at every doubling from there, and at every second.
fn tidings(waited_ms: u64) -> u64 {
    (waited_ms / 50).checked_ilog2().map_or(0, |doublings| u64::from(doublings) + 1)
        + waited_ms / 1000
}

/// Says why an operation has no point any more, where something beside its ranks can say so. Its
/// peers are told this.
pub type CancelCheck<'a> = Option<&'a dyn Fn() -> Option<Error>>;

/// How long a rank goes on looking for the messages of one that has left: several looks, also on a
/// machine that does not run it at once.
pub(in crate::communicator) const LAST_LOOK: Duration = Duration::from_millis(50);

/// The watch of one operation.
pub struct OpWaitCheck<'a> {
    pub(in crate::communicator) health: &'a CommHealth,
    cancel: CancelCheck<'a>,
    descriptor: CallSignature,
    sequence: u64,
    /// The operation is none of the user's.
    pub makes_communicator: bool,
    /// When this wait has found that its peer has left.
    departure: Cell<Option<Duration>>,
    /// The portion of a call that is run, and how many there are.
    portion: Cell<(usize, usize)>,
    /// When it was last looked into whether this thread waits for itself.
    pub(in crate::communicator) looked: Cell<u64>,
}

impl WaitCheck for OpWaitCheck<'_> {
    fn progress(&self, done: usize, of: usize) {
        if let Some(record) = self.record_of(self.health.pages.rank) {
            let (index, number) = self.portion.get();
            record.come(done + index * of, number * of);
        }
    }

    #[cold]
    fn check(&self, peer: usize, waited: Duration) -> Result<()> {
        let pages = &self.health.pages;
        // Acquire: pairs with the Release in `Communicator::abort`.
        if self.health.aborted.load(Acquire) {
            return Err(Error::Aborted { rank: pages.rank, operation: Some(self.operation()) });
        }
        if let Some(reason) = self.cancel.and_then(|cancel| cancel()) {
            return Err(reason);
        }
        self.note(peer, waited);
        self.check_others()?;
        self.check_itself(peer, waited)?;
        if pages.of(peer).life() == Life::Left && !self.has_done_its_part(peer, waited) {
            return Err(self.departed(peer));
        }
        let CommHealth { timeout, init_timeout: rendezvous, .. } = *self.health;
        if waited < if self.makes_communicator { rendezvous } else { timeout } {
            return Ok(());
        }
        Err(Error::Timeout {
            rank: pages.rank,
            peer: self.health.who(peer),
            operation: self.operation(),
            waited_ms: waited.as_millis() as u64,
            peer_state: (self.states_from(peer) + &self.health.hint(peer)).into(),
        })
    }

    #[cold]
    fn broken(&self, peer: usize, why: &str) -> Error {
        // It may have become known since the pages were last looked at.
        if let Err(known) = self.check_others() {
            return known;
        }
        if self.health.pages.of(peer).life() == Life::Left {
            return self.departed(peer);
        }
        let (rank, peer) = (Some(self.health.pages.rank), self.health.who(peer));
        let operation = Some(self.operation());
        Error::Disconnected { rank, peer, operation, why: why.to_string() }
    }

    #[cold]
    fn unexpected(&self, peer: usize, expected: &Stamp, come: &Stamp) -> Option<Error> {
        if expected == come {
            return None;
        }
        let theirs = self.sent_by(peer, expected, come)?;
        let mine = self.awaited(peer, expected)?;
        Some(self.health.mismatch(peer, mine, theirs))
    }
}

impl<'a> OpWaitCheck<'a> {
    pub fn new(
        health: &'a CommHealth,
        cancel: CancelCheck<'a>,
        descriptor: CallSignature,
        sequence: u64,
    ) -> OpWaitCheck<'a> {
        let (makes_communicator, departure) = (false, Cell::new(None));
        let (portion, looked) = (Cell::new((0, 1)), Cell::new(0));
        OpWaitCheck {
            health,
            cancel,
            descriptor,
            sequence,
            makes_communicator,
            departure,
            portion,
            looked,
        }
    }

    /// What runs from now on is a portion of the call, of so many.
    pub fn portion(&self, index: usize, number: usize) {
        self.portion.set((index, number));
    }

    pub fn operation(&self) -> Operation {
        match self.makes_communicator {
            true => Operation::aside("while the communicator was made"),
            false => Operation { call: self.descriptor.text(), sequence: Some(self.number()) },
        }
    }

    /// The operation's number as its user counts.
    fn number(&self) -> u64 {
        if self.is_collective() { rank_state::number(self.sequence) } else { self.sequence }
    }

    fn is_collective(&self) -> bool {
        self.descriptor.collective.is_some()
    }

    /// The fingerprint of this operation, a collective.
    fn form(&self) -> Option<u64> {
        let record = self.record_of(self.health.pages.rank).filter(|_| self.is_collective());
        Some(record?.fingerprint.load(Relaxed))
    }

    /// What of this rank's a message of `peer` was to be.
    fn awaited(&self, peer: usize, expected: &Stamp) -> Option<Operation> {
        if let Some((count, data_type)) = fingerprint::message(expected.fingerprint) {
            return Some(Operation {
                call: format!("Recv(count={count}, type={data_type}, peer={peer})"),
                sequence: Some(expected.sequence),
            });
        }
        match self.form()? {
            form if form == expected.fingerprint => Some(self.operation()),
            form => self.block(peer, form, expected),
        }
    }

    /// The call of `peer` that a message belongs to, where that is known.
    fn sent_by(&self, peer: usize, expected: &Stamp, come: &Stamp) -> Option<Operation> {
        if let Some((count, data_type)) = fingerprint::message(come.fingerprint) {
            let rank = self.health.pages.rank;
            return Some(Operation {
                call: format!("Send(count={count}, type={data_type}, peer={rank})"),
                sequence: Some(come.sequence),
            });
        }
        if let Some(form) = self.form()
            && form != expected.fingerprint
            && come.sequence == expected.sequence
        {
            return self.block(peer, form, come);
        }
        let record = self.health.pages.of(peer).record(come.sequence)?;
        (!self.is_collective()).then(|| rank_state::operation(record))
    }

    /// A block from `peer` in this operation, a `v` form.
    fn block(&self, peer: usize, form: u64, stamp: &Stamp) -> Option<Operation> {
        let count = fingerprint::block(form, stamp.fingerprint)?;
        let CallSignature { collective, data_type, .. } = self.descriptor;
        let (name, rank) = (collective?.name(), self.health.pages.rank);
        Some(Operation {
            call: format!("{name}(count={count} from rank {peer} to {rank}, type={data_type})"),
            sequence: Some(self.number()),
        })
    }

    /// What a peer is doing, and, where it waits too, the rank that it waits for, and so on: the
    /// last one is the reason.
    fn states_from(&self, peer: usize) -> String {
        let pages = &self.health.pages;
        let mut text = rank_state::state_of(pages.of(peer), peer);
        let mut seen = vec![pages.rank, peer];
        let awaited = |rank: usize| {
            let record = self.record_of(rank).filter(|_| self.is_collective())?;
            let next = record.waiting_for()?;
            (next < pages.nranks()).then_some(next)
        };
        let mut at = peer;
        while let Some(next) = awaited(at).filter(|next| !seen.contains(next)) {
            text += "; ";
            text += &rank_state::state_of(pages.of(next), next);
            seen.push(next);
            at = next;
        }
        text
    }

    /// Whether a peer that has left may have done so after its part of this operation. All that it
    /// sent is on this machine by then, but was perhaps not yet when this rank last looked.
    fn has_done_its_part(&self, peer: usize, waited: Duration) -> bool {
        if self.is_collective() {
            return self.health.pages.of(peer).completed() > self.sequence;
        }
        let seen = self.departure.get().unwrap_or(waited);
        self.departure.set(Some(seen.min(waited)));
        waited - seen.min(waited) < LAST_LOOK
    }

    /// Tell onlookers whom this rank waits for.
    fn note(&self, peer: usize, waited: Duration) {
        if let Some(record) = self.record_of(self.health.pages.rank) {
            let waited_ms = waited.as_millis() as u64;
            let before_ms = record.wait(peer, waited_ms);
            // While a communicator is made all wait for two that measure, and the news of so many
            // would keep those two from it.
            let tidings = |ms| if self.makes_communicator { ms / 1000 } else { tidings(ms) };
            if tidings(before_ms) != tidings(waited_ms) {
                self.health.publish();
            }
        }
    }

    fn record_of(&self, rank: usize) -> Option<&crate::executor::control_block::Record> {
        let page = self.health.pages.of(rank);
        if self.is_collective() { page.record(self.sequence) } else { page.batch(self.sequence) }
    }

    /// What any of the others is the reason for that this operation has no point any more.
    fn check_others(&self) -> Result<()> {
        let pages = &self.health.pages;
        for other in (0..pages.nranks()).filter(|other| *other != pages.rank) {
            self.check_rank(other)?;
        }
        self.health.dead().into_iter().try_for_each(|dead| self.check_dead(dead))
    }

    /// The error for a peer that has left and will send nothing more.
    fn departed(&self, peer: usize) -> Error {
        Error::Remote {
            rank: self.health.pages.rank,
            peer: self.health.who(peer),
            operation: Some(self.operation()),
            text: rank_state::state_of(self.health.pages.of(peer), peer),
        }
    }

    /// A peer that failed, or that made another call under this sequence number.
    fn check_rank(&self, other: usize) -> Result<()> {
        let pages = &self.health.pages;
        let page = pages.of(other);
        if page.life() == Life::Failed {
            return Err(self.health.remote(other, Some(self.operation())));
        }
        match self.is_collective() {
            true => self.health.check_calls(other, self.sequence),
            false => Ok(()),
        }
    }

    /// A dead peer matters unless it had already done its part of this operation.
    fn check_dead(&self, dead: usize) -> Result<()> {
        let page = self.health.pages.of(dead);
        let done = self.is_collective() && page.completed() > self.sequence;
        if done || page.life() == Life::Left {
            return Ok(());
        }
        Err(self.health.ended(dead, Some(self.operation())))
    }
}
