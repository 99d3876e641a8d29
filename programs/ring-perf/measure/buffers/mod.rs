//! The buffers of one placement of one row, and the calls on them.
//!
//! Results go to several buffers in turn, an odd number of them, and inputs come from one more (an
//! even number): so a block of calls can run without a pause and every one of its results is still
//! there to be checked afterwards, and because two variants of the input alternate, each result
//! buffer expects another content than it was left with.
#![allow(unsafe_code)]

mod check;

use super::arena::{Arena, Buffer, POISON, taken};
use super::expected_layout::{Cell, Layout, Placement, partner};
use super::pattern::{self, Pattern, VARIANTS};
use crate::cli::mode;
use crate::cli::operation::Operation;
use crate::cli::options::Options;
use crate::ranks::endpoint::Endpoint;
use ringcomm::algorithm::{Algorithm, serial_order};
use ringcomm::communicator::{Call, Message};
use ringcomm::error::Result;
use ringcomm::plan::Collective;
use ringcomm::plan::partition::Extent;

/// The first thing found wrong, as the words that fit the board.
pub type Finding = [u64; 5];

/// What a finding is about: its first word. The others: iteration, index, got, want.
pub mod kind {
    pub const ELEMENT: u64 = 0;
    pub const GUARD: u64 = 1;
    pub const UNTOUCHED: u64 = 2;
    pub const INPUT: u64 = 3;
}

/// How many result buffers take turns: odd, the same on all ranks.
pub fn rotation(cell: &Cell, nranks: usize, options: &Options) -> usize {
    let layout = cell.layout(0, nranks);
    let footprint = 2 * layout.size_elements * cell.data_type.size();
    // Small calls are timed in blocks, and 64 KiB of buffers stay near the core; up to 256 KiB
    // three calls share the cost of starting together; beyond, one call a block disturbs nothing.
    let by_size = match footprint {
        0..=65536 => (65536 / footprint.max(1)).clamp(3, 63),
        65537..=524288 => 3,
        _ => 1,
    };
    options.rotate.unwrap_or(by_size).max(options.aggregate) | 1
}

/// The sizes of the buffers that a placement needs: inputs, then results.
fn buffer_sizes(
    cell: &Cell,
    placement: Placement,
    layout: &Layout,
    turns: usize,
) -> (Vec<usize>, Vec<usize>) {
    let size = cell.data_type.size();
    match placement {
        Placement::OutOfPlace => {
            (vec![layout.send_elements * size; turns + 1], vec![layout.recv_elements * size; turns])
        }
        Placement::InPlace => (Vec::new(), vec![layout.shared_elements() * size; turns]),
    }
}

/// Whether the library promises the serial order of every reduction: where it was asked for, and,
/// unless an algorithm of another order was, on one host.
fn is_serial(options: &Options, endpoint: &dyn Endpoint) -> bool {
    let Ok(config) = mode::config(options) else { return false };
    let free = |name: &String| {
        let forced = Algorithm::from_name(name).ok();
        forced.is_none_or(|forced| serial_order(forced, Collective::AllReduce))
    };
    config.deterministic || !endpoint.has_host_order() && config.algorithm.as_ref().is_none_or(free)
}

/// Bytes of arena for it.
pub fn arena_bytes(cell: &Cell, placement: Placement, rank: usize, n: usize, o: &Options) -> usize {
    let layout = cell.layout(rank, n);
    let (sends, recvs) = buffer_sizes(cell, placement, &layout, rotation(cell, n, o));
    // More than there is stays so: the mapping is refused.
    sends.into_iter().chain(recvs).map(taken).fold(0, usize::saturating_add)
}

pub struct Stage<'a> {
    endpoint: &'a dyn Endpoint,
    cell: &'a Cell,
    placement: Placement,
    rank: usize,
    nranks: usize,
    layout: &'a Layout,
    pattern: Pattern,
    sends: Vec<Buffer>,
    recvs: Vec<Buffer>,
    call: Call<'a>,
    /// Whether calls in place work on what the ones before left.
    keeps: bool,
    /// Whether inputs are written before every block, wherever they are.
    rewrites: bool,
    /// Whether calls are left to an open group.
    grouped: bool,
    /// The calls made so far; every rank makes the same ones.
    pub calls: usize,
    next_send: usize,
    next_recv: usize,
    pub wrong: usize,
    pub first: Option<Finding>,
}

impl<'a> Stage<'a> {
    pub fn new(
        endpoint: &'a dyn Endpoint,
        arena: &'a Arena,
        (rank, nranks): (usize, usize),
        (cell, layout, placement): (&'a Cell, &'a Layout, Placement),
        options: &Options,
    ) -> Stage<'a> {
        let turns = rotation(cell, nranks, options);
        let op = cell.operation.reduces().then_some(cell.op);
        let pattern = Pattern::new(cell.data_type, op, nranks, is_serial(options, endpoint));
        let (inputs, results) = buffer_sizes(cell, placement, layout, turns);
        let sends = inputs.len();
        let mut buffers = arena.carve(inputs.into_iter().chain(results));
        let mut recvs = buffers.split_off(sends);
        for (slot, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill(0, buffer.bytes, pattern.input(slot % VARIANTS, rank));
        }
        // What nobody checks in place stays as it is: zeros, however often they are summed.
        let keeps = placement == Placement::InPlace && !options.check;
        for buffer in &mut recvs {
            buffer.contents_mut().fill(if keeps { 0 } else { POISON });
        }
        let collective = cell.operation.collective().unwrap_or(Collective::Barrier);
        let call = Call {
            count: layout.count,
            op: cell.op,
            scalar: pattern::scalar(rank),
            root: cell.root,
            vector: layout.vector.as_ref(),
            ..Call::new(collective, cell.data_type)
        };
        Stage {
            endpoint,
            cell,
            placement,
            rank,
            nranks,
            layout,
            pattern,
            sends: buffers,
            recvs,
            call,
            keeps,
            rewrites: options.rewrite,
            grouped: false,
            calls: 0,
            next_send: 0,
            next_recv: 0,
            wrong: 0,
            first: None,
        }
    }

    /// How many calls may be made before their results are checked.
    pub fn turns(&self) -> usize {
        self.recvs.len()
    }

    fn bytes(&self, elements: usize) -> usize {
        elements * self.cell.data_type.size()
    }

    /// In place every call consumes its input: write those of the next block, which moves them into
    /// this core's caches. Where nothing is checked the calls go on with what there is, unless
    /// inputs are to be written anew: then a leaf of a broadcast, whose buffer is none, writes
    /// nothing.
    pub fn refill(&mut self) {
        if self.placement == Placement::OutOfPlace {
            if self.rewrites {
                self.rewrite();
            }
            return;
        }
        let is_leaf = self.cell.operation == Operation::Broadcast && self.rank != self.cell.root;
        if self.keeps && (is_leaf || !self.rewrites) {
            return;
        }
        let (at, bytes) = (self.bytes(self.layout.send_at), self.bytes(self.layout.send_elements));
        for call in 0..self.turns() {
            let slot = (self.next_recv + call) % self.turns();
            if self.keeps {
                self.recvs[slot].contents_mut()[at..][..bytes].fill(0);
                continue;
            }
            let input = self.pattern.input((self.calls + call) % VARIANTS, self.rank);
            self.recvs[slot].fill(at, bytes, input);
        }
    }

    /// As a program that computes its data does, write what the next block's calls send: the same
    /// bytes, whose lines are then this core's own and no longer in a peer's caches.
    fn rewrite(&mut self) {
        let count = self.sends.len().min(self.turns());
        for call in 0..count {
            let slot = (self.next_send + call) % self.sends.len();
            let (bytes, input) = (self.sends[slot].bytes, slot % VARIANTS);
            self.sends[slot].fill(0, bytes, self.pattern.input(input, self.rank));
        }
    }

    /// Point the call at the next buffers.
    fn aim(&mut self) {
        let recv = self.recvs[self.next_recv];
        (self.call.send, self.call.recv) = match self.placement {
            Placement::OutOfPlace => {
                (self.sends[self.next_send].address.cast_const(), recv.address)
            }
            Placement::InPlace => {
                let offset = |elements| recv.address.wrapping_add(self.bytes(elements));
                (offset(self.layout.send_at).cast_const(), offset(self.layout.recv_at))
            }
        };
    }

    /// The next call, as the library would run it, or those of the next step.
    pub fn aimed(&mut self) -> Vec<Call<'a>> {
        self.aim();
        match &self.cell.buckets[..] {
            [] => vec![self.call.clone()],
            buckets => buckets.iter().map(|bucket| self.of_bucket(bucket)).collect(),
        }
    }

    /// Make the next calls, several of them as one group. What a group holds is under way at once,
    /// so messages of which the second waits for the first are in none.
    #[inline]
    pub fn iterate(&mut self, calls: usize) -> Result<()> {
        if calls == 1 {
            return self.run();
        }
        if self.ways() > 1 {
            return (0..calls).try_for_each(|_| self.run());
        }
        self.endpoint.start_group();
        self.grouped = true;
        let given = (0..calls).try_for_each(|_| self.run());
        self.grouped = false;
        // Also where a call was refused: the group is open.
        let ended = self.endpoint.end_group();
        given.and(ended)
    }

    /// Make the next call.
    #[inline]
    fn run(&mut self) -> Result<()> {
        self.aim();
        self.calls += 1;
        // A branch, not a division: this is inside the measured time.
        self.next_send =
            if self.next_send + 1 >= self.sends.len() { 0 } else { self.next_send + 1 };
        self.next_recv =
            if self.next_recv + 1 == self.recvs.len() { 0 } else { self.next_recv + 1 };
        match self.cell.operation {
            Operation::SendRecv => return self.pass_on(),
            Operation::PingPong => return self.there_and_back(),
            _ => {}
        }
        if !self.cell.buckets.is_empty() {
            return self.step();
        }
        // SAFETY: the buffers have the extents of the layout, which is that of the collective.
        unsafe { self.make(&self.call) }
    }

    /// Run a call, or leave it to the group.
    ///
    /// # Safety
    /// As [`Endpoint::run`].
    #[inline]
    unsafe fn make(&self, call: &Call) -> Result<()> {
        // SAFETY: the caller's promise, and the arena outlives the group.
        unsafe {
            match self.grouped {
                false => self.endpoint.run(call),
                true => self.endpoint.defer(call),
            }
        }
    }

    /// Send to the next rank and receive from the one before.
    fn pass_on(&self) -> Result<()> {
        let (next, previous) =
            ((self.rank + 1) % self.nranks, (self.rank + self.nranks - 1) % self.nranks);
        self.exchange(&[self.to(next), self.from(previous)])
    }

    /// Send to the partner and wait for what it sends when it has that; or, of the two, the other.
    fn there_and_back(&self) -> Result<()> {
        let partner = partner(self.rank, self.nranks);
        let (send, recv) = (self.to(partner), self.from(partner));
        match self.rank.cmp(&partner) {
            std::cmp::Ordering::Less => {
                self.exchange(&[send])?;
                self.exchange(&[recv])
            }
            // Alone, in as many exchanges as the others.
            std::cmp::Ordering::Equal => {
                self.exchange(&[send, recv])?;
                self.exchange(&[])
            }
            std::cmp::Ordering::Greater => {
                self.exchange(&[recv])?;
                self.exchange(&[send])
            }
        }
    }

    fn to(&self, peer: usize) -> Message {
        let (count, data_type) = (self.layout.count, self.cell.data_type);
        Message::Send { buffer: self.call.send, count, data_type, peer }
    }

    fn from(&self, peer: usize) -> Message {
        let (count, data_type) = (self.layout.count, self.cell.data_type);
        Message::Recv { buffer: self.call.recv, count, data_type, peer }
    }

    fn exchange(&self, messages: &[Message]) -> Result<()> {
        // SAFETY: both buffers hold `count` elements; the arena outlives the group.
        unsafe {
            match self.grouped {
                false => self.endpoint.exchange(messages),
                true => self.endpoint.defer_messages(messages),
            }
        }
    }

    /// How many times over an iteration sends its data.
    pub fn ways(&self) -> usize {
        self.cell.operation.ways()
    }

    /// One training step: an all-reduce for every bucket.
    fn step(&self) -> Result<()> {
        self.cell.buckets.iter().try_for_each(|bucket| {
            // SAFETY: the buckets are a partition of the buffers.
            unsafe { self.make(&self.of_bucket(bucket)) }
        })
    }

    /// The part of a step that is one bucket's.
    fn of_bucket(&self, bucket: &Extent) -> Call<'a> {
        let offset = self.bytes(bucket.offset);
        let send = self.call.send.wrapping_add(offset);
        let recv = self.call.recv.wrapping_add(offset);
        Call { send, recv, count: bucket.count, ..self.call.clone() }
    }

    /// Flip a bit in the result of a call not yet checked.
    pub fn corrupt(&mut self, call: usize, byte: usize) {
        let slot = call % self.turns();
        self.recvs[slot].flip(byte);
    }

    fn note(&mut self, wrong: usize, finding: Finding) {
        self.wrong += wrong;
        self.first.get_or_insert(finding);
    }
}

#[cfg(test)]
mod tests;
