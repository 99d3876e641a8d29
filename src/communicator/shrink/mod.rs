//! Smaller communicators: without the ranks that a list names, or without the dead.
//!
//! Ranks of one host meet as ranks of a machine do. Where those that are left are on several, the
//! first of them opens a listener and says on its page where. It also numbers the attempts: of a
//! list here, of survivors who name nobody in [`state_machine`].

mod agreement;
mod driver;
pub(super) mod state_machine;

use super::Communicator;
use super::call::fingerprint::mix;
use super::init::child_ranks::ChildRanks;
use super::init::host_setup::StopConditions;
use crate::bootstrap::tcp::{AuthListener, NetworkConfig};
use crate::bootstrap::{Blame, BootstrapError};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::executor::control_block::shrink_board::Announcement;
use driver::Pause;
use state_machine::RendezvousPoint;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long what the rendezvous itself says of the first rank's failure may take longer than what
/// its page says: a few turns of a busy core.
const NEWS: Duration = Duration::from_millis(50);

impl Communicator {
    /// A communicator without the `excluded` ranks, which need not take part; or, where none are
    /// named, without those that have died or destroyed their communicator.
    ///
    /// Survivors that name nobody agree on who is dead, also where more die meanwhile. A rank that
    /// lives and does not come is waited for until the deadline, and named. An abort before it
    /// changes nothing, one meanwhile ends it.
    ///
    /// ```
    /// # use ringcomm::{Communicator, Config};
    /// # let ranks = Communicator::init_all(3, &Config::default())?;
    /// # std::thread::scope(|scope| {
    /// #     for comm in &ranks[..2] {
    /// #         scope.spawn(move || {
    /// // Ranks 0 and 1 go on; rank 2 need not know.
    /// let rest = comm.shrink(&[2], None).unwrap();
    /// assert_eq!((rest.rank(), rest.nranks()), (comm.rank(), 2));
    /// #         });
    /// #     }
    /// # });
    /// # Ok::<(), ringcomm::Error>(())
    /// ```
    pub fn shrink(&self, excluded: &[usize], config: Option<&Config>) -> Result<Communicator> {
        self.check_process()?;
        let config = &self.child_config(config)?;
        let deadline = Instant::now() + config.init_timeout();
        if excluded.is_empty() {
            return self.shrink_by_agreement(config, deadline);
        }
        let mut gone = excluded.to_vec();
        gone.sort_unstable();
        gone.dedup();
        if let Some(bad) = gone.iter().find(|rank| **rank >= self.nranks) {
            return Err(Error::argument(format!(
                "shrink: rank {bad} is not a rank of this communicator; ranks are 0 to {}",
                self.nranks - 1
            )));
        }
        if gone.contains(&self.rank) {
            return Err(Error::argument(format!(
                "shrink: rank {} excludes itself; excluded ranks do not call shrink",
                self.rank
            )));
        }
        let left: Vec<usize> = (0..self.nranks).filter(|rank| !gone.contains(rank)).collect();
        // It may have been aborted before: only another time matters.
        let aborts = self.aborts();
        let aborted = || (self.aborts() != aborts).then(|| self.aborted());
        let cancelled = || aborted().is_some() || self.health.any_dead(&left);
        let failed = || aborted().or_else(|| self.health.death_among(&left));
        let until = StopConditions { deadline, cancelled: Some(&cancelled), failed: Some(&failed) };
        let made = self.shrink_by_list(&gone, &left, config, until);
        made.map_err(|unmet| aborted().unwrap_or_else(|| self.health.with_cause(&left, unmet)))
    }

    /// The first of those that are left counts the attempts, and the number is part of what they
    /// meet for: who comes to one shares nothing with whom an earlier one left behind.
    fn shrink_by_list(
        &self,
        gone: &[usize],
        left: &[usize],
        config: &Config,
        until: StopConditions,
    ) -> Result<Communicator, BootstrapError> {
        let mut attempts = self.begin_shrink()?;
        let list = number_of_list(gone);
        let last = attempts.entry(list).or_default();
        let leads = left[0] == self.rank;
        let outcome = if leads {
            *last += 1;
            let label = label_of(gone, *last);
            let door = self.open_attempt(left, &label, list | *last, config);
            door.map_err(BootstrapError::from)
                .and_then(|door| self.make_of(left, &label, door, config, until))
        } else {
            self.follow_attempts(gone, left, last, config, until)
        };
        if leads && outcome.is_err() {
            *last += 1;
        }
        // What the first rank said of an attempt that worked stays: the others may still be at it,
        // and none takes it for the next.
        if !leads || outcome.is_err() {
            self.show_attempt(0, 0);
        }
        outcome
    }

    /// Go to the attempt that the first rank has announced, and to the next one where that turns
    /// out to have failed or been given up before this one came.
    fn follow_attempts(
        &self,
        gone: &[usize],
        left: &[usize],
        last: &mut u64,
        config: &Config,
        until: StopConditions,
    ) -> Result<Communicator, BootstrapError> {
        let (root, list) = (left[0], number_of_list(gone));
        loop {
            let (attempt, door) = self.find_attempt(left, list, *last, config, until)?;
            *last = attempt;
            let said = || self.health.pages.of(root).board.read().map(|said| said.label);
            let is_retried = || said().is_some_and(|said| has_failed(list | attempt, said));
            let is_over = || said().is_some_and(|said| said != list | attempt);
            let over_since = Cell::new(None);
            let is_past = || {
                let now = Instant::now();
                let since = is_over().then(|| over_since.get().unwrap_or(now));
                over_since.set(since);
                since.is_some_and(|since| now - since > NEWS)
            };
            let cancelled =
                || until.cancelled.is_some_and(|off| off()) || is_retried() || is_past();
            let until = StopConditions { cancelled: Some(&cancelled), ..until };
            let outcome = self.make_of(left, &label_of(gone, attempt), door, config, until);
            let Err(unmet) = outcome else { return outcome };
            // The first rank had left before those who called it off came, as this rank knew.
            let was_late = unmet.cause == Blame::CalledOff && over_since.get().is_some();
            if !is_retried() && !was_late {
                return Err(unmet);
            }
        }
    }

    /// Tell the others the number of the attempt and where it is.
    fn open_attempt(
        &self,
        left: &[usize],
        label: &str,
        number: u64,
        config: &Config,
    ) -> Result<RendezvousPoint<AuthListener>> {
        if self.share_a_host(left) {
            self.show_attempt(number, 0);
            return Ok(RendezvousPoint::Here);
        }
        let listener = self.open_door(label, config)?;
        self.show_attempt(number, port_of(&listener));
        Ok(RendezvousPoint::Mine(listener))
    }

    /// Wait for the first of the ranks to say which attempt this is; not for one that this rank has
    /// been at.
    fn find_attempt(
        &self,
        left: &[usize],
        list: u64,
        last: u64,
        config: &Config,
        until: StopConditions,
    ) -> Result<(u64, RendezvousPoint<AuthListener>), BootstrapError> {
        self.show_attempt(list, 0);
        let mut pause = Pause::SHORT;
        loop {
            let said = self.health.pages.of(left[0]).board.read();
            let said = said.filter(|said| said.label > list | last && of_list(said.label) == list);
            if let Some(said) = said {
                let here = self.share_a_host(left);
                let door =
                    if here { RendezvousPoint::Here } else { RendezvousPoint::At(said.port) };
                return Ok((said.label - list, door));
            }
            if Instant::now() >= until.deadline || until.cancelled.is_some_and(|off| off()) {
                // What the first rank says is of an attempt before, and it is not there.
                let here =
                    |rank: usize| rank == self.rank || rank != left[0] && self.is_at(rank, list);
                let missing = left.iter().copied().filter(|rank| !here(*rank)).collect();
                let (nranks, waited_ms) = (left.len(), config.init_timeout().as_millis() as u64);
                let unlisted = 0;
                return Err(BootstrapError::late(Error::Missing {
                    nranks,
                    missing,
                    unlisted,
                    waited_ms,
                }));
            }
            pause.sleep();
        }
    }

    /// Show the others the label and the port of an attempt by list.
    fn show_attempt(&self, label: u64, port: u16) {
        let before = self.health.pages.mine().board.read().unwrap_or(Announcement::NOTHING);
        self.announce(&Announcement { label, port, ..before });
    }

    /// Whether a rank is at an attempt of that list.
    fn is_at(&self, rank: usize, list: u64) -> bool {
        self.health.pages.of(rank).board.read().is_some_and(|said| of_list(said.label) == list)
    }

    pub(super) fn share_a_host(&self, ranks: &[usize]) -> bool {
        self.outside.as_ref().is_none_or(|outside| outside.share_a_host(ranks))
    }

    /// A listener for those who know the label.
    pub(super) fn open_door(&self, label: &str, config: &Config) -> Result<AuthListener> {
        let id = self.id.derive_at(label.as_bytes(), &[]);
        AuthListener::open(&id, &NetworkConfig::from(config))
    }

    /// Make a communicator of these ranks, this one among them. The ranks of errors have their
    /// numbers here.
    pub(super) fn make_of(
        &self,
        left: &[usize],
        label: &str,
        door: RendezvousPoint<AuthListener>,
        config: &Config,
        until: StopConditions,
    ) -> Result<Communicator, BootstrapError> {
        let rank = left.iter().position(|rank| *rank == self.rank).expect("it is left");
        let nranks = left.len();
        let numbering = ChildRanks(left);
        let why = || until.failed.and_then(|why| why());
        let broken_off = || why().map(|error| numbering.to_child(error));
        let until = StopConditions { failed: Some(&broken_off), ..until };
        let id_at = |port: Option<u16>| {
            let place = self.outside.as_ref().zip(port);
            let place = place.map(|(outside, port)| outside.at_port(left[0], port));
            self.id.derive_at(label.as_bytes(), &place.unwrap_or_default())
        };
        let made = match door {
            RendezvousPoint::Mine(listener) => {
                let id = id_at(Some(port_of(&listener)));
                Communicator::init_through(listener.of_root(), nranks, &id, rank, config, until)
            }
            RendezvousPoint::At(port) => {
                let id = id_at(Some(port));
                Communicator::init_unless(nranks, &id, rank, config, until)
            }
            RendezvousPoint::Here => {
                let id = id_at(None);
                Communicator::init_unless(nranks, &id, rank, config, until)
            }
        };
        made.map_err(|unmet| numbering.to_parent(unmet))
    }

    /// Show the other ranks an announcement.
    pub(super) fn announce(&self, announcement: &Announcement) {
        self.health.pages.mine().board.publish(announcement);
        self.health.publish();
    }
}

/// What the ranks that are left meet for.
fn label_of(gone: &[usize], attempt: u64) -> String {
    format!("shrink {gone:?} in attempt {attempt}")
}

/// A list in the upper half of a label; the lower one counts attempts, and those who wait for the
/// first of the ranks say 0. Never 0.
///
/// After an attempt that worked comes the next number, after one that failed the next but one.
fn number_of_list(gone: &[usize]) -> u64 {
    // 2^64 by the golden ratio, as SplitMix64 steps: [`mix`] alone leaves 0 as it is.
    let step =
        |hash: u64, rank: &usize| mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ *rank as u64);
    of_list(gone.iter().fold(0, step)) | 1 << 63
}

fn of_list(label: u64) -> u64 {
    label & !u64::from(u32::MAX)
}

/// Whether an attempt failed for the first of the ranks, as a label shows that it announced later:
/// since then none can have worked without the rank that asks.
fn has_failed(attempt: u64, later: u64) -> bool {
    of_list(attempt) == of_list(later) && later > attempt && (later - attempt).is_multiple_of(2)
}

/// The port of a listener.
fn port_of(listener: &AuthListener) -> u16 {
    listener.addresses().first().map_or(0, |address| address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::UniqueId;
    use crate::bootstrap::tcp::{HELLO, Handshake, Hello, Purpose, SharedSecret};
    use crate::communicator::init::spawn_all::all_or_none;
    use crate::communicator::number_of;

    /// The ids of communicators that a rank makes of `of`, each in another way or another time.
    fn descendants(of: &Communicator) -> Vec<UniqueId> {
        let split = |_| of.split(0, 0, None).unwrap().unwrap();
        let mut made: Vec<Communicator> = (0..2).map(split).collect();
        if of.rank() < 2 {
            made.extend((0..2).map(|_| of.shrink(&[2], None).unwrap()));
            made.push(made[2].shrink(&[], None).unwrap());
        }
        made.iter().map(|communicator| communicator.id.clone()).collect()
    }

    #[test]
    fn what_was_recorded_before_a_shrink_means_nothing_after_it() {
        let communicators = Communicator::init_all(3, &Config::default()).unwrap();
        let parent = communicators[0].id.clone();
        let jobs = communicators.iter().map(|communicator| || descendants(communicator));
        let made: Vec<Vec<UniqueId>> =
            all_or_none(jobs).unwrap().into_iter().map(|made| made.unwrap()).collect();
        assert_eq!(made[0].len(), 5);
        let greeting =
            Hello { purpose: Purpose::Data, rank: 1, to: 0, nranks: 3, detail: 0, note: 0 };
        let mut all = vec![parent];
        for (index, id) in made[0].iter().enumerate() {
            assert_eq!(number_of(id), number_of(&made[1][index]), "the same on every rank");
            for before in &all {
                assert_ne!(number_of(before), number_of(id), "a message tells them apart");
                assert!(id.epoch() > all[0].epoch() && id.epoch() == made[1][index].epoch());
                let recorded = Handshake::caller(&SharedSecret::new(before), &greeting).unwrap();
                let mut listener = Handshake::listener(&SharedSecret::new(id)).unwrap();
                let refused = listener.feed(&recorded.outgoing()[..HELLO]);
                assert_eq!(refused, Err("a caller that does not hold the secret"));
            }
            all.push(id.clone());
        }
    }

    #[test]
    fn a_retry_shares_nothing_with_the_attempt_that_failed() {
        let communicators = Communicator::init_all(3, &Config::default()).unwrap();
        let impatient = Config { timeout_ms: 50, ..Config::default() };
        // Rank 1 does not come, then rank 0 does not.
        for rank in [0, 0, 1] {
            let failed = communicators[rank].shrink(&[2], Some(&impatient)).map(drop);
            let Err(Error::Missing { missing, .. }) = failed else { panic!("{failed:?}") };
            assert_eq!(missing, [1 - rank]);
        }
        let jobs =
            communicators[..2].iter().map(|one| || one.shrink(&[2], None).unwrap().id.clone());
        let made = all_or_none(jobs).unwrap();
        // Two failed.
        let third = communicators[0].id.derive_at(label_of(&[2], 5).as_bytes(), &[]);
        for id in made {
            assert_eq!(number_of(&id.unwrap()), number_of(&third));
        }
    }

    #[test]
    fn who_went_by_what_was_said_before_a_retry_comes_to_the_retry() {
        let communicators = Communicator::init_all(3, &Config::default()).unwrap();
        let list = number_of_list(&[2]);
        // Of the first attempt, which fails; its withdrawal is seen by nobody.
        communicators[0].show_attempt(list | 1, 0);
        *communicators[0].shrinking.lock().entry(list).or_default() = 2;
        let jobs = communicators[..2].iter().map(|one| {
            move || {
                if one.rank() == 0 {
                    // Time for the other to go to the first attempt.
                    std::thread::sleep(Duration::from_millis(50));
                }
                let patient = Config { timeout_ms: 5000, ..Config::default() };
                number_of(&one.shrink(&[2], Some(&patient)).unwrap().id)
            }
        });
        let made = all_or_none(jobs).unwrap();
        let second = communicators[0].id.derive_at(label_of(&[2], 3).as_bytes(), &[]);
        assert!(made.into_iter().all(|id| id.unwrap() == number_of(&second)));
    }

    #[test]
    fn who_goes_by_what_was_given_up_names_who_gave_up() {
        let communicators = Communicator::init_all(3, &Config::default()).unwrap();
        communicators[0].show_attempt(number_of_list(&[2]) | 1, 0);
        let jobs = communicators[..2].iter().map(|one| {
            move || {
                if one.rank() == 0 {
                    // Time for the other to go to the attempt.
                    std::thread::sleep(Duration::from_millis(20));
                    return one.show_attempt(0, 0);
                }
                let impatient = Config { timeout_ms: 300, ..Config::default() };
                let failed = one.shrink(&[2], Some(&impatient)).map(drop);
                let Err(Error::Missing { missing, .. }) = failed else { panic!("{failed:?}") };
                assert_eq!(missing, [0]);
            }
        });
        all_or_none(jobs).unwrap();
    }

    #[test]
    fn who_is_missing_is_named_as_the_ranks_are_numbered_here() {
        let communicators = Communicator::init_all(3, &Config::default()).unwrap();
        let impatient = Config { timeout_ms: 50, ..Config::default() };
        let lonely = |rank: usize, excluded: &[usize]| {
            let failed = communicators[rank].shrink(excluded, Some(&impatient)).map(drop);
            let Err(Error::Missing { nranks, missing, .. }) = failed else { panic!("{failed:?}") };
            assert_eq!(nranks, 2);
            missing
        };
        assert_eq!(lonely(1, &[0]), [2]);
        assert_eq!(lonely(2, &[0]), [1]);
        // Also after an attempt that worked, which its first rank still shows.
        let jobs = communicators[..2].iter().map(|one| || one.shrink(&[2], None).map(drop));
        assert!(all_or_none(jobs).unwrap().into_iter().all(|made| made.is_ok()));
        assert_eq!(lonely(1, &[2]), [0]);
    }

    #[test]
    fn lists_have_numbers_of_their_own() {
        let mut numbers = std::collections::BTreeSet::new();
        let lists = 1u32..1 << 10;
        for set in lists.clone() {
            let gone: Vec<usize> = (0..10).filter(|rank| set >> rank & 1 == 1).collect();
            numbers.insert(number_of_list(&gone));
        }
        assert_eq!(numbers.len(), lists.len());
    }

    #[test]
    fn what_worked_is_told_from_what_failed_by_the_distance() {
        let label = |number| number_of_list(&[2]) | number;
        // The same; then it worked, worked and another failed, failed, failed twice.
        let outcomes = [(4, false), (5, false), (7, false), (6, true), (8, true)];
        for (later, failed) in outcomes {
            assert_eq!(has_failed(label(4), label(later)), failed, "4 and {later}");
        }
        assert!(!has_failed(label(4), number_of_list(&[1]) | 6), "another list");
        assert!(!has_failed(label(4), 0));
    }
}
