//! Connections under load: between threads, between processes, with sleepers, and with a peer
//! killed.

use ringcomm::error::{Error, Result};
use ringcomm::transport::fifo::{FifoShape, Receiver, Sender, Stamp};
use ringcomm::transport::pidfd::Liveness;
use ringcomm::transport::segment::Segment;
use ringcomm::transport::wait::{Doorbell, SpinPolicy, WaitCheck, ring_bell, wait};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

/// Ends a wait that a defect has made endless; far beyond what a loaded machine needs.
struct Deadline;

impl WaitCheck for Deadline {
    fn check(&self, peer: usize, waited: Duration) -> Result<()> {
        let late = waited > Duration::from_secs(60);
        if late { Err(Error::usage(format!("waited too long for {peer}"))) } else { Ok(()) }
    }
}

/// Two rings, one each way, and a bell for each of two ranks, in one segment.
#[derive(Clone, Copy)]
struct Pair {
    base: *mut u8,
    geometry: FifoShape,
}

// SAFETY: the memory holds atomics and slots, which are made for two threads.
unsafe impl Send for Pair {}

/// One rank's ends.
struct Rank<'a> {
    sender: Sender,
    receiver: Receiver,
    bell: &'a Doorbell,
    peer_bell: &'a Doorbell,
    patience: SpinPolicy,
    number: usize,
}

impl Pair {
    const BELLS: usize = 2 * size_of::<Doorbell>();

    fn bytes(geometry: FifoShape) -> usize {
        Pair::BELLS + 2 * geometry.bytes().next_multiple_of(128)
    }

    fn rank<'a>(self, number: usize, patience: SpinPolicy) -> Rank<'a> {
        let ring = |sender: usize| {
            let offset = Pair::BELLS + sender * self.geometry.bytes().next_multiple_of(128);
            self.base.wrapping_add(offset)
        };
        // SAFETY: the tests make each rank once, in memory that outlives it.
        unsafe {
            let bells = self.base.cast::<Doorbell>();
            Rank {
                sender: Sender::new(ring(number), self.geometry),
                receiver: Receiver::new(ring(1 - number), self.geometry),
                bell: &*bells.add(number),
                peer_bell: &*bells.add(1 - number),
                patience,
                number,
            }
        }
    }
}

/// The stamp, length and content of message `index` of a rank.
fn message(source: usize, index: u64, slot_bytes: usize) -> (Stamp, usize, u64) {
    // Spreads lengths over inline ones, full slots and everything between.
    let mixed = (index * 2 + source as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let length = (mixed >> 40) as usize % [8, 25, slot_bytes + 1][mixed as usize % 3];
    let source = source as u32;
    (
        Stamp { communicator: 1, epoch: 2, sequence: index, fingerprint: mixed, source },
        length,
        mixed,
    )
}

impl Rank<'_> {
    fn send(&mut self, index: u64, slot_bytes: usize, watch: &dyn WaitCheck) -> Result<()> {
        let (stamp, length, seed) = message(self.number, index, slot_bytes);
        let sender = &mut self.sender;
        let payload =
            wait(self.patience, (self.bell, self.peer_bell), 1 - self.number, watch, || {
                sender.try_reserve(length)
            })?;
        for at in 0..length {
            // SAFETY: the slot is reserved for `length` bytes.
            unsafe { payload.add(at).write(seed.wrapping_add(at as u64) as u8) };
        }
        self.sender.post(&stamp, length);
        ring_bell(self.peer_bell);
        Ok(())
    }

    fn receive(&mut self, index: u64, slot_bytes: usize, watch: &dyn WaitCheck) -> Result<()> {
        let peer = 1 - self.number;
        let (stamp, length, seed) = message(peer, index, slot_bytes);
        let receiver = &mut self.receiver;
        let got =
            wait(self.patience, (self.bell, self.peer_bell), peer, watch, || receiver.peek())?;
        // SAFETY: the message is not freed yet.
        let data = unsafe { std::slice::from_raw_parts(got.payload, got.length) };
        let expected = |at: usize| seed.wrapping_add(at as u64) as u8;
        let right = got.stamp == stamp
            && data.len() == length
            && data.iter().enumerate().all(|(at, byte)| *byte == expected(at));
        self.receiver.free();
        ring_bell(self.peer_bell);
        if right { Ok(()) } else { Err(Error::Internal(format!("message {index} is not whole"))) }
    }

    /// Both ranks send and receive `count` messages, in bursts that fill the ring.
    fn run(&mut self, count: u64, geometry: FifoShape) -> Result<()> {
        let burst = geometry.depth as u64;
        for first in (0..count).step_by(geometry.depth) {
            let burst = first..(first + burst).min(count);
            for index in burst.clone() {
                self.send(index, geometry.slot_bytes, &Deadline)?;
            }
            for index in burst {
                self.receive(index, geometry.slot_bytes, &Deadline)?;
            }
        }
        let sender = &mut self.sender;
        wait(self.patience, (self.bell, self.peer_bell), 1 - self.number, &Deadline, || {
            sender.is_drained().then_some(())
        })
    }
}

/// The usual patience, that of ranks that share cores, and none at all: every wait sleeps.
fn patiences() -> [SpinPolicy; 3] {
    let sleepy = SpinPolicy { spins: 0, yielding: Duration::ZERO, crossing: 0, beside: 0 };
    [SpinPolicy::new(2, 2, None), SpinPolicy::new(1000, 2, None), sleepy]
}

const GEOMETRIES: [FifoShape; 3] = [
    FifoShape { depth: 2, slot_bytes: 64 },
    FifoShape { depth: 3, slot_bytes: 4096 },
    FifoShape { depth: 16, slot_bytes: 128 },
];

/// Messages in each direction: enough to go round the deepest ring hundreds of times.
const MESSAGES: u64 = 5000;

#[test]
fn threads_exchange_messages_whole_and_in_order() {
    for geometry in GEOMETRIES {
        for patience in patiences() {
            let segment = Segment::anonymous(Pair::bytes(geometry)).unwrap();
            let pair = Pair { base: segment.address(), geometry };
            let peer = std::thread::spawn(move || {
                let pair = pair;
                pair.rank(1, patience).run(MESSAGES, geometry)
            });
            pair.rank(0, patience).run(MESSAGES, geometry).unwrap();
            peer.join().unwrap().unwrap();
        }
    }
}

/// Run `body` in a child of this process, which dies with it.
fn forked(body: impl FnOnce() -> bool) -> (libc::pid_t, OwnedFd) {
    // SAFETY: the child touches shared memory and makes system calls, then leaves without
    // unwinding.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::_exit(i32::from(!body()));
        }
        let raw = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        (pid, OwnedFd::from_raw_fd(raw as libc::c_int))
    }
}

/// The exit status of a child, as `waitpid` reports it.
fn reap(pid: libc::pid_t) -> libc::c_int {
    let mut status = -1;
    // SAFETY: a child of this process.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    status
}

#[test]
fn processes_exchange_messages_whole_and_in_order() {
    for geometry in GEOMETRIES {
        for patience in patiences() {
            let segment = Segment::create(Pair::bytes(geometry)).unwrap();
            let descriptor = segment.descriptor().unwrap();
            let (pid, _process) = forked(|| {
                // Mapped anew, hence at another address.
                let mapped = Segment::map(descriptor, Pair::bytes(geometry)).unwrap();
                let pair = Pair { base: mapped.address(), geometry };
                pair.rank(1, patience).run(MESSAGES, geometry).is_ok()
            });
            let pair = Pair { base: segment.address(), geometry };
            pair.rank(0, patience).run(MESSAGES, geometry).unwrap();
            assert_eq!(reap(pid), 0);
        }
    }
}

/// Ends a wait when the peer's process is gone.
struct Alive(Liveness);

impl WaitCheck for Alive {
    fn check(&self, peer: usize, waited: Duration) -> Result<()> {
        Deadline.check(peer, waited)?;
        let dead = self.0.dead();
        if dead.contains(&peer) { Err(Error::usage(format!("{peer} died"))) } else { Ok(()) }
    }
}

#[test]
fn a_killed_peer_ends_the_wait_after_what_it_had_sent() {
    let geometry = FifoShape { depth: 4, slot_bytes: 64 };
    for (round, patience) in patiences().into_iter().cycle().take(30).enumerate() {
        let sent = round as u64 % 4;
        let segment = Segment::create(Pair::bytes(geometry)).unwrap();
        let pair = Pair { base: segment.address(), geometry };
        let (pid, process) = forked(|| {
            let mut rank = pair.rank(1, patience);
            for index in 0..sent {
                rank.send(index, geometry.slot_bytes, &Deadline).unwrap();
            }
            // SAFETY: ends this process only.
            unsafe { libc::raise(libc::SIGKILL) };
            true
        });
        let alive = Alive(Liveness::new(vec![None, Some(process)]));
        let mut rank = pair.rank(0, patience);
        for index in 0..sent {
            rank.receive(index, geometry.slot_bytes, &alive).unwrap();
        }
        let error = rank.receive(sent, geometry.slot_bytes, &alive).unwrap_err();
        assert_eq!(error, Error::usage("1 died"));
        assert_eq!(reap(pid), libc::SIGKILL);
    }
}
