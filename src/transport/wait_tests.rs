use super::*;

struct Deadline(Duration);

impl WaitCheck for Deadline {
    fn check(&self, peer: usize, waited: Duration) -> Result<()> {
        let late = waited >= self.0;
        if late { Err(Error::usage(format!("gave up on {peer}"))) } else { Ok(()) }
    }
}

fn bell() -> Doorbell {
    Doorbell { sleeping: AtomicU32::new(0), away: AtomicU32::new(0) }
}

#[test]
fn a_sleeper_is_woken() {
    // Who sleeps to the end was not woken.
    const LONG: Duration = Duration::from_secs(30);
    // SAFETY: the call takes nothing and always succeeds.
    let sleeper = unsafe { libc::gettid() };
    let is_asleep = || {
        let status = std::fs::read_to_string(format!("/proc/self/task/{sleeper}/stat"));
        status.unwrap().rsplit(')').next().unwrap().starts_with(" S")
    };
    let bell = bell();
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while bell.sleeping.load(SeqCst) == 0 || !is_asleep() {
                std::thread::yield_now();
            }
            ring_bell(&bell);
        });
        assert_eq!(doze(&bell, LONG, &mut || None::<()>), None);
        assert!(started.elapsed() < LONG, "nobody woke it");
    });
    assert_eq!(bell.sleeping.load(SeqCst), 0);
}

#[test]
fn a_wait_ends_though_its_wake_up_is_lost() {
    let patience = SpinPolicy { spins: 0, yielding: Duration::ZERO, crossing: 0, beside: 0 };
    let (bell, condition) = (bell(), AtomicU32::new(0));
    let poll = || (condition.load(SeqCst) == 1).then_some(());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while bell.sleeping.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            condition.store(1, SeqCst);
        });
        let watch = Deadline(Duration::from_secs(60));
        assert_eq!(wait(patience, (&bell, &bell), 0, &watch, poll), Ok(()));
    });
}

#[test]
fn a_wait_ends_with_the_watch() {
    let patience = SpinPolicy::new(2, 2, Some(10));
    let watch = Deadline(Duration::from_millis(20));
    let error = wait(patience, (&bell(), &bell()), 7, &watch, || None::<()>).unwrap_err();
    assert_eq!(error, Error::usage("gave up on 7"));
}

#[test]
fn many_polls_end_with_the_watch_too() {
    // So many take longer than the deadline on any machine.
    let patience = SpinPolicy::new(2, 2, Some(1 << 24));
    let (watch, polls) = (Deadline(Duration::from_millis(1)), std::cell::Cell::new(0));
    let poll = || {
        polls.set(polls.get() + 1);
        None::<()>
    };
    let error = wait(patience, (&bell(), &bell()), 7, &watch, poll).unwrap_err();
    assert_eq!(error, Error::usage("gave up on 7"));
    assert!(polls.get() < patience.spins, "nobody looked before {} polls", polls.get());
}

#[test]
fn what_comes_during_many_polls_is_had_without_giving_the_core_away() {
    let watch = Deadline(Duration::from_secs(60));
    let (spins, last) = (3 * UNWATCHED, 3 * UNWATCHED - 1);
    let patience = SpinPolicy { spins, yielding: Duration::from_secs(60), crossing: 0, beside: 0 };
    let mut waiting = Counting { last, is_peer_at_work: false, polls: 0, given_away: 0 };
    wait_on(patience, 0, &watch, &mut waiting).unwrap();
    assert_eq!((waiting.polls, waiting.given_away), (last, 0));
    // And what comes after them, while it yields as long as ever.
    let patience = SpinPolicy { spins: UNWATCHED + 1, ..patience };
    let mut waiting = Counting { last, is_peer_at_work: false, polls: 0, given_away: 0 };
    wait_on(patience, 0, &watch, &mut waiting).unwrap();
    assert!(waiting.given_away > 0);
}

#[test]
fn a_thread_beside_its_rank_leaves_the_core_to_it() {
    let (two, four) = (SpinPolicy::new(2, 2, None), SpinPolicy::new(2, 4, None));
    assert_eq!((two.spins, two.beside), (SPINS, SPINS_SHARED));
    assert_eq!((four.spins, four.beside), (SPINS, SPINS));
    assert_eq!(SpinPolicy::new(2, 2, Some(7)).beside, 7);
    let watch = Deadline(Duration::from_secs(60));
    let given_away = || {
        let (last, is_peer_at_work) = (SPINS / 2, false);
        let mut waiting = Counting { last, is_peer_at_work, polls: 0, given_away: 0 };
        let patience = SpinPolicy { yielding: Duration::from_secs(60), ..two };
        wait_on(patience, 0, &watch, &mut waiting).unwrap();
        waiting.given_away
    };
    assert_eq!(given_away(), 0);
    let beside = std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            work_beside();
            given_away()
        });
        there.join().unwrap()
    });
    assert!(beside > 0);
    assert_eq!(given_away(), 0);
}

/// Gives a value at its last poll, and counts how often its core was given away.
struct Counting {
    last: u32,
    is_peer_at_work: bool,
    polls: u32,
    given_away: u32,
}

impl Waiting for Counting {
    type Value = ();

    fn poll(&mut self) -> Option<()> {
        self.polls += 1;
        (self.polls >= self.last).then_some(())
    }

    fn sleep(&mut self, _: Duration) -> Option<()> {
        unreachable!("it may give its core away for longer")
    }

    fn give_way(&mut self) {
        self.given_away += 1;
    }

    fn is_peer_at_work(&self) -> bool {
        self.is_peer_at_work
    }
}

#[test]
fn a_core_is_kept_for_a_peer_that_is_at_work_on_another() {
    let watch = Deadline(Duration::from_secs(60));
    let given_away = |is_peer_at_work: bool, crossing: u32| {
        let yielding = Duration::from_secs(60);
        let patience = SpinPolicy { spins: 4, yielding, crossing, beside: 4 };
        let mut waiting = Counting { last: 20, is_peer_at_work, polls: 0, given_away: 0 };
        wait_on(patience, 0, &watch, &mut waiting).unwrap();
        waiting.given_away
    };
    assert_eq!(given_away(true, 100), 0);
    assert_eq!(given_away(false, 100), 15);
    // Only once: what is not there after that takes longer.
    assert_eq!(given_away(true, 10), 5);
}

#[test]
fn a_peer_is_at_work_unless_it_says_otherwise() {
    let (mine, theirs) = (bell(), bell());
    let is_at_work = |theirs| OnBell { bell: &mine, theirs, poll: || None::<()> }.is_peer_at_work();
    assert!(is_at_work(Some(&theirs)) && !is_at_work(None));
    theirs.away.store(1, Relaxed);
    assert!(!is_at_work(Some(&theirs)));
    theirs.away.store(0, Relaxed);
    theirs.sleeping.store(1, Relaxed);
    assert!(!is_at_work(Some(&theirs)));
}

#[test]
fn what_came_before_the_end_counts() {
    // The condition becomes true between the last poll and the watch's refusal.
    let polls = std::cell::Cell::new(0);
    let watch = Deadline(Duration::ZERO);
    let patience = SpinPolicy { spins: 0, yielding: Duration::ZERO, crossing: 0, beside: 0 };
    let got = wait(patience, (&bell(), &bell()), 0, &watch, || {
        polls.set(polls.get() + 1);
        (watch.0 == Duration::ZERO && polls.get() > 1).then_some(5)
    });
    assert_eq!(got, Ok(5));
}
