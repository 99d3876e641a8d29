//! Smaller communicators: without the ranks that a list names, or without the dead.
//!
//! Ranks of one host meet as ranks of a machine do. Where those that are left are on several, the
//! first of them opens a gate and says on its page where.

use super::Communicator;
use super::assembly::Until;
use super::record::mix;
use crate::bootstrap::Unmet;
use crate::bootstrap::network::{Gate, NetworkConfig};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::executor::announcement::Announcement;
use std::time::{Duration, Instant};

/// Between two looks at a page of another host: short beside meeting over the network.
const GLANCE: Duration = Duration::from_micros(500);

/// Where the ranks that are left meet.
pub(super) enum Door {
    /// On this host, to which they all belong.
    Here,
    /// At this rank, the first of them.
    Mine(Gate),
    /// At this port of the first of them.
    At(u16),
}

impl Communicator {
    /// A communicator without the `excluded` ranks, which need not take part; or, where none are
    /// named, without those that have died or destroyed their communicator.
    ///
    /// Survivors that name nobody agree on who is dead, also where more die meanwhile. A rank that
    /// lives and does not come is waited for until the deadline, and named. An abort before it
    /// changes nothing, one meanwhile ends it.
    pub fn shrink(&self, excluded: &[usize], config: Option<&Config>) -> Result<Communicator> {
        self.check_process()?;
        let config = &Config { seat: self.config.seat, ..config.unwrap_or(&self.config).clone() };
        let deadline = Instant::now() + Duration::from_millis(config.timeout_ms);
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
        let is_called_off = || aborted().is_some() || self.watched.are_fewer(&left);
        let is_broken_off = || aborted().or_else(|| self.watched.death_among(&left));
        let until = Until {
            deadline,
            is_called_off: Some(&is_called_off),
            is_broken_off: Some(&is_broken_off),
        };
        let made = self.shrink_by_list(&gone, &left, config, until);
        made.map_err(|unmet| aborted().unwrap_or_else(|| self.watched.explained(&left, unmet)))
    }

    fn shrink_by_list(
        &self,
        gone: &[usize],
        left: &[usize],
        config: &Config,
        until: Until,
    ) -> Result<Communicator, Unmet> {
        let mut lists = self.begin_shrink()?;
        // Survivors of a failure may have split differently often, so the label is what they share:
        // who is gone, and how often that was so before.
        let before = lists.iter().filter(|list| *list == gone).count();
        let label = format!("shrink {gone:?} {before}");
        let door = self.door_by_list(left, &label, config, until)?;
        let made = self.make_of(left, &label, door, config, until)?;
        lists.push(gone.to_vec());
        Ok(made)
    }

    /// Open the door, or wait for the first of the ranks to say where it is.
    fn door_by_list(
        &self,
        left: &[usize],
        label: &str,
        config: &Config,
        until: Until,
    ) -> Result<Door, Unmet> {
        if self.share_a_host(left) {
            return Ok(Door::Here);
        }
        let root = left[0];
        let number = label.bytes().fold(1, |hash, byte| mix(hash ^ u64::from(byte))) | 1;
        if root == self.rank {
            let gate = self.open_door(label, config)?;
            let before = self.watched.pages.mine().board.read();
            let before = before.unwrap_or(Announcement::NOTHING);
            self.announce(&Announcement { port: port_of(&gate), label: number, ..before });
            return Ok(Door::Mine(gate));
        }
        loop {
            let said = self.watched.pages.of(root).board.read();
            if let Some(said) = said.filter(|said| said.label == number) {
                return Ok(Door::At(said.port));
            }
            if Instant::now() >= until.deadline || until.is_called_off.is_some_and(|off| off()) {
                let waited_ms = config.timeout_ms;
                let (nranks, missing) = (self.nranks, vec![root]);
                return Err(Unmet::late(Error::Missing { nranks, missing, waited_ms }));
            }
            std::thread::sleep(GLANCE);
        }
    }

    pub(super) fn share_a_host(&self, ranks: &[usize]) -> bool {
        self.outside.as_ref().is_none_or(|outside| outside.share_a_host(ranks))
    }

    /// A gate for those who know the label.
    pub(super) fn open_door(&self, label: &str, config: &Config) -> Result<Gate> {
        let id = self.id.derive_at(label.as_bytes(), &[]);
        Gate::open(&id, &NetworkConfig::from(config))
    }

    /// Make a communicator of these ranks, this one among them.
    pub(super) fn make_of(
        &self,
        left: &[usize],
        label: &str,
        door: Door,
        config: &Config,
        until: Until,
    ) -> Result<Communicator, Unmet> {
        let rank = left.iter().position(|rank| *rank == self.rank).expect("it is left");
        let nranks = left.len();
        let id_at = |port: Option<u16>| {
            let place = self.outside.as_ref().zip(port);
            let place = place.map(|(outside, port)| outside.at_port(left[0], port));
            self.id.derive_at(label.as_bytes(), &place.unwrap_or_default())
        };
        match door {
            Door::Mine(gate) => {
                let id = id_at(Some(port_of(&gate)));
                Communicator::init_through(gate, nranks, &id, rank, config, until)
            }
            Door::At(port) => {
                let id = id_at(Some(port));
                Communicator::init_unless(nranks, &id, rank, config, until)
            }
            Door::Here => {
                let id = id_at(None);
                Communicator::init_unless(nranks, &id, rank, config, until)
            }
        }
    }

    /// Show the other ranks an announcement.
    pub(super) fn announce(&self, announcement: &Announcement) {
        self.watched.pages.mine().board.publish(announcement);
        self.watched.publish();
    }
}

/// The port that a gate listens at.
pub(super) fn port_of(gate: &Gate) -> u16 {
    gate.addresses().first().map_or(0, |address| address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::UniqueId;
    use crate::bootstrap::network::{Greeting, HELLO, Handshake, Purpose, Secret};
    use crate::communicator::init::number_of;
    use crate::communicator::together::all_or_none;

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
            Greeting { purpose: Purpose::Data, rank: 1, to: 0, nranks: 3, lane: 0, note: 0 };
        let mut all = vec![parent];
        for (index, id) in made[0].iter().enumerate() {
            assert_eq!(number_of(id), number_of(&made[1][index]), "the same on every rank");
            for before in &all {
                assert_ne!(number_of(before), number_of(id), "a message tells them apart");
                assert!(id.epoch() > all[0].epoch() && id.epoch() == made[1][index].epoch());
                let recorded = Handshake::caller(&Secret::new(before), &greeting).unwrap();
                let mut gate = Handshake::gate(&Secret::new(id)).unwrap();
                let refused = gate.feed(&recorded.outgoing()[..HELLO]);
                assert_eq!(refused, Err("a caller that does not hold the secret"));
            }
            all.push(id.clone());
        }
    }
}
