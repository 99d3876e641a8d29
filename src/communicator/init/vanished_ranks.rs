//! Ranks that have gone between the rendezvous of all hosts and that of one; a process that dies
//! later shows on its pidfd (`transport/pidfd.rs`).
//!
//! Ranks of one host meet by a name, where one that never comes may still be on its way. But they
//! have all met over the network before: a rank keeps the listener that it had there until its
//! communicator is made, unless it dies or gives up.

use crate::bootstrap::VanishedPeer;
use crate::bootstrap::tcp::is_deserted;
use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Until the first look, and between two: a rendezvous of one host usually is over before, and who
/// misses a rank on another host takes twice as long to be sure.
const LOOK: Duration = Duration::from_millis(20);

/// Where the other ranks of a host have their listeners.
pub(super) struct VanishedRanks<'a> {
    /// Place among the ranks of the host, process, addresses.
    listeners: Vec<(usize, Option<u32>, &'a [SocketAddr])>,
    next: Cell<Instant>,
}

impl<'a> VanishedRanks<'a> {
    /// Of a listener that was never seen here nobody can say that it was here: another machine may
    /// have the same addresses, as those do that were restored from one snapshot, and take itself
    /// for the same host.
    pub fn new(
        listeners: impl Iterator<Item = (usize, u32, &'a [SocketAddr])>,
    ) -> VanishedRanks<'a> {
        let seen = |(place, pid, addresses): (usize, u32, &'a [SocketAddr])| {
            (place, Some(pid).filter(|_| !is_deserted(addresses)), addresses)
        };
        VanishedRanks {
            listeners: listeners.map(seen).collect(),
            next: Cell::new(Instant::now() + LOOK),
        }
    }

    /// The places of those who are gone, and their processes if they were seen, if it is time to
    /// look. Of several, all but one may have left on account of that one.
    pub fn find(&self) -> Vec<VanishedPeer> {
        let now = Instant::now();
        if now < self.next.get() {
            return Vec::new();
        }
        self.next.set(now + LOOK);
        let gone = self.listeners.iter().filter(|(_, _, addresses)| is_deserted(addresses));
        gone.map(|(place, pid, _)| (*place, *pid)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::UniqueId;
    use crate::bootstrap::tcp::{AuthListener, NetworkConfig};
    use crate::config::Config;

    #[test]
    fn all_who_are_gone_are_found_at_one_look() {
        let id = UniqueId::generate().unwrap();
        let config = Config { interfaces: Some("lo".into()), ..Config::default() };
        let listeners =
            [(); 3].map(|()| AuthListener::open(&id, &NetworkConfig::from(&config)).unwrap());
        let places = listeners.each_ref().map(|listener| listener.addresses().to_vec());
        let [first, second, third] = listeners;
        // It was never seen.
        drop(third);
        let known = places.iter().enumerate().map(|(place, at)| (place, 7, &at[..]));
        let vanished_ranks = VanishedRanks::new(known);
        drop(second);
        vanished_ranks.next.set(Instant::now() + Duration::from_secs(3600));
        assert!(vanished_ranks.find().is_empty(), "it is not time yet");
        let looked = Instant::now();
        vanished_ranks.next.set(looked);
        assert_eq!(vanished_ranks.find(), [(1, Some(7)), (2, None)]);
        assert!(vanished_ranks.next.get() >= looked + LOOK, "the next look is later");
        // It was there all the while.
        drop(first);
    }
}
