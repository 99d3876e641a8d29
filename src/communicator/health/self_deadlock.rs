//! A thread that waits for a call which only itself could make: told soon, without a doubt.
//!
//! Where all ranks are threads of this process, a rank that has not come can be called by the
//! program's threads only, or by one of the library's that has its call. If there is none but the
//! thread that waits, nobody will.

use super::wait_check::{GROUP_THEM, OpWaitCheck};
use crate::error::{Error, Result};
use std::fs;
use std::time::Duration;

/// How long a call may take before this is looked into, and between two looks.
const EVERY_S: u64 = 1;

/// Threads that call no rank, by their names, of which the kernel keeps 15 letters: the library's
/// that watch and answer, the Python package's that hears Ctrl-C, and one of the CUDA driver's.
const NEVER_CALLING: [&str; 6] = [
    "ringcomm-ctl",
    "ringcomm-status",
    "ringcomm-guardi",
    "ring-root",
    "ringcomm ctrl-c",
    "cuda-EvtHandlr",
];

/// Others of the driver's have a number behind this, of so many digits at least.
const NUMBERED: (&str, usize) = ("cuda", 8);

impl OpWaitCheck<'_> {
    /// The error of a wait for a rank that this thread would have to call.
    pub(super) fn check_itself(&self, peer: usize, waited: Duration) -> Result<()> {
        let seconds = waited.as_secs() / EVERY_S;
        // A wait begins anew for each peer.
        let is_time = seconds > 0 && self.looked.replace(seconds) != seconds;
        if !is_time || !self.health.together || self.makes_communicator || !is_only_thread() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "rank {} waits in {} for rank {peer}, and the program has no other thread that could \
             call that: {GROUP_THEM}",
            self.health.pages.rank,
            self.operation()
        )))
    }
}

/// Whether the program has no thread but the calling one. `false` where that cannot be told.
fn is_only_thread() -> bool {
    // The link ends in the number of the thread.
    let Ok(own) = fs::read_link("/proc/thread-self") else { return false };
    let own = own.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    let (Some(own), Ok(tasks)) = (own, fs::read_dir("/proc/self/task")) else { return false };
    let mut all = Vec::new();
    for task in tasks.flatten() {
        let Some(number) = task.file_name().to_str().and_then(|name| name.parse().ok()) else {
            return false;
        };
        // One that has ended meanwhile calls nobody.
        let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
        all.push((number, name.trim_end().to_string()));
    }
    is_only(own, std::process::id(), &all)
}

/// Whether all threads but `own` are of those that never call. A thread without a name has that of
/// the thread that made it, as a program's first ones have the program's: where that is such a
/// name, nothing is known.
fn is_only(own: u32, first: u32, all: &[(u32, String)]) -> bool {
    let main = all.iter().find(|(number, _)| *number == first).map_or("", |(_, name)| name);
    let never = |name: &str| never_calls(name) && name != main;
    all.iter().all(|(number, name)| *number == own || never(name))
        && all.iter().any(|(number, name)| *number == own && !never(name))
}

fn never_calls(name: &str) -> bool {
    let (begin, digits) = NUMBERED;
    let is_numbered = name.strip_prefix(begin).is_some_and(|rest| {
        rest.len() >= digits && rest.bytes().all(|digit| digit.is_ascii_hexdigit())
    });
    NEVER_CALLING.contains(&name) || is_numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(names: &[&str]) -> Vec<(u32, String)> {
        (1..).zip(names).map(|(number, name)| (number, name.to_string())).collect()
    }

    #[test]
    fn a_program_of_one_thread_is_known_among_threads_that_never_call() {
        let all = threads(&[
            "train",
            "ringcomm-ctl",
            "ringcomm ctrl-c",
            "cuda-EvtHandlr",
            "cuda00001400006",
        ]);
        assert!(is_only(1, 1, &all));
        // Nor is one that waits in a thread of the library's, while the program's is elsewhere.
        assert!(!is_only(2, 1, &all));
        assert!(!is_only(9, 1, &all));
    }

    #[test]
    fn whoever_might_call_leaves_it_open() {
        for other in
            ["train", "ringcomm stream", "ringcomm init", "python3", "cuda-worker-1", "cudadec", ""]
        {
            assert!(!is_only(1, 1, &threads(&["train", "ringcomm-ctl", other])), "{other}");
        }
        // A pool of a program that is named as one of the driver's threads is.
        assert!(!is_only(1, 1, &threads(&["cuda0000cafe", "cuda0000cafe"])));
        assert!(is_only(1, 1, &threads(&["cuda0000cafe"])));
    }

    #[test]
    fn a_test_among_others_is_not_alone() {
        std::thread::scope(|scope| {
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || stopped.recv());
            assert!(!is_only_thread());
            drop(stop);
        });
    }
}
