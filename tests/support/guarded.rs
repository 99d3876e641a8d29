//! A buffer between guard bands, at any alignment.

use ringcomm::transport::shm_export;
use std::ops::{Deref, DerefMut};

const GUARD_BYTES: usize = 96;
const GUARD: u8 = 0x5a;

/// What a buffer holds before anything is written to it.
pub const UNTOUCHED: u8 = 0xc3;

/// Where a buffer comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    #[default]
    Ordinary,
    /// Exported, so that other processes map it: a region for every buffer.
    Exported,
}

enum Bytes {
    Ordinary(Vec<u8>),
    /// Address and length.
    Exported(*mut u8, usize),
}

impl Bytes {
    fn new(memory: Memory, len: usize) -> Bytes {
        match memory {
            Memory::Ordinary => Bytes::Ordinary(vec![0; len]),
            Memory::Exported => Bytes::Exported(shm_export::allocate(len).expect("memory"), len),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Ordinary(bytes) => bytes,
            // SAFETY: the region is this buffer's alone, has these bytes, and is zeroed.
            Bytes::Exported(start, len) => unsafe { std::slice::from_raw_parts(*start, *len) },
        }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Ordinary(bytes) => bytes,
            // SAFETY: as above.
            Bytes::Exported(start, len) => unsafe { std::slice::from_raw_parts_mut(*start, *len) },
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Bytes::Exported(start, _) = self {
            shm_export::release(*start).expect("it was allocated");
        }
    }
}

pub struct Guarded {
    bytes: Bytes,
    start: usize,
    len: usize,
    /// Bytes up to the end of the guard behind; there may be more.
    end: usize,
}

impl Guarded {
    /// `len` untouched bytes, `shift` bytes past a cache line's start.
    pub fn new(len: usize, shift: usize) -> Guarded {
        Guarded::of(Memory::Ordinary, len, shift)
    }

    /// As `new`, in memory of a kind.
    pub fn of(memory: Memory, len: usize, shift: usize) -> Guarded {
        let mut bytes = Bytes::new(memory, len + 2 * GUARD_BYTES + 256);
        let line = bytes.as_ptr().addr().wrapping_neg() % 64;
        let start = line + GUARD_BYTES.next_multiple_of(64) + shift % 64;
        let end = start + len + GUARD_BYTES;
        bytes[..end].fill(GUARD);
        bytes[start..start + len].fill(UNTOUCHED);
        Guarded { bytes, start, len, end }
    }

    pub fn with(content: &[u8], shift: usize) -> Guarded {
        Guarded::of_content(Memory::Ordinary, content, shift)
    }

    /// As `with`, in memory of a kind.
    pub fn of_content(memory: Memory, content: &[u8], shift: usize) -> Guarded {
        let mut buffer = Guarded::of(memory, content.len(), shift);
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
        &mut self.bytes[..self.end]
    }

    /// What is wrong with the buffer, if it should hold `want`: the first byte, or a guard.
    pub fn differs(&self, want: &[u8], element: usize) -> Option<String> {
        let (before, rest) = self.bytes[..self.end].split_at(self.start);
        let mut outside = before.chunks(64).chain(rest[self.len..].chunks(64));
        if outside.any(|bytes| *bytes != [GUARD; 64][..bytes.len()]) {
            return Some("bytes outside the buffer were written".into());
        }
        let got = self.content();
        assert_eq!(got.len(), want.len(), "the oracle's length");
        if got == want {
            return None;
        }
        let at = got.iter().zip(want).position(|(got, want)| got != want)?;
        let index = at / element;
        let hex = |bytes: &[u8]| {
            let bytes = &bytes[index * element..(index + 1) * element];
            bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        Some(format!("element {index}: got 0x{}, wanted 0x{}", hex(got), hex(want)))
    }
}
