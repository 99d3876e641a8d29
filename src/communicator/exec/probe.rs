//! Messages without waiting for their other end: whether one has come, and a send that leaves now
//! or not at all.

use super::Engine;
use crate::communicator::call::rank_state;
use crate::communicator::health::wait_check::{CommHealth, LAST_LOOK};
use crate::error::{Error, Result};
use crate::executor::control_block::Life;
use crate::sync::atomic::Ordering::*;
use crate::transport::wait::WaitCheck;
use std::time::Duration;

/// What whoever probes looks at: all that ends a receive, but for the deadline.
struct ProbeCheck<'a>(&'a CommHealth);

impl WaitCheck for ProbeCheck<'_> {
    #[cold]
    fn check(&self, peer: usize, _: Duration) -> Result<()> {
        let ProbeCheck(health) = self;
        let rank = health.pages.rank;
        // Acquire: pairs with the Release in `Communicator::abort`.
        if health.aborted.load(Acquire) {
            return Err(Error::Aborted { rank, operation: None });
        }
        if let Some(error) = health.peer_error() {
            return Err(error);
        }
        let page = health.pages.of(peer);
        if page.life() == Life::Left {
            let text = rank_state::state_of(page, peer);
            return Err(Error::Remote { rank, peer: health.who(peer), operation: None, text });
        }
        Ok(())
    }

    #[cold]
    fn broken(&self, peer: usize, why: &str) -> Error {
        let ProbeCheck(health) = self;
        if let Err(known) = self.check(peer, Duration::ZERO) {
            return known;
        }
        let (rank, peer) = (Some(health.pages.rank), health.who(peer));
        Error::Disconnected { rank, peer, operation: None, why: why.to_string() }
    }
}

/// Nothing ends the wait but its own end.
struct Unwatched;

impl WaitCheck for Unwatched {
    fn check(&self, _: usize, _: Duration) -> Result<()> {
        Ok(())
    }
}

impl Engine {
    /// Whether a message of `peer` comes within `patience`, and the deadline of a call, or why none
    /// will.
    pub fn probe(&mut self, peer: usize, patience: Duration, health: &CommHealth) -> Result<bool> {
        let (watch, patience) = (ProbeCheck(health), patience.min(health.timeout));
        let come = self.links.await_message(peer, patience, &watch);
        let trouble = match come {
            Ok(true) => return Ok(true),
            Ok(false) => watch.check(peer, patience).err(),
            Err(error) => Some(error),
        };
        let trouble = match trouble {
            None => return Ok(false),
            Some(aborted @ Error::Aborted { .. }) => return Err(aborted),
            Some(trouble) => trouble,
        };
        // A peer that sent and then left has done its part.
        match self.links.await_message(peer, LAST_LOOK, &Unwatched) {
            Ok(true) => Ok(true),
            _ => Err(trouble),
        }
    }

    /// Whether a message of so many bytes leaves at once.
    pub fn has_room(&mut self, peer: usize, bytes: usize) -> bool {
        let links = &mut self.links;
        !links.is_remote(peer)
            && bytes <= links.geometry.slot_bytes
            && links.try_reserve(peer, bytes).is_some()
    }
}
