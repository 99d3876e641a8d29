//! What a process holds, to see that nothing is left behind.

use std::time::{Duration, Instant};

/// What a process holds: descriptors, threads, mapped files without a name, memory.
#[derive(Debug)]
pub struct Holdings {
    descriptors: usize,
    threads: usize,
    mapped_files: usize,
    /// Bytes of everything mapped that can be read.
    mapped_bytes: usize,
}

/// The heap grows and shrinks by pages, and the C library keeps the stacks of threads that have
/// ended, 2 MiB each, for the next ones. The rings of one rank take 4 MiB.
const SLACK: usize = 12 << 20;

impl PartialEq for Holdings {
    fn eq(&self, other: &Holdings) -> bool {
        let counts = |of: &Holdings| (of.descriptors, of.threads, of.mapped_files);
        let is_near = self.mapped_bytes.abs_diff(other.mapped_bytes) <= SLACK;
        counts(self) == counts(other) && is_near
    }
}

impl Holdings {
    /// What is held when it is as before, or after a second in which it is not: the kernel lists a
    /// thread for a moment after it was joined.
    pub fn back_to(before: &Holdings) -> Holdings {
        let started = Instant::now();
        loop {
            let now = Holdings::now();
            if now == *before || started.elapsed() > Duration::from_secs(1) {
                return now;
            }
            std::thread::yield_now();
        }
    }

    pub fn now() -> Holdings {
        let entries = |path: &str| std::fs::read_dir(path).expect(path).count();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        assert!(!maps.contains("/dev/shm"), "a file in /dev/shm is mapped");
        Holdings {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            mapped_files: maps.lines().filter(|line| line.contains("memfd:")).count(),
            mapped_bytes: maps.lines().filter_map(readable_bytes).sum(),
        }
    }
}

/// The size of the mapping that a line of /proc/self/maps is about. What nobody may read is address
/// space that the heap keeps for itself.
fn readable_bytes(line: &str) -> Option<usize> {
    let (range, rest) = line.split_once(' ')?;
    let (low, high) = range.split_once('-')?;
    let bound = |text| usize::from_str_radix(text, 16).expect("hex");
    rest.starts_with('r').then(|| bound(high) - bound(low))
}
