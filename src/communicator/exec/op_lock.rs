//! One operation at a time: the right to use a communicator's connections.
//!
//! Threads that call on one communicator at once take turns. Nobody is expected to wait here (ranks
//! must agree on the order of their calls, so a program that races has no meaning), so this is a
//! flag that is asked again, not a queue; whoever waits long sleeps in between. Only a turn that is
//! waited for counts as a lock that was taken ([`crate::sync::locks_taken`]).
#![allow(unsafe_code)]

use crate::os::thread_signals::{NoCancel, this_thread};
use crate::sync::atomic::{AtomicUsize, Ordering::*};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// Longer than most calls; another thread's call that takes longer may take for ever, and the core
/// is not to be kept busy so long.
const SHORT: Duration = Duration::from_micros(200);

pub struct OpLock<T> {
    /// The thread whose turn it is, as [`this_thread`] names it; 0 for none.
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a `OpGuard`, of which there is one at a time.
unsafe impl<T: Send> Sync for OpLock<T> {}

impl<T> OpLock<T> {
    pub fn new(value: T) -> OpLock<T> {
        OpLock { owner: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub fn take(&self) -> OpGuard<'_, T> {
        if !self.try_take() {
            self.wait();
        }
        OpGuard { turns: self }
    }

    /// The turn, if no thread has it.
    pub fn try_guard(&self) -> Option<OpGuard<'_, T>> {
        self.try_take().then(|| OpGuard { turns: self })
    }

    #[inline]
    fn try_take(&self) -> bool {
        // Acquire: pairs with the Release in `OpGuard::drop`.
        self.owner.compare_exchange(0, this_thread(), Acquire, Relaxed).is_ok()
    }

    /// Whether the turn is the calling thread's: asked by a signal handler that interrupted it.
    pub fn is_mine(&self) -> bool {
        // Relaxed: a thread sees what it stored itself.
        self.owner.load(Relaxed) == this_thread()
    }

    #[cold]
    fn wait(&self) {
        crate::sync::count_lock();
        let _whole = NoCancel::begin();
        let started = Instant::now();
        while !self.try_take() {
            if started.elapsed() < SHORT {
                std::thread::yield_now();
            } else {
                std::thread::sleep(SHORT);
            }
        }
    }
}

pub struct OpGuard<'a, T> {
    turns: &'a OpLock<T>,
}

impl<T> Deref for OpGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only turn.
        unsafe { &*self.turns.value.get() }
    }
}

impl<T> DerefMut for OpGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only turn.
        unsafe { &mut *self.turns.value.get() }
    }
}

impl<T> Drop for OpGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `take`.
        self.turns.owner.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::locks_taken;

    #[test]
    fn a_turn_that_is_waited_for_counts_as_a_lock() {
        let turns = OpLock::new(0);
        let before = locks_taken();
        *turns.take() += 1;
        assert_eq!(locks_taken(), before);
        let mine = turns.take();
        assert!(turns.is_mine());
        std::thread::scope(|scope| scope.spawn(|| assert!(!turns.is_mine())).join().unwrap());
        drop(mine);
        assert!(!turns.is_mine());
        // What a thread counts for its turn, where another has it for so long.
        let counted = |held_ms| {
            std::thread::scope(|scope| {
                let mine = turns.take();
                let waits = scope.spawn(|| {
                    let before = locks_taken();
                    *turns.take() += 1;
                    locks_taken() - before
                });
                std::thread::sleep(Duration::from_millis(held_ms));
                drop(mine);
                waits.join().expect("it takes its turn")
            })
        };
        // A thread that comes too late to have to wait counts none.
        assert!((1..100).map(counted).any(|locks| locks == 1));
    }
}
