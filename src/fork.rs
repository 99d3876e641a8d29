//! What a forked child must not keep of its parent, and how it knows that it is one.
//!
//! A connection ends when its last descriptor is closed. A child that a program forks (a worker
//! that loads data) would hold copies of all of them, and when its parent is killed the peers would
//! see no connection end. So the library's sockets are listed here, and a handler that `fork` runs
//! in the child lets go of them. It may only do what a signal handler may: the list is atomics.
//! What another thread has opened and not listed yet at the fork, a matter of microseconds, the
//! child keeps: if the parent is killed, a peer learns of that when the child ends, or at its
//! deadline.
#![allow(unsafe_code)]

#[cfg(not(loom))]
use crate::sync::count_lock;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

/// Descriptors from here on are not listed: more than programs are allowed to open but for servers
/// of many connections. The list is half a megabyte of address space that is used as needed.
const MOST: usize = 1 << 16;

/// By descriptor: the inode of the socket that it was when it was listed, 0 for none. A socket's
/// inode is its own, so an entry whose socket is closed since then is harmless, whatever has got
/// the number.
static SOCKETS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// The largest descriptor that was ever listed.
static LARGEST: AtomicI32 = AtomicI32::new(-1);

/// Forks between this process and the one that loaded the library. All accesses are relaxed and
/// have no partner: it changes in a child before its one thread runs on.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Forks that this process and its parents began since it was first asked for.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Changes before every fork, in the parent: where it is the same as before, there is no new child.
/// (One that is made without the C library's `fork`, as by a bare `clone`, is not seen.)
pub fn forks() -> u64 {
    prepare();
    // Acquire: pairs with the Release in `before`.
    FORKS.load(Acquire)
}

/// Changes with every fork, in the child.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// See to it that children let go of this socket.
pub fn let_go_in_child(socket: RawFd) {
    prepare();
    let Some(entry) = usize::try_from(socket).ok().and_then(|index| SOCKETS.get(index)) else {
        return;
    };
    // Relaxed, as all accesses to the list: `fork` copies it as this thread sees it, or as another
    // thread's next instruction would have left it.
    entry.store(inode(socket).unwrap_or(0), Relaxed);
    LARGEST.fetch_max(socket, Relaxed);
}

/// A value that the first to ask for it makes.
///
/// A child that is forked while another thread makes it makes its own: in `std`'s kinds it would
/// wait for that thread for ever.
pub struct Once<T> {
    value: AtomicPtr<T>,
    /// The process that makes it, so that its child does not wait for it. All accesses are relaxed
    /// and have no partner: what is made is handed over by `value`.
    maker: AtomicI32,
}

/// How often it is asked for a value that another thread makes: most take less.
const PAUSE: Duration = Duration::from_micros(50);

impl<T: Send + Sync> Once<T> {
    pub const fn new() -> Once<T> {
        Once { value: AtomicPtr::new(std::ptr::null_mut()), maker: AtomicI32::new(0) }
    }

    /// The value, once there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // Acquire: pairs with the Release in `make`.
        let value = self.value.load(Acquire);
        // SAFETY: null, or from a box that nobody takes back.
        unsafe { value.as_ref() }
    }

    /// The value, which `make` makes where there is none yet. It is never dropped.
    #[inline]
    pub fn get_or_make(&'static self, make: impl FnOnce() -> T) -> &'static T {
        self.get().unwrap_or_else(|| self.make(make))
    }

    #[cold]
    fn make(&'static self, make: impl FnOnce() -> T) -> &'static T {
        let me = std::process::id() as i32;
        while self.maker.swap(me, Relaxed) == me {
            // Another thread of this process does, or did since it was asked.
            match self.get() {
                Some(value) => return value,
                None => std::thread::sleep(PAUSE),
            }
        }
        // Its parent may have made it before the fork and after this thread asked.
        self.get().unwrap_or_else(|| {
            let attempt = InitAttempt(&self.maker);
            let value = Box::into_raw(Box::new(make()));
            // Release: pairs with the Acquire in `get`.
            self.value.store(value, Release);
            std::mem::forget(attempt);
            // SAFETY: from a box, as in `get`.
            unsafe { &*value }
        })
    }
}

/// The making of a value. Where that panics, whoever asks next makes it, and waits for nobody.
struct InitAttempt<'a>(&'a AtomicI32);

impl Drop for InitAttempt<'_> {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
}

impl<T: Send + Sync> Default for Once<T> {
    fn default() -> Once<T> {
        Once::new()
    }
}

/// A lock on what all threads of a process share.
///
/// A child that is forked while another thread holds it would wait for ever for that thread, which
/// it does not have, and what that thread was changing may be half changed. So it begins anew.
/// Communicators and streams need no such lock: a child's calls on them are refused before.
pub struct ForkSafeMutex<T> {
    /// 0 while nobody holds it, else one more than the generation of whoever does.
    holder: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached by the thread that holds the lock.
unsafe impl<T: Send> Sync for ForkSafeMutex<T> {}

impl<T> ForkSafeMutex<T> {
    pub const fn new(value: T) -> ForkSafeMutex<T> {
        ForkSafeMutex { holder: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> ForkSafeGuard<'_, T>
    where
        T: Default,
    {
        self.lock_or(T::default)
    }

    /// The value; one that a thread of this process's parent was changing is replaced by what
    /// `anew` makes.
    pub fn lock_or(&self, anew: impl FnOnce() -> T) -> ForkSafeGuard<'_, T> {
        #[cfg(not(loom))]
        count_lock();
        prepare();
        let mine = generation() + 1;
        loop {
            // Acquire: pairs with the Release in `ForkSafeGuard::drop`.
            match self.holder.compare_exchange(0, mine, Acquire, Relaxed) {
                Ok(_) => return ForkSafeGuard { lock: self, value: PhantomData },
                Err(holder) if holder == mine => std::thread::sleep(PAUSE),
                // Relaxed: `fork` has copied what its holder wrote.
                Err(holder) => {
                    if self.holder.compare_exchange(holder, mine, Relaxed, Relaxed).is_ok() {
                        // SAFETY: no thread of this process holds it. What is there may be half of
                        // a value, so it is not dropped.
                        unsafe { self.value.get().write(anew()) };
                        return ForkSafeGuard { lock: self, value: PhantomData };
                    }
                }
            }
        }
    }
}

/// A [`ForkSafeMutex`] that this thread holds.
pub struct ForkSafeGuard<'a, T> {
    lock: &'a ForkSafeMutex<T>,
    /// Gives it out by reference, so it may be shared between threads only if the value may.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for ForkSafeGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for ForkSafeGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for ForkSafeGuard<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `ForkSafeMutex::lock_or`.
        self.lock.holder.store(0, Release);
    }
}

/// Watch for forks from here on.
pub fn prepare() {
    static WATCHED: Once<()> = Once::new();
    WATCHED.get_or_make(|| {
        // SAFETY: the handlers do only what they may, one of them in a child of a process with
        // threads; that they run twice is no harm. It fails without memory only, and then children
        // are what they would be without it.
        unsafe { libc::pthread_atfork(Some(before), None, Some(in_child)) };
    });
}

/// The inode of a socket; `None` where the descriptor is none.
fn inode(socket: RawFd) -> Option<u64> {
    // SAFETY: all zeroes is a valid structure, and the call fills it.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let is_socket = libc::fstat(socket, &mut status) == 0
            && status.st_mode & libc::S_IFMT == libc::S_IFSOCK;
        is_socket.then_some(status.st_ino)
    }
}

/// Runs in the parent, before there is a child.
extern "C" fn before() {
    // Release: pairs with the Acquire in `forks`.
    FORKS.fetch_add(1, Release);
}

/// Runs in the child, before `fork` returns there.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
    let largest = LARGEST.load(Relaxed);
    if largest < 0 {
        return;
    }
    // SAFETY: calls on descriptors, all of them async-signal-safe.
    unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for (socket, entry) in (0..=largest).zip(&SOCKETS) {
            let listed = entry.swap(0, Relaxed);
            if listed == 0 || inode(socket) != Some(listed) {
                continue;
            }
            // What the child has a copy of may still close this number, so it stays taken.
            if nothing < 0 || libc::dup3(nothing, socket, libc::O_CLOEXEC) < 0 {
                libc::close(socket);
            }
        }
        if nothing >= 0 {
            libc::close(nothing);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    /// Fork a child that runs `body` and exits with what it returns; the exit status.
    fn in_fork(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child makes system calls and leaves through `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = body();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: `status` is a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
    }

    #[test]
    fn a_child_does_not_wait_for_what_a_thread_of_its_parent_was_making() {
        static VALUE: Once<u32> = Once::new();
        assert_eq!(VALUE.get(), None);
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (end, may_end) = std::sync::mpsc::channel::<()>();
        let maker = std::thread::spawn(move || {
            *VALUE.get_or_make(|| {
                begun.send(()).unwrap();
                may_end.recv().unwrap();
                std::process::id()
            })
        });
        has_begun.recv().unwrap();
        let asker = std::thread::spawn(|| *VALUE.get_or_make(|| 0));
        let status = in_fork(|| {
            // SAFETY: ends a child that waits, after longer than any machine takes.
            unsafe { libc::alarm(20) };
            let own = std::process::id();
            i32::from(*VALUE.get_or_make(|| own) != own || VALUE.get() != Some(&own))
        });
        assert_eq!(status, 0);
        end.send(()).unwrap();
        assert_eq!(maker.join().unwrap(), std::process::id());
        assert_eq!(asker.join().unwrap(), std::process::id());
    }

    #[test]
    fn a_value_whose_making_panicked_is_made_by_who_asks_next() {
        static VALUE: Once<u32> = Once::new();
        let made = std::panic::catch_unwind(|| VALUE.get_or_make(|| panic!("no value yet")));
        assert!(made.is_err() && VALUE.get().is_none());
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(*VALUE.get_or_make(|| 7)));
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(7));
    }

    #[test]
    fn a_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_holds() {
        static HELD: ForkSafeMutex<Vec<u32>> = ForkSafeMutex::new(Vec::new());
        static FREE: ForkSafeMutex<Vec<u32>> = ForkSafeMutex::new(Vec::new());
        HELD.lock().push(1);
        FREE.lock().push(1);
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (end, may_end) = std::sync::mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let mut held = HELD.lock();
            begun.send(()).unwrap();
            may_end.recv().unwrap();
            held.push(2);
        });
        has_begun.recv().unwrap();
        let asker = std::thread::spawn(|| HELD.lock().len());
        let status = in_fork(|| {
            // SAFETY: ends a child that waits, after longer than any machine takes.
            unsafe { libc::alarm(20) };
            let anew = HELD.lock().is_empty() && HELD.lock().is_empty();
            i32::from(!anew) | i32::from(*FREE.lock() != [1]) << 1
        });
        assert_eq!(status, 0);
        end.send(()).unwrap();
        holder.join().unwrap();
        assert_eq!(asker.join().unwrap(), 2, "only a child begins anew");
    }

    #[test]
    fn a_child_lets_go_of_what_is_listed_and_of_nothing_else() {
        let (listed, mut far) = UnixStream::pair().unwrap();
        let (kept, _) = UnixStream::pair().unwrap();
        let_go_in_child(listed.as_raw_fd());
        // A socket that is closed, and whose number another one gets.
        let (past, _) = UnixStream::pair().unwrap();
        let_go_in_child(past.as_raw_fd());
        let number = past.as_raw_fd();
        // SAFETY: both are open; the old one is closed in the exchange, as intended here.
        assert_eq!(unsafe { libc::dup2(kept.as_raw_fd(), number) }, number);
        let before = generation();
        let sockets = [listed.as_raw_fd(), kept.as_raw_fd(), number];
        let status = in_fork(|| {
            let held = sockets.map(|socket| inode(socket).is_some());
            i32::from(held != [false, true, true]) | i32::from(generation() == before) << 1
        });
        assert_eq!(status, 0);
        assert_eq!(generation(), before);
        assert!(inode(listed.as_raw_fd()).is_some(), "the parent keeps it");
        // With a child alive, the connection ends with the parent's descriptor.
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, used by this test alone.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        // SAFETY: the child waits for the pipe to end, and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: system calls only.
            unsafe {
                libc::close(ends[1]);
                libc::read(ends[0], ends.as_mut_ptr().cast(), 1);
                libc::_exit(0);
            }
        }
        drop(listed);
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        // SAFETY: the child above, and the descriptors of the pipe.
        unsafe {
            libc::close(ends[1]);
            libc::waitpid(child, std::ptr::null_mut(), 0);
            libc::close(ends[0]);
        }
    }
}
