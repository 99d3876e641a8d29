//! Calls through the host that return before their streams have come to them.

use super::fake;
use super::here::{hold, is_apart, may_hold, release};
use super::streams::{Floats, sum};
use super::support::config;
use super::{Bench, ndevices};
use ringcomm::communicator::{Call, Communicator, Message, Order, OrderedMessage, enqueue};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::error::{Error, Result};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::sync::Arc;
use std::thread::{scope, yield_now};
use std::time::Duration;

fn ranks(seats: &[DeviceChoice], timeout_ms: u64) -> Vec<Arc<Communicator>> {
    let config = Config { timeout_ms, ..config() };
    let all = Communicator::init_all_on(seats, &config).unwrap();
    all.into_iter().map(Arc::new).collect()
}

/// A sum in place on the rank's stream, as the C interface makes it.
fn give(comm: &Arc<Communicator>, floats: &Floats, bench: &Bench) -> Result<()> {
    // SAFETY: the memory lives as long as the test.
    unsafe { enqueue::collective(comm, &sum(floats, bench), None) }
}

/// The same of a rank of the host, all of whose numbers are `value`.
pub fn add(comm: &Communicator, count: usize, value: f32) -> Result<Vec<f32>> {
    let mut values = vec![value; count];
    let call = Call {
        send: values.as_ptr().cast(),
        recv: values.as_mut_ptr().cast(),
        count,
        ..Call::new(Collective::AllReduce, DataType::Float32)
    };
    // SAFETY: as many floats.
    unsafe { comm.call(&call) }.map(|()| values)
}

#[test]
fn a_call_returns_before_its_stream_has_come_to_it_and_is_in_the_streams_order() {
    if !may_hold(
        "ahead::a_call_returns_before_its_stream_has_come_to_it_and_is_in_the_streams_order",
    ) {
        return;
    }
    let ranks = ranks(&[DeviceChoice::Device(0), DeviceChoice::Host], 20_000);
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[0.0; 3000]);
    let [before, between] = [1.0, 5.0].map(|value| Floats::new(&bench, &[value; 3000]));
    hold(&bench, Duration::from_secs(1));
    floats.copy(&bench, &before);
    give(&ranks[0], &floats, &bench).unwrap();
    // Also those of a group, which has no other communicator's.
    enqueue::start();
    give(&ranks[0], &floats, &bench).unwrap();
    give(&ranks[0], &floats, &bench).unwrap();
    enqueue::end().unwrap();
    floats.copy(&bench, &between);
    give(&ranks[0], &floats, &bench).unwrap();
    release();
    for want in [11.0, 21.0, 31.0, 15.0] {
        assert_eq!(add(&ranks[1], 3000, 10.0).unwrap(), [want; 3000]);
    }
    assert_eq!(floats.read(&bench), [15.0; 3000]);
}

#[test]
fn calls_on_changing_streams_have_the_communicators_order() {
    if ndevices() == 0 {
        return;
    }
    let ndevices = ndevices().min(3);
    let mut seats: Vec<DeviceChoice> =
        (0..ndevices).map(|one| DeviceChoice::Device(one as i32)).collect();
    seats.push(DeviceChoice::Host);
    let ranks = ranks(&seats, 60_000);
    let nranks = seats.len() as f32;
    let rounds = [1, 1000, 40_000, 7, 2_000_000, 1000, 64];
    scope(|scope| {
        for (ordinal, comm) in ranks[..ndevices].iter().enumerate() {
            scope.spawn(move || {
                let benches = [Bench::new(ordinal as i32), Bench::new(ordinal as i32)];
                let new = |count| Floats::new(&benches[0], &vec![1.0; count]);
                let all = rounds.map(new);
                for (round, floats) in all.iter().enumerate() {
                    let bench = &benches[round % 2];
                    give(comm, floats, bench).unwrap();
                    give(comm, floats, bench).unwrap();
                }
                for (round, floats) in all.iter().enumerate() {
                    let want = (nranks - 1.0) * nranks + 1.0;
                    assert!(floats.read(&benches[round % 2]).iter().all(|value| *value == want));
                }
            });
        }
        for count in rounds {
            add(&ranks[ndevices], count, 1.0).unwrap();
            add(&ranks[ndevices], count, 1.0).unwrap();
        }
    });
}

/// Where the stream of one rank would wait before what the other's has to do.
#[test]
fn ranks_that_share_a_device_wait_on_the_host() {
    if ndevices() == 0 {
        return;
    }
    let ranks =
        ranks(&[DeviceChoice::Device(0), DeviceChoice::Device(0), DeviceChoice::Host], 60_000);
    scope(|scope| {
        for comm in &ranks[..2] {
            scope.spawn(move || {
                let bench = Bench::new(0);
                let floats = Floats::new(&bench, &[1.0; 500]);
                give(comm, &floats, &bench).unwrap();
                assert_eq!(floats.read(&bench), [3.0; 500]);
            });
        }
        add(&ranks[2], 500, 1.0).unwrap();
    });
}

/// The error that a rank is told of after its call.
fn error_of(comm: &Communicator) -> Error {
    loop {
        match comm.async_error() {
            Some(error) => return error,
            None => yield_now(),
        }
    }
}

#[test]
fn a_stream_that_never_comes_is_told_later_and_goes_on() {
    if !may_hold("ahead::a_stream_that_never_comes_is_told_later_and_goes_on") {
        return;
    }
    for aborts in [false, true] {
        let ranks = ranks(
            &[DeviceChoice::Device(0), DeviceChoice::Host],
            if aborts { 60_000 } else { 4000 },
        );
        let bench = Bench::new(0);
        let floats = Floats::new(&bench, &[1.0; 16]);
        // Longer than the deadline, if there is one.
        hold(&bench, Duration::from_secs(if aborts { 1 } else { 6 }));
        give(&ranks[0], &floats, &bench).unwrap();
        give(&ranks[0], &floats, &bench).unwrap();
        if aborts {
            ranks[0].abort();
        }
        let error = error_of(&ranks[0]);
        match aborts {
            true => assert!(matches!(error, Error::Aborted { .. }), "{error}"),
            false => {
                assert!(error.to_string().contains("earlier work on its own stream"), "{error}")
            }
        }
        release();
        bench.stream.synchronize().unwrap();
        assert!(give(&ranks[0], &floats, &bench).is_err());
        assert!(add(&ranks[1], 16, 1.0).is_err());
    }
}

#[test]
fn a_peer_that_aborts_lets_the_stream_go_on() {
    if ndevices() == 0 {
        return;
    }
    let ranks = ranks(&[DeviceChoice::Device(0), DeviceChoice::Host], 60_000);
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 16]);
    give(&ranks[0], &floats, &bench).unwrap();
    ranks[1].abort();
    bench.stream.synchronize().unwrap();
    assert!(error_of(&ranks[0]).to_string().contains("rank 1"));
}

#[test]
fn a_copy_that_is_refused_is_told_at_once_and_holds_no_stream() {
    if !is_apart("ahead::a_copy_that_is_refused_is_told_at_once_and_holds_no_stream", &[]) {
        return;
    }
    // To the host, and back.
    for nth in [1, 2] {
        let ranks = ranks(&[DeviceChoice::Device(0), DeviceChoice::Host], 60_000);
        let bench = Bench::new(0);
        let floats = Floats::new(&bench, &[1.0; 16]);
        fake::fail("cuMemcpyAsync", nth, 1);
        let error = give(&ranks[0], &floats, &bench).unwrap_err().to_string();
        fake::fail("", 0, 0);
        assert!(error.contains("copying 64 bytes"), "{error}");
        bench.stream.synchronize().unwrap();
        assert!(add(&ranks[1], 16, 1.0).is_err());
    }
}

/// A message with rank 1, as the C interface makes it.
fn message(comm: &Arc<Communicator>, floats: &Floats, bench: &Bench, sends: bool) -> Result<()> {
    let (buffer, count, data_type) = (floats.memory.pointer(), floats.count, DataType::Float32);
    let message = match sends {
        true => Message::Send { buffer, count, data_type, peer: 1 },
        false => Message::Recv { buffer, count, data_type, peer: 1 },
    };
    // SAFETY: the memory lives as long as the test.
    unsafe {
        let posted = OrderedMessage { message, order: Order::on(bench.stream.raw()) };
        enqueue::message(comm, posted, None)
    }
}

/// The other end of `message`, on the host: what was received, or is sent.
fn answer(comm: &Communicator, values: &mut [f32], sends: bool) -> Result<()> {
    let (buffer, count, data_type) = (values.as_mut_ptr().cast(), values.len(), DataType::Float32);
    let message = match sends {
        true => Message::Send { buffer, count, data_type, peer: 0 },
        false => Message::Recv { buffer, count, data_type, peer: 0 },
    };
    // SAFETY: as many floats.
    unsafe { comm.exchange(&[message]) }
}

#[test]
fn messages_return_before_their_stream_has_come_to_them_and_are_in_its_order() {
    if !may_hold("ahead::messages_return_before_their_stream_has_come_to_them_and_are_in_its_order")
    {
        return;
    }
    // Shorter and longer than a slot; in groups, too.
    for (count, is_group) in [(300, false), (300, true), (200_000, false), (200_000, true)] {
        let ranks = ranks(&[DeviceChoice::Device(0), DeviceChoice::Host], 20_000);
        let bench = Bench::new(0);
        let new = |value| Floats::new(&bench, &vec![value; count]);
        let [sent, come, first, second] = [0.0, 9.0, 1.0, 2.0].map(new);
        let both = || {
            if is_group {
                enqueue::start();
            }
            message(&ranks[0], &sent, &bench, true)?;
            message(&ranks[0], &come, &bench, false)?;
            if is_group { enqueue::end() } else { Ok(()) }
        };
        hold(&bench, Duration::from_secs(1));
        sent.copy(&bench, &first);
        both().unwrap();
        sent.copy(&bench, &second);
        both().unwrap();
        // What comes next is of another message.
        message(&ranks[0], &come, &bench, true).unwrap();
        release();
        for value in [1.0, 2.0] {
            let mut values = vec![0.0; count];
            answer(&ranks[1], &mut values, false).unwrap();
            assert_eq!(values, vec![value; count]);
            answer(&ranks[1], &mut vec![10.0 * value; count], true).unwrap();
        }
        let mut values = vec![0.0; count];
        answer(&ranks[1], &mut values, false).unwrap();
        assert_eq!(values, vec![20.0; count]);
        assert_eq!(come.read(&bench), vec![20.0; count]);
    }
}

/// Their communicators' messages have to be under way at once, in whatever order a group names
/// them: here the other end sends the one only when the other has gone.
#[test]
fn messages_of_several_communicators_in_a_group_do_not_wait_for_each_other_on_one_stream() {
    if ndevices() == 0 {
        return;
    }
    const COUNT: usize = 200_000;
    let pairs = [(); 2].map(|()| ranks(&[DeviceChoice::Device(0), DeviceChoice::Host], 20_000));
    let bench = Bench::new(0);
    let come = [(); 2].map(|()| Floats::new(&bench, &vec![9.0; COUNT]));
    // Which of the two a stream would have first is a matter of threads.
    for round in 0..4 {
        scope(|scope| {
            let pairs = &pairs;
            scope.spawn(move || {
                for pair in [round % 2, 1 - round % 2] {
                    let mut values = vec![(round + 10 * pair) as f32; COUNT];
                    answer(&pairs[pair][1], &mut values, true).unwrap();
                }
            });
            enqueue::start();
            for pair in 0..2 {
                message(&pairs[pair][0], &come[pair], &bench, false).unwrap();
            }
            enqueue::end().unwrap();
        });
        for (pair, come) in come.iter().enumerate() {
            assert_eq!(come.read(&bench), vec![(round + 10 * pair) as f32; COUNT]);
        }
    }
}

/// So many at once that the last of them wait.
#[test]
fn messages_between_collectives_and_more_than_streams_take_keep_their_order() {
    if ndevices() == 0 {
        return;
    }
    let ranks = ranks(&[DeviceChoice::Device(0), DeviceChoice::Host], 60_000);
    let rounds = 300;
    scope(|scope| {
        scope.spawn(|| {
            let benches = [Bench::new(0), Bench::new(0)];
            let floats = Floats::new(&benches[0], &[0.0; 700]);
            for round in 0..rounds {
                message(&ranks[0], &floats, &benches[round % 2], false).unwrap();
                give(&ranks[0], &floats, &benches[round % 2]).unwrap();
                message(&ranks[0], &floats, &benches[round / 2 % 2], true).unwrap();
            }
            let last = floats.read(&benches[(rounds - 1) / 2 % 2]);
            assert_eq!(last, [rounds as f32; 700]);
        });
        for round in 0..rounds {
            let mut values = vec![round as f32; 700];
            answer(&ranks[1], &mut values, true).unwrap();
            add(&ranks[1], 700, 1.0).unwrap();
            answer(&ranks[1], &mut values, false).unwrap();
            assert_eq!(values, [round as f32 + 1.0; 700]);
        }
    });
}

#[test]
fn messages_that_end_in_an_error_are_told_later_and_their_stream_goes_on() {
    if !may_hold("ahead::messages_that_end_in_an_error_are_told_later_and_their_stream_goes_on") {
        return;
    }
    for (aborts, sends) in [(true, true), (false, true), (false, false)] {
        let ranks = ranks(
            &[DeviceChoice::Device(0), DeviceChoice::Host],
            if sends { 4000 } else { 60_000 },
        );
        let bench = Bench::new(0);
        let floats = Floats::new(&bench, &[1.0; 16]);
        if sends {
            hold(&bench, Duration::from_secs(if aborts { 1 } else { 6 }));
        }
        message(&ranks[0], &floats, &bench, sends).unwrap();
        message(&ranks[0], &floats, &bench, sends).unwrap();
        if aborts || !sends {
            ranks[usize::from(!sends)].abort();
        }
        let error = error_of(&ranks[0]);
        match (aborts, sends) {
            (true, _) => assert!(matches!(error, Error::Aborted { .. }), "{error}"),
            (false, true) => {
                assert!(error.to_string().contains("earlier work on its own stream"), "{error}")
            }
            (false, false) => assert!(error.to_string().contains("rank 1"), "{error}"),
        }
        release();
        bench.stream.synchronize().unwrap();
        assert!(message(&ranks[0], &floats, &bench, sends).is_err());
    }
}

#[test]
fn a_copy_of_a_message_that_is_refused_is_told_at_once_and_holds_no_stream() {
    let test = "ahead::a_copy_of_a_message_that_is_refused_is_told_at_once_and_holds_no_stream";
    if !is_apart(test, &[]) {
        return;
    }
    for sends in [true, false] {
        let ranks = ranks(&[DeviceChoice::Device(0), DeviceChoice::Host], 60_000);
        let bench = Bench::new(0);
        let floats = Floats::new(&bench, &[1.0; 16]);
        fake::fail("cuMemcpyAsync", 1, 1);
        let error = message(&ranks[0], &floats, &bench, sends).unwrap_err().to_string();
        fake::fail("", 0, 0);
        assert!(error.contains("copying 64 bytes"), "{error}");
        bench.stream.synchronize().unwrap();
        assert!(add(&ranks[1], 16, 1.0).is_err());
    }
}
