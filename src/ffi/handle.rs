//! Handles: what a C program holds in place of a pointer, so that no misuse can crash.
//!
//! A handle is a kind, a generation and an index, packed into an address that no 64-bit machine
//! hands out and that nobody ever follows. The index leads to a slot; a slot's one state word holds
//! its generation, whether it is open, and how many calls are inside. Entering is one
//! compare-and-swap that fails unless generation and openness are right, so NULL, garbage and
//! handles of the past are told apart without touching what they once named. Closing bars the
//! entrance, waits until the last call has left, and only then gives the value back; whoever closes
//! may use the value in between, and abort still comes in.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::fork::{ForkSafeGuard, ForkSafeMutex, Once};
use crate::sync::atomic::{AtomicU64, Ordering};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ops::Deref;
use std::time::{Duration, Instant};

/// What a handle names; part of the handle, so that one kind cannot pass for another.
///
/// The numbers are the top 16 bits of the address. x86-64 and AArch64 addresses of user space have
/// zeros there: no pointer equals a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum HandleKind {
    Communicator = 0x5201,
    Stream = 0x5202,
    Registration = 0x5203,
    /// Of NCCL's interface (cbindings/nccl), as is the next.
    NcclCommunicator = 0x5204,
    NcclWindow = 0x5205,
}

/// Bits of the index in a handle: 262,144 things of a kind may be alive at a time.
const INDEX_BITS: u32 = 18;
/// Bits of the generation: what remains between the kind (16) and the index.
const GENERATION_BITS: u32 = 64 - 16 - INDEX_BITS;
/// The generation after which a slot is left unused, so that a handle never comes back to life.
const LAST_GENERATION: u64 = (1 << GENERATION_BITS) - 1;
/// Slots made at a time: 32 KiB for the first handle of a kind.
const SEGMENT: usize = 256;
const SEGMENTS: usize = (1 << INDEX_BITS) / SEGMENT;

/// The state word: generation, then one of the phases, then, in the lowest 30 bits, calls inside.
const GENERATION_SHIFT: u32 = 32;
const PHASE: u64 = 0b11 << 30;
const FREE: u64 = 0;
const OPEN: u64 = 0b01 << 30;
const CLOSING: u64 = 0b10 << 30;

/// Who may enter a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entrance {
    /// Ordinary calls: until the slot begins to close.
    WhileOpen,
    /// Abort: as long as the value is there, so that it can free the calls a closing waits for.
    WhileAlive,
}

/// One place for a value. Aligned to two cache lines: ranks that are threads of one process enter
/// their own slots at every call and must not share a line, nor the pair that is prefetched.
#[repr(align(128))]
struct HandleSlot<T> {
    state: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is written only while the slot is free and owned through the free list, read
// only by calls inside, and taken only when none is; `T: Send + Sync` lets those be any threads.
unsafe impl<T: Send + Sync> Sync for HandleSlot<T> {}

impl<T> HandleSlot<T> {
    fn new() -> HandleSlot<T> {
        HandleSlot { state: AtomicU64::new(FREE), value: UnsafeCell::new(None) }
    }

    /// Put a value into a free slot that the caller owns; returns its generation.
    fn open(&self, value: T) -> u64 {
        // Relaxed: the slot came through the free list's lock, which ordered the last closing.
        let generation = self.state.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        // SAFETY: a free slot has no calls inside and one owner, this one.
        unsafe { *self.value.get() = Some(value) };
        // Release: pairs with the Acquire in enter(), which then sees the value.
        self.state.store(generation << GENERATION_SHIFT | OPEN, Ordering::Release);
        generation
    }

    fn enter(&self, generation: u64, entrance: Entrance) -> bool {
        // Relaxed: only a guess; the exchange below decides.
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let phase = state & PHASE;
            let admitted = phase == OPEN || (phase == CLOSING && entrance == Entrance::WhileAlive);
            if state >> GENERATION_SHIFT != generation || !admitted {
                return false;
            }
            // Acquire: pairs with the Release in open(). Relaxed on failure: only a new guess.
            match self.state.compare_exchange_weak(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
    }

    fn leave(&self) {
        // Release: pairs with the Acquire in take(), so that all reads of the value are over.
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// Bar the entrance; false where the slot is not open in this generation.
    fn bar(&self, generation: u64) -> bool {
        // Relaxed: only a guess; the exchange below decides.
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state >> GENERATION_SHIFT != generation || state & PHASE != OPEN {
                return false;
            }
            // Relaxed: nothing is handed over yet; take() orders the value.
            match self.state.compare_exchange_weak(
                state,
                state & !PHASE | CLOSING,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
    }

    fn is_empty(&self) -> bool {
        // Relaxed: take() orders what the calls did.
        self.state.load(Ordering::Relaxed) & (OPEN - 1) == 0
    }

    /// Take the value of a barred slot if no call is inside.
    fn take(&self, generation: u64) -> Option<T> {
        let barred = generation << GENERATION_SHIFT | CLOSING;
        let free = (generation + 1) << GENERATION_SHIFT | FREE;
        // Acquire: pairs with the Release in leave(). Only the thread that barred comes here, and
        // the slot is not on the free list yet: from here on it is this thread's alone.
        self.state.compare_exchange(barred, free, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: nobody is inside and nobody can enter a free slot.
        unsafe { (*self.value.get()).take() }
    }
}

/// All handles of one kind.
pub struct HandleTable<T: 'static> {
    kind: HandleKind,
    segments: [Once<Box<[HandleSlot<T>]>>; SEGMENTS],
    /// Slots to use next, and how many were ever used. Taken at creation and destruction only.
    free: ForkSafeMutex<(Vec<usize>, usize)>,
}

/// A call inside a slot: the value stays until this is dropped.
pub struct InsideCall<T: 'static> {
    slot: &'static HandleSlot<T>,
}

impl<T> Deref for InsideCall<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: a slot that was entered holds a value, and nobody takes it before leave().
        unsafe { (*self.slot.value.get()).as_ref().unwrap_unchecked() }
    }
}

impl<T> Drop for InsideCall<T> {
    fn drop(&mut self) {
        self.slot.leave();
    }
}

/// A barred slot whose value is still there: ordinary calls are refused, abort is not.
pub struct Closing<T: 'static> {
    table: &'static HandleTable<T>,
    slot: &'static HandleSlot<T>,
    generation: u64,
    index: usize,
}

impl<T> Deref for Closing<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: a barred slot holds a value, and only its one `Closing` takes it.
        unsafe { (*self.slot.value.get()).as_ref().unwrap_unchecked() }
    }
}

impl<T: Send + Sync> Closing<T> {
    /// Wait until the calls that came in before have left.
    pub fn drain(&self) {
        let mut attempts = 0;
        while !self.slot.is_empty() {
            wait(&mut attempts);
        }
    }

    /// Wait until every call has left, but no longer than this; give the value back if they have.
    /// Else it stays for ever: the thread that waits may be in one of them itself.
    pub fn take_within(self, longest: Duration) -> Option<T> {
        let (started, mut attempts) = (Instant::now(), 0);
        while !self.slot.is_empty() {
            if started.elapsed() > longest {
                return None;
            }
            wait(&mut attempts);
        }
        Some(self.take())
    }

    /// Wait until every call has left, and give the value back.
    pub fn take(self) -> T {
        let mut attempts = 0;
        let value = loop {
            match self.slot.take(self.generation) {
                Some(value) => break value,
                None => wait(&mut attempts),
            }
        };
        if self.generation < LAST_GENERATION {
            self.table.free().0.push(self.index);
        }
        value
    }
}

impl<T: Send + Sync> HandleTable<T> {
    pub const fn new(kind: HandleKind) -> HandleTable<T> {
        HandleTable {
            kind,
            segments: [const { Once::new() }; SEGMENTS],
            free: ForkSafeMutex::new((Vec::new(), 0)),
        }
    }

    /// The slots to use next. A child that cannot know which were used goes on behind all of them.
    fn free(&'static self) -> ForkSafeGuard<'static, (Vec<usize>, usize)> {
        let used = || self.segments.iter().filter(|segment| segment.get().is_some()).count();
        self.free.lock_or(|| (Vec::new(), used() * SEGMENT))
    }

    fn slot(&'static self, index: usize) -> Option<&'static HandleSlot<T>> {
        self.segments[index / SEGMENT].get().map(|segment| &segment[index % SEGMENT])
    }

    /// The slot and the generation a handle names, if it has the form of one of this kind.
    fn locate(&'static self, handle: *mut c_void) -> Option<(&'static HandleSlot<T>, u64, usize)> {
        let bits = handle.addr() as u64;
        let index = (bits & ((1 << INDEX_BITS) - 1)) as usize;
        let generation = bits >> INDEX_BITS & LAST_GENERATION;
        let right = bits >> 48 == self.kind as u64;
        right.then(|| self.slot(index)).flatten().map(|slot| (slot, generation, index))
    }

    /// Keep `value` and give its handle.
    pub fn insert(&'static self, value: T) -> Result<*mut c_void> {
        let index = {
            let mut free = self.free();
            match free.0.pop() {
                Some(index) => index,
                None if free.1 == SEGMENT * SEGMENTS => {
                    return Err(Error::usage(format!("all {} handles are in use", free.1)));
                }
                None => {
                    free.1 += 1;
                    free.1 - 1
                }
            }
        };
        self.segments[index / SEGMENT]
            .get_or_make(|| (0..SEGMENT).map(|_| HandleSlot::new()).collect());
        let generation = self.slot(index).expect("just made").open(value);
        let bits = (self.kind as u64) << 48 | generation << INDEX_BITS | index as u64;
        Ok(std::ptr::without_provenance_mut(bits as usize))
    }

    /// Enter for an ordinary call.
    #[inline]
    pub fn enter(&'static self, handle: *mut c_void) -> Option<InsideCall<T>> {
        self.enter_by(handle, Entrance::WhileOpen)
    }

    /// Enter to abort, which is possible until the value is gone.
    pub fn enter_alive(&'static self, handle: *mut c_void) -> Option<InsideCall<T>> {
        self.enter_by(handle, Entrance::WhileAlive)
    }

    #[inline]
    fn enter_by(&'static self, handle: *mut c_void, entrance: Entrance) -> Option<InsideCall<T>> {
        let (slot, generation, _) = self.locate(handle)?;
        // Lazily: an `InsideCall` that was made has entered, and leaves when it is dropped.
        slot.enter(generation, entrance).then(|| InsideCall { slot })
    }

    /// Bar the entrance. `None` where the handle is none, or another thread is closing it.
    pub fn bar(&'static self, handle: *mut c_void) -> Option<Closing<T>> {
        let (slot, generation, index) = self.locate(handle)?;
        slot.bar(generation).then_some(Closing { table: self, slot, generation, index })
    }

    /// Bar the entrance, wait until every call has left, and give the value back. `None` where the
    /// handle is none, or another thread is closing it.
    pub fn close(&'static self, handle: *mut c_void) -> Option<T> {
        self.bar(handle).map(Closing::take)
    }
}

/// Let the calls inside go on: yield first, since most calls are short; then sleep, since the rest
/// wait for other ranks.
fn wait(attempts: &mut u32) {
    *attempts += 1;
    // A hundred yields outlast a small collective between ranks that share the core.
    if *attempts < 100 {
        std::thread::yield_now();
    } else {
        // Destroying is no hot path: 100 us is unnoticed by the user and by the processor.
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[cfg(all(test, not(loom)))]
#[path = "handle_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// A value that notices being read after it was taken apart.
    struct Canary(loom::cell::UnsafeCell<u32>);

    // SAFETY: loom reports every race on the cell; that is what it is there for.
    unsafe impl Sync for Canary {}

    #[test]
    fn a_value_is_never_taken_while_a_call_is_inside() {
        loom::model(|| {
            let slot = Arc::new(HandleSlot::new());
            let generation = slot.open(Canary(loom::cell::UnsafeCell::new(7)));
            let caller = {
                let slot = slot.clone();
                loom::thread::spawn(move || {
                    if slot.enter(generation, Entrance::WhileOpen) {
                        // SAFETY: entered.
                        let canary = unsafe { (*slot.value.get()).as_ref().unwrap() };
                        // SAFETY: read only, and loom checks.
                        assert_eq!(canary.0.with(|value| unsafe { *value }), 7);
                        slot.leave();
                    }
                })
            };
            assert!(slot.bar(generation));
            if let Some(canary) = slot.take(generation) {
                // SAFETY: the canary is this thread's alone, and loom checks.
                canary.0.with_mut(|value| unsafe { *value = 0 });
            }
            caller.join().unwrap();
            assert!(!slot.enter(generation, Entrance::WhileAlive) || slot.state_is_closing());
        });
    }

    impl<T> HandleSlot<T> {
        fn state_is_closing(&self) -> bool {
            self.state.load(Ordering::Relaxed) & PHASE == CLOSING
        }
    }
}
