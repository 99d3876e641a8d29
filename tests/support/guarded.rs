//! A buffer between guard bands, at any alignment.

const GUARD_BYTES: usize = 96;
const GUARD: u8 = 0x5a;

/// What a buffer holds before anything is written to it.
pub const UNTOUCHED: u8 = 0xc3;

pub struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    /// `len` untouched bytes, `shift` bytes past a cache line's start.
    pub fn new(len: usize, shift: usize) -> Guarded {
        let mut bytes = vec![GUARD; len + 2 * GUARD_BYTES + 128];
        let line = bytes.as_ptr().addr().wrapping_neg() % 64;
        let start = line + GUARD_BYTES.next_multiple_of(64) + shift % 64;
        bytes.resize(start + len + GUARD_BYTES, GUARD);
        bytes[start..start + len].fill(UNTOUCHED);
        Guarded { bytes, start, len }
    }

    pub fn with(content: &[u8], shift: usize) -> Guarded {
        let mut buffer = Guarded::new(content.len(), shift);
        buffer.content_mut().copy_from_slice(content);
        buffer
    }

    pub fn pointer(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    pub fn content(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub fn content_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Everything, with the guards.
    pub fn all(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// What is wrong with the buffer, if it should hold `want`: the first byte, or a guard.
    pub fn differs(&self, want: &[u8], element: usize) -> Option<String> {
        let (before, rest) = self.bytes.split_at(self.start);
        if before.iter().chain(&rest[self.len..]).any(|byte| *byte != GUARD) {
            return Some("bytes outside the buffer were written".into());
        }
        let got = self.content();
        assert_eq!(got.len(), want.len(), "the oracle's length");
        let at = got.iter().zip(want).position(|(got, want)| got != want)?;
        let index = at / element;
        let hex = |bytes: &[u8]| {
            let bytes = &bytes[index * element..(index + 1) * element];
            bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        Some(format!("element {index}: got 0x{}, wanted 0x{}", hex(got), hex(want)))
    }
}
