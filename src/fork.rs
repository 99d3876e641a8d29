//! What a forked child must not keep of its parent, and how it knows that it is one.
//!
//! A connection ends when its last descriptor is closed. A child that a program forks (a worker
//! that loads data) would hold copies of all of them, and when its parent is killed the peers would
//! see no connection end. So the library's sockets are listed here, and a handler that `fork` runs
//! in the child lets go of them. It may only do what a signal handler may: the list is atomics.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

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

/// Watch for forks from here on.
///
/// No `Once`: a child that is forked while another thread is within one would wait in it for ever.
pub fn prepare() {
    // All accesses are relaxed and have no partner: the handler's list is the C library's.
    static WATCHED: AtomicBool = AtomicBool::new(false);
    /// The process that is about to, so that its child does not wait for it.
    static WATCHER: AtomicI32 = AtomicI32::new(0);
    while !WATCHED.load(Relaxed) {
        let me = std::process::id() as i32;
        if WATCHER.swap(me, Relaxed) == me {
            // Another thread of this process is.
            std::thread::yield_now();
            continue;
        }
        // SAFETY: the handler does only what it may in a child of a process with threads; that it
        // runs twice is no harm. It fails without memory only, and then children are what they
        // would be without it.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        WATCHED.store(true, Relaxed);
    }
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

#[cfg(test)]
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
        libc::WEXITSTATUS(status)
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
