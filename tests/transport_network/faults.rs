//! Implementations that break the contract: the suite says so of each.

use super::conformance::{Network, Patience, keeps_the_contract};
use super::tcp::{loopback, three_on_loopback};
use ringcomm::error::Error;
use ringcomm::transport::fifo::{ReceivedMessage, Stamp};
use ringcomm::transport::network::{Connection, Endpoint, Lengths};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// What an implementation gets wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Memory that was sent from is read after it was settled.
    ForgetsToSettle,
    /// The end of a connection is never told.
    KeepsTheEnd,
    /// A message is lost.
    Loses,
    /// A byte changes on the way.
    Changes,
    /// Whatever comes is put where something else was wanted.
    TakesAnyPlace,
    /// A sleep lasts as long as it may, whatever comes.
    Oversleeps,
    /// There is always one more slot, and what is put there is lost.
    NeverFull,
    /// A message that goes whole is cut as others are.
    CutsLongOnes,
    /// After the end nothing is said to be delivered.
    NeverDone,
    /// A peer that does not read holds up what goes to others.
    HoldsUpAll,
}

const FAULTS: [Fault; 10] = [
    Fault::ForgetsToSettle,
    Fault::KeepsTheEnd,
    Fault::Loses,
    Fault::Changes,
    Fault::TakesAnyPlace,
    Fault::Oversleeps,
    Fault::NeverFull,
    Fault::CutsLongOnes,
    Fault::NeverDone,
    Fault::HoldsUpAll,
];

/// An endpoint with a fault around one that has none.
struct Faulty {
    inner: Box<dyn Endpoint>,
    fault: Fault,
    connection: FaultyConnection,
    ended: AtomicBool,
}

/// Its connection to a peer: a pointer into the endpoint inside for the time of a call.
struct FaultyConnection {
    inner: Option<*mut dyn Connection>,
    peer: usize,
    fault: Fault,
    /// The longest message that a slot holds.
    cut: usize,
    posted: u32,
    wanted: Option<Stamp>,
    /// Where what is lost is put, and whether the next message is.
    lost: Vec<u8>,
    is_lost: bool,
    /// Who has not read.
    held_up_by: Option<usize>,
}

impl FaultyConnection {
    fn new(fault: Fault, cut: usize) -> FaultyConnection {
        FaultyConnection {
            inner: None,
            peer: 0,
            fault,
            cut,
            posted: 0,
            wanted: None,
            lost: vec![0; cut],
            is_lost: false,
            held_up_by: None,
        }
    }
}

// SAFETY: the pointer is set anew at every use, by the thread that uses it.
unsafe impl Send for FaultyConnection {}

impl FaultyConnection {
    fn inner(&mut self) -> &mut dyn Connection {
        // SAFETY: set by `Faulty::connection` a moment ago, and nothing else uses the endpoint
        // since.
        unsafe { &mut *self.inner.expect("set at every use") }
    }
}

impl Connection for FaultyConnection {
    fn try_reserve(&mut self, length: usize) -> Option<*mut u8> {
        if self.fault == Fault::HoldsUpAll && self.held_up_by.is_some_and(|by| by != self.peer) {
            return None;
        }
        let slot = self.inner().try_reserve(length);
        if slot.is_none() {
            self.held_up_by = Some(self.peer);
        }
        self.is_lost = slot.is_none() && self.fault == Fault::NeverFull;
        if self.is_lost { Some(self.lost.as_mut_ptr()) } else { slot }
    }

    fn post(&mut self, stamp: &Stamp, length: usize) {
        self.posted += 1;
        if self.is_lost || self.fault == Fault::Loses && self.posted == 3 {
            return;
        }
        self.inner().post(stamp, length);
    }

    unsafe fn send_from(&mut self, stamp: &Stamp, payload: *const u8, length: usize) -> bool {
        let length = if self.fault == Fault::CutsLongOnes { length.min(self.cut) } else { length };
        // SAFETY: the caller's promise.
        unsafe { self.inner().send_from(stamp, payload, length) }
    }

    fn flush(&mut self) {
        self.inner().flush();
    }

    fn is_written(&self) -> bool {
        // SAFETY: as in `inner`.
        self.inner.is_some_and(|inner| unsafe { (*inner).is_written() })
    }

    fn receive_at(&mut self, address: *mut u8, length: usize, stamp: &Stamp) {
        self.wanted = Some(*stamp);
        self.inner().receive_at(address, length, stamp);
    }

    fn receive_anywhere(&mut self) {
        self.inner().receive_anywhere();
    }

    fn peek(&mut self) -> Option<(ReceivedMessage, bool)> {
        let (message, landed) = self.inner().peek()?;
        if self.fault == Fault::Changes && message.length == 7 && !landed {
            // SAFETY: the slot's own memory, which the test reads next.
            unsafe { *message.payload.cast_mut() ^= 1 };
        }
        let is_other = self.wanted.is_some_and(|wanted| wanted != message.stamp);
        Some((message, landed || self.fault == Fault::TakesAnyPlace && is_other))
    }

    fn free(&mut self) {
        self.wanted = None;
        self.inner().free();
    }
}

impl Endpoint for Faulty {
    fn connection(&mut self, peer: usize) -> &mut dyn Connection {
        let inner: *mut (dyn Connection + '_) = self.inner.connection(peer);
        // SAFETY: only the lifetime changes; the pointer is followed while the endpoint is
        // borrowed.
        let inner = unsafe {
            std::mem::transmute::<*mut (dyn Connection + '_), *mut (dyn Connection + 'static)>(
                inner,
            )
        };
        (self.connection.inner, self.connection.peer) = (Some(inner), peer);
        &mut self.connection
    }

    fn step_lengths(&self) -> Lengths {
        self.inner.step_lengths()
    }

    fn message_lengths(&self) -> Lengths {
        self.inner.message_lengths()
    }

    fn is_zero_copy(&self) -> bool {
        self.inner.is_zero_copy()
    }

    fn posted(&mut self, peer: usize) {
        self.inner.posted(peer);
    }

    fn flush(&mut self) -> bool {
        self.inner.flush()
    }

    fn unwritten(&self) -> Option<usize> {
        self.inner.unwritten()
    }

    fn settle(&mut self, address: *const u8, bytes: usize) {
        if self.fault != Fault::ForgetsToSettle {
            self.inner.settle(address, bytes);
        }
    }

    fn failure(&mut self, peer: usize) -> Option<&str> {
        if self.fault == Fault::KeepsTheEnd { None } else { self.inner.failure(peer) }
    }

    fn shortage(&self) -> Option<&Error> {
        self.inner.shortage()
    }

    fn sleep(&mut self, peer: Option<usize>, time: Duration) {
        match self.fault {
            Fault::Oversleeps => std::thread::sleep(time),
            _ => self.inner.sleep(peer, time),
        }
    }

    fn end(&self) {
        self.ended.store(true, Relaxed);
        self.inner.end();
    }

    fn undelivered(&self, matters: &dyn Fn(usize) -> bool) -> Option<usize> {
        match self.fault == Fault::NeverDone && self.ended.load(Relaxed) {
            true => Some(1),
            false => self.inner.undelivered(matters),
        }
    }
}

/// Long enough for what comes: the end of a connection is told after a second.
const SHORT: Patience = Patience(Duration::from_secs(6));

struct Broken(Fault);

impl Network for Broken {
    fn name(&self) -> String {
        format!("{:?}", self.0)
    }

    fn ranks(&self) -> [Box<dyn Endpoint>; 2] {
        loopback().map(|inner| self.around(inner))
    }

    fn three_ranks(&self) -> [Box<dyn Endpoint>; 3] {
        three_on_loopback().map(|inner| self.around(inner))
    }
}

impl Broken {
    fn around(&self, inner: Box<dyn Endpoint>) -> Box<dyn Endpoint> {
        let (fault, cut) = (self.0, inner.step_lengths().cut);
        let connection = FaultyConnection::new(fault, cut);
        Box::new(Faulty { inner, fault, connection, ended: AtomicBool::new(false) })
    }
}

#[test]
fn the_suite_finds_what_breaks_the_contract() {
    std::thread::scope(|scope| {
        // Some only show when patience is over.
        let found = FAULTS.map(|fault| {
            scope.spawn(move || {
                std::panic::catch_unwind(|| keeps_the_contract(&Broken(fault), SHORT))
            })
        });
        for (fault, found) in FAULTS.into_iter().zip(found) {
            assert!(found.join().expect("caught").is_err(), "{fault:?} was not found");
        }
    });
}
