//! Test data: random elements with many special ones, and buffers with guards around them.

pub use crate::sweeps::Random;
use ringcomm::device::host::{Job, Reduction};
use ringcomm::types::{DataType, ReduceOp};

const GUARD: u8 = 0xa5;
/// Wider than a vector, and than a thread's batch of them would be wrong by.
const MARGIN: usize = 128;

impl Random {
    /// An element: any bits at all, something special, or a number near 1.
    fn element(&mut self, data_type: DataType) -> u64 {
        let any = self.next();
        let bits = 8 * data_type.size() as u32;
        let sign = 1u64 << (bits - 1);
        let fraction = match data_type {
            DataType::Float64 => 52,
            DataType::Float32 => 23,
            DataType::Bfloat16 => 7,
            DataType::Float16 => 10,
            DataType::Float8e4m3 => 3,
            _ => 2,
        };
        let magnitude = sign - 1;
        let infinity = magnitude & !((1 << fraction) - 1);
        let one = (infinity >> 1) & infinity;
        match self.next() % 12 {
            0..=3 => any,
            4 => any & sign,
            5 if data_type.is_float() => infinity | any & sign,
            6 if data_type.is_float() => infinity | any,
            7 => any & ((1 << fraction) - 1),
            8 => any % 5,
            _ if data_type.is_float() => one ^ any & ((2 << fraction) - 1) ^ any & sign,
            _ => any,
        }
    }

    pub fn elements(&mut self, data_type: DataType, count: usize) -> Vec<u8> {
        let size = data_type.size();
        (0..count)
            .flat_map(|_| self.element(data_type).to_le_bytes().into_iter().take(size))
            .collect()
    }
}

/// A buffer with guard bytes around it, `shift` bytes off an alignment of 128.
pub struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Guarded {
    pub fn new(length: usize, shift: usize) -> Guarded {
        let bytes = vec![GUARD; length + 3 * MARGIN];
        let start = shift + bytes.as_ptr().align_offset(MARGIN);
        let start = if start < 16 { start + MARGIN } else { start };
        Guarded { bytes, start, length }
    }

    pub fn with(content: &[u8], shift: usize) -> Guarded {
        let mut buffer = Guarded::new(content.len(), shift);
        let range = buffer.start..buffer.start + content.len();
        buffer.bytes[range].copy_from_slice(content);
        buffer
    }

    pub fn address(&mut self) -> u64 {
        self.bytes[self.start..].as_mut_ptr() as u64
    }

    /// The content; the guards must be whole.
    pub fn content(&self) -> &[u8] {
        let (before, rest) = self.bytes.split_at(self.start);
        let (content, after) = rest.split_at(self.length);
        assert!(before.iter().chain(after).all(|byte| *byte == GUARD), "wrote outside the buffer");
        content
    }
}

/// What a reduction depends on besides its sources.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub data_type: DataType,
    pub op: ReduceOp,
    /// What a mean divides by.
    pub parts: usize,
    pub finish: bool,
    /// Whether sums of some inputs are rounded to the type on their way.
    pub partial_sums: bool,
    /// The source to multiply, and by what.
    pub scaled: Option<(usize, f64)>,
}

impl Rule {
    pub fn new(data_type: DataType, op: ReduceOp) -> Rule {
        Rule { data_type, op, parts: 1, finish: false, partial_sums: false, scaled: None }
    }
}

/// What the CPU path makes of the sources.
pub fn on_the_host(rule: &Rule, sources: &[Vec<u8>]) -> Vec<u8> {
    let mut result = vec![0; sources[0].len()];
    let reduction = Reduction::new(rule.data_type, rule.op, rule.parts).unwrap();
    let reduction = if rule.partial_sums { reduction.with_partial_sums() } else { reduction };
    let reads: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
    let writes = [result.as_mut_ptr()];
    let job = Job {
        finish: rule.finish,
        scaled: rule.scaled.map(|(index, _)| index),
        scalar: rule.scaled.map_or(1.0, |(_, scalar)| scalar),
        ..Job::new(&writes, &reads, sources[0].len() / rule.data_type.size())
    };
    // SAFETY: every buffer holds `count` elements and outlives the call.
    unsafe { reduction.run(&job) };
    result
}

/// The first element in which two results differ, for a text.
pub fn difference(got: &[u8], wanted: &[u8], size: usize) -> Option<String> {
    let byte = (0..wanted.len()).find(|byte| got[*byte] != wanted[*byte])?;
    let at = byte / size;
    let range = at * size..(at + 1) * size;
    Some(format!("element {at}: got {:x?}, wanted {:x?}", &got[range.clone()], &wanted[range]))
}
