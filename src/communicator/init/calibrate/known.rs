//! What a process knows of the constants: from a tuning file, or from its communicators before.

use super::{LEAST_LONG, slot_of};
use crate::algorithm::select::{Costs, Profile};
use crate::communicator::Communicator;
use crate::config::Config;
use crate::error::Result;
use crate::executor::links::Reach;
use crate::fork::ForkSafeMutex;
use crate::host;
use std::collections::BTreeMap;

/// Constants, and which of them need no measuring.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    pub costs: Costs,
    /// All but those of the wire.
    pub host: bool,
    /// Those of the wire.
    pub wire: bool,
    /// They are a tuning file's, for the communicators that are given it.
    pub is_given: bool,
}

impl Known {
    /// What ranks tell each other, and back.
    pub fn to_words(&self) -> Vec<f64> {
        let flags = [self.host, self.wire, self.is_given].map(|flag| f64::from(u8::from(flag)));
        [&self.costs.to_words()[..], &flags].concat()
    }

    pub fn from_words(words: &[f64]) -> Known {
        let (costs, flags) = words.split_first_chunk().expect("as many as in `to_words`");
        let [host, wire, is_given] = [0, 1, 2].map(|at| flags[at] != 0.0);
        Known { costs: Costs::from_words(*costs), host, wire, is_given }
    }
}

/// What the constants of a host depend on: whether its ranks are processes of their own, whether
/// they share cores, and whether their slots are long enough to be timed.
type Circumstances = [bool; 3];

/// What was measured in some circumstances, and how many communicators tried in vain to find all.
#[derive(Clone, Default)]
struct Measured {
    costs: Costs,
    /// 0 once one has found them.
    tries: u32,
}

/// Communicators that try, where the machine is so busy that none finds all: their ranks wait.
const MOST_TRIES: u32 = 3;

/// What this process knows of its host.
static HOST: ForkSafeMutex<BTreeMap<Circumstances, Measured>> = ForkSafeMutex::new(BTreeMap::new());

/// Two hosts, by name, and what moves messages between them.
type Wire = [String; 3];

/// The constants of the wire between two hosts.
static WIRES: ForkSafeMutex<BTreeMap<Wire, [f64; 3]>> = ForkSafeMutex::new(BTreeMap::new());

/// Where a communicator's constants hold.
pub(super) struct Place {
    /// The rank with which rank 0 measures its host.
    pub companion: Option<usize>,
    /// `None` for ranks of another host than rank 0's.
    circumstances: Option<Circumstances>,
    wire: Option<Wire>,
    cores: usize,
}

impl Place {
    pub fn of(communicator: &Communicator, cores: usize) -> Place {
        let topology = &communicator.plan_context().topology;
        let first = topology.ranks(0);
        let companion = first.get(1).copied();
        let reach = |rank: usize| communicator.engine.take().links.reach(rank);
        let other = if communicator.rank == 0 { companion } else { Some(0) };
        let is_apart = other.is_some_and(|other| reach(other) != Reach::Process);
        let is_crowded = communicator.nranks > cores;
        let is_long = slot_of(communicator) >= LEAST_LONG;
        let is_here = companion.is_some() && first.contains(&communicator.rank);
        // Another rank of this machine may not have introduced itself yet.
        let name = |rank: usize| match reach(rank) {
            Reach::Network => communicator.health.who(rank).host.into_string(),
            _ => host::name().to_string(),
        };
        let net = || communicator.engine.take().links.net().to_string();
        Place {
            companion,
            circumstances: is_here.then_some([is_apart, is_crowded, is_long]),
            wire: (topology.nhosts() > 1).then(|| [name(0), name(topology.ranks(1)[0]), net()]),
            cores,
        }
    }

    /// What rank 0 knows.
    pub fn recall(&self, config: &Config) -> Result<Known> {
        if let Some(path) = &config.tuning_file {
            let Profile { costs, knows_wire } = Profile::read(path)?;
            return Ok(Known { costs, host: true, wire: knows_wire, is_given: true });
        }
        let mut known = Known::default();
        let here = self.circumstances;
        if let Some(measured) = here.and_then(|here| HOST.lock().get(&here).cloned()) {
            known.host = measured.tries == 0 || measured.tries >= MOST_TRIES;
            known.costs = measured.costs;
        }
        if let Some(wire) = self.wire.as_ref().and_then(|wire| WIRES.lock().get(wire).copied()) {
            known.wire = true;
            let Costs { wire_alpha_us, wire_message_us, wire_us_per_byte, .. } = &mut known.costs;
            [*wire_alpha_us, *wire_message_us, *wire_us_per_byte] = wire;
        }
        known.costs.cores = self.cores;
        Ok(known)
    }

    /// Keep what was agreed on for further communicators.
    pub fn remember(&self, known: &Known) {
        if known.is_given {
            return;
        }
        let costs = &known.costs;
        if let Some(here) = self.circumstances {
            let mut all = HOST.lock();
            let measured = all.entry(here).or_default();
            measured.tries = if known.host { 0 } else { measured.tries + 1 };
            measured.costs = costs.clone();
        }
        if let (Some(wire), true) = (&self.wire, known.wire) {
            let words = [costs.wire_alpha_us, costs.wire_message_us, costs.wire_us_per_byte];
            WIRES.lock().insert(wire.clone(), words);
        }
    }
}
