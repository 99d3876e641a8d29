//! What tells one process image from another, and the randomness that the bootstrap needs.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Bits of a token that hold the process id: the kernel's PID_MAX_LIMIT is 2^22.
const PID_BITS: u32 = 22;

/// This process image's token; 0 until it is first asked for. Only its own value matters, so all
/// accesses are relaxed and have no partner.
static TOKEN: AtomicU64 = AtomicU64::new(0);

/// Fill `bytes` from the kernel's generator.
pub(super) fn random(bytes: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: the pointer and length are those of a live slice.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        if got < 0 {
            let error = Error::system("reading the kernel's random generator");
            if !matches!(error, Error::System { errno: libc::EINTR, .. }) {
                return Err(error);
            }
        } else {
            done += got as usize;
        }
    }
    Ok(())
}

/// The user that this process acts as.
pub(super) fn user() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// What is told where `who` cannot take a connection for this reason, with what to do.
pub(super) fn out_of_sockets(who: &str, errno: i32) -> String {
    let why = match errno {
        libc::EMFILE => {
            // SAFETY: all zeroes is a valid limit.
            let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
            // SAFETY: the limit is live; should it not be to be had, it stays 0.
            unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
            format!("its process may have {} files open; raise `ulimit -n`", limit.rlim_cur)
        }
        libc::ENFILE => "its machine has all the files open that it may; raise fs.file-max".into(),
        libc::ENOBUFS | libc::ENOMEM => "its machine has no memory left for sockets".into(),
        _ => "its system refuses them".to_string(),
    };
    format!("{who} can take no more connections ({why})")
}

/// A number that no other process image of this machine has: equal among the threads of a process,
/// different in a forked child. The low bits are the process id, which is how a child notices that
/// the token it inherited is not its own; no lock, so a fork at any moment is harmless.
pub fn process_token() -> Result<u64> {
    let pid = u64::from(std::process::id()) & ((1 << PID_BITS) - 1);
    let known = TOKEN.load(Relaxed);
    if known != 0 && known & ((1 << PID_BITS) - 1) == pid {
        return Ok(known);
    }
    let mut bytes = [0; 8];
    random(&mut bytes)?;
    let fresh = u64::from_le_bytes(bytes) << PID_BITS | pid;
    // Two threads may draw at once; the first to store decides for both.
    Ok(TOKEN.compare_exchange(known, fresh, Relaxed, Relaxed).map_or_else(|won| won, |_| fresh))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_a_token_and_a_forked_child_has_its_own() {
        let mine = process_token().unwrap();
        assert_eq!(std::thread::spawn(|| process_token().unwrap()).join().unwrap(), mine);
        // SAFETY: the child only computes and leaves through `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let same = process_token().map_or(2, |token| i32::from(token == mine));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(same) };
        }
        let mut status = 0;
        // SAFETY: `status` is a live integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child kept its parent's token");
        assert_eq!(process_token().unwrap(), mine);
    }
}
