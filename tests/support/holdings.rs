//! What a process holds, to see that nothing is left behind.

/// What a process holds: descriptors, threads, mapped files without a name.
#[derive(Debug, PartialEq)]
pub struct Holdings {
    descriptors: usize,
    threads: usize,
    mapped_files: usize,
}

impl Holdings {
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
