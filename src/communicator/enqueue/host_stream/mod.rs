//! A host stream: a queue of jobs that one thread of its own runs in order, beside the caller.
//!
//! Submitting moves the job into a slot of a bounded queue and, only if the worker sleeps, wakes
//! it: no allocation and no lock. Two counters tell all the rest: jobs *accepted* and jobs
//! *completed*; the stream is idle when they are equal.

mod failures;

use self::failures::Failures;
use crate::bootstrap::process_token;
use crate::error::{Error, Result};
use crate::os::thread_signals;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use crate::sync::{Condvar, Mutex};
use crate::transport::wait;
use crossbeam::queue::ArrayQueue;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle, Thread, ThreadId};
use std::time::{Duration, Instant};

/// Jobs that may wait in a stream; whoever submits one more waits for a place. A model has a few
/// hundred gradient buckets a step, and a caller further ahead than that gains nothing.
const CAPACITY: usize = 256;

/// Looks at the queue before the worker goes to sleep, and at the counter before a waiting caller
/// does: over sooner than a thread is woken.
const SPINS: usize = 200;

/// Between two looks of a waiting caller at what no completion announces (an abort): unnoticed by
/// the user who aborts and by the processor.
const LOOK: Duration = Duration::from_millis(10);

/// The bit of a mark with which [`JobStream::reached`] is asked for the job just before the mark
/// alone; numbers of jobs do not come to it.
pub const ALONE: u64 = 1 << 63;

/// What a stream runs. A type of fixed size, so that a queue slot holds it.
pub trait StreamTask: Send + 'static {
    fn run(self) -> Result<()>;

    /// Why there is no point in waiting for a place any more, if there is none.
    fn given_up(&self) -> Option<Error> {
        None
    }
}

impl StreamTask for Box<dyn FnOnce() -> Result<()> + Send> {
    fn run(self) -> Result<()> {
        self()
    }
}

/// What the worker shares with the callers.
struct StreamState<J> {
    queue: ArrayQueue<J>,
    /// Jobs that entered, or are about to enter, the queue. SeqCst: pairs with the worker's load
    /// after `stopping`, so that a job accepted before the stop is also run.
    accepted: AtomicU64,
    /// Jobs that have run. Release by the worker: pairs with the Acquire loads of whoever waits.
    completed: AtomicU64,
    /// The worker is about to park. SeqCst on both sides: either it sees the new job or the
    /// submitter sees the flag.
    sleeping: AtomicBool,
    /// No more jobs are accepted. SeqCst: pairs with `accepted`.
    stopping: AtomicBool,
    /// Somebody waits on `progress`. SeqCst on both sides: either the waiter sees the counter or
    /// the worker sees the flag.
    has_waiters: AtomicBool,
    /// What went wrong; `progress` is waited for with its lock.
    failures: Mutex<Failures>,
    progress: Condvar,
}

/// An in-order queue with a worker thread.
pub struct JobStream<J: StreamTask> {
    shared: Arc<StreamState<J>>,
    worker: Mutex<Option<JoinHandle<()>>>,
    thread: Thread,
    /// The process image that has the worker; a forked child has only the memory.
    process: u64,
}

impl<J: StreamTask> JobStream<J> {
    pub fn new() -> Result<Arc<JobStream<J>>> {
        let process = process_token()?;
        let shared = Arc::new(StreamState {
            queue: ArrayQueue::new(CAPACITY),
            accepted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            sleeping: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            has_waiters: AtomicBool::new(false),
            failures: Mutex::new(Failures::default()),
            progress: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let worker = thread_signals::spawn_deaf("ringcomm stream", move || theirs.work()).map_err(
            |error| Error::System {
                what: "starting a stream's thread".into(),
                errno: error.raw_os_error().unwrap_or(0),
            },
        )?;
        let thread = worker.thread().clone();
        Ok(Arc::new(JobStream { shared, worker: Mutex::new(Some(worker)), thread, process }))
    }

    fn check_process(&self) -> Result<()> {
        if process_token()? == self.process {
            return Ok(());
        }
        Err(Error::usage(
            "this host stream belongs to the parent process: its thread does not exist in a forked \
             child; create a stream in the child",
        ))
    }

    /// Run `job` after all that were submitted before. Waits only while the queue is full.
    pub fn submit(&self, job: J) -> Result<()> {
        self.check_process()?;
        let shared = &*self.shared;
        shared.accepted.fetch_add(1, SeqCst);
        if shared.stopping.load(SeqCst) {
            return Err(self.take_back(Error::usage("the host stream was destroyed")));
        }
        let mut job = job;
        while let Err(refused) = shared.queue.push(job) {
            job = refused;
            if let Some(error) = job.given_up() {
                return Err(self.take_back(error));
            }
            shared.wait(|| !shared.queue.is_full() || job.given_up().is_some());
        }
        // The push must not pass the load below: see `sleeping`.
        crate::sync::atomic::fence(SeqCst);
        if shared.sleeping.load(SeqCst) && shared.sleeping.swap(false, SeqCst) {
            self.thread.unpark();
        }
        Ok(())
    }

    /// A submission that came to nothing takes its number back, which others may wait for.
    #[cold]
    fn take_back(&self, error: Error) -> Error {
        self.shared.accepted.fetch_sub(1, SeqCst);
        self.thread.unpark();
        self.shared.announce();
        error
    }

    /// Wait for every job submitted so far; the first error since the last call, if there was one.
    pub fn synchronize(&self) -> Result<()> {
        self.check_process()?;
        if self.is_worker() {
            return Err(Error::usage("a job of a host stream waits for its own stream"));
        }
        let shared = &*self.shared;
        let target = shared.accepted.load(SeqCst);
        // A submission that came to nothing takes its number back.
        shared.wait(|| shared.completed.load(SeqCst) >= target.min(shared.accepted.load(SeqCst)));
        shared.failures.lock().take()
    }

    /// Whether all is done: `None` while it is not, else as `synchronize`, which alone clears the
    /// error.
    pub fn query(&self) -> Result<Option<Result<()>>> {
        self.check_process()?;
        // Acquire: pairs with the worker's Release.
        if self.shared.completed.load(Acquire) < self.shared.accepted.load(SeqCst) {
            return Ok(None);
        }
        Ok(Some(self.shared.failures.lock().until(u64::MAX)))
    }

    /// How many jobs were submitted so far: what [`JobStream::reached`] is asked for.
    pub fn mark(&self) -> Result<u64> {
        self.check_process()?;
        Ok(self.shared.accepted.load(SeqCst))
    }

    /// Wait until as many jobs are done as `mark` says, or until `patience` ends; whether they are
    /// done, or the first error among them since the last `synchronize`, which alone clears it.
    /// With [`ALONE`] in the mark it is the error of the last of them, if that failed, also after a
    /// `synchronize`.
    pub fn reached(&self, mark: u64, patience: Option<Duration>) -> Result<bool> {
        self.check_process()?;
        let shared = &*self.shared;
        let (alone, mark) = (mark & ALONE != 0, mark & !ALONE);
        let outcome = || {
            let failures = shared.failures.lock();
            if alone { failures.of(mark) } else { failures.until(mark) }.map(|()| true)
        };
        // A submission that came to nothing takes its number back.
        let done = || shared.completed.load(SeqCst) >= mark.min(shared.accepted.load(SeqCst));
        if done() {
            return outcome();
        }
        if self.is_worker() {
            return Err(Error::usage("a job of a host stream waits for its own stream"));
        }
        // A patience past the end of time is none.
        match patience.map(|patience| Instant::now().checked_add(patience)) {
            Some(Some(end)) => shared.wait(|| done() || Instant::now() >= end),
            _ => shared.wait(done),
        }
        if !done() {
            return Ok(false);
        }
        outcome()
    }

    /// Run what was submitted, end the thread, and return the first error.
    pub fn destroy(&self) -> Result<()> {
        self.check_process()?;
        if self.is_worker() {
            return Err(Error::usage("a job of a host stream destroys its own stream"));
        }
        self.stop();
        self.shared.failures.lock().take()
    }

    fn is_worker(&self) -> bool {
        thread::current().id() == self.id()
    }

    fn id(&self) -> ThreadId {
        self.thread.id()
    }

    fn stop(&self) {
        self.shared.stopping.store(true, SeqCst);
        self.thread.unpark();
        if let Some(worker) = self.worker.lock().take() {
            // A worker that drops the last handle to its own stream cannot wait for itself; it ends
            // by itself, since the queue is empty and stopping.
            if !self.is_worker() {
                let _ = worker.join();
            }
        }
    }
}

impl<J: StreamTask> Drop for JobStream<J> {
    fn drop(&mut self) {
        if process_token().is_ok_and(|token| token == self.process) {
            self.stop();
        } else {
            // A forked child: there is no thread to end, and the handle must not look for one.
            std::mem::forget(self.worker.get_mut().take());
        }
    }
}

impl<J: StreamTask> StreamState<J> {
    fn work(&self) {
        // Who gives a stream calls has something else to do.
        wait::work_beside();
        while let Some(job) = self.next() {
            let result = catch_unwind(AssertUnwindSafe(|| job.run()))
                .unwrap_or_else(|_| Err(Error::Internal("a job of a host stream panicked".into())));
            if let Err(error) = result {
                // Relaxed: this thread alone writes it.
                let number = self.completed.load(Relaxed) + 1;
                self.failures.lock().add(number, error);
            }
            self.completed.fetch_add(1, SeqCst);
            self.announce();
        }
    }

    /// The next job; `None` once the stream is stopping and all are done.
    fn next(&self) -> Option<J> {
        loop {
            for _ in 0..SPINS {
                if let Some(job) = self.queue.pop() {
                    return Some(job);
                }
                std::hint::spin_loop();
            }
            self.sleeping.store(true, SeqCst);
            let idle = self.queue.is_empty();
            let stopping = self.stopping.load(SeqCst);
            if stopping && self.completed.load(SeqCst) == self.accepted.load(SeqCst) {
                return None;
            }
            if idle {
                // Woken by `submit` and `stop`; a wake-up that came since stays pending.
                thread::park();
            }
            self.sleeping.store(false, SeqCst);
        }
    }

    /// Wake whoever waits for a counter.
    fn announce(&self) {
        if self.has_waiters.load(SeqCst) {
            let _guard = self.failures.lock();
            self.has_waiters.store(false, SeqCst);
            self.progress.notify_all();
        }
    }

    /// Wait until `ready`: a job's completion is seen at once, what else may end it at the next
    /// look.
    fn wait(&self, ready: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.failures.lock();
        loop {
            self.has_waiters.store(true, SeqCst);
            if ready() {
                return;
            }
            self.progress.wait_for(&mut guard, LOOK);
        }
    }
}
