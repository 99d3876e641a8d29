//! How many files this process may have open.
#![allow(dead_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

/// Let this process have as many files open as it may: the usual limit is 1,024.
pub fn open_many() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls are given a live structure of their own type.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

/// Let this process open so many more files; how many it may then have.
pub fn open_few_more(count: usize) -> u64 {
    // The next ones have the lowest free numbers, between which there may be some that are taken.
    let next: Vec<File> = (0..count).map(|_| File::open("/dev/null").unwrap()).collect();
    let most = next.iter().map(|file| file.as_raw_fd() as u64 + 1).max().unwrap();
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a valid limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    most
}
