//! The flight record: the newest operations of a communicator, and how far those that hang came.

mod support;

use ringcomm::communicator::{Communicator, Message};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
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
        // A place is free for the operation that comes next.
        let newest = |least: u64, count: u64| -> Vec<Option<u64>> {
            (least + 3000 - count..least + 3000).map(Some).collect()
        };
        let operations = numbers(collectives, "sequence");
        assert_eq!(operations, newest(0, operations.len() as u64));
        assert!((1023..=1024).contains(&operations.len()), "{}", operations.len());
        let batches = numbers(batches, "sequence");
        let first = batches[0].unwrap() - (3000 - 1024);
        assert_eq!(batches, newest(first, 1024));
    });
}

#[test]
fn an_operation_that_hangs_says_how_far_it_has_come() {
    let late = AtomicBool::new(true);
    // Many slices, of which a rank alone does as many as there are slots.
    let config = Config { algorithm: Some("ring".into()), ..small_slots(2, 1024) };
    on_threads(2, &config, |comm| {
        let mut scratch = Scratch::new(2);
        let call = scratch.call(Collective::AllReduce, ROOM);
        if comm.rank() == 1 {
            // Acquire: pairs with the Release store of rank 0's onlooker.
            while late.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            return run(comm, &call).unwrap();
        }
        std::thread::scope(|scope| {
            let onlooker = scope.spawn(|| {
                loop {
                    let dump = comm.dump();
                    let seen = (numbers(&dump, "steps_done").pop(), numbers(&dump, "steps").pop());
                    if let (Some(Some(done)), Some(Some(steps))) = seen {
                        // Release: pairs with the Acquire load of rank 1.
                        late.store(false, Ordering::Release);
                        return (done, steps);
                    }
                    std::thread::yield_now();
                }
            });
            run(comm, &call).unwrap();
            let (done, steps) = onlooker.join().unwrap();
            assert!(0 < done && done < steps, "{done} of {steps}");
            let dump = comm.dump();
            assert_eq!(numbers(&dump, "steps_done").pop(), Some(Some(steps)), "{dump}");
        });
    });
}
