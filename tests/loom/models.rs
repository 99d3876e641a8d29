//! The connection and the doorbell under loom, which runs every interleaving and every value that a
//! weak memory may return.
//!
//! The sources are the library's own, compiled here with loom's atomics. A model that still passes
//! with an ordering weakened would prove nothing about it, so every site is weakened in turn and
//! the models must fail.
#![cfg(test)]
#![allow(dead_code)]

#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/fork.rs"]
mod fork;
#[path = "../../src/sync.rs"]
mod sync;
#[path = "../../src/ffi"]
mod ffi {
    pub mod handle;
}
#[path = "../../src/transport"]
mod transport {
    pub mod fifo;
    mod prefetch;
    pub mod wait;
}

use error::Result;
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use sync::{Site, UnsafeCell};
use transport::fifo::{FifoShape, Receiver, Sender, Stamp, construct};
use transport::wait::{Doorbell, SpinPolicy, WaitCheck, ring_bell, wait};

/// The shallowest ring there is, so that few messages use a slot again.
const GEOMETRY: FifoShape = FifoShape { depth: 2, slot_bytes: 64 };

/// A ring and what else two ranks share. Keeps its memory until both threads are done.
struct Shared {
    memory: Vec<[u8; 64]>,
    /// Memory that the receiver reads as long as a message is not freed, as if the sender had lent
    /// it.
    loan: UnsafeCell<u64>,
    /// One per rank: the sender's, the receiver's.
    bells: [Doorbell; 2],
}

// SAFETY: loom reports what two threads touch without order, which is what the models are for.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

fn shared() -> (Arc<Shared>, Sender, Receiver) {
    let mut memory = vec![[0u8; 64]; GEOMETRY.bytes() / 64 + 2];
    let base = memory.as_mut_ptr().cast::<u8>();
    let base = base.wrapping_add(base.align_offset(128));
    // SAFETY: the memory is large enough, aligned, and outlives both ends, as the threads hold it.
    let (sender, receiver) = unsafe {
        construct(base, GEOMETRY);
        (Sender::new(base, GEOMETRY), Receiver::new(base, GEOMETRY))
    };
    let loan = UnsafeCell::new(0);
    (Arc::new(Shared { memory, loan, bells: [Doorbell::new(), Doorbell::new()] }), sender, receiver)
}

/// A wait that nothing ends early.
struct Forever;

impl WaitCheck for Forever {
    fn check(&self, _: usize, _: Duration) -> Result<()> {
        Ok(())
    }
}

/// Straight to sleep: spinning and yielding add interleavings, not behaviour.
const SLEEPY: SpinPolicy =
    SpinPolicy { spins: 0, yielding: Duration::ZERO, crossing: 0, beside: 0 };

fn stamp(sequence: u64) -> Stamp {
    Stamp { communicator: 1, epoch: 2, sequence, fingerprint: 1, source: 0 }
}

/// Messages that use each slot, and one of them twice.
const MESSAGES: u64 = 3;

fn poll<T>(mut ready: impl FnMut() -> Option<T>) -> T {
    loop {
        match ready() {
            Some(value) => return value,
            None => thread::yield_now(),
        }
    }
}

/// Every message arrives whole and in order, and no slot is written while it is read.
fn messages() {
    let (shared, mut sender, mut receiver) = shared();
    let keep = shared.clone();
    let reader = thread::spawn(move || {
        for sequence in 0..MESSAGES {
            let message = poll(|| receiver.peek());
            assert_eq!((message.stamp, message.length), (stamp(sequence), 8));
            // SAFETY: the message is not freed yet.
            assert_eq!(unsafe { message.payload.cast::<u64>().read_unaligned() }, sequence + 7);
            receiver.free();
        }
        drop(keep);
    });
    for sequence in 0..MESSAGES {
        let payload = poll(|| sender.try_reserve(8));
        // SAFETY: the slot was reserved for eight bytes.
        unsafe { payload.cast::<u64>().write_unaligned(sequence + 7) };
        sender.post(&stamp(sequence), 8);
    }
    reader.join().unwrap();
    drop(shared);
}

/// What the sender lends with a message is its own again once everything is freed.
fn loans() {
    let (shared, mut sender, mut receiver) = shared();
    let borrower = shared.clone();
    // SAFETY: the cell is this thread's until it is lent.
    shared.loan.with_mut(|cell| unsafe { *cell = 5 });
    let reader = thread::spawn(move || {
        poll(|| receiver.peek());
        // SAFETY: the loan lasts until the message is freed.
        assert_eq!(borrower.loan.with(|cell| unsafe { *cell }), 5);
        receiver.free();
    });
    sender.try_reserve(0).unwrap();
    sender.post(&stamp(0), 0);
    poll(|| sender.is_drained().then_some(()));
    // SAFETY: the loan is over.
    shared.loan.with_mut(|cell| unsafe { *cell = 6 });
    reader.join().unwrap();
}

/// A receiver that sleeps is woken by every message.
fn sleeping_receiver() {
    let (shared, mut sender, mut receiver) = shared();
    let mine = shared.clone();
    let reader = thread::spawn(move || {
        for _ in 0..2 {
            wait(SLEEPY, (&mine.bells[1], &mine.bells[0]), 0, &Forever, || receiver.peek())
                .unwrap();
            receiver.free();
        }
    });
    for sequence in 0..2 {
        sender.try_reserve(0).unwrap();
        sender.post(&stamp(sequence), 0);
        ring_bell(&shared.bells[1]);
    }
    reader.join().unwrap();
}

/// A sender that sleeps because the ring is full is woken when a slot is freed.
fn sleeping_sender() {
    let (shared, mut sender, mut receiver) = shared();
    let theirs = shared.clone();
    for sequence in 0..2 {
        sender.try_reserve(0).unwrap();
        sender.post(&stamp(sequence), 0);
    }
    let reader = thread::spawn(move || {
        receiver.peek().unwrap();
        receiver.free();
        ring_bell(&theirs.bells[0]);
    });
    wait(SLEEPY, (&shared.bells[0], &shared.bells[1]), 1, &Forever, || sender.try_reserve(0))
        .unwrap();
    reader.join().unwrap();
}

const MODELS: [(&str, fn()); 4] = [
    ("messages", messages),
    ("loans", loans),
    ("sleeping receiver", sleeping_receiver),
    ("sleeping sender", sleeping_sender),
];

/// Whether every execution of a model is right.
fn holds(model: fn()) -> bool {
    let mut builder = loom::model::Builder::new();
    // A lost wake-up shows as a loop without end; the longest right execution takes below 200
    // steps.
    builder.max_branches = 1000;
    catch_unwind(AssertUnwindSafe(|| builder.check(model))).is_ok()
}

/// One test for all, since the weakened site is a state of the process.
#[test]
fn every_ordering_is_enough_and_needed() {
    for (name, model) in MODELS {
        assert!(holds(model), "{name}: wrong as it is written");
    }
    // Expected failures need no backtraces.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let needless: Vec<Site> = Site::ALL
        .into_iter()
        .filter(|site| {
            sync::weaken(Some(*site));
            let survived = MODELS.iter().all(|(_, model)| holds(*model));
            sync::weaken(None);
            survived
        })
        .collect();
    std::panic::set_hook(hook);
    assert!(needless.is_empty(), "no model notices when these are weakened: {needless:?}");
    // A model that failed has left nothing behind that makes the next one fail.
    for (name, model) in MODELS {
        assert!(holds(model), "{name}: fails after others have failed");
    }
}

/// The sites of the atomic accesses in a source file, and the lines of those without one.
fn accesses(source: &'static str) -> (Vec<&'static str>, Vec<&'static str>) {
    let code = source.split("mod tests").next().expect("what comes before the tests");
    let accesses = [".load(", ".store(", ".swap(", ".fetch_", ".compare_exchange", " fence("];
    let (mut sites, mut others) = (Vec::new(), Vec::new());
    for line in code.lines().filter(|line| accesses.iter().any(|access| line.contains(access))) {
        match line.split_once("ordering(Site::").and_then(|(_, rest)| rest.split_once(',')) {
            Some((site, _)) => sites.push(site),
            None => others.push(line.trim()),
        }
    }
    assert!(sites.iter().all(|name| Site::ALL.iter().any(|site| format!("{site:?}") == *name)));
    (sites, others)
}

/// Every atomic access of the connection names a site of its own, so none escapes the weakening.
#[test]
fn every_atomic_of_the_connection_has_a_site() {
    let (sites, others) = accesses(include_str!("../../src/transport/fifo.rs"));
    assert_eq!(sites, ["Reserve", "Post", "Drained", "Wait", "Free"]);
    assert!(others.is_empty(), "no site: {others:?}");
}

/// As above for waiting, where only fences order: other accesses are relaxed, but for those of the
/// models themselves.
#[test]
fn every_ordering_of_a_wait_has_a_site() {
    let (sites, mut others) = accesses(include_str!("../../src/transport/wait.rs"));
    assert_eq!(sites, ["RingFence", "SleepFence"]);
    others.retain(|line| !line.contains("Relaxed"));
    let models = [
        "fence(SeqCst);",
        "fence(SeqCst);",
        "while word.load(Acquire) == 1 {",
        "word.store(0, Release);",
    ];
    assert_eq!(others, models);
}
