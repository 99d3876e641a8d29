//! What a process holds, and which names the machine knows, to see that nothing is left behind.

use std::collections::BTreeSet;
use std::path::Path;
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
        // Else the C library keeps long buffers that were freed, from the second on.
        // SAFETY: the call only sets from which length on it maps them.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10) };
        let entries = |path: &str| std::fs::read_dir(path).expect(path).count();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        Holdings {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            mapped_files: maps.lines().filter(|line| line.contains("memfd:")).count(),
            mapped_bytes: maps.lines().filter_map(readable_bytes).sum(),
        }
    }
}

/// Bytes that are taken from the C library's heap.
pub fn heap_bytes() -> usize {
    // SAFETY: the call has no preconditions.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// How many threads a process has.
pub fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").count()
}

/// The size of the mapping that a line of /proc/self/maps is about. What nobody may read is address
/// space that the heap keeps for itself.
fn readable_bytes(line: &str) -> Option<usize> {
    let (range, rest) = line.split_once(' ')?;
    let (low, high) = range.split_once('-')?;
    let bound = |text| usize::from_str_radix(text, 16).expect("hex");
    rest.starts_with('r').then(|| bound(high) - bound(low))
}

/// How much shared memory this process has mapped, in mappings; panics where any has a name.
pub fn shared_without_a_name() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let access = |line: &str| line.split(' ').nth(1).map(str::to_string).expect("access");
    let shared: Vec<&str> = maps.lines().filter(|line| access(line).ends_with('s')).collect();
    for line in &shared {
        assert!(line.contains(" /memfd:"), "shared memory that has a name: {line}");
    }
    shared.len()
}

/// The library's names that outlive a process, or its communicator: files in /dev/shm and the
/// temporary folder, and Unix sockets.
pub struct Names(BTreeSet<String>);

impl Names {
    pub fn now() -> Names {
        let mut names = BTreeSet::new();
        for folder in [Path::new("/dev/shm"), &std::env::temp_dir()] {
            let Ok(entries) = std::fs::read_dir(folder) else { continue };
            // Folders are other tests'.
            let files = entries.flatten().filter(|entry| !entry.path().is_dir());
            names.extend(files.map(|entry| entry.path().to_string_lossy().into_owned()));
        }
        let sockets = std::fs::read_to_string("/proc/net/unix").expect("sockets");
        names
            .extend(sockets.lines().filter_map(|line| Some(line.split_once(['@', '/'])?.1.into())));
        // A compiler that is at work names its files by its source.
        names.retain(|name| name.contains("ringcomm") && !name.contains("tmpxft"));
        Names(names)
    }

    /// Panics with the names that have come since and stay. Those of other programs of the machine
    /// go when they have met, which takes them a moment, or their deadline.
    pub fn are_all(&self) {
        let started = Instant::now();
        let mut new: BTreeSet<String> = Names::now().0.difference(&self.0).cloned().collect();
        while !new.is_empty() {
            assert!(started.elapsed() < Duration::from_secs(20), "left behind: {new:?}");
            std::thread::sleep(Duration::from_millis(20));
            let now = Names::now();
            new.retain(|name| now.0.contains(name));
        }
    }
}

/// Let this process have no more descriptors, or as many as ever again.
pub fn set_descriptors(limit: Option<u64>) {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both are valid limits.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits), 0);
        limits.rlim_cur = limit.unwrap_or(limits.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limits), 0);
    }
}
