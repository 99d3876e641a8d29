//! The survivors of a failure make a smaller communicator: the attempts of [`super::state_machine`]
//! meet processes, sockets and clocks.

use super::port_of;
use super::state_machine::{ShrinkAttempt, ShrinkEnv, ShrinkMachine, ShrinkStep};
use crate::bootstrap::BootstrapError;
use crate::bootstrap::tcp::AuthListener;
use crate::communicator::Communicator;
use crate::communicator::health::wait_check::CommHealth;
use crate::communicator::init::host_setup::StopConditions;
use crate::config::Config;
use crate::error::{Error, Operation, Result};
use crate::executor::control_block::Life;
use crate::executor::control_block::shrink_board::{Announcement, MOST_RANKS, Phase, RankSet};
use crate::sync::MutexGuard;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two looks at the others' pages: short beside making a communicator, long beside a look.
const GLANCE: Duration = Duration::from_micros(100);

/// The longest time between two looks, when the others are long in coming.
const LONGEST_GLANCE: Duration = Duration::from_millis(2);

/// Between looks at the others' pages.
pub(super) struct Pause(Duration);

impl Pause {
    pub(in crate::communicator) const SHORT: Pause = Pause(GLANCE);

    pub(in crate::communicator) fn sleep(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (self.0 * 2).min(LONGEST_GLANCE);
    }
}

/// A rank that shrinks its communicator.
struct Shrinking<'a> {
    communicator: &'a Communicator,
    config: &'a Config,
    deadline: Instant,
    /// How often the communicator had been aborted before.
    aborts: u64,
}

impl ShrinkEnv for &Shrinking<'_> {
    type Listener = AuthListener;

    fn health(&self) -> &CommHealth {
        &self.communicator.health
    }

    fn share_a_host(&self, ranks: &[usize]) -> bool {
        self.communicator.share_a_host(ranks)
    }

    fn open_door(&self, label: &str) -> Result<(AuthListener, u16)> {
        let listener = self.communicator.open_door(label, self.config)?;
        let port = port_of(&listener);
        Ok((listener, port))
    }

    fn announce(&self, announcement: &Announcement) {
        self.communicator.announce(announcement);
    }
}

impl Shrinking<'_> {
    /// Whether the communicator was aborted since this shrink began.
    fn is_aborted(&self) -> bool {
        self.communicator.aborts() != self.aborts
    }

    fn agree(&self, survivor: &mut ShrinkMachine<&Shrinking>) -> Result<Communicator> {
        let started = Instant::now();
        let mut made: Option<Communicator> = None;
        let mut pause = Pause::SHORT;
        loop {
            if self.is_aborted() {
                return Err(self.communicator.aborted());
            }
            match survivor.advance(Instant::now())? {
                ShrinkStep::Settle => {
                    return made.ok_or_else(|| Error::Internal("settled on nothing".into()));
                }
                ShrinkStep::Excluded(peer) => return Err(self.communicator.excluded_by(peer)),
                ShrinkStep::Absent(peer) => return Err(self.communicator.absent(peer)),
                ShrinkStep::Late => return Err(self.communicator.late(survivor, started)),
                ShrinkStep::Make(attempt) => {
                    drop(made.take());
                    pause = Pause::SHORT;
                    match self.attempt(attempt, survivor) {
                        Ok(communicator) => {
                            made = Some(communicator);
                            survivor.made()?;
                        }
                        Err(unmet) if survivor.failed(unmet.cause)? || self.is_aborted() => {}
                        Err(unmet) => return Err(unmet.error),
                    }
                }
                ShrinkStep::Wait { moved } => {
                    pause = if moved { Pause::SHORT } else { pause };
                    pause.sleep();
                }
            }
        }
    }

    /// Make the communicator that all have agreed on.
    fn attempt(
        &self,
        attempt: ShrinkAttempt<AuthListener>,
        survivor: &mut ShrinkMachine<&Shrinking>,
    ) -> Result<Communicator, BootstrapError> {
        let survivor = RefCell::new(survivor);
        let is_stale = || self.is_aborted() || survivor.borrow_mut().is_stale();
        let broken_off = || is_stale().then(|| self.communicator.aborted());
        let until = StopConditions {
            deadline: self.deadline,
            cancelled: Some(&is_stale),
            failed: Some(&broken_off),
        };
        let ShrinkAttempt { left, label, door } = attempt;
        self.communicator.make_of(&left, &label, door, self.config, until)
    }
}

impl Communicator {
    pub(super) fn shrink_by_agreement(
        &self,
        config: &Config,
        deadline: Instant,
    ) -> Result<Communicator> {
        if self.nranks > MOST_RANKS {
            return Err(Error::usage(format!(
                "shrink: {} ranks are too many to find the dead among; name them (the limit is \
                 {MOST_RANKS})",
                self.nranks
            )));
        }
        let aborts = self.aborts();
        let _alone = self.begin_shrink()?;
        let shrinking = Shrinking { communicator: self, config, deadline, aborts };
        let mut survivor = ShrinkMachine::begin(&shrinking, deadline)?;
        let outcome = shrinking.agree(&mut survivor);
        if outcome.is_err() {
            survivor.give_up();
        }
        outcome
    }

    /// Take the right to shrink, unless this rank has ended its part.
    pub(super) fn begin_shrink(&self) -> Result<MutexGuard<'_, BTreeMap<u64, u64>>> {
        let alone = self.shrinking.lock();
        let said = self.health.pages.mine().board.read();
        match said.is_some_and(|said| said.phase == Phase::Closed) {
            true => Err(Error::usage("this communicator was destroyed; it cannot be shrunk")),
            false => Ok(alone),
        }
    }

    /// Tell the others that this rank will take no part in any shrink.
    pub(in crate::communicator) fn close_board(&self) {
        let before = self.health.pages.mine().board.read().unwrap_or(Announcement::NOTHING);
        self.announce(&Announcement { phase: Phase::Closed, ..before });
    }

    fn excluded_by(&self, peer: usize) -> Error {
        let text = format!("it counts rank {} among the dead", self.rank);
        let peer = self.health.who(peer);
        Error::Remote { rank: self.rank, peer, operation: None, text }
    }

    fn absent(&self, peer: usize) -> Error {
        let text = "its own shrink returned an error".into();
        let peer = self.health.who(peer);
        Error::Remote { rank: self.rank, peer, operation: None, text }
    }

    /// The deadline came while another rank was missing.
    fn late(&self, survivor: &ShrinkMachine<&Shrinking>, started: Instant) -> Error {
        let mine = survivor.mine();
        let (peer, theirs) =
            survivor.awaited().map_or((self.rank, None), |(rank, theirs)| (rank, Some(theirs)));
        let dead = |set: &RankSet| format!("{set:?}");
        let state = match theirs {
            Some(Announcement { phase: Phase::Proposing | Phase::Made, dead: set, .. }) => format!(
                "rank {peer} counts {} as dead, rank {} counts {}",
                dead(set),
                self.rank,
                dead(&mine.dead)
            ),
            _ if self.health.pages.of(peer).life() == Life::Failed => {
                format!("rank {peer} has failed too and has not called shrink")
            }
            _ => format!("rank {peer} lives and has not called shrink"),
        };
        Error::Timeout {
            rank: self.rank,
            peer: self.health.who(peer),
            operation: Operation { call: "Shrink()".into(), sequence: Some(mine.attempt) },
            waited_ms: started.elapsed().as_millis() as u64,
            peer_state: state.into(),
        }
    }
}
