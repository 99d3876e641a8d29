//! The buffers of one placement of one row, and the calls on them.
//!
//! Results go to several buffers in turn, an odd number of them, and inputs come from one more (an
//! even number): so a block of calls can run without a pause and every one of its results is still
//! there to be checked afterwards, and because two variants of the input alternate, each result
//! buffer expects another content than it was left with.
#![allow(unsafe_code)]

use crate::arena::{Arena, Buffer, POISON, differences, taken};
use crate::endpoint::Endpoint;
use crate::job;
use crate::launch;
use crate::layout::{Cell, Layout, Origin, Placement};
use crate::numeric;
use crate::operation::Operation;
use crate::options::Options;
use crate::pattern::{self, Pattern, VARIANTS};
use ringcomm::algorithm::{Algorithm, serial_order};
use ringcomm::communicator::{Call, Message};
use ringcomm::error::Result;
use ringcomm::plan::Collective;

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

/// Whether the library promises the serial order of every reduction: where it was asked for, and
/// between ranks of one host unless an algorithm of another order was.
fn is_serial(options: &Options) -> bool {
    let Ok(config) = launch::config(options) else { return false };
    let free = |name: &String| {
        let forced = Algorithm::from_name(name).ok();
        forced.is_none_or(|forced| serial_order(forced, Collective::AllReduce))
    };
    let one_host = !options.tcp && job::found(options).is_none();
    config.deterministic || one_host && config.algorithm.as_ref().is_none_or(free)
}

/// Bytes of arena for it.
pub fn arena_bytes(cell: &Cell, placement: Placement, rank: usize, n: usize, o: &Options) -> usize {
    let layout = cell.layout(rank, n);
    let (sends, recvs) = buffer_sizes(cell, placement, &layout, rotation(cell, n, o));
    sends.into_iter().chain(recvs).map(taken).sum()
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
        let pattern = Pattern::new(cell.data_type, op, nranks, is_serial(options));
        let (inputs, results) = buffer_sizes(cell, placement, layout, turns);
        let sends = inputs.len();
        let mut buffers = arena.carve(inputs.into_iter().chain(results));
        let mut recvs = buffers.split_off(sends);
        for (slot, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill(0, buffer.bytes, pattern.input(slot % VARIANTS, rank));
        }
        for buffer in &mut recvs {
            buffer.contents_mut().fill(POISON);
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

    /// In place every call consumes its input: write those of the next block.
    pub fn refill(&mut self) {
        if self.placement == Placement::OutOfPlace {
            return;
        }
        let (at, bytes) = (self.bytes(self.layout.send_at), self.bytes(self.layout.send_elements));
        for call in 0..self.turns() {
            let slot = (self.next_recv + call) % self.turns();
            let input = self.pattern.input((self.calls + call) % VARIANTS, self.rank);
            self.recvs[slot].fill(at, bytes, input);
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

    /// The next call, as the library would run it.
    pub fn aimed(&mut self) -> Call<'a> {
        self.aim();
        self.call.clone()
    }

    /// Make the next call.
    #[inline]
    pub fn run(&mut self) -> Result<()> {
        self.aim();
        self.calls += 1;
        // A branch, not a division: this is inside the measured time.
        self.next_send =
            if self.next_send + 1 >= self.sends.len() { 0 } else { self.next_send + 1 };
        self.next_recv =
            if self.next_recv + 1 == self.recvs.len() { 0 } else { self.next_recv + 1 };
        if self.cell.operation == Operation::SendRecv {
            return self.pass_on();
        }
        if !self.cell.buckets.is_empty() {
            return self.step();
        }
        // SAFETY: the buffers have the extents of the layout, which is that of the collective.
        unsafe { self.endpoint.run(&self.call) }
    }

    /// Send to the next rank and receive from the one before.
    fn pass_on(&self) -> Result<()> {
        let (next, previous) =
            ((self.rank + 1) % self.nranks, (self.rank + self.nranks - 1) % self.nranks);
        let (count, data_type) = (self.layout.count, self.cell.data_type);
        let messages = [
            Message::Send { buffer: self.call.send, count, data_type, peer: next },
            Message::Recv { buffer: self.call.recv, count, data_type, peer: previous },
        ];
        // SAFETY: both buffers hold `count` elements.
        unsafe { self.endpoint.exchange(&messages) }
    }

    /// One training step: an all-reduce for every bucket.
    fn step(&mut self) -> Result<()> {
        let (send, recv) = (self.call.send, self.call.recv);
        for bucket in &self.cell.buckets {
            let offset = bucket.offset * self.cell.data_type.size();
            self.call.send = send.wrapping_add(offset);
            self.call.recv = recv.wrapping_add(offset);
            self.call.count = bucket.count;
            // SAFETY: the buckets are a partition of the buffers.
            unsafe { self.endpoint.run(&self.call)? };
        }
        Ok(())
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

    /// Check the results of the last `calls` calls; `iteration` is the number of the first.
    pub fn check(&mut self, calls: usize, iteration: usize) {
        for back in (1..=calls).rev() {
            let call = self.calls - back;
            let iteration = (iteration + calls - back) as u64;
            let slot = call % self.turns();
            self.check_parts(slot, call % VARIANTS, iteration);
            if let Some((at, byte)) = self.recvs[slot].broken_guard() {
                self.note(1, [kind::GUARD, iteration, at as u64, u64::from(byte), 0]);
            }
            if self.placement == Placement::OutOfPlace {
                self.check_untouched(slot, iteration);
            }
        }
    }

    fn check_parts(&mut self, slot: usize, variant: usize, iteration: u64) {
        let size = self.cell.data_type.size();
        let base = match self.placement {
            Placement::OutOfPlace => 0,
            Placement::InPlace => self.layout.recv_at,
        };
        let data_type = self.cell.data_type;
        for part in &self.layout.parts {
            let from = (base + part.offset) * size;
            let got = &self.recvs[slot].contents()[from..from + part.count * size];
            let (want, copied) = match part.origin {
                Origin::Rank(rank) => (self.pattern.input_mut(variant, rank), true),
                Origin::Reduced => (self.pattern.reduced_mut(variant), false),
            };
            let same_nan = |a: &[u8], b: &[u8]| {
                let nan = |bytes| numeric::is_nan(data_type, word(bytes));
                !copied && nan(a) && nan(b)
            };
            let (wrong, first) = differences(got, want, part.start, size, same_nan);
            if let Some(first) = first {
                let at = (part.start + first) % pattern::PERIOD * size;
                let (got, want) = (word(&got[first * size..][..size]), word(&want[at..at + size]));
                let index = (part.offset + first) as u64;
                self.wrong += wrong;
                self.first.get_or_insert([kind::ELEMENT, iteration, index, got, want]);
            }
        }
    }

    /// The gaps of a v form and the result buffer of a rank that gets no result stay as they were.
    fn check_untouched(&mut self, slot: usize, iteration: u64) {
        let size = self.cell.data_type.size();
        let contents = self.recvs[slot].contents();
        let mut at = 0;
        let mut touched = None;
        let ends = self.layout.parts.iter().map(|part| (part.offset, part.offset + part.count));
        for (begin, end) in ends.chain([(self.layout.recv_elements, 0)]) {
            let gap = &contents[at * size..(begin * size).max(at * size)];
            let found = gap.iter().position(|byte| *byte != POISON);
            touched = touched.or(found.map(|found| (at * size + found, gap[found])));
            at = end;
        }
        if let Some((byte, got)) = touched {
            let index = (byte / size) as u64;
            self.note(1, [kind::UNTOUCHED, iteration, index, u64::from(got), u64::from(POISON)]);
            self.recvs[slot].contents_mut().fill(POISON);
        }
    }

    /// Inputs must be as they were.
    pub fn check_inputs(&mut self, iteration: u64) {
        let size = self.cell.data_type.size();
        for slot in 0..self.sends.len() {
            let want = self.pattern.input_mut(slot % VARIANTS, self.rank);
            let got = self.sends[slot].contents();
            let (wrong, first) = differences(got, want, 0, size, |_, _| false);
            if let Some(first) = first {
                let at = first % pattern::PERIOD * size;
                let words = (word(&got[first * size..][..size]), word(&want[at..at + size]));
                self.note(wrong, [kind::INPUT, iteration, first as u64, words.0, words.1]);
            }
            if let Some((at, byte)) = self.sends[slot].broken_guard() {
                self.note(1, [kind::GUARD, iteration, at as u64, u64::from(byte), 0]);
            }
        }
    }
}

/// An element's bits.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}
