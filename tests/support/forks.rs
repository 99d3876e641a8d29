//! Children that a test forks.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::time::Duration;

/// Fork a child that runs `body`, gives its text back and lives on for `life`; its number and the
/// text.
pub fn fork_child(life: Duration, body: impl FnOnce() -> String) -> (i32, String) {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: both are new and nobody else's.
    let [mut read, mut write] = ends.map(|fd| unsafe { File::from_raw_fd(fd) });
    // SAFETY: the child allocates, which glibc permits after fork, and leaves through `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let _ = write.write_all(body().as_bytes());
        drop(write);
        // SAFETY: system calls. Whoever reads what the parent prints must not wait for the child.
        unsafe {
            libc::close(1);
            libc::close(2);
            std::thread::sleep(life);
            libc::_exit(0);
        }
    }
    drop(write);
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    (child, text)
}

/// Take note of a child's end.
pub fn reap(child: i32) {
    // SAFETY: the child is this process's own.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}
