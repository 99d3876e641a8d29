//! Copies out of another process's memory that the kernel makes, where it permits them.
//!
//! Memory that its owner has not shared has no address here. `process_vm_readv` reads it all the
//! same: one copy in place of the two that slots take, and a system call that looks up every page.
//! Which of them is faster is measured. Nothing is ever written this way.
//!
//! A process is named by its number, which comes from the kernel ([`ReadableProcess`]), and which
//! another one may get after its death. So whoever reads asks afterwards whether the owner still
//! lives ([`super::pidfd`]): if it does, the number was its own all the time.
#![allow(unsafe_code)]

use super::pidfd::ReadableProcess;
use super::prefetch;
use crate::error::{Error, Result};
use crate::fork::Once;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes that one call of the kernel reads at most: some milliseconds, in which nothing else is
/// seen.
pub const PIECE: usize = 32 << 20;

/// Bytes of a read that is timed: as of messages for which such a copy may be worth it.
const BLOCK: usize = 64 << 10;

/// Reads that are timed, each of bytes that this process has not read before.
const BLOCKS: usize = 4;

/// Words of the memory that peers try to read.
const WORDS: usize = BLOCK * BLOCKS / size_of::<u64>();

/// Where a process lets its peers try, and what they must find there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadProbe {
    /// 0 for none.
    pub address: u64,
    pub word: u64,
}

/// This process's. It stays to the end. All accesses are relaxed: nothing but its first word, which
/// never changes, is looked at.
static MEMORY: Once<Vec<AtomicU64>> = Once::new();

/// Write what peers may read anew, and flush it to memory, where a long message is. The kernel
/// copies bytes of the cache several times as fast: timed on those, its copies were chosen between
/// four ranks on two cores where slots take two thirds of their time
/// (`benches/results/cma-2026-11-27.txt`).
pub fn refresh() {
    let Some(words) = MEMORY.get() else { return };
    words.iter().skip(1).for_each(|word| word.store(1, Relaxed));
    // SAFETY: the memory stays to the end.
    unsafe { prefetch::flush(words.as_ptr().cast(), size_of_val(&words[..])) };
}

impl ReadProbe {
    /// Of this process, whose token no other one has.
    pub fn of_this_process(token: u64) -> ReadProbe {
        let memory = MEMORY.get_or_make(|| {
            let word = |at: u64| AtomicU64::new(at ^ token);
            (0..WORDS as u64).map(word).collect()
        });
        let address = memory.as_ptr().expose_provenance() as u64;
        // A forked child has its parent's word, and another number.
        ReadProbe { address, word: memory[0].load(Relaxed) }
    }

    /// Whether this process may read the memory of the one that says so of itself.
    pub fn is_readable(&self, process: ReadableProcess) -> bool {
        let mut word = 0u64;
        // SAFETY: the word has eight bytes.
        let read = unsafe { read(process, (&raw mut word).cast(), self.address, 8) };
        self.address != 0 && read.is_ok() && word == self.word
    }

    /// What such copies take, in microseconds: to begin with, and a byte. `None` where they are
    /// not permitted.
    pub fn measure(&self, process: ReadableProcess) -> Option<(f64, f64)> {
        if !self.is_readable(process) {
            return None;
        }
        let mut target = vec![1u8; BLOCK];
        let mut time = |offset: usize, bytes: usize| {
            // SAFETY: the block is this function's.
            unsafe { prefetch::flush(target.as_ptr(), BLOCK) };
            let started = Instant::now();
            // SAFETY: a block has room for as many bytes.
            let read =
                unsafe { read(process, target.as_mut_ptr(), self.address + offset as u64, bytes) };
            read.ok().map(|()| started.elapsed().as_secs_f64() * 1e6)
        };
        let (mut begin, mut whole) = (f64::MAX, f64::MAX);
        for block in 0..BLOCKS {
            begin = begin.min(time(block * BLOCK, 8)?);
            whole = whole.min(time(block * BLOCK, BLOCK)?);
        }
        Some((begin, (whole - begin).max(0.0) / (BLOCK - 8) as f64))
    }
}

/// Where a range that was found lendable begins, its bytes, and when that was.
type LendableRange = Option<(usize, usize, Instant)>;

/// How long such a finding holds. Finding out takes a microsecond, a quarter of a short call. A
/// program that gives memory back and has a device's mapped at the same place within this time gets
/// an error from the next call with it, and no wrong bytes.
const HOLDS: Duration = Duration::from_micros(200);

/// Findings kept: calls that follow each other so closely go round few buffers.
const FOUND: usize = 16;

thread_local! {
    static RANGES: Cell<[LendableRange; FOUND]> = const { Cell::new([None; FOUND]) };
}

/// Whether the kernel reads this memory of this process for others, by its ends. What a device has
/// mapped, as the pinned memory of GPUs, it does not; nor anything of a process that has become
/// another user, or has said that nobody may look into it.
pub fn is_lendable(address: *const u8, bytes: usize) -> bool {
    let (start, now) = (address.addr(), Instant::now());
    // Buffers that follow each other have places of their own.
    let place = (start >> 12 ^ start >> 6) % FOUND;
    let mut ranges = RANGES.get();
    let holds = |found: (usize, usize, Instant)| {
        (found.0, found.1) == (start, bytes) && now - found.2 < HOLDS
    };
    if ranges[place].is_some_and(holds) {
        return true;
    }
    let is_lendable = find_lendable(address, bytes);
    if is_lendable {
        ranges[place] = Some((start, bytes, now));
        RANGES.set(ranges);
    }
    is_lendable
}

fn find_lendable(address: *const u8, bytes: usize) -> bool {
    let Some(last) = bytes.checked_sub(1) else { return false };
    // SAFETY: no pointer is passed.
    if unsafe { libc::prctl(libc::PR_GET_DUMPABLE) } != 1 {
        return false;
    }
    let mut ends = [0u8; 2];
    let local = libc::iovec { iov_base: ends.as_mut_ptr().cast(), iov_len: ends.len() };
    let remote = [address, address.wrapping_add(last)]
        .map(|end| libc::iovec { iov_base: end.cast_mut().cast(), iov_len: 1 });
    let me = std::process::id() as i32;
    // SAFETY: the local part is the two bytes; the kernel checks the remote one.
    let read = unsafe { libc::process_vm_readv(me, &local, 1, remote.as_ptr(), 2, 0) };
    read == 2
}

/// Read `bytes` at an address of another process. What it says of its addresses may be false: then
/// this is an error, or reads other memory of the same process.
///
/// # Safety
/// `target` has room for the bytes.
pub unsafe fn read(
    process: ReadableProcess,
    target: *mut u8,
    source: u64,
    bytes: usize,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { read_on(process, target, source, bytes, &mut || Ok(())) }
}

/// As [`read`], a piece at a time, before each of which but the first `may_go_on` is asked.
///
/// # Safety
/// As for `read`.
pub unsafe fn read_on(
    process: ReadableProcess,
    target: *mut u8,
    source: u64,
    bytes: usize,
    may_go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let mut done = 0;
    while done < bytes {
        if done > 0 {
            may_go_on()?;
        }
        let piece = (bytes - done).min(PIECE);
        let local = libc::iovec { iov_base: target.wrapping_add(done).cast(), iov_len: piece };
        let source = source.wrapping_add(done as u64) as usize;
        let iov_base = std::ptr::without_provenance_mut(source);
        let remote = libc::iovec { iov_base, iov_len: piece };
        let number = process.number() as libc::pid_t;
        // SAFETY: the local part lies inside the target; the kernel checks the remote one.
        let read = unsafe { libc::process_vm_readv(number, &local, 1, &remote, 1, 0) };
        match read {
            1.. => done += read as usize,
            _ => {
                return Err(Error::system(format!(
                    "reading {bytes} bytes of process {number} (process_vm_readv)"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_read_where_it_is_and_nowhere_else() {
        let me = ReadableProcess::this();
        let sample = ReadProbe::of_this_process(77);
        assert!(sample.is_readable(me));
        assert_eq!(ReadProbe::of_this_process(78), sample);
        assert!(!ReadProbe { word: sample.word ^ 1, ..sample }.is_readable(me));
        assert!(!ReadProbe { address: 8, ..sample }.is_readable(me));
        assert!(!ReadProbe::default().is_readable(me));
        let (begin, byte) = sample.measure(me).unwrap();
        assert!(begin > 0.0 && byte.is_finite());
        assert_eq!(ReadProbe::default().measure(me), None);
    }

    #[test]
    fn what_cannot_be_read_whole_is_an_error_with_the_process() {
        let page = 4096usize;
        // SAFETY: two pages of anonymous memory, of which the second is given back.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let start = libc::mmap(std::ptr::null_mut(), 2 * page, access, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::munmap(start.wrapping_byte_add(page), page), 0);
            start
        };
        let (me, mut target) = (ReadableProcess::this(), vec![7u8; 2 * page]);
        let mut read_from = |offset: usize, bytes: usize| {
            // SAFETY: the target has two pages.
            unsafe { read(me, target.as_mut_ptr(), (start.addr() + offset) as u64, bytes) }
        };
        assert_eq!(read_from(0, page), Ok(()));
        assert_eq!(read_from(page - 1, 1), Ok(()));
        let error = read_from(page - 1, 2).unwrap_err().to_string();
        assert!(error.contains(&format!("reading 2 bytes of process {}", me.number())), "{error}");
        assert_eq!(target[..page], vec![0; page]);
    }
}
