//! What a process holds, to see that nothing is left behind.

use std::time::{Duration, Instant};

/// What a process holds: descriptors, threads, mapped files without a name.
#[derive(Debug, PartialEq)]
pub struct Holdings {
    descriptors: usize,
    threads: usize,
    mapped_files: usize,
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
        }
    }
}
