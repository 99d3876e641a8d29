//! The run: every rank goes on, on its own clock, until it lacks a message or a slot.

use super::Machine;
use super::packed::{Packed, PackedStep};
use crate::error::{Error, Result};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// One connection's history, as far as it still matters.
#[derive(Debug, Default)]
struct Connection {
    /// When each unread message arrives.
    arrivals: VecDeque<f64>,
    /// When each slot that was taken and not yet reused became free.
    free: VecDeque<f64>,
    posted: usize,
}

struct Clock<'a> {
    packed: &'a Packed,
    nranks: usize,
    slice_bytes: f64,
    slices: usize,
    machine: &'a Machine,
    connections: HashMap<u64, Connection, BuildHasherDefault<Mix>>,
    /// Each rank's time, slice and step.
    ranks: Vec<(f64, usize, usize)>,
    ready: Vec<usize>,
    queued: Vec<bool>,
}

/// When the last rank is done with that many slices.
pub(super) fn run(
    packed: &Packed,
    nranks: usize,
    slice_bytes: f64,
    slices: usize,
    machine: &Machine,
) -> Result<f64> {
    let runs = packed.nranks();
    let mut clock = Clock {
        packed,
        nranks,
        slice_bytes,
        slices,
        machine,
        connections: HashMap::default(),
        ranks: (0..runs).map(|rank| (0.0, 0, packed.steps(rank).start)).collect(),
        ready: (0..runs).rev().collect(),
        queued: vec![true; runs],
    };
    while let Some(rank) = clock.ready.pop() {
        clock.queued[rank] = false;
        clock.advance(rank);
    }
    if let Some(rank) = clock.ranks.iter().position(|rank| rank.1 < slices) {
        return Err(Error::argument(format!(
            "the plans deadlock at rank {rank} with connections of {} slots",
            machine.depth
        )));
    }
    Ok(clock.ranks.iter().map(|rank| rank.0).fold(0.0, f64::max))
}

impl Clock<'_> {
    /// One rank stands for all.
    fn symmetric(&self) -> bool {
        self.ranks.len() < self.nranks
    }

    /// The connection's name; where one rank stands for all, only the distance counts.
    fn key(&self, from: usize, to: usize) -> u64 {
        if self.symmetric() {
            ((to + self.nranks - from) % self.nranks) as u64
        } else {
            (from as u64) << 32 | to as u64
        }
    }

    fn advance(&mut self, rank: usize) {
        let packed = self.packed;
        let steps = packed.steps(rank);
        while self.ranks[rank].1 < self.slices {
            let (_, slice, at) = self.ranks[rank];
            if at == steps.end {
                (self.ranks[rank].1, self.ranks[rank].2) = (slice + 1, steps.start);
                continue;
            }
            let step = packed.step(at);
            let Some(start) = self.start(rank, step) else { return };
            self.execute(rank, step, start);
            self.ranks[rank].2 += 1;
        }
    }

    /// When a rank's step can start, if the others have come far enough to know.
    fn start(&mut self, rank: usize, step: PackedStep) -> Option<f64> {
        let packed = self.packed;
        let mut start = self.ranks[rank].0;
        for &from in packed.sources(step) {
            let arrival =
                *self.connections.get(&self.key(from as usize, rank))?.arrivals.front()?;
            start = start.max(arrival);
        }
        for &to in packed.targets(step) {
            let key = self.key(rank, to as usize);
            let connection = self.connections.entry(key).or_default();
            if connection.posted >= self.machine.depth {
                start = start.max(*connection.free.front()?);
            }
        }
        Some(start)
    }

    fn execute(&mut self, rank: usize, step: PackedStep, start: f64) {
        let packed = self.packed;
        let (sources, targets) = (packed.sources(step), packed.targets(step));
        let machine = self.machine;
        let bytes = f64::from(step.len) * self.slice_bytes;
        let per_byte = f64::from(step.further) * machine.reduce_us_per_byte
            + f64::from(u8::from(step.copies)) * machine.copy_us_per_byte;
        let mut now = start + sources.len() as f64 * machine.message_us + bytes * per_byte;
        // Messages leave one after the other: the first target's is ahead of the last one's.
        for &to in targets {
            now += machine.message_us + bytes * machine.send_us_per_byte;
            let key = self.key(rank, to as usize);
            let connection = self.connections.get_mut(&key).expect("start() made it");
            if connection.posted >= machine.depth {
                connection.free.pop_front();
            }
            connection.posted += 1;
            connection.arrivals.push_back(now + machine.alpha_us);
            self.wake(to as usize);
        }
        for &from in sources {
            let key = self.key(from as usize, rank);
            let connection = self.connections.get_mut(&key).expect("its message was there");
            connection.arrivals.pop_front();
            connection.free.push_back(now);
            self.wake(from as usize);
        }
        self.ranks[rank].0 = now;
    }

    fn wake(&mut self, rank: usize) {
        // Where one rank stands for all it is running already, and looks again before it stops.
        if !self.symmetric() && !self.queued[rank] {
            self.queued[rank] = true;
            self.ready.push(rank);
        }
    }
}

/// A hash for keys that are no secret: one multiplication by the digits of the golden ratio.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}
