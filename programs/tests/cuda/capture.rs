//! Calls in CUDA graphs: replayed where they can be, refused with a reason where they cannot.

use super::ahead::add;
use super::here::{is_apart, may_hold};
use super::streams::{Floats, sum};
use super::support::config;
use super::{Bench, fake, ndevices, on_seats};
use ringcomm::communicator::{Communicator, enqueue};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::{
    DeviceMemory, Event, OwnedStream, PhysicalPiece, Pinned, Recording, wait,
};
use ringcomm::error::Error;
use std::any::Any;
use std::sync::Arc;

fn ranks(seats: &[DeviceChoice]) -> Vec<Arc<Communicator>> {
    let all = Communicator::init_all_on(seats, &config()).unwrap();
    all.into_iter().map(Arc::new).collect()
}

/// Two ranks of a device, with a stream and fifty numbers each.
fn on_two_streams() -> (Vec<Arc<Communicator>>, [Bench; 2], [Floats; 2]) {
    let benches = [Bench::new(0), Bench::new(0)];
    let floats = [Floats::new(&benches[0], &[1.0; 50]), Floats::new(&benches[1], &[2.0; 50])];
    (ranks(&[DeviceChoice::Device(0); 2]), benches, floats)
}

/// Two ranks of a device, on one stream, with five hundred ones each.
fn on_one_stream() -> (Vec<Arc<Communicator>>, [Bench; 2], [Floats; 2]) {
    let first = Bench::new(0);
    let second = Bench::beside(&first);
    let floats = [Floats::new(&first, &[1.0; 500]), Floats::new(&second, &[1.0; 500])];
    (ranks(&[DeviceChoice::Device(0); 2]), [first, second], floats)
}

/// Call every rank in a group.
fn call_all(ranks: &[Arc<Communicator>], parts: &[(&Floats, &Bench)]) -> Result<(), Error> {
    enqueue::start();
    for (rank, (floats, bench)) in ranks.iter().zip(parts) {
        // SAFETY: the memory lives as long as the graph that is made.
        unsafe { enqueue::collective(rank, &sum(floats, bench), None) }.unwrap();
    }
    enqueue::end()
}

/// In the mode in which programs capture unasked no thread may do what a capture might see. What
/// communicators do on other threads meanwhile, and calls of the capture themselves, is not seen.
#[test]
fn a_capture_that_forbids_all_threads_is_not_broken_by_calls_beside_it() {
    if !may_hold("capture::a_capture_that_forbids_all_threads_is_not_broken_by_calls_beside_it") {
        return;
    }
    let (ranks, [first, second], floats) = on_one_stream();
    let parts = [(&floats[0], &first), (&floats[1], &second)];
    const GLOBAL: i32 = 0;
    const OF_THE_THREAD: i32 = 1;
    for mode in [GLOBAL, OF_THE_THREAD] {
        let replay = first.stream.capture_in(mode, || {
            call_all(&ranks, &parts)?;
            std::thread::scope(|scope| scope.spawn(live_beside).join().expect("no panic"));
            live_beside();
            call_all(&ranks, &parts)
        });
        replay.unwrap().launch(&first.stream).unwrap();
    }
    assert_eq!(floats[0].read(&first), [16.0; 500]);
}

/// Whole lives of communicators: fused, through the host, in one cooperative launch.
fn live_beside() {
    let seats = [
        [DeviceChoice::Device(0), DeviceChoice::Device(0)],
        [DeviceChoice::Device(0), DeviceChoice::Host],
    ];
    let asked = Config { algorithm: Some("ring".into()), ..config() };
    for (seats, config) in [(seats[0], config()), (seats[1], config()), (seats[0], asked)] {
        on_seats(&seats, &config, |comm, bench| {
            if seats[comm.rank()] == DeviceChoice::Host {
                return [1.0, 2.0].iter().for_each(|value| {
                    assert_eq!(add(comm, 500, *value).unwrap(), [2.0 * value; 500]);
                });
            }
            let floats = Floats::new(bench, &[1.0; 500]);
            for value in [2.0, 4.0] {
                // SAFETY: the memory lives until it is read.
                unsafe { comm.call(&sum(&floats, bench)) }.unwrap();
                assert_eq!(floats.read(bench), [value; 500]);
            }
        });
    }
}

#[test]
fn a_graph_of_one_stream_is_replayed() {
    if ndevices() == 0 {
        return;
    }
    let (ranks, [first, second], floats) = on_one_stream();
    let parts = [(&floats[0], &first), (&floats[1], &second)];
    let replay = first.stream.capture(|| call_all(&ranks, &parts)).unwrap();
    assert_eq!(floats[0].read(&first), [1.0; 500], "a captured call ran");
    for round in 1..=5 {
        replay.launch(&first.stream).unwrap();
        assert_eq!(floats[0].read(&first), [(1 << round) as f32; 500]);
        assert_eq!(floats[1].read(&first), [(1 << round) as f32; 500]);
    }
}

#[test]
fn a_graph_outlives_the_communicators_that_it_was_captured_from() {
    if ndevices() == 0 {
        return;
    }
    let first = Bench::new(0);
    let second = Bench::beside(&first);
    let floats = [Floats::new(&first, &[1.0; 500]), Floats::new(&second, &[1.0; 500])];
    let replay = {
        let ranks = ranks(&[DeviceChoice::Device(0); 2]);
        let parts = [(&floats[0], &first), (&floats[1], &second)];
        first.stream.capture(|| call_all(&ranks, &parts)).unwrap()
    };
    for value in [2.0, 4.0, 8.0] {
        replay.launch(&first.stream).unwrap();
        assert_eq!(floats[1].read(&first), [value; 500]);
    }
}

#[test]
fn a_graph_of_two_streams_in_one_capture_is_replayed() {
    if ndevices() == 0 {
        return;
    }
    let (ranks, benches, floats) = on_two_streams();
    let parts = [(&floats[0], &benches[0]), (&floats[1], &benches[1])];
    let event = || Event::new(&benches[0].device, Recording::Moment).unwrap();
    let (fork, join) = (event(), event());
    let streams = [benches[0].stream.raw(), benches[1].stream.raw()];
    let replay = benches[0]
        .stream
        .capture(|| {
            fork.record(streams[0])?;
            wait(streams[1], &fork)?;
            call_all(&ranks, &parts)?;
            join.record(streams[1])?;
            wait(streams[0], &join)
        })
        .unwrap();
    for value in [3.0, 6.0, 12.0] {
        replay.launch(&benches[0].stream).unwrap();
        assert_eq!(floats[1].read(&benches[0]), [value; 50]);
    }
}

#[test]
fn streams_of_different_captures_are_refused_and_the_communicator_goes_on() {
    if ndevices() == 0 {
        return;
    }
    let (ranks, benches, floats) = on_two_streams();
    let parts = [(&floats[0], &benches[0]), (&floats[1], &benches[1])];
    let captured = benches[0].stream.capture(|| call_all(&ranks, &parts));
    let error = captured.err().expect("one stream is not captured").to_string();
    assert!(error.contains("not all ranks' streams are in one capture"), "{error}");
    call_all(&ranks, &parts).unwrap();
    assert_eq!(floats[0].read(&benches[0]), [3.0; 50]);
    assert_eq!(floats[1].read(&benches[1]), [3.0; 50]);
}

#[test]
fn a_call_through_the_host_cannot_be_captured() {
    if ndevices() == 0 {
        return;
    }
    let ranks = ranks(&[DeviceChoice::Device(0), DeviceChoice::Host]);
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 50]);
    // SAFETY: the memory lives; nothing is run.
    let captured = bench.stream.capture(|| unsafe { ranks[0].call(&sum(&floats, &bench)) });
    let error = captured.err().expect("no graph").to_string();
    assert!(error.contains("goes through host memory, which a graph cannot replay"), "{error}");
    assert!(!ranks[0].is_broken());
}

/// A capture that something else has ended before the call: the call says so and is refused, and
/// the communicator goes on.
#[test]
fn a_call_in_a_capture_that_has_failed_says_so() {
    if ndevices() == 0 {
        return;
    }
    let ranks = ranks(&[DeviceChoice::Device(0); 2]);
    let first = Bench::new(0);
    let second = Bench::beside(&first);
    let floats = [Floats::new(&first, &[1.0; 50]), Floats::new(&second, &[2.0; 50])];
    let parts = [(&floats[0], &first), (&floats[1], &second)];
    let other = Bench::new(0);
    let outside = Event::new(&other.device, Recording::Moment).unwrap();
    {
        let _current = other.device.enter().unwrap();
        outside.record(other.stream.raw()).unwrap();
    }
    let mut told = None;
    let captured = first.stream.capture(|| {
        // No graph holds a wait for what is not of its capture.
        assert!(wait(first.stream.raw(), &outside).is_err());
        told = call_all(&ranks, &parts).err();
        Ok(())
    });
    let told = told.expect("no call of a graph").to_string();
    assert!(told.contains("the stream's capture has failed before this call"), "{told}");
    assert!(captured.is_err(), "a capture that failed has a graph");
    call_all(&ranks, &parts).unwrap();
    assert_eq!(floats[0].read(&first), [3.0; 50]);
    assert_eq!(floats[1].read(&first), [3.0; 50]);
}

/// Whatever goes does so in its own context, also on a thread that has none, and in a mode in which
/// no capture sees it.
#[test]
fn what_goes_goes_in_its_context_and_beside_captures() {
    if !is_apart("capture::what_goes_goes_in_its_context_and_beside_captures", &[]) {
        return;
    }
    let bench = Bench::new(0);
    let device = &bench.device;
    let all: [(&str, Box<dyn Any>); 6] = [
        ("cuGraphExecDestroy", Box::new(bench.stream.capture(|| Ok(())).unwrap())),
        ("cuEventDestroy_v2", Box::new(Event::new(device, Recording::Moment).unwrap())),
        ("cuStreamDestroy_v2", Box::new(OwnedStream::new(device).unwrap())),
        ("cuMemFree_v2", Box::new(DeviceMemory::new(device, 64).unwrap())),
        ("cuMemFreeHost", Box::new(Pinned::new(device, 64).unwrap())),
        ("cuMemRelease", Box::new(PhysicalPiece::new(device, 1, None).unwrap())),
    ];
    for (symbol, one) in all {
        fake::fail("", 0, 0);
        drop(one);
        let counts = [symbol, "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"].map(fake::calls);
        assert_eq!(counts, [1; 3], "{symbol}");
        assert_eq!(fake::calls("cuThreadExchangeStreamCaptureMode"), 2, "{symbol}");
    }
}
