//! The run: every rank goes on, on its own clock, until it lacks a message or a slot.

use super::packed::{Packed, PackedStep};
use super::{HostWire, Machine, SimulationError, SimulationResult};
use crate::plan::PIPELINE_DEPTH;
use crate::plan::topology::Topology;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// One connection's history, as far as it still matters.
#[derive(Debug, Default)]
struct ConnectionHistory {
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
    hosts: Option<(&'a Topology, &'a HostWire)>,
    connections: HashMap<u64, ConnectionHistory, BuildHasherDefault<Mix>>,
    /// Each rank's time, tick and step.
    ranks: Vec<(f64, usize, usize)>,
    /// By rank: how many ends of its step it has seen ready, and when the last of them was. What
    /// is ready stays so, and the rest is looked at when more comes.
    seen: Vec<(usize, f64)>,
    /// By rank: how many ticks it takes.
    ticks: Vec<usize>,
    /// By host: how many of its ranks send to other hosts.
    senders: Vec<usize>,
    /// By rank: when what it has sent to other hosts has left its own.
    out: Vec<f64>,
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
    hosts: Option<(&Topology, &HostWire)>,
) -> SimulationResult<f64> {
    let runs = packed.nranks();
    let mut clock = Clock {
        packed,
        nranks,
        slice_bytes,
        slices,
        machine,
        hosts,
        connections: HashMap::default(),
        ranks: (0..runs).map(|rank| (0.0, 0, packed.steps(rank).start)).collect(),
        seen: vec![(0, 0.0); runs],
        ticks: (0..runs).map(|rank| slices + packed.stages(rank) - 1).collect(),
        senders: hosts.map_or_else(Vec::new, |(topology, _)| senders(packed, topology)),
        out: vec![0.0; runs],
        ready: (0..runs).rev().collect(),
        queued: vec![true; runs],
    };
    if machine.depth < PIPELINE_DEPTH {
        clock.ticks.fill(slices);
    }
    while let Some(rank) = clock.ready.pop() {
        clock.queued[rank] = false;
        clock.advance(rank);
    }
    if let Some(rank) = (0..runs).find(|rank| clock.ranks[*rank].1 < clock.ticks[*rank]) {
        return Err(SimulationError::Deadlock { rank, depth: machine.depth });
    }
    Ok(clock.ranks.iter().map(|rank| rank.0).fold(0.0, f64::max))
}

impl<'a> Clock<'a> {
    /// The connection's name: who runs for the sender, and the distance.
    fn key(&self, from: usize, to: usize) -> u64 {
        let distance = (to + self.nranks - from) % self.nranks;
        ((from % self.ranks.len()) as u64) << 32 | distance as u64
    }

    fn advance(&mut self, rank: usize) {
        let packed = self.packed;
        let steps = packed.steps(rank);
        while self.ranks[rank].1 < self.ticks[rank] {
            let (_, tick, at) = self.ranks[rank];
            if at == steps.end {
                (self.ranks[rank].1, self.ranks[rank].2) = (tick + 1, steps.start);
                continue;
            }
            let step = packed.step(at);
            // Before the step's first slice this wraps, which no step has as many slices as.
            if tick.wrapping_sub(self.stage(step)) < self.slices {
                let Some(start) = self.start(rank, step) else { return };
                self.execute(rank, step, start);
            }
            self.ranks[rank].2 += 1;
        }
    }

    /// The stage that a step runs in: the first where connections are too short for more.
    fn stage(&self, step: PackedStep) -> usize {
        if self.machine.depth < PIPELINE_DEPTH { 0 } else { usize::from(step.stage) }
    }

    /// The wire between two ranks and how many share its near end, if they are on two hosts.
    fn wire(&self, from: usize, to: usize) -> Option<(&'a HostWire, f64)> {
        let (topology, wire) = self.hosts?;
        let host = topology.host(from);
        (host != topology.host(to)).then(|| (wire, self.senders[host] as f64))
    }

    /// A rank's own time for a message from or to another.
    fn message_us(&self, rank: usize, other: usize) -> f64 {
        self.wire(rank, other).map_or(self.machine.message_us, |(wire, _)| wire.message_us)
    }

    /// When a rank's step can start, if the others have come far enough to know.
    fn start(&mut self, rank: usize, step: PackedStep) -> Option<f64> {
        let packed = self.packed;
        let (sources, targets) = (packed.sources(step), packed.targets(step));
        while let Some(&from) = sources.get(self.seen[rank].0) {
            let key = self.key(from as usize, rank);
            let arrival = *self.connections.get(&key)?.arrivals.front()?;
            self.see(rank, arrival);
        }
        while let Some(&to) = targets.get(self.seen[rank].0 - sources.len()) {
            let key = self.key(rank, to as usize);
            let connection = self.connections.entry(key).or_default();
            let free = match connection.posted >= self.machine.depth {
                true => *connection.free.front()?,
                false => 0.0,
            };
            self.see(rank, free);
        }
        let (_, last) = std::mem::take(&mut self.seen[rank]);
        Some(last.max(self.ranks[rank].0))
    }

    /// One more end of the rank's step is ready, since then.
    fn see(&mut self, rank: usize, then: f64) {
        let (count, last) = self.seen[rank];
        self.seen[rank] = (count + 1, last.max(then));
    }

    fn execute(&mut self, rank: usize, step: PackedStep, start: f64) {
        let packed = self.packed;
        let (sources, targets) = (packed.sources(step), packed.targets(step));
        let machine = self.machine;
        let bytes = f64::from(step.len) * self.slice_bytes;
        let per_byte = f64::from(step.further) * machine.reduce_us_per_byte
            + f64::from(u8::from(step.copies)) * machine.copy_us_per_byte;
        let taken: f64 = sources.iter().map(|from| self.message_us(rank, *from as usize)).sum();
        let mut now = start + taken + bytes * per_byte;
        // Messages leave one after the other: the first target's is ahead of the last one's.
        for &to in targets {
            now += self.message_us(rank, to as usize);
            let arrival = match self.wire(rank, to as usize) {
                None => {
                    now += bytes * machine.send_us_per_byte;
                    now + machine.alpha_us
                }
                Some((wire, share)) => {
                    self.out[rank] = self.out[rank].max(now) + bytes * wire.us_per_byte * share;
                    self.out[rank] + wire.alpha_us
                }
            };
            let key = self.key(rank, to as usize);
            let connection = self.connections.get_mut(&key).expect("start() made it");
            if connection.posted >= machine.depth {
                connection.free.pop_front();
            }
            connection.posted += 1;
            connection.arrivals.push_back(arrival);
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

    /// Have a rank look again, or who runs for it.
    fn wake(&mut self, rank: usize) {
        let rank = rank % self.ranks.len();
        if !self.queued[rank] {
            self.queued[rank] = true;
            self.ready.push(rank);
        }
    }
}

/// By host, as far as its ranks are run: how many of them send to other hosts.
fn senders(packed: &Packed, topology: &Topology) -> Vec<usize> {
    let leaves = |rank: usize| {
        let away = |to: &u32| topology.host(*to as usize) != topology.host(rank);
        packed.steps(rank).any(|at| packed.targets(packed.step(at)).iter().any(away))
    };
    let is_run = |host: &usize| topology.ranks(*host).iter().all(|rank| *rank < packed.nranks());
    let count = |host| topology.ranks(host).iter().filter(|rank| leaves(**rank)).count();
    (0..topology.nhosts()).filter(is_run).map(count).collect()
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
