//! The contract of `transport::network`, as one suite that any implementation has to pass.

use proptest::prelude::*;
use ringcomm::transport::fifo::Stamp;
use ringcomm::transport::network::Endpoint;
use std::time::{Duration, Instant};

/// An implementation under test.
pub trait Network {
    fn name(&self) -> String;

    /// Ranks 0 and 1, connected: what each of them calls.
    fn ranks(&self) -> [Box<dyn Endpoint>; 2];

    /// Ranks 0, 1 and 2, each connected with the others.
    fn three_ranks(&self) -> [Box<dyn Endpoint>; 3];
}

/// How long a check waits for what has to come.
#[derive(Clone, Copy)]
pub struct Patience(pub Duration);

impl Patience {
    /// For what nothing is wrong with, on a busy machine.
    pub const LONG: Patience = Patience(Duration::from_secs(60));

    /// Call `ready` until it gives something.
    pub fn until<T>(self, mut ready: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(value) = ready() {
                return value;
            }
            assert!(started.elapsed() < self.0, "nothing comes any more");
        }
    }
}

/// Every part of the contract; panics with the part that an implementation breaks.
pub fn keeps_the_contract(network: &dyn Network, patience: Patience) {
    type Part = (&'static str, fn(Patience, [Box<dyn Endpoint>; 2]));
    let parts: [Part; 9] = [
        ("messages of all lengths, in both directions", both_directions),
        ("slots end, and come back when the peer has read", slots_end_and_come_back),
        ("memory that was settled may change", settled_memory_may_change),
        ("memory that nothing is wanted in is left alone", memory_is_left_alone),
        ("a message that is not the wanted one goes to a slot", others_go_to_slots),
        ("what a peer sent before it went is read, then its end is told", ends_are_told_last),
        ("a message ends a sleep, and so does time", sleeps_end),
        ("the longest messages are taken", longest_are_taken),
        ("what was sent is delivered after the end", ends_deliver),
    ];
    for (part, check) in parts {
        let ranks = network.ranks();
        holds(network, part, || check(patience, ranks));
    }
    let ranks = network.three_ranks();
    holds(network, "peers are independent", || peers_are_independent(patience, ranks));
}

fn holds(network: &dyn Network, part: &str, check: impl FnOnce()) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    assert!(outcome.is_ok(), "{}: {part}: not so", network.name());
}

pub fn stamp(sequence: u64) -> Stamp {
    Stamp { communicator: 1, epoch: 2, sequence, fingerprint: 3, source: 0 }
}

/// The bytes of message `number`.
pub fn content(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i * 7 + number * 13 + i / 256) as u8).collect()
}

/// How one message travels: its length, whether it is sent from where it lies, and whether its
/// place is known before.
pub type Transfer = (usize, bool, bool);

pub fn messages(longest: usize) -> impl Strategy<Value = Vec<Transfer>> {
    let length = prop_oneof![Just(0usize), 1usize..70, 0usize..=longest];
    prop::collection::vec((length, any::<bool>(), any::<bool>()), 1..200)
}

/// Post a message to `peer` through a slot; whether one was free.
fn try_send(endpoint: &mut dyn Endpoint, peer: usize, number: u64, bytes: &[u8]) -> bool {
    let Some(slot) = endpoint.connection(peer).try_reserve(bytes.len()) else { return false };
    // SAFETY: the slot was reserved for as many bytes.
    unsafe { slot.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    endpoint.connection(peer).post(&stamp(number), bytes.len());
    endpoint.posted(peer);
    true
}

/// Read the next message of `peer`, if it has come, and free it.
fn try_read(endpoint: &mut dyn Endpoint, peer: usize) -> Option<(Vec<u8>, Stamp)> {
    let connection = endpoint.connection(peer);
    let (message, landed) = connection.peek()?;
    assert!(!landed, "it landed in memory that nobody named");
    // SAFETY: the slot holds the message until it is freed.
    let got = unsafe { std::slice::from_raw_parts(message.payload, message.length) }.to_vec();
    connection.free();
    Some((got, message.stamp))
}

/// Send every message from rank 0 to rank 1 and compare it there.
pub fn transfer(patience: Patience, ranks: &mut [Box<dyn Endpoint>; 2], messages: &[Transfer]) {
    let [sender, receiver] = ranks;
    carry(patience, (&mut **sender, 1), (&mut **receiver, 0), messages);
}

/// The same between a sender, which knows the receiver by a number, and the other way round.
fn carry(
    patience: Patience,
    (sender, to): (&mut dyn Endpoint, usize),
    (receiver, from): (&mut dyn Endpoint, usize),
    messages: &[Transfer],
) {
    let numbers = 0..messages.len() as u64;
    let contents: Vec<_> =
        numbers.zip(messages).map(|(number, message)| content(number, message.0)).collect();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for (number, (length, from_memory, _)) in messages.iter().enumerate() {
                let bytes = &contents[number];
                patience.until(|| {
                    match from_memory {
                        // SAFETY: the contents outlive the transfer.
                        true => unsafe {
                            let stamp = stamp(number as u64);
                            sender.connection(to).send_from(&stamp, bytes.as_ptr(), *length)
                        },
                        false => try_send(sender, to, number as u64, bytes),
                    }
                    .then_some(())
                });
                sender.posted(to);
            }
            patience.until(|| sender.flush().then_some(()));
            assert!(sender.connection(to).is_written() && sender.unwritten().is_none());
        });
        for (number, (length, _, is_placed)) in messages.iter().enumerate() {
            let mut place = vec![0u8; *length];
            let (message, landed) = patience.until(|| {
                let connection = receiver.connection(from);
                if *is_placed {
                    connection.receive_at(place.as_mut_ptr(), *length, &stamp(number as u64));
                }
                connection.peek()
            });
            assert_eq!((message.length, message.stamp), (*length, stamp(number as u64)));
            assert!(*is_placed || !landed);
            // SAFETY: the slot holds the message until it is freed.
            let slot = unsafe { std::slice::from_raw_parts(message.payload, message.length) };
            let got = if landed { &place[..] } else { slot };
            assert!(got == contents[number], "message {number} of {length} bytes differs");
            receiver.connection(from).free();
        }
        sending.join().expect("the sender's thread");
    });
}

fn both_directions(patience: Patience, [mut first, mut second]: [Box<dyn Endpoint>; 2]) {
    let longest = first.step_lengths().cut;
    let lengths = [0, 1, 7, 64, longest - 1, longest];
    let messages: Vec<Transfer> =
        (0..120).map(|i| (lengths[i % 6], i % 4 < 2, i % 3 == 0)).collect();
    carry(patience, (&mut *first, 1), (&mut *second, 0), &messages);
    carry(patience, (&mut *second, 0), (&mut *first, 1), &messages);
}

fn slots_end_and_come_back(patience: Patience, [mut sender, mut receiver]: [Box<dyn Endpoint>; 2]) {
    let bytes = content(0, sender.step_lengths().cut);
    let mut sent = 0;
    // A sender whose peer does not read is held up before it has filled the machine.
    while try_send(&mut *sender, 1, sent, &bytes) {
        sent += 1;
        assert!(sent * (bytes.len() as u64) < 256 << 20, "slots never end");
        sender.flush();
    }
    for number in 0..sent {
        let (got, stamped) = patience.until(|| {
            sender.flush();
            try_read(&mut *receiver, 0)
        });
        assert!(got == bytes && stamped == stamp(number), "message {number}");
    }
    patience.until(|| {
        sender.flush();
        try_send(&mut *sender, 1, sent, &bytes).then_some(())
    });
}

fn settled_memory_may_change(
    patience: Patience,
    [mut sender, mut receiver]: [Box<dyn Endpoint>; 2],
) {
    let bytes = sender.step_lengths().cut;
    let mut buffer = content(0, bytes);
    let mut sent = 0;
    // Nobody reads: some of the last ones are still to be sent.
    // SAFETY: settled before the buffer changes, which outlives the test.
    while unsafe { sender.connection(1).send_from(&stamp(sent), buffer.as_ptr(), bytes) } {
        sender.posted(1);
        sent += 1;
    }
    sender.settle(buffer.as_ptr(), bytes);
    buffer.fill(0xEE);
    for number in 0..sent {
        let (got, _) = patience.until(|| {
            sender.flush();
            try_read(&mut *receiver, 0)
        });
        assert!(got == content(0, bytes), "message {number} of {sent} has changed");
    }
}

fn memory_is_left_alone(patience: Patience, [mut sender, mut receiver]: [Box<dyn Endpoint>; 2]) {
    let (bytes, mut place) = (content(0, 500), vec![0xA5u8; 500]);
    let connection = receiver.connection(0);
    connection.receive_at(place.as_mut_ptr(), 500, &stamp(0));
    connection.receive_anywhere();
    assert!(try_send(&mut *sender, 1, 0, &bytes));
    let (got, _) = patience.until(|| {
        sender.flush();
        try_read(&mut *receiver, 0)
    });
    assert!(got == bytes && place.iter().all(|byte| *byte == 0xA5));
}

fn others_go_to_slots(patience: Patience, [mut sender, mut receiver]: [Box<dyn Endpoint>; 2]) {
    let mut place = vec![0xA5u8; 600];
    // Another call, and another length.
    for (number, wanted, length) in [(0, 7, 500), (1, 1, 600)] {
        assert!(try_send(&mut *sender, 1, number, &content(number, 500)));
        let (message, landed) = patience.until(|| {
            sender.flush();
            let connection = receiver.connection(0);
            connection.receive_at(place.as_mut_ptr(), length, &stamp(wanted));
            connection.peek()
        });
        assert_eq!((message.length, message.stamp, landed), (500, stamp(number), false));
        receiver.connection(0).receive_anywhere();
        receiver.connection(0).free();
        assert!(place.iter().all(|byte| *byte == 0xA5));
    }
}

fn ends_are_told_last(patience: Patience, [mut sender, mut receiver]: [Box<dyn Endpoint>; 2]) {
    for number in 0..3 {
        assert!(try_send(&mut *sender, 1, number, &content(number, 300)));
    }
    patience.until(|| sender.flush().then_some(()));
    patience.until(|| sender.undelivered(&|_| true).is_none().then_some(()));
    // It goes, as a process does that dies.
    drop(sender);
    for number in 0..3 {
        let (got, _) = patience.until(|| try_read(&mut *receiver, 0));
        assert!(got == content(number, 300), "message {number}");
    }
    let why = patience.until(|| {
        assert!(try_read(&mut *receiver, 0).is_none());
        receiver.failure(0).map(str::to_string)
    });
    assert!(!why.is_empty() && receiver.shortage().is_none());
    // Calls do nothing, and do not wait.
    receiver.connection(0).flush();
    receiver.flush();
    receiver.end();
}

fn sleeps_end(patience: Patience, [mut sender, mut receiver]: [Box<dyn Endpoint>; 2]) {
    receiver.connection(0);
    let started = Instant::now();
    receiver.sleep(Some(0), Duration::from_millis(20));
    assert!(started.elapsed() < patience.0 / 2, "time ends no sleep");
    let sending = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            assert!(try_send(&mut *sender, 1, 0, &content(0, 100)));
            patience.until(|| sender.flush().then_some(()));
        });
        let started = Instant::now();
        patience.until(|| {
            let come = try_read(&mut *receiver, 0);
            if come.is_none() {
                receiver.sleep(Some(0), patience.0 * 5 / 6);
            }
            come
        });
        assert!(started.elapsed() < patience.0 * 2 / 3, "a message ends no sleep");
        sending.join()
    });
    sending.expect("the sender's thread");
}

fn longest_are_taken(patience: Patience, mut ranks: [Box<dyn Endpoint>; 2]) {
    let (steps, messages) = (ranks[0].step_lengths(), ranks[0].message_lengths());
    assert!(messages.whole > messages.cut, "some that go whole are among those to try");
    // Whole ones are sent from where they lie, to where they are wanted.
    for length in [steps.cut, messages.cut, steps.whole, messages.whole] {
        transfer(patience, &mut ranks, &[(length, true, true)]);
    }
    transfer(patience, &mut ranks, &[(steps.cut, false, false)]);
}

fn ends_deliver(patience: Patience, [mut sender, mut receiver]: [Box<dyn Endpoint>; 2]) {
    receiver.connection(0);
    assert!(try_send(&mut *sender, 1, 0, &content(0, 200)));
    patience.until(|| sender.flush().then_some(()));
    patience.until(|| {
        sender.end();
        sender.undelivered(&|peer| peer == 1).is_none().then_some(())
    });
    assert_eq!(sender.undelivered(&|_| false), None);
    let (got, _) = patience.until(|| try_read(&mut *receiver, 0));
    assert!(got == content(0, 200));
}

fn peers_are_independent(
    patience: Patience,
    [mut sender, silent, mut receiver]: [Box<dyn Endpoint>; 3],
) {
    let bytes = content(0, sender.step_lengths().cut);
    let mut held_up = 0;
    while try_send(&mut *sender, 1, held_up, &bytes) {
        held_up += 1;
        sender.flush();
    }
    let mut pass_on = |sender: &mut dyn Endpoint, number: u64| {
        patience.until(|| try_send(sender, 2, number, &bytes).then_some(()));
        let (got, stamped) = patience.until(|| {
            sender.flush();
            try_read(&mut *receiver, 0)
        });
        assert!(got == bytes && stamped == stamp(number), "message {number}");
    };
    (0..50).for_each(|number| pass_on(&mut *sender, number));
    // Nor does the end of one end what goes on with another.
    drop(silent);
    patience.until(|| {
        sender.connection(1).peek();
        sender.failure(1).map(str::to_string)
    });
    (50..100).for_each(|number| pass_on(&mut *sender, number));
    assert!(sender.failure(2).is_none());
}
