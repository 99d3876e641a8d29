//! What every buffer must hold after a block of calls: results where they belong, and everything
//! else as it was.

use super::{Stage, kind};
use crate::measure::arena::{Buffer, POISON, differences};
use crate::measure::expected_layout::{Origin, Part, Placement};
use crate::measure::oracle;
use crate::measure::pattern::{self, VARIANTS};
use std::ops::Range;

impl Stage<'_> {
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
            match self.placement {
                Placement::OutOfPlace => self.check_untouched(slot, iteration),
                Placement::InPlace => self.check_rest(slot, call % VARIANTS, iteration),
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
                let nan = |bytes| oracle::is_nan(data_type, word(bytes));
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

    /// The elements of a buffer of so many that hold no result, where the results begin at `base`.
    fn gaps(&self, base: usize, elements: usize) -> Vec<Range<usize>> {
        let part = |part: &Part| base + part.offset..base + part.offset + part.count;
        let parts = self.layout.parts.iter().map(part).chain(std::iter::once(elements..elements));
        parts.scan(0, |at, part| Some(std::mem::replace(at, part.end)..part.start)).collect()
    }

    /// The gaps of a v form and the result buffer of a rank that gets no result stay as they were.
    fn check_untouched(&mut self, slot: usize, iteration: u64) {
        for gap in self.gaps(0, self.layout.recv_elements) {
            self.check_poison(slot, gap, iteration);
        }
    }

    /// In place, too, only results are written: the rest of the send buffer is read, all of it on a
    /// rank that gets no result, and the gaps of a v form are not even that.
    fn check_rest(&mut self, slot: usize, variant: usize, iteration: u64) {
        let begin = self.layout.send_at;
        let end = begin + self.layout.send_elements;
        for gap in self.gaps(self.layout.recv_at, self.layout.shared_elements()) {
            let Range { start, end: stop } = gap;
            self.check_poison(slot, start..stop.min(begin), iteration);
            self.check_poison(slot, start.max(end)..stop, iteration);
            let input = start.max(begin)..stop.min(end);
            if !input.is_empty() {
                let first = input.start - begin;
                self.check_input(self.recvs[slot], input, first, variant, iteration);
            }
        }
    }

    /// What nobody writes is as it was, else it becomes so again.
    fn check_poison(&mut self, slot: usize, elements: Range<usize>, iteration: u64) {
        let (begin, end) = (self.bytes(elements.start), self.bytes(elements.end));
        let Some(gap) = self.recvs[slot].contents_mut().get_mut(begin..end) else { return };
        let Some(found) = gap.iter().position(|byte| *byte != POISON) else { return };
        let got = u64::from(gap[found]);
        gap.fill(POISON);
        let index = ((begin + found) / self.cell.data_type.size()) as u64;
        self.note(1, [kind::UNTOUCHED, iteration, index, got, u64::from(POISON)]);
    }

    /// These elements of a buffer are still this rank's input from index `first` on.
    fn check_input(
        &mut self,
        buffer: Buffer,
        elements: Range<usize>,
        first: usize,
        variant: usize,
        iteration: u64,
    ) {
        let size = self.cell.data_type.size();
        let want = self.pattern.input_mut(variant, self.rank);
        let got = &buffer.contents()[elements.start * size..elements.end * size];
        let (wrong, at) = differences(got, want, first, size, |_, _| false);
        if let Some(at) = at {
            let place = (first + at) % pattern::PERIOD * size;
            let words = (word(&got[at * size..][..size]), word(&want[place..place + size]));
            self.note(wrong, [kind::INPUT, iteration, (first + at) as u64, words.0, words.1]);
        }
    }

    /// Inputs must be as they were.
    pub fn check_inputs(&mut self, iteration: u64) {
        for slot in 0..self.sends.len() {
            let elements = 0..self.layout.send_elements;
            self.check_input(self.sends[slot], elements, 0, slot % VARIANTS, iteration);
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
