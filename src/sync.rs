//! The one switch between `std` and `loom`: lock-free code names its atomics and cells from here.
//!
//! So does all code its locks, which are counted.
//!
//! Orderings that a proof depends on go through [`ordering`]: under loom a model may weaken one
//! site at a time and must then fail, which shows that the site is needed and that the model can
//! see it.

#[cfg(not(loom))]
pub use std::sync::atomic;

#[cfg(loom)]
pub use loom::sync::atomic;

#[cfg(loom)]
pub use loom::cell::UnsafeCell;

/// `std`'s cell with loom's interface, so that one source serves both.
#[cfg(not(loom))]
#[repr(transparent)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

#[cfg(not(loom))]
pub use lock::{Condvar, Mutex, MutexGuard, count_lock, locks_taken};

/// What a thread keeps for itself; a new one where the thread is ending and has let go of its own,
/// as in the destructors of a program's thread-local variables and in its handlers of `exit`.
pub fn with_local<T: Default, R>(
    own: &'static std::thread::LocalKey<T>,
    work: impl FnOnce(&T) -> R,
) -> R {
    let mut work = Some(work);
    let mut run = |value: &T| work.take().expect("run once")(value);
    own.try_with(&mut run).unwrap_or_else(|_| run(&T::default()))
}

#[cfg(not(loom))]
mod lock {
    use std::cell::Cell;

    pub use parking_lot::{Condvar, MutexGuard};

    /// The lock of a communicator's or a stream's parts; what a whole process shares has
    /// [`crate::fork::ForkSafeMutex`]. It counts how often a thread takes one, so that a test can
    /// see that a call which has been made before takes none.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(parking_lot::Mutex<T>);

    thread_local! {
        static TAKEN: Cell<u64> = const { Cell::new(0) };
    }

    /// How many locks the calling thread has taken.
    pub fn locks_taken() -> u64 {
        TAKEN.try_with(Cell::get).unwrap_or(0)
    }

    /// Note that the calling thread takes a lock.
    pub fn count_lock() {
        // A thread that ends has no count any more, and nobody asks for it.
        let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
    }

    impl<T> Mutex<T> {
        pub const fn new(value: T) -> Mutex<T> {
            Mutex(parking_lot::Mutex::new(value))
        }

        #[inline]
        pub fn lock(&self) -> MutexGuard<'_, T> {
            count_lock();
            self.0.lock()
        }

        /// The lock, if nobody has it.
        #[inline]
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            count_lock();
            self.0.try_lock()
        }

        /// The lock, if whoever has it gives it back within this time.
        pub fn try_lock_for(&self, time: std::time::Duration) -> Option<MutexGuard<'_, T>> {
            count_lock();
            self.0.try_lock_for(time)
        }

        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut()
        }
    }
}

/// A place whose memory ordering something depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// The sender's store that makes a message visible.
    Post,
    /// The receiver's load that sees it.
    Wait,
    /// The receiver's store that gives a slot back.
    Free,
    /// The sender's load that sees the slot free.
    Reserve,
    /// The sender's load that sees everything free.
    Drained,
    /// The poster's fence between its store and its look at the doorbell.
    RingFence,
    /// The sleeper's fence between its mark on the doorbell and its last look at the condition.
    SleepFence,
}

impl Site {
    pub const ALL: [Site; 7] = [
        Site::Post,
        Site::Wait,
        Site::Free,
        Site::Reserve,
        Site::Drained,
        Site::RingFence,
        Site::SleepFence,
    ];
}

/// The ordering of a site: the given one, unless a model is weakening it.
#[cfg(not(loom))]
#[inline(always)]
pub fn ordering(_site: Site, ordering: atomic::Ordering) -> atomic::Ordering {
    ordering
}

#[cfg(loom)]
pub use weakening::{is_weakened, ordering, weaken};

#[cfg(loom)]
mod weakening {
    use super::{Site, atomic::Ordering};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// The weakened site's index plus one; 0 for none. Not part of any model.
    static WEAKENED: AtomicUsize = AtomicUsize::new(0);

    /// Weaken one site, or none, in the models that follow.
    pub fn weaken(site: Option<Site>) {
        WEAKENED.store(site.map_or(0, |site| site as usize + 1), SeqCst);
    }

    pub fn is_weakened(site: Site) -> bool {
        WEAKENED.load(SeqCst) == site as usize + 1
    }

    pub fn ordering(site: Site, ordering: Ordering) -> Ordering {
        if is_weakened(site) { Ordering::Relaxed } else { ordering }
    }
}
