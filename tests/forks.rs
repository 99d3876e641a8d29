//! Programs that fork with a communicator in hand, as data loaders do: the child gets a clear
//! error, and does not hide its parent's death.

mod support;

use ringcomm::bootstrap::UniqueId;
use ringcomm::communicator::Communicator;
use ringcomm::error::Error;
use ringcomm::plan::Collective;
use ringcomm::transport::shm_export;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::config;
use support::forks::{fork_child, reap};
use support::pace::{Pace, Timed, assert_kept};
use support::processes::{Ranks, Seat, say};
use support::scratch::{Scratch, run};

/// What all calls of a forked child say.
const FORK: &str = "this process is a fork of the one that made the communicator";

#[test]
fn a_childs_calls_are_refused_and_leave_the_parents_communicator_whole() {
    let comms = Communicator::init_all(2, &config()).unwrap();
    support::threads::run_all(&comms, |comm| {
        let mut scratch = Scratch::new(2);
        let call = scratch.call(Collective::AllReduce, 100);
        run(comm, &call).unwrap();
        if comm.rank() == 0 {
            let (child, text) = fork_child(Duration::ZERO, || {
                let errors = [
                    run(comm, &call).err(),
                    comm.split(0, 0, None).err(),
                    comm.shrink(&[], None).err(),
                    comm.shrink(&[1], None).err(),
                    comm.finalize().err(),
                    comm.explain(&call).err(),
                ];
                comm.abort();
                let refused = |error: &Option<Error>| {
                    let Some(error) = error else { return false };
                    matches!(error, Error::InvalidUsage(_)) && error.to_string().contains(FORK)
                };
                format!("{:?}", errors.map(|error| refused(&error)))
            });
            assert_eq!(text, "[true, true, true, true, true, true]");
            reap(child);
        }
        for _ in 0..20 {
            run(comm, &call).unwrap();
        }
        assert_eq!(comm.async_error(), None);
    });
}

/// What a child may do while threads of its parent were in the middle of the same: call on what it
/// has of its parent, share memory, and make communicators of its own.
fn go_through_the_library(of_the_parent: &Communicator) -> String {
    // SAFETY: ends a child that waits, after longer than any machine takes.
    unsafe { libc::alarm(40) };
    let mut scratch = Scratch::new(1);
    let call = scratch.call(Collective::AllReduce, 100);
    let refusal = run(of_the_parent, &call).unwrap_err().to_string();
    let memory = shm_export::allocate(4096).unwrap();
    shm_export::release(memory).unwrap();
    // By id, as that starts no thread: one that its parent was starting holds a lock of Rust's
    // standard library, which the child cannot get any more.
    let own = Communicator::init_rank(1, &UniqueId::generate().unwrap(), 0, &config()).unwrap();
    run(&own, &call).unwrap();
    drop(own);
    refusal
}

/// Locks of the whole process are taken again and again meanwhile, so that children are forked
/// while another thread holds one.
#[test]
fn a_child_forked_in_the_middle_of_anything_is_refused_and_does_not_hang() {
    let comms = Communicator::init_all(1, &config()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    drop(Communicator::init_all(1, &config()).unwrap());
                    let memory = shm_export::allocate(4096).unwrap();
                    shm_export::release(memory).unwrap();
                    drop(comms[0].split(0, 0, None).unwrap());
                    let _ = comms[0].async_error();
                }
            });
        }
        let texts: Vec<String> = (0..100)
            .map(|_| {
                let (child, text) =
                    fork_child(Duration::ZERO, || go_through_the_library(&comms[0]));
                reap(child);
                text
            })
            .collect();
        // The threads end before anything is asserted.
        done.store(true, Relaxed);
        for text in texts {
            assert!(text.contains(FORK), "{text}");
        }
    });
}

/// A rank that has a child, which outlives it; its last word is why its calls fail.
fn work_with_a_child(seat: &Seat) -> String {
    let comm = seat.join();
    let mut scratch = Scratch::new(seat.nranks);
    let call = scratch.call(Collective::AllReduce, 100);
    run(&comm, &call).unwrap();
    // Long enough for any peer to call its death late; the test ends it. The child ends its copy of
    // the communicator, as the end of a program does: the page is shared, and says nothing of that.
    let (child, _) = fork_child(Duration::from_secs(50), || {
        // SAFETY: the child does not use the original any more.
        drop(unsafe { std::ptr::read(&comm) });
        String::new()
    });
    say(&child.to_string());
    loop {
        if let Err(error) = run(&comm, &call) {
            // SAFETY: its own child, which is not reaped.
            unsafe { libc::kill(child, libc::SIGKILL) };
            reap(child);
            return error.to_string();
        }
    }
}

/// Kill a rank whose child lives, and see that the others name it; the longest that took.
fn death_with_a_living_child(mut ranks: Ranks, nranks: usize, victim: usize) -> Timed {
    let deadline = Instant::now() + Duration::from_secs(60);
    let children: Vec<i32> =
        (0..nranks).map(|rank| ranks.hear(rank, deadline).1.parse().unwrap()).collect();
    let who = ranks.who(victim);
    let (pace, killed) = (Pace::beside(ranks.pids()), Instant::now());
    ranks.signal(victim, libc::SIGKILL);
    let mut last = killed;
    for rank in (0..nranks).filter(|rank| *rank != victim) {
        let end = ranks.end(rank, deadline);
        let text = end.result.unwrap();
        assert!(text.contains(&format!("{who} died")), "rank {rank}: {text}");
        last = last.max(end.at);
    }
    // SAFETY: the victim's child is nobody's any more but is alive: it sleeps.
    assert_eq!(unsafe { libc::kill(children[victim], libc::SIGKILL) }, 0);
    pace.timed(killed, last)
}

/// In which a death is known though a child of the dead lives: at once where the library looks to
/// it that the child holds nothing, at the deadline of a minute where it does not.
const PROMISE: Duration = Duration::from_secs(1);

/// The survivors of every rank of three in turn.
fn deaths_with_living_children(start: impl Fn() -> Ranks) {
    let took = [0, 1, 2].map(|victim| death_with_a_living_child(start(), 3, victim));
    assert_kept("deaths with a living child", PROMISE, &took);
}

#[test]
fn a_living_child_does_not_hide_its_parents_death() {
    deaths_with_living_children(|| {
        Ranks::start_apart(3, &config(), "", |seat, _| work_with_a_child(seat))
    });
}

#[test]
fn a_living_child_does_not_hide_its_parents_death_from_other_hosts() {
    deaths_with_living_children(|| {
        Ranks::start_on_hosts(&[0, 1, 2], &config(), "", |seat, _| work_with_a_child(seat))
    });
}
