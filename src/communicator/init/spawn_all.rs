//! Jobs that wait for each other: each gets a thread of its own, or none of them begins.

use crate::error::{Error, Result};
use std::sync::mpsc;
use std::thread::{self, Builder};

/// Run every job on a thread of its own, all at the same time; what each returned, or that it
/// panicked. Where a thread is not to be had no job begins.
pub fn all_or_none<T: Send>(
    jobs: impl IntoIterator<Item = impl FnOnce() -> T + Send>,
) -> Result<Vec<thread::Result<T>>> {
    run(jobs, |_| Builder::new().name("ringcomm init".into()))
}

fn run<T: Send>(
    jobs: impl IntoIterator<Item = impl FnOnce() -> T + Send>,
    builder: impl Fn(usize) -> Builder,
) -> Result<Vec<thread::Result<T>>> {
    thread::scope(|scope| {
        let (mut starts, mut threads) = (Vec::new(), Vec::new());
        for (index, job) in jobs.into_iter().enumerate() {
            let (start, started) = mpsc::sync_channel::<()>(1);
            let body = move || started.recv().is_ok().then(job);
            // A start that is dropped is never given: the threads that are there end.
            let thread = builder(index).spawn_scoped(scope, body).map_err(|error| {
                let what = format!("starting thread {index} of those that make communicators");
                Error::System { what, errno: error.raw_os_error().unwrap_or(0) }
            })?;
            starts.push(start);
            threads.push(thread);
        }
        for start in starts {
            start.send(()).expect("the thread waits for it");
        }
        let join = |thread: thread::ScopedJoinHandle<Option<T>>| thread.join();
        Ok(threads.into_iter().map(|t| join(t).map(|out| out.expect("it began"))).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn all_jobs_run_at_the_same_time() {
        let barrier = Barrier::new(5);
        let jobs = (0..5).map(|number| {
            let barrier = &barrier;
            move || {
                barrier.wait();
                number
            }
        });
        let done: Vec<usize> = all_or_none(jobs).unwrap().into_iter().map(|r| r.unwrap()).collect();
        assert_eq!(done, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn no_job_begins_where_a_thread_is_not_to_be_had() {
        let begun = AtomicUsize::new(0);
        let jobs = (0..4).map(|_| || begun.fetch_add(1, Relaxed));
        // No machine has memory for such a stack.
        let builder = |index| match index {
            3 => Builder::new().stack_size(1 << 60),
            _ => Builder::new(),
        };
        let error = run(jobs, builder).unwrap_err();
        assert!(error.to_string().contains("starting thread 3"), "{error}");
        assert_eq!(begun.load(Relaxed), 0);
    }
}
