//! Handles in a process that was forked with them.

use super::support::forks::{fork_child, reap};
use super::*;

#[test]
fn handles_of_the_parent_are_refused_in_a_child_by_name() {
    let all = init_all(2);
    let comm = all[0];
    let (child, text) = fork_child(Duration::ZERO, || {
        let mut count = 0;
        // SAFETY: safe for any handle; the place is a local.
        let results = unsafe {
            [
                ringBarrier(comm.comm(), null_mut()),
                ringCommCount(comm.comm(), &mut count),
                ringCommFinalize(comm.comm()),
                ringCommAbort(comm.comm()),
                ringCommDestroy(comm.comm()),
            ]
        };
        let alike = results.iter().all(|result| *result == ringInvalidUsage);
        format!("{alike} {}", last_error())
    });
    let reason = "this process is a fork of the one that made the communicator";
    assert!(text.starts_with("true") && text.contains(reason), "{text}");
    reap(child);
    std::thread::scope(|scope| {
        join_all(all.iter().enumerate().map(|(rank, comm)| {
            scope.spawn(move || assert_eq!(gather(comm.comm(), rank as i32), [0, 1]))
        }));
    });
    end_all(&all);
}
