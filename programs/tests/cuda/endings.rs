//! What a communicator leaves behind when it goes while its streams still have work.

use super::here::is_apart;
use super::streams::{Floats, sum};
use super::support::config;
use super::{Bench, fake};
use ringcomm::communicator::{Call, Communicator, Message, Order, OrderedMessage};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::RawStream;
use ringcomm::error::Error;
use ringcomm::executor::chunk_layout::VectorCounts;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::ptr::null_mut;
use std::thread::{scope, yield_now};

/// Whether this is the process in which `test` may ask the driver without a GPU for its tricks.
fn is_alone(test: &str) -> bool {
    is_apart(test, &[])
}

/// A rank of the device, whose calls go through the host, and one of the host.
fn ranks(timeout_ms: u64) -> Vec<Communicator> {
    let config = Config { timeout_ms, ..config() };
    Communicator::init_all_on(&[DeviceChoice::Device(0), DeviceChoice::Host], &config).unwrap()
}

/// What begins with a copy to the host, on a stream that never comes to it.
fn give_up(comm: &Communicator, floats: &Floats, bench: &Bench, is_message: bool) {
    let buffer = floats.memory.pointer();
    let message = Message::Send { buffer, count: 16, data_type: DataType::Float32, peer: 1 };
    let posted = [OrderedMessage { message, order: Order::on(bench.stream.raw()) }];
    // SAFETY: the memory lives until the end of the test.
    let ended =
        unsafe { if is_message { comm.post(&posted) } else { comm.call(&sum(floats, bench)) } };
    assert!(ended.unwrap_err().to_string().contains("earlier work on its own stream"));
}

#[test]
fn a_copy_that_was_given_up_keeps_its_memory_and_holds_nobody() {
    if !is_alone("endings::a_copy_that_was_given_up_keeps_its_memory_and_holds_nobody") {
        return;
    }
    for is_message in [false, true] {
        let ranks = ranks(5000);
        let bench = Bench::new(0);
        let floats = Floats::new(&bench, &[1.0; 16]);
        {
            let _current = bench.device.enter().unwrap();
            fake::hold(bench.stream.raw());
        }
        give_up(&ranks[0], &floats, &bench, is_message);
        fake::fail("", 0, 0);
        let freed = scope(|scope| {
            let end = scope.spawn(move || drop(ranks));
            // To free the memory is to wait for the copy, and so for the stream.
            while !end.is_finished() && fake::calls("cuMemFreeHost") == 0 {
                yield_now();
            }
            let freed = fake::calls("cuMemFreeHost");
            fake::release();
            freed
        });
        assert_eq!(freed, 0, "memory was freed that a copy still uses");
        bench.stream.synchronize().unwrap();
    }
}

#[test]
fn a_copy_that_is_through_leaves_no_memory_behind() {
    if !is_alone("endings::a_copy_that_is_through_leaves_no_memory_behind") {
        return;
    }
    let ranks = ranks(20_000);
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 16]);
    fake::fail("", 0, 0);
    scope(|scope| {
        scope.spawn(|| gather(&ranks[1], None, null_mut()).unwrap());
        gather(&ranks[0], Some(&floats), bench.stream.raw()).unwrap();
    });
    drop(ranks);
    // What portions go through, and the words that streams wait for.
    assert_eq!((fake::calls("cuMemHostAlloc"), fake::calls("cuMemFreeHost")), (0, 2));
}

#[test]
fn messages_of_any_length_take_no_memory() {
    if !is_alone("endings::messages_of_any_length_take_no_memory") {
        return;
    }
    let ranks = ranks(20_000);
    // In MiB; there is room for eight.
    let sizes = [1, 8, 9, 80, 2];
    let bench = Bench::new(0);
    let all = sizes.map(|mib| Floats::new(&bench, &vec![1.0; mib << 18]));
    fake::fail("", 0, 0);
    scope(|scope| {
        scope.spawn(|| {
            for mib in sizes {
                let mut values = vec![0f32; mib << 18];
                let (buffer, count) = (values.as_mut_ptr().cast(), values.len());
                let message =
                    Message::Recv { buffer, count, data_type: DataType::Float32, peer: 0 };
                // SAFETY: as many floats.
                unsafe { ranks[1].exchange(&[message]) }.unwrap();
                assert!(values.iter().all(|value| *value == 1.0));
            }
        });
        for (mib, floats) in sizes.iter().zip(&all) {
            let (buffer, count) = (floats.memory.pointer().cast_const(), mib << 18);
            let message = Message::Send { buffer, count, data_type: DataType::Float32, peer: 1 };
            let posted = [OrderedMessage { message, order: Order::on(bench.stream.raw()) }];
            // SAFETY: the memory lives until it has been copied.
            unsafe { ranks[0].post(&posted) }.unwrap();
        }
    });
    assert_eq!((fake::calls("cuMemHostAlloc"), fake::calls("cuMemFreeHost")), (0, 0));
}

/// Gather a byte of every rank in host memory; `send` is where the own one is, if not here.
fn gather(comm: &Communicator, send: Option<&Floats>, stream: RawStream) -> Result<(), Error> {
    let (own, mut all) = ([1u8], [0u8; 2]);
    let call = Call {
        send: send.map_or(own.as_ptr(), |floats| floats.memory.pointer()),
        recv: all.as_mut_ptr(),
        count: 1,
        order: Order::on(stream),
        ..Call::new(Collective::AllGather, DataType::Uint8)
    };
    // SAFETY: a byte, and two; a call that writes host memory is done when it returns.
    unsafe { comm.call(&call) }
}

#[test]
fn the_first_of_two_copies_is_waited_for_though_the_second_was_refused() {
    let test = "endings::the_first_of_two_copies_is_waited_for_though_the_second_was_refused";
    if !is_alone(test) {
        return;
    }
    let ranks = ranks(20_000);
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 16]);
    let vector = VectorCounts {
        recv_counts: vec![4, 4],
        recv_displacements: vec![4, 12],
        ..VectorCounts::default()
    };
    let call = |send, recv, stream| Call {
        send,
        recv,
        count: 4,
        vector: Some(&vector),
        order: Order::on(stream),
        ..Call::new(Collective::AllGather, DataType::Uint8)
    };
    // Of its copies the first is to the host, the others are of the two blocks.
    fake::fail("cuMemcpyAsync", 3, 1);
    scope(|scope| {
        scope.spawn(|| {
            let (own, mut all) = ([7u8; 4], [0u8; 16]);
            // SAFETY: four bytes, and sixteen.
            let _ = unsafe { ranks[1].call(&call(own.as_ptr(), all.as_mut_ptr(), null_mut())) };
        });
        let memory = floats.memory.pointer();
        let call = call(memory, memory.wrapping_add(16), bench.stream.raw());
        // SAFETY: four bytes, and the sixteen that follow the first sixteen.
        let error = unsafe { ranks[0].call(&call) }.unwrap_err();
        assert!(error.to_string().contains("copying 4 bytes"), "{error}");
    });
    assert_eq!(fake::calls("cuEventRecord"), 2, "no event stands for the first copy");
    fake::fail("", 0, 0);
    drop(ranks);
    assert_eq!(fake::calls("cuMemFreeHost"), 2, "what is known to be through is freed");
}
