//! Where the threads of a test meet, and where nobody waits for one that has panicked.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Where they meet.
pub struct Together {
    all: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: usize,
    barriers: usize,
    is_over: bool,
}

/// One of those who meet. The others are told of its panic.
pub struct Party<'a>(&'a Together);

impl Together {
    pub fn of(all: usize) -> Together {
        Together { all, state: Mutex::default(), changed: Condvar::new() }
    }

    pub fn join(&self) -> Party<'_> {
        Party(self)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Party<'_> {
    /// Wait until all have come.
    pub fn wait(&self) {
        let mut state = self.0.lock();
        state.arrived += 1;
        let barrier = state.barriers;
        if state.arrived == self.0.all {
            (state.arrived, state.barriers) = (0, barrier + 1);
            self.0.changed.notify_all();
        }
        while state.barriers == barrier && !state.is_over {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let has_met = state.barriers != barrier;
        drop(state);
        assert!(has_met, "another thread of the test has panicked");
    }
}

impl Drop for Party<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().is_over = true;
            self.0.changed.notify_all();
        }
    }
}

#[test]
fn nobody_waits_for_a_thread_that_has_panicked() {
    let together = Together::of(3);
    let outcomes = thread::scope(|scope| {
        let party = |index: usize| {
            let together = &together;
            scope.spawn(move || {
                let party = together.join();
                party.wait();
                assert!(index != 1, "the one that panics");
                party.wait();
            })
        };
        [0, 1, 2].map(party).map(|thread| thread.join().is_err())
    });
    assert_eq!(outcomes, [true; 3]);
}
