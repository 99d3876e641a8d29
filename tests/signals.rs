//! Threads of the library leave the program's signals to the program's own.

use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::communicator::enqueue::host_stream::{JobStream, StreamTask};
use ringcomm::config::Config;
use ringcomm::error::Result;
use std::time::{Duration, Instant};

struct Nothing;

impl StreamTask for Nothing {
    fn run(self) -> Result<()> {
        Ok(())
    }
}

/// The names of this process's threads of the library that take no SIGTERM; all of them must.
fn deaf_threads() -> Vec<String> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let read = |file: &str| std::fs::read_to_string(thread.as_ref().unwrap().path().join(file));
        // A thread of the test harness may have ended since.
        let (Ok(name), Ok(status)) = (read("comm"), read("status")) else { continue };
        let name = name.trim().to_string();
        if ["ringcomm stream", "ring-ids"].contains(&name.as_str()) {
            let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            let blocked = u64::from_str_radix(line.trim(), 16).unwrap();
            assert_ne!(blocked & 1 << (libc::SIGTERM - 1), 0, "{name}: {blocked:x}");
            found.push(name);
        }
    }
    found.sort();
    found.dedup();
    found
}

/// A program that waits for a signal itself blocks it in the threads that it knows of.
#[test]
fn threads_of_the_library_take_no_signal_of_the_program() {
    let stream = JobStream::<Nothing>::new().unwrap();
    let config = Config { interfaces: Some("lo".into()), ..Config::default() };
    let _root = root_threads::start(&config).unwrap();
    // A thread gives itself its name when it begins.
    let begun = Instant::now();
    while deaf_threads() != ["ring-ids", "ringcomm stream"] {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", deaf_threads());
        std::thread::yield_now();
    }
    stream.destroy().unwrap();
}
