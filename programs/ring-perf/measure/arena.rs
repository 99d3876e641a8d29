//! The memory that is measured: one mapping per rank, carved into buffers between guard bands.
//!
//! The mapping is made once for the largest row and used for all of them, so that no row pays for
//! page faults and one registration covers everything.
#![allow(unsafe_code)]

use super::pattern::PERIOD;
use ringcomm::error::{Error, Result};

/// Bytes before and after every buffer that nobody may write: a cache line, the widest store.
pub const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xc3;
/// What a receive buffer holds where nothing has been received.
pub const POISON: u8 = 0x5a;

/// One rank's mapping.
pub struct Arena {
    base: *mut u8,
    bytes: usize,
}

/// A buffer in the arena, `bytes` long, with its guard bands outside of them.
///
/// It is a place, not a borrow: the library writes receive buffers and peers read send buffers
/// while the rank holds them, as in any program that communicates. Between two barriers of the
/// board no call runs, and only there the contents are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub address: *mut u8,
    pub bytes: usize,
}

/// Bytes of a page, which long buffers are aligned to.
const PAGE: usize = 4096;

/// Where a buffer may begin, counting its guard band.
///
/// Long ones begin at the same place of their pages, as an allocator's do. Shifted by a few lines,
/// a load from one would now and then be taken for a load of what has just been stored to another,
/// since the processor compares the low twelve bits first.
fn alignment(bytes: usize) -> usize {
    if bytes >= PAGE { PAGE } else { GUARD }
}

/// Bytes of arena that a buffer takes at most: itself, its guards, and what aligns it.
pub fn taken(bytes: usize) -> usize {
    (bytes + 2 * GUARD).next_multiple_of(alignment(bytes)) + alignment(bytes)
}

impl Arena {
    pub fn new(bytes: usize) -> Result<Arena> {
        let bytes = bytes.clamp(1, isize::MAX as usize).next_multiple_of(PAGE);
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::system(format!("allocating {bytes} bytes for the buffers")));
        }
        Ok(Arena { base: base.cast(), bytes })
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Buffers of these sizes one after the other, from the start of the arena.
    pub fn carve(&self, sizes: impl Iterator<Item = usize>) -> Vec<Buffer> {
        let mut at: usize = 0;
        let mut place = |bytes: usize| {
            let begin = at.next_multiple_of(alignment(bytes)) + GUARD;
            at = begin + bytes + GUARD;
            assert!(at <= self.bytes, "the arena was sized for less");
            // SAFETY: inside the mapping, by the assertion.
            let mut buffer = Buffer { address: unsafe { self.base.add(begin) }, bytes };
            buffer.raise_guards();
            buffer
        };
        sizes.map(&mut place).collect()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our own mapping; its buffers are used only while the arena lives.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

impl Buffer {
    /// Its contents; see the type for why nobody writes them meanwhile.
    pub fn contents(&self) -> &[u8] {
        // SAFETY: inside the mapping; no call runs while this is used.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }

    pub fn contents_mut(&mut self) -> &mut [u8] {
        // SAFETY: inside the mapping; no call runs while this is used.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }

    /// The buffer with its guard bands.
    fn whole(&mut self) -> &mut [u8] {
        // SAFETY: the guards lie inside the mapping and belong to this buffer alone.
        unsafe { std::slice::from_raw_parts_mut(self.address.sub(GUARD), self.bytes + 2 * GUARD) }
    }

    fn raise_guards(&mut self) {
        let after = GUARD + self.bytes;
        let whole = self.whole();
        whole[..GUARD].fill(GUARD_BYTE);
        whole[after..].fill(GUARD_BYTE);
    }

    /// Where a guard band was written, relative to the buffer, and what is there; mends it.
    pub fn broken_guard(&mut self) -> Option<(i64, u8)> {
        let after = GUARD + self.bytes;
        let whole = self.whole();
        let found = (0..GUARD).chain(after..after + GUARD).find(|at| whole[*at] != GUARD_BYTE)?;
        let byte = whole[found];
        self.raise_guards();
        Some((found as i64 - GUARD as i64, byte))
    }

    /// Flip a bit, beyond the end as well: a test of the checks.
    pub fn flip(&mut self, at: usize) {
        if let Some(byte) = self.whole().get_mut(GUARD + at) {
            *byte ^= 1;
        }
    }

    /// Repeat a period (given twice) from `offset` on for `bytes`.
    pub fn fill(&mut self, offset: usize, bytes: usize, period: &[u8]) {
        let period = &period[..period.len() / 2];
        for piece in self.contents_mut()[offset..offset + bytes].chunks_mut(period.len()) {
            piece.copy_from_slice(&period[..piece.len()]);
        }
    }
}

/// Compare elements with a pattern (two periods) that begins at index `start`.
///
/// Returns how many differ and the first that does. Where both are NaN by `same_nan` the payload is
/// nobody's promise; it is learnt, so that the next period compares at full speed.
pub fn differences(
    got: &[u8],
    want: &mut [u8],
    start: usize,
    element_bytes: usize,
    same_nan: impl Fn(&[u8], &[u8]) -> bool,
) -> (usize, Option<usize>) {
    let period = PERIOD * element_bytes;
    let begin = start % PERIOD * element_bytes;
    let (mut wrong, mut first) = (0, None);
    for (number, piece) in got.chunks(period).enumerate() {
        if *piece == want[begin..begin + piece.len()] {
            continue;
        }
        for (index, element) in piece.chunks_exact(element_bytes).enumerate() {
            let at = (begin + index * element_bytes) % period;
            if *element == want[at..at + element_bytes] {
                continue;
            }
            if same_nan(element, &want[at..at + element_bytes]) {
                want[at..at + element_bytes].copy_from_slice(element);
                want[at + period..at + period + element_bytes].copy_from_slice(element);
                continue;
            }
            wrong += 1;
            first.get_or_insert(number * PERIOD + index);
        }
    }
    (wrong, first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_notice_a_byte_on_either_side() {
        let arena = Arena::new(taken(10) + taken(7)).unwrap();
        let mut buffers = arena.carve([10, 7].into_iter());
        assert_eq!(buffers[1].broken_guard(), None);
        buffers[1].flip(7);
        assert_eq!(buffers[1].broken_guard(), Some((7, 0xc2)));
        assert_eq!(buffers[1].broken_guard(), None, "mended");
        assert_eq!(buffers[0].broken_guard(), None, "the neighbour is its own");
    }

    #[test]
    fn a_difference_is_found_at_any_start() {
        let period: Vec<u8> = (0..PERIOD).map(|index| (index % 251) as u8).collect();
        let mut want = [period.clone(), period].concat();
        let arena = Arena::new(taken(5000)).unwrap();
        let mut buffer = arena.carve([5000].into_iter())[0];
        buffer.fill(0, 5000, &want);
        for start in [0, 3, 1020] {
            let got = buffer.contents()[start..4000].to_vec();
            assert_eq!(differences(&got, &mut want, start, 1, |_, _| false), (0, None));
            let mut bad = got.clone();
            bad[2500] ^= 1;
            assert_eq!(differences(&bad, &mut want, start, 1, |_, _| false), (1, Some(2500)));
            assert_ne!(differences(&got, &mut want, start + 1, 1, |_, _| false).0, 0);
        }
    }
}
