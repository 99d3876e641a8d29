//! The flight record: the newest operations of a communicator, and how far those that hang came.

mod support;

use ringcomm::communicator::{Communicator, Message};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use support::scratch::{ROOM, Scratch, run};
use support::{config, on_threads, small_slots};

/// The numbers that follow `name` in `text`; `None` for a null.
fn numbers(text: &str, name: &str) -> Vec<Option<u64>> {
    let after = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    text.split(&format!("\"{name}\":")).skip(1).map(after).collect()
}

fn one_message_each_way(comm: &Communicator) {
    let peer = 1 - comm.rank();
    let (sent, mut got) = (7u8, 0u8);
    let (count, data_type) = (1, DataType::Uint8);
    let messages = [
        Message::Send { buffer: &sent, count, data_type, peer },
        Message::Recv { buffer: &mut got, count, data_type, peer },
    ];
    // SAFETY: both buffers hold a byte.
    unsafe { comm.exchange(&messages) }.unwrap();
}

#[test]
fn the_newest_1024_of_3000_operations_are_kept_in_order() {
    on_threads(2, &config(), |comm| {
        let mut scratch = Scratch::new(2);
        let call = scratch.call(Collective::AllReduce, 8);
        for _ in 0..3000 {
            run(comm, &call).unwrap();
            one_message_each_way(comm);
        }
        let dump = comm.dump();
        let (collectives, batches) = dump.split_once("\"batches\":").unwrap();
        let newest = |least: u64, count: u64| -> Vec<Option<u64>> {
            (least + 3000 - count..least + 3000).map(Some).collect()
        };
        let operations = numbers(collectives, "sequence");
        assert_eq!(operations, newest(0, operations.len() as u64));
        assert_eq!(operations.len(), 1024);
        let batches = numbers(batches, "sequence");
        let first = batches[0].unwrap() - (3000 - 1024);
        assert_eq!(batches, newest(first, 1024));
    });
}

/// What rank 0 says of how far an operation has come for which the last rank is late, once that is
/// `least` steps, and once it has ended.
fn progress(
    nranks: usize,
    config: &Config,
    least: u64,
    operate: impl Fn(&Communicator) + Sync,
) -> [(u64, u64); 2] {
    let (late, said) = (AtomicBool::new(true), Mutex::new(Vec::new()));
    on_threads(nranks, config, |comm| {
        if comm.rank() == nranks - 1 {
            // Acquire: pairs with the Release store of rank 0's onlooker.
            while late.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        if comm.rank() > 0 {
            return operate(comm);
        }
        let seen = || {
            let dump = comm.dump();
            numbers(&dump, "steps_done").pop()?.zip(numbers(&dump, "steps").pop()?)
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while seen().is_none_or(|(done, _)| done < least) {
                    std::thread::yield_now();
                }
                said.lock().unwrap().extend(seen());
                // Release: pairs with the Acquire load of the last rank.
                late.store(false, Ordering::Release);
            });
            operate(comm);
        });
        said.lock().unwrap().extend(seen());
    });
    said.into_inner().unwrap().try_into().unwrap()
}

fn all_reduce(nranks: usize, count: usize) -> impl Fn(&Communicator) {
    move |comm| run(comm, &Scratch::new(nranks).call(Collective::AllReduce, count)).unwrap()
}

#[test]
fn a_plan_that_hangs_says_how_far_it_has_come() {
    // Many slices, of which a rank alone does as many as there are slots.
    let config = Config { algorithm: Some("ring".into()), ..small_slots(2, 1024) };
    let [(done, steps), end] = progress(2, &config, 1, all_reduce(2, ROOM));
    assert!(0 < done && done < steps, "{done} of {steps}");
    assert_eq!(end, (steps, steps));
}

#[test]
fn a_call_in_each_others_buffers_says_how_far_it_has_come() {
    let config = Config { algorithm: Some("oneshot".into()), ..config() };
    let said = progress(3, &config, 1, all_reduce(3, ROOM));
    // Of two peers to meet one has come; then there are the work, and two who do theirs.
    assert_eq!(said, [(1, 5), (5, 5)]);
}

#[test]
fn messages_that_hang_say_how_many_bytes_have_moved() {
    // The connection has two slots, and a message that fits into one is not lent.
    let said = progress(2, &small_slots(2, 1024), 2000, |comm| {
        let (peer, mut bytes) = (1 - comm.rank(), vec![0u8; 10_000]);
        let (count, data_type) = (1000, DataType::Uint8);
        let message = |buffer: &mut [u8]| match comm.rank() {
            0 => Message::Send { buffer: buffer.as_ptr().cast(), count, data_type, peer },
            _ => Message::Recv { buffer: buffer.as_mut_ptr().cast(), count, data_type, peer },
        };
        let messages: Vec<Message> = bytes.chunks_mut(1000).map(message).collect();
        // SAFETY: every buffer holds its bytes.
        unsafe { comm.exchange(&messages) }.unwrap();
    });
    assert_eq!(said, [(2000, 10_000), (10_000, 10_000)]);
}
