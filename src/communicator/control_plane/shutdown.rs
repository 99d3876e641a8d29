//! How the control plane of a rank ends: it waits for connections that are due, then tells its last
//! words.
//!
//! Others must be able to tell a rank that has left from one that died, so both waits are for them
//! and both are short.

use super::Plane;
use crate::bootstrap::tcp::{ByteStream, Network, is_not_yet};
use std::time::{Duration, Instant};

/// The longest that a rank which ends waits for its neighbours to have read its last words.
const FAREWELL: Duration = Duration::from_millis(200);

/// The longest that a rank which ends waits for neighbours that it never had a connection with:
/// only one that is stopped takes as long.
const LATE_LINKS: Duration = Duration::from_secs(1);

/// How far a rank is with its end.
#[derive(Clone, Copy)]
pub(super) enum ShutdownStage {
    Working,
    /// It ends, and may still miss connections.
    Linking {
        until: Instant,
    },
    /// It tells its last words; once they have left, it has nothing more to say.
    Parting {
        until: Instant,
        has_said: bool,
    },
    Over,
}

impl<N: Network> Plane<N> {
    /// End. A rank may end before all its neighbours are connected: those who come in vain would
    /// take it for dead, so they get a little time; who has gone itself is not waited for.
    pub fn leave(&mut self, now: Instant) {
        self.publish();
        self.stage = ShutdownStage::Linking { until: now + LATE_LINKS };
    }

    pub fn is_leaving(&self) -> bool {
        !matches!(self.stage, ShutdownStage::Working)
    }

    pub fn is_over(&self) -> bool {
        matches!(self.stage, ShutdownStage::Over)
    }

    /// Whether who comes is let in, and what comes is read.
    pub fn receives(&self) -> bool {
        matches!(self.stage, ShutdownStage::Working | ShutdownStage::Linking { .. })
    }

    pub(super) fn links_until(&self) -> Option<Instant> {
        if let ShutdownStage::Linking { until } = self.stage { Some(until) } else { None }
    }

    pub(super) fn farewell_until(&self) -> Option<Instant> {
        if let ShutdownStage::Parting { until, .. } = self.stage { Some(until) } else { None }
    }

    pub(super) fn advance_farewell(&mut self) {
        // Asked at the end of a pass, right before a sleep: what has just come may be all that was
        // missed, and then nothing more comes to end the sleep.
        if self.links_until().is_some_and(|until| self.now >= until || !self.misses_links()) {
            self.publish();
            self.gossip.stop_flow_control();
            self.stage = ShutdownStage::Parting { until: self.now + FAREWELL, has_said: false };
        }
        let ShutdownStage::Parting { until, has_said } = self.stage else { return };
        if !has_said && self.write_all() {
            self.stage = ShutdownStage::Parting { until, has_said: true };
            let streams = self.neighbours.iter_mut().filter_map(|n| n.stream.as_mut());
            streams.for_each(ByteStream::finish);
        }
        self.read_out();
        if self.now >= until || self.neighbours.iter().all(|n| n.stream.is_none()) {
            self.stage = ShutdownStage::Over;
        }
    }

    /// Whether there is still to be a connection with somebody who is there. Behind a listener that
    /// refuses nobody is, dead or not.
    fn misses_links(&self) -> bool {
        let is_missed = |peer: &usize| {
            let gossip = &self.gossip;
            let is_there = self.neighbours[*peer].refused.is_none();
            is_there
                && !gossip.is_linked(*peer)
                && !gossip.has_left(*peer)
                && !gossip.is_gone(*peer)
        };
        self.gossip.neighbours().iter().any(is_missed)
    }

    /// Unread bytes would turn the end of a connection into a reset, which takes the last words
    /// with it.
    fn read_out(&mut self) {
        let mut bytes = [0; 16 << 10];
        for neighbour in &mut self.neighbours {
            while let Some(stream) = &mut neighbour.stream {
                match stream.receive(&mut bytes) {
                    Ok(count) if count > 0 => {}
                    Err(error) if is_not_yet(&error) => break,
                    _ => neighbour.stream = None,
                }
            }
        }
    }
}
