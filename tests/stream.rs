//! Host streams and groups, with a mock in the place of the communicator.

use parking_lot::Mutex;
use ringcomm::communicator::enqueue::group::{
    self, Group, GroupAction, GroupCall, GroupMember, LastError, StreamJob,
};
use ringcomm::communicator::enqueue::host_stream::{JobStream, StreamTask};
use ringcomm::error::{Error, Result};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, OnceLock};

/// Counts what the process allocates.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tests that count allocations must not see those of others: every test takes this.
static ALONE: Mutex<()> = Mutex::new(());

type Boxed = Box<dyn FnOnce() -> Result<()> + Send>;

fn job(work: impl FnOnce() -> Result<()> + Send + 'static) -> Boxed {
    Box::new(work)
}

fn failure(text: &str) -> Error {
    Error::InvalidUsage(text.into())
}

#[test]
fn jobs_run_in_order_though_the_queue_is_shorter() {
    let _alone = ALONE.lock();
    let stream = JobStream::<Boxed>::new().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    for index in 0..2000 {
        let seen = Arc::clone(&seen);
        stream
            .submit(job(move || {
                seen.lock().push(index);
                Ok(())
            }))
            .unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(*seen.lock(), (0..2000).collect::<Vec<_>>());
}

#[test]
fn two_streams_run_at_the_same_time() {
    let _alone = ALONE.lock();
    // Each job waits for the other: one thread for both would never end.
    let both = Arc::new(Barrier::new(2));
    let streams = [JobStream::<Boxed>::new().unwrap(), JobStream::new().unwrap()];
    for stream in &streams {
        let both = Arc::clone(&both);
        stream
            .submit(job(move || {
                both.wait();
                Ok(())
            }))
            .unwrap();
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
}

#[test]
fn the_first_error_surfaces_once_and_later_jobs_still_run() {
    let _alone = ALONE.lock();
    let stream = JobStream::<Boxed>::new().unwrap();
    let ran = Arc::new(AtomicU64::new(0));
    for index in 0..5 {
        let ran = Arc::clone(&ran);
        let work = move || {
            ran.fetch_add(1, SeqCst);
            if index >= 2 { Err(failure(&format!("job {index}"))) } else { Ok(()) }
        };
        stream.submit(job(work)).unwrap();
    }
    assert_eq!(stream.synchronize(), Err(failure("job 2")));
    assert_eq!(ran.load(SeqCst), 5);
    stream.synchronize().unwrap();
    stream.submit(job(|| panic!("on purpose"))).unwrap();
    assert!(stream.synchronize().unwrap_err().to_string().contains("panicked"));
}

#[test]
fn query_tells_progress_and_keeps_the_error() {
    let _alone = ALONE.lock();
    let stream = JobStream::<Boxed>::new().unwrap();
    let listener = Arc::new(Barrier::new(2));
    let theirs = Arc::clone(&listener);
    stream
        .submit(job(move || {
            theirs.wait();
            Err(failure("late"))
        }))
        .unwrap();
    assert_eq!(stream.query().unwrap(), None);
    listener.wait();
    while stream.query().unwrap().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(stream.query().unwrap(), Some(Err(failure("late"))));
    assert_eq!(stream.synchronize(), Err(failure("late")));
    assert_eq!(stream.query().unwrap(), Some(Ok(())));
}

#[test]
fn a_mark_is_reached_while_later_jobs_run() {
    let _alone = ALONE.lock();
    let stream = JobStream::<Boxed>::new().unwrap();
    let listeners: [Arc<Barrier>; 2] = std::array::from_fn(|_| Arc::new(Barrier::new(2)));
    let marks = listeners.each_ref().map(|listener| {
        let theirs = Arc::clone(listener);
        let work = move || {
            theirs.wait();
            Err(failure("failed jobs are done, too"))
        };
        stream.submit(job(work)).unwrap();
        stream.mark().unwrap()
    });
    let moment = Some(std::time::Duration::from_millis(1));
    assert_eq!(stream.reached(marks[0], moment), Ok(false));
    listeners[0].wait();
    let failed = Err(failure("failed jobs are done, too"));
    assert_eq!(stream.reached(marks[0], None), failed);
    assert_eq!(stream.reached(marks[1], moment), Ok(false));
    listeners[1].wait();
    assert_eq!(stream.reached(marks[1], None), failed);
    assert_eq!(stream.reached(0, None), Ok(true));
}

#[test]
fn a_mark_tells_the_errors_of_the_jobs_before_it_alone() {
    let _alone = ALONE.lock();
    let stream = JobStream::<Boxed>::new().unwrap();
    let marks: Vec<u64> = (0..4)
        .map(|index| {
            let result = if index == 1 || index == 2 { Err(failure("a job")) } else { Ok(()) };
            stream.submit(job(move || result)).unwrap();
            stream.mark().unwrap()
        })
        .collect();
    assert_eq!(stream.reached(marks[3], None), Err(failure("a job")));
    assert_eq!(stream.reached(marks[1], None), Err(failure("a job")));
    assert_eq!(stream.reached(marks[0], None), Ok(true));
    assert_eq!(stream.synchronize(), Err(failure("a job")));
    assert_eq!(stream.reached(marks[3], None), Ok(true));
}

#[test]
fn destroy_runs_what_was_submitted_and_then_refuses() {
    let _alone = ALONE.lock();
    let stream = JobStream::<Boxed>::new().unwrap();
    let ran = Arc::new(AtomicU64::new(0));
    for _ in 0..100 {
        let ran = Arc::clone(&ran);
        stream
            .submit(job(move || {
                ran.fetch_add(1, SeqCst);
                Ok(())
            }))
            .unwrap();
    }
    stream.destroy().unwrap();
    assert_eq!(ran.load(SeqCst), 100);
    assert!(stream.submit(job(|| Ok(()))).unwrap_err().to_string().contains("destroyed"));
    stream.synchronize().unwrap();
    stream.destroy().unwrap();
}

#[test]
fn many_threads_submit_and_wait() {
    let _alone = ALONE.lock();
    let stream = JobStream::<Boxed>::new().unwrap();
    let ran = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Joined one by one: ThreadSanitizer does not see how a scope waits for its threads.
        let submit = |_| {
            scope.spawn(|| {
                for _ in 0..500 {
                    let mine = Arc::new(AtomicU64::new(0));
                    let (theirs, ran) = (Arc::clone(&mine), Arc::clone(&ran));
                    let work = move || {
                        theirs.store(1, SeqCst);
                        ran.fetch_add(1, SeqCst);
                        Ok(())
                    };
                    stream.submit(job(work)).unwrap();
                    stream.synchronize().unwrap();
                    assert_eq!(mine.load(SeqCst), 1, "synchronize came back too early");
                }
            })
        };
        let threads: Vec<_> = (0..4).map(submit).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a thread panicked"));
    });
    assert_eq!(ran.load(SeqCst), 2000);
}

#[test]
fn a_forked_child_is_told_that_the_stream_is_not_its_own() {
    let _alone = ALONE.lock();
    let stream = JobStream::<Boxed>::new().unwrap();
    // SAFETY: the child allocates a little, which glibc permits after fork, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = |result: Result<()>| {
            result.is_err_and(|error| error.to_string().contains("belongs to the parent"))
        };
        let all = told(stream.submit(job(|| Ok(())))) && told(stream.synchronize());
        drop(stream);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    let mut status = -1;
    // SAFETY: `status` is a live integer.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    stream.submit(job(|| Ok(()))).unwrap();
    stream.synchronize().unwrap();
}

/// A job without a box, as the library's own.
struct Add(Arc<AtomicU64>);

impl StreamTask for Add {
    fn run(self) -> Result<()> {
        self.0.fetch_add(1, SeqCst);
        Ok(())
    }
}

/// What `work` allocates, all threads together, once everything is warm.
fn allocations(mut work: impl FnMut()) -> u64 {
    (0..20).for_each(|_| work());
    let before = ALLOCATIONS.load(SeqCst);
    (0..100).for_each(|_| work());
    ALLOCATIONS.load(SeqCst) - before
}

/// The test harness reports from its own thread at moments of its own, so a few tries.
fn never_allocates(mut work: impl FnMut()) {
    let least = (0..5).map(|_| allocations(&mut work)).min().unwrap();
    assert_eq!(least, 0);
}

#[test]
fn submitting_allocates_nothing() {
    let _alone = ALONE.lock();
    let stream = JobStream::<Add>::new().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    never_allocates(|| {
        (0..10).for_each(|_| stream.submit(Add(Arc::clone(&count))).unwrap());
        stream.synchronize().unwrap();
    });
}

/// What a mock communicator saw.
type Log = Arc<Mutex<Vec<String>>>;

struct Mock {
    name: &'static str,
    log: Log,
    meet: Option<Arc<Barrier>>,
    worker: OnceLock<Arc<JobStream<StreamJob<Mock>>>>,
    notes: LastError,
}

impl Mock {
    fn new(name: &'static str, log: &Log, meet: Option<&Arc<Barrier>>) -> Arc<Mock> {
        let (log, meet) = (Arc::clone(log), meet.cloned());
        Arc::new(Mock { name, log, meet, worker: OnceLock::new(), notes: LastError::default() })
    }
}

impl GroupMember for Mock {
    /// 0 is silent, 13 fails.
    type Call = u32;
    type Message = u32;

    fn run(&self, call: &u32) -> Result<()> {
        if let Some(meet) = &self.meet {
            meet.wait();
        }
        if *call != 0 {
            self.log.lock().push(format!("{}{call}", self.name));
        }
        if *call == 13 { Err(failure(self.name)) } else { Ok(()) }
    }

    fn exchange(&self, messages: &[u32]) -> Result<()> {
        if messages[0] != 0 {
            self.log.lock().push(format!("{}{messages:?}", self.name));
        }
        Ok(())
    }

    fn worker(&self) -> Result<Arc<JobStream<StreamJob<Mock>>>> {
        Ok(Arc::clone(self.worker.get_or_init(|| JobStream::new().unwrap())))
    }

    fn notes(&self) -> &LastError {
        &self.notes
    }
}

type State = RefCell<Group<Mock>>;

fn call(
    state: &State,
    on: &Arc<Mock>,
    stream: Option<&Arc<JobStream<StreamJob<Mock>>>>,
    number: u32,
) {
    let (communicator, stream) = (Arc::clone(on), stream.cloned());
    let entry =
        GroupCall { communicator, stream, action: GroupAction::Collective(number), is_tied: false };
    state.borrow_mut().defer(entry).unwrap();
}

fn send(state: &State, on: &Arc<Mock>, number: u32) {
    let communicator = Arc::clone(on);
    let entry = GroupCall {
        communicator,
        stream: None,
        action: GroupAction::Message(number),
        is_tied: false,
    };
    state.borrow_mut().defer(entry).unwrap();
}

#[test]
fn a_nested_group_runs_at_the_outermost_end_with_messages_in_batches() {
    let _alone = ALONE.lock();
    let (log, state) = (Log::default(), State::default());
    let a = Mock::new("a", &log, None);
    state.borrow_mut().start();
    send(&state, &a, 1);
    state.borrow_mut().start();
    send(&state, &a, 2);
    call(&state, &a, None, 3);
    group::end(&state).unwrap();
    assert!(state.borrow().is_open() && log.lock().is_empty());
    send(&state, &a, 4);
    call(&state, &a, None, 5);
    group::end(&state).unwrap();
    assert!(!state.borrow().is_open());
    assert_eq!(*log.lock(), ["a3", "a5", "a[1, 2, 4]"]);
    assert!(group::end(&state).unwrap_err().to_string().contains("never started"));
    let entry = GroupCall {
        communicator: a,
        stream: None,
        action: GroupAction::Message(1),
        is_tied: false,
    };
    assert!(state.borrow_mut().defer(entry).is_err());
}

#[test]
fn communicators_of_a_group_run_at_the_same_time() {
    let _alone = ALONE.lock();
    let (log, state) = (Log::default(), State::default());
    // Every call waits for one of each other communicator.
    let meet = Arc::new(Barrier::new(3));
    let all = ["a", "b", "c"].map(|name| Mock::new(name, &log, Some(&meet)));
    for round in 0..20 {
        state.borrow_mut().start();
        for number in 1..=2 {
            all.iter().for_each(|mock| call(&state, mock, None, number));
        }
        group::end(&state).unwrap();
        assert_eq!(log.lock().len(), 6, "round {round}");
        for mock in &all {
            let own: Vec<_> =
                log.lock().iter().filter(|text| text.starts_with(mock.name)).cloned().collect();
            assert_eq!(own, [format!("{}1", mock.name), format!("{}2", mock.name)]);
        }
        log.lock().clear();
    }
}

#[test]
fn the_first_error_in_the_order_of_the_group_is_returned() {
    let _alone = ALONE.lock();
    let (log, state) = (Log::default(), State::default());
    let all = ["a", "b", "c"].map(|name| Mock::new(name, &log, None));
    state.borrow_mut().start();
    call(&state, &all[0], None, 1);
    call(&state, &all[2], None, 13);
    call(&state, &all[1], None, 13);
    assert_eq!(group::end(&state), Err(failure("c")));
    state.borrow_mut().start();
    all.iter().for_each(|mock| call(&state, mock, None, 2));
    group::end(&state).unwrap();
}

#[test]
fn a_bad_call_drops_the_group() {
    let _alone = ALONE.lock();
    let (log, state) = (Log::default(), State::default());
    let a = Mock::new("a", &log, None);
    state.borrow_mut().fail(failure("outside"));
    state.borrow_mut().start();
    call(&state, &a, None, 1);
    state.borrow_mut().fail(failure("first"));
    state.borrow_mut().fail(failure("second"));
    assert_eq!(group::end(&state), Err(failure("first")));
    assert!(log.lock().is_empty());
    // Two streams for one communicator have no order.
    let streams = [JobStream::new().unwrap(), JobStream::new().unwrap()];
    state.borrow_mut().start();
    call(&state, &a, Some(&streams[0]), 1);
    let stream = Some(Arc::clone(&streams[1]));
    let entry = GroupCall {
        communicator: Arc::clone(&a),
        stream,
        action: GroupAction::Collective(2),
        is_tied: false,
    };
    assert!(state.borrow_mut().defer(entry).unwrap_err().to_string().contains("two streams"));
    assert!(group::end(&state).is_err());
    state.borrow_mut().start();
    group::end(&state).unwrap();
    assert!(log.lock().is_empty());
    assert_eq!(Arc::strong_count(&a), 1, "the group kept a communicator");
}

#[test]
fn calls_with_streams_are_left_to_them() {
    let _alone = ALONE.lock();
    let (log, state) = (Log::default(), State::default());
    // `a` and `b` share one stream and wait for each other, `c` has its own and waits for both.
    let meet = Arc::new(Barrier::new(3));
    let all = ["a", "b", "c"].map(|name| Mock::new(name, &log, Some(&meet)));
    let streams = [JobStream::new().unwrap(), JobStream::new().unwrap()];
    state.borrow_mut().start();
    for number in [1, 13] {
        for (index, mock) in all.iter().enumerate() {
            call(&state, mock, Some(&streams[index / 2]), number);
        }
    }
    group::end(&state).unwrap();
    assert_eq!(streams[0].synchronize(), Err(failure("a")));
    assert_eq!(streams[1].synchronize(), Err(failure("c")));
    assert_eq!(log.lock().len(), 6);
}

#[test]
fn a_group_that_was_seen_before_allocates_nothing() {
    let _alone = ALONE.lock();
    let (log, state) = (Log::default(), State::default());
    let all = ["a", "b", "c"].map(|name| Mock::new(name, &log, None));
    let stream = JobStream::new().unwrap();
    never_allocates(|| {
        state.borrow_mut().start();
        for (index, mock) in all.iter().enumerate() {
            (0..3).for_each(|_| call(&state, mock, (index == 2).then_some(&stream), 0));
        }
        (0..4).for_each(|_| send(&state, &all[0], 0));
        group::end(&state).unwrap();
        stream.submit(StreamJob::one(Arc::clone(&all[0]), GroupAction::Collective(0))).unwrap();
        stream.synchronize().unwrap();
    });
}
