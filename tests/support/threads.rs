//! Ranks as threads of the test process.

use super::HARD_DEADLINE_S;
use super::pace::{Pace, Timed};
use ringcomm::bootstrap::UniqueId;
use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::communicator::Communicator;
use ringcomm::config::{Config, DeviceChoice};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Barrier;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Run `body` on every rank of a communicator made all at once; what each returned, by rank.
pub fn on_threads<T: Send>(
    nranks: usize,
    config: &Config,
    body: impl Fn(&Communicator) -> T + Sync,
) -> Vec<T> {
    let communicators = Communicator::init_all(nranks, config).expect("init_all");
    run_all(&communicators, body)
}

/// As `on_threads`, where every rank joins by itself with the shared id.
pub fn on_joined_threads<T: Send>(
    nranks: usize,
    config: &Config,
    body: impl Fn(&Communicator) -> T + Sync,
) -> Vec<T> {
    let id = UniqueId::generate().expect("an id");
    let communicators: Vec<Communicator> = thread::scope(|scope| {
        let join = |rank| {
            let id = &id;
            scope.spawn(move || Communicator::init_rank(nranks, id, rank, config))
        };
        let ranks: Vec<_> = (0..nranks).map(join).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic").expect("init_rank")).collect()
    });
    run_all(&communicators, body)
}

/// As `on_joined_threads`, where ranks take each other for other hosts' unless `hosts` gives them
/// the same number: what crosses between those goes through sockets of this machine.
pub fn on_hosts<T: Send>(
    hosts: &[usize],
    config: &Config,
    body: impl Fn(&Communicator) -> T + Sync,
) -> Vec<T> {
    run_all(&joined_hosts(hosts, config), body)
}

/// The communicators of [`on_hosts`].
pub fn joined_hosts(hosts: &[usize], config: &Config) -> Vec<Communicator> {
    seated_hosts(hosts, &vec![config.device; hosts.len()], config)
}

/// As `joined_hosts`, where each rank has a seat of its own.
pub fn seated_hosts(hosts: &[usize], seats: &[DeviceChoice], config: &Config) -> Vec<Communicator> {
    let config = Config { interfaces: Some("lo".into()), ..config.clone() };
    let id = root_threads::start(&config).expect("an id");
    thread::scope(|scope| {
        let join = |(rank, host): (usize, &usize)| {
            let (id, mut config) = (&id, config.clone());
            config.host_id = Some(format!("host {host}"));
            config.device = seats[rank];
            scope.spawn(move || Communicator::init_rank(hosts.len(), id, rank, &config))
        };
        let ranks: Vec<_> = hosts.iter().enumerate().map(join).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic").expect("init_rank")).collect()
    })
}

/// Run `body` on every given rank at once. A rank that panics aborts its communicator, so that the
/// others do not wait for it; the first panic is the test's.
pub fn run_all<T: Send>(
    communicators: &[Communicator],
    body: impl Fn(&Communicator) -> T + Sync,
) -> Vec<T> {
    let (done, finished) = mpsc::channel::<()>();
    let (first_panic, panics) = mpsc::channel::<Box<dyn Any + Send>>();
    let results = thread::scope(|scope| {
        scope.spawn(|| watch(communicators, finished));
        let rank = |communicator| {
            let (body, first_panic) = (&body, first_panic.clone());
            scope.spawn(move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| body(communicator)));
                if let Err(panic) = outcome {
                    let _ = first_panic.send(panic);
                    communicator.abort();
                    return None;
                }
                outcome.ok()
            })
        };
        let ranks: Vec<_> = communicators.iter().map(rank).collect();
        let results: Vec<Option<T>> =
            ranks.into_iter().map(|rank| rank.join().expect("panics are caught")).collect();
        drop(done);
        results
    });
    match panics.try_recv() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => results.into_iter().map(|result| result.expect("no panic")).collect(),
    }
}

/// As `run_all`, for a body that prepares, waits for the others, and gives back when it then began
/// what is timed and when it was through.
pub fn run_timed(
    communicators: &[Communicator],
    body: impl Fn(&Communicator, &Barrier) -> (Instant, Instant) + Sync,
) -> Timed {
    let (pace, together) = (Pace::start(), Barrier::new(communicators.len()));
    pace.over(&run_all(communicators, |comm| body(comm, &together)))
}

/// Join each: ThreadSanitizer sees the end of a thread in its join, not in the end of its scope.
pub fn join_all<'scope, T>(threads: impl IntoIterator<Item = ScopedJoinHandle<'scope, T>>) {
    let threads: Vec<_> = threads.into_iter().collect();
    threads.into_iter().for_each(|thread| drop(thread.join().expect("a thread panicked")));
}

/// Threads cannot be killed: when they are stuck, say where, and end the process.
fn watch(communicators: &[Communicator], finished: mpsc::Receiver<()>) {
    if let Err(RecvTimeoutError::Timeout) =
        finished.recv_timeout(Duration::from_secs(HARD_DEADLINE_S))
    {
        for communicator in communicators {
            eprintln!("stuck: {}", communicator.dump());
        }
        std::process::abort();
    }
}
