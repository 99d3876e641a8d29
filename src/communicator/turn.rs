//! One operation at a time: the right to use a communicator's connections.
//!
//! Threads that call on one communicator at once take turns. Nobody is expected to wait here (ranks
//! must agree on the order of their calls, so a program that races has no meaning), so this is a
//! flag and a yield, not a queue.
#![allow(unsafe_code)]

use crate::sync::atomic::{AtomicBool, Ordering::*};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

pub struct Turns<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a `Turn`, of which there is one at a time.
unsafe impl<T: Send> Sync for Turns<T> {}

impl<T> Turns<T> {
    pub fn new(value: T) -> Turns<T> {
        Turns { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub fn take(&self) -> Turn<'_, T> {
        // Acquire: pairs with the Release in `Turn::drop`.
        while self.taken.swap(true, Acquire) {
            std::thread::yield_now();
        }
        Turn { turns: self }
    }
}

pub struct Turn<'a, T> {
    turns: &'a Turns<T>,
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only turn.
        unsafe { &*self.turns.value.get() }
    }
}

impl<T> DerefMut for Turn<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only turn.
        unsafe { &mut *self.turns.value.get() }
    }
}

impl<T> Drop for Turn<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `take`.
        self.turns.taken.store(false, Release);
    }
}
