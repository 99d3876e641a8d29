//! Whether anybody is at the other end of a TCP connection, as this end's kernel knows it.
//!
//! The kernel of an idle socket asks by itself, and ends the connection where nobody answers. While
//! bytes are on their way it does not: it sends them again for a quarter of an hour. The option
//! that ends this sooner (`TCP_USER_TIMEOUT`) also ends the connection with a process that is
//! stopped, whose window closes. So a long wait looks for itself: a kernel whose process is stopped
//! acknowledges whatever comes, and where the network is parted nothing is acknowledged, however
//! often it is sent.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

/// How long bytes may be on their way while nothing at all comes back, as counted by looks. With
/// two [`LOOK`]s and the way of the news it is less than the ten seconds within which a silent
/// partition is to be found.
const SILENCE: Duration = Duration::from_secs(5);

/// Between two looks.
pub const LOOK: Duration = Duration::from_secs(1);

/// How often bytes have to be sent again in vain: a kernel that answers, but has no room for them,
/// answers each. (Linux before 6.6 may drop some without a word where a window has shrunk to less.)
const UNANSWERED_RETRANSMITS: u32 = 2;

/// What a kernel says of a socket.
#[derive(Clone, Copy, Default)]
struct SocketState {
    unacknowledged: u32,
    /// Since anything came from the other end: an acknowledgement or data.
    quiet: Duration,
    sent_again: u32,
}

/// What was seen of a connection before.
#[derive(Default)]
pub struct AckWatch {
    /// What had been sent again when anything was last known to have come.
    sent_again: Option<u32>,
    /// Looks in a row since then at which bytes were on their way. An idle connection is quiet for
    /// any time, and then has a moment's trouble like any other.
    waiting: u32,
}

impl AckWatch {
    /// Whether nobody is at the other end of the socket any more. Called every [`LOOK`], about.
    pub fn is_silent(&mut self, fd: RawFd) -> bool {
        look(fd).is_some_and(|seen| self.is_silent_in(seen))
    }

    fn is_silent_in(&mut self, seen: SocketState) -> bool {
        let before = *self.sent_again.get_or_insert(seen.sent_again);
        // Half a look more, for what came just after the one before.
        if seen.unacknowledged == 0 || seen.quiet < LOOK * 3 / 2 {
            *self = AckWatch { sent_again: Some(seen.sent_again), waiting: 0 };
            return false;
        }
        self.waiting += 1;
        LOOK * self.waiting >= SILENCE
            && seen.sent_again.wrapping_sub(before) >= UNANSWERED_RETRANSMITS
    }
}

fn look(fd: RawFd) -> Option<SocketState> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let target = info.as_mut_ptr().cast();
    // SAFETY: the memory is live and `length` is its size.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, target, &raw mut length) };
    // SAFETY: it is integers, and zeroes where the kernel wrote none.
    let info = unsafe { info.assume_init() };
    (result == 0).then(|| SocketState {
        unacknowledged: info.tcpi_unacked,
        quiet: Duration::from_millis(info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv).into()),
        sent_again: info.tcpi_total_retrans,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found at looks, one a second, of which each says whether an acknowledgement has come
    /// since the one before and how often bytes have been sent again by then.
    fn found(looks: &[(bool, u32)]) -> Option<usize> {
        let (mut silence, mut quiet) = (AckWatch::default(), Duration::ZERO);
        looks.iter().position(|(came, sent_again)| {
            quiet = if *came { Duration::from_millis(10) } else { quiet + LOOK };
            silence.is_silent_in(SocketState { unacknowledged: 1, quiet, sent_again: *sent_again })
        })
    }

    #[test]
    fn silence_is_found_within_seven_looks() {
        // Sent again after 0.2, 0.6, 1.4, 3, 6.2 seconds.
        let looks: Vec<_> =
            [0, 2, 3, 4, 4, 4, 5, 5, 5].iter().enumerate().map(|(at, n)| (at == 0, *n)).collect();
        assert_eq!(found(&looks), Some(6));
        // The same for who first looks when it has been silent for a second.
        assert_eq!(found(&looks[1..]), Some(5));
    }

    #[test]
    fn a_kernel_that_answers_without_room_is_not_silent() {
        // Sent again ever more rarely, and answered each time.
        let again = [1, 2, 4, 8, 16, 32, 64];
        let looks: Vec<_> = (0..100u32)
            .map(|second| {
                let sent = again.iter().filter(|at| **at <= second).count() as u32;
                (again.contains(&second), sent)
            })
            .collect();
        assert_eq!(found(&looks), None);
    }

    #[test]
    fn a_moments_trouble_after_a_long_rest_is_no_silence() {
        let mut silence = AckWatch::default();
        let quiet = Duration::from_secs(100);
        assert!(!silence.is_silent_in(SocketState { unacknowledged: 0, quiet, sent_again: 0 }));
        // Sent again in the same second, and the answer comes in the third.
        for (sent_again, quiet) in [(2, quiet), (3, quiet), (3, LOOK / 2)] {
            assert!(!silence.is_silent_in(SocketState { unacknowledged: 1, quiet, sent_again }));
        }
    }

    #[test]
    fn nothing_on_its_way_is_the_kernels_to_ask_after() {
        let mut silence = AckWatch::default();
        let quiet = Duration::from_secs(100);
        assert!((0..10).all(|again| {
            !silence.is_silent_in(SocketState { unacknowledged: 0, quiet, sent_again: again })
        }));
    }
}
