//! Streams: several operations in flight, groups of one thread, streams that never come.

use super::here::{has_reach, hold, may_hold, release};
use super::support::{config, threads};
use super::together::Together;
use super::{Bench, ndevices, on_seats, spread};
use ringcomm::communicator::{Call, Communicator, Message, Order, OrderedMessage, enqueue};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::{DeviceMemory, Event, Pinned, Recording, copy, fill};
use ringcomm::error::Error;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Device memory of floats.
pub struct Floats {
    pub memory: DeviceMemory,
    pub count: usize,
    /// As many floats of pinned host memory: a copy to other host memory may wait for the stream.
    mirror: Mutex<Pinned>,
}

impl Floats {
    pub fn new(bench: &Bench, values: &[f32]) -> Floats {
        let (device, bytes) = (&bench.device, 4 * values.len());
        let memory = DeviceMemory::new(device, bytes).unwrap();
        let mirror = Mutex::new(Pinned::new(device, bytes).unwrap());
        let floats = Floats { memory, count: values.len(), mirror };
        floats.write(bench, values);
        floats
    }

    /// When the stream has come to it.
    pub fn write(&self, bench: &Bench, values: &[f32]) {
        assert_eq!(values.len(), self.count);
        let mirror = self.mirror.lock().unwrap();
        // SAFETY: the mirror has as many floats, and no copy of it is under way.
        unsafe { mirror.pointer().cast::<f32>().copy_from(values.as_ptr(), self.count) };
        self.moved(bench, self.memory.pointer(), mirror.pointer());
        bench.stream.synchronize().unwrap();
    }

    /// Have what the others have when the stream comes to this, and wait for nothing.
    pub fn copy(&self, bench: &Bench, others: &Floats) {
        assert_eq!(others.count, self.count);
        self.moved(bench, self.memory.pointer(), others.memory.pointer());
    }

    /// All of them, when the stream has come to it.
    pub fn read(&self, bench: &Bench) -> Vec<f32> {
        let mirror = self.mirror.lock().unwrap();
        self.moved(bench, mirror.pointer(), self.memory.pointer());
        bench.stream.synchronize().unwrap();
        // SAFETY: as many floats, all written, and no copy is under way.
        unsafe { std::slice::from_raw_parts(mirror.pointer().cast(), self.count) }.to_vec()
    }

    fn moved(&self, bench: &Bench, to: *mut u8, from: *const u8) {
        let _current = bench.device.enter().unwrap();
        // SAFETY: both have as many floats, and live until the stream is synchronized.
        unsafe { copy(&bench.device, to, from, 4 * self.count, bench.stream.raw()) }.unwrap();
    }
}

/// A sum in place.
pub fn sum(floats: &Floats, bench: &Bench) -> Call<'static> {
    Call {
        send: floats.memory.pointer(),
        recv: floats.memory.pointer(),
        count: floats.count,
        order: Order::on(bench.stream.raw()),
        ..Call::new(Collective::AllReduce, DataType::Float32)
    }
}

#[test]
fn operations_on_a_stream_follow_each_other_without_the_host() {
    if ndevices() == 0 {
        return;
    }
    for nranks in [2, 4] {
        on_seats(&spread(nranks), &config(), |comm, bench| {
            let floats = Floats::new(bench, &vec![1.0; 1000]);
            let mut want = 1.0;
            for _ in 0..12 {
                // SAFETY: the memory lives until it is read.
                unsafe { comm.call(&sum(&floats, bench)) }.unwrap();
                want *= nranks as f32;
            }
            assert_eq!(floats.read(bench), vec![want; 1000]);
        });
    }
}

#[test]
fn one_communicator_on_changing_streams_keeps_the_order_that_events_make() {
    if ndevices() == 0 {
        return;
    }
    on_seats(&spread(3), &config(), |comm, bench| {
        let other = Bench::new(bench.device.ordinal);
        for round in 0..20 {
            let bench = if (round + comm.rank()) % 2 == 0 { bench } else { &other };
            let floats = Floats::new(bench, &vec![round as f32; 300]);
            // SAFETY: the memory lives until it is read.
            unsafe { comm.call(&sum(&floats, bench)) }.unwrap();
            assert_eq!(floats.read(bench), vec![3.0 * round as f32; 300]);
        }
    });
}

/// Every kind of call on another stream than the one before, of which the device has come to
/// nothing yet: it works on what that one leaves.
#[test]
fn operations_follow_each_other_whatever_streams_they_come_from() {
    // Where devices do not reach each other every call waits for its stream.
    if !has_reach(3)
        || !may_hold("streams::operations_follow_each_other_whatever_streams_they_come_from")
    {
        return;
    }
    let together = Together::of(3);
    on_seats(&spread(3), &config(), |comm, bench| {
        let all = together.join();
        let other = Bench::new(bench.device.ordinal);
        for kind in ["fused", "through the host", "messages"] {
            let (floats, left) = (Floats::new(bench, &[1.0; 900]), Floats::new(bench, &[0.0; 900]));
            let mut on_host = vec![0f32; 900];
            all.wait();
            hold(bench, Duration::from_millis(300));
            all.wait();
            // SAFETY: the memory lives until the streams are synchronized.
            unsafe { comm.call(&sum(&floats, bench)) }.unwrap();
            all.wait();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(300));
                    release();
                });
                let goes_around = kind == "through the host" && comm.rank() == 1;
                let recv = match goes_around {
                    true => on_host.as_mut_ptr().cast(),
                    false => left.memory.pointer(),
                };
                let order = Order::on(other.stream.raw());
                let again = Call { recv, order, ..sum(&floats, bench) };
                let messages = exchange(comm, &floats, &left, order);
                // SAFETY: as above; nobody looks at the host's before.
                let called = unsafe {
                    match kind {
                        "messages" => comm.post(&messages),
                        _ => comm.call(&again),
                    }
                };
                called.unwrap();
            });
            bench.stream.synchronize().unwrap();
            other.stream.synchronize().unwrap();
            let want = if kind == "messages" { 3.0 } else { 9.0 };
            if kind != "through the host" || comm.rank() != 1 {
                on_host = left.read(&other);
            }
            assert_eq!(on_host, [want; 900], "{kind}");
        }
    });
}

/// What is sent to the next rank, and received of the one before.
fn exchange(
    comm: &Communicator,
    mine: &Floats,
    theirs: &Floats,
    order: Order,
) -> [OrderedMessage; 2] {
    let (next, last) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
    let (count, data_type) = (mine.count, DataType::Float32);
    let send = Message::Send { buffer: mine.memory.pointer(), count, data_type, peer: next };
    let recv = Message::Recv { buffer: theirs.memory.pointer(), count, data_type, peer: last };
    [send, recv].map(|message| OrderedMessage { message, order })
}

fn ranks(nranks: usize, config: &Config) -> Vec<Arc<Communicator>> {
    let all = Communicator::init_all_on(&spread(nranks), config).unwrap();
    all.into_iter().map(Arc::new).collect()
}

#[test]
fn one_thread_drives_all_ranks_in_a_group() {
    if ndevices() == 0 {
        return;
    }
    let ranks = ranks(3, &config());
    let benches: Vec<Bench> = ranks.iter().map(|rank| Bench::new(rank.device().unwrap())).collect();
    for _ in 0..10 {
        let new = |bench| Floats::new(bench, &[1.5; 70]);
        let floats: Vec<Floats> = benches.iter().map(new).collect();
        enqueue::start();
        for ((rank, bench), floats) in ranks.iter().zip(&benches).zip(&floats) {
            // SAFETY: the memory lives until it is read.
            unsafe { enqueue::collective(rank, &sum(floats, bench), None) }.unwrap();
        }
        enqueue::end().unwrap();
        for (floats, bench) in floats.iter().zip(&benches) {
            assert_eq!(floats.read(bench), [4.5; 70]);
        }
    }
}

/// The driver's name for the stream that every thread has for itself. In a group only the first
/// communicator's calls are sure to run on the thread that made them.
#[test]
fn the_threads_own_stream_is_refused_where_another_thread_would_use_its_own() {
    if ndevices() == 0 {
        return;
    }
    let own = Order::on(std::ptr::without_provenance_mut(2));
    let ranks = ranks(2, &config());
    let benches: Vec<Bench> = ranks.iter().map(|rank| Bench::new(rank.device().unwrap())).collect();
    let floats: Vec<Floats> = benches.iter().map(|bench| Floats::new(bench, &[1.0; 9])).collect();
    let calls = [0, 1].map(|rank| Call { order: own, ..sum(&floats[rank], &benches[rank]) });
    enqueue::start();
    // SAFETY: the memory lives until it is read.
    unsafe {
        enqueue::collective(&ranks[0], &calls[0], None).unwrap();
        let error = enqueue::collective(&ranks[1], &calls[1], None).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains("is another one on every thread"), "{error}");
    }
    assert!(enqueue::end().is_err());
    // One communicator's calls run here.
    let config = config();
    let alone = Communicator::init_all_on(&[DeviceChoice::Device(0)], &config).unwrap().remove(0);
    let alone = Arc::new(alone);
    enqueue::start();
    for _ in 0..2 {
        // SAFETY: as above.
        unsafe { enqueue::collective(&alone, &calls[0], None) }.unwrap();
    }
    enqueue::end().unwrap();
    let passed = Event::new(&benches[0].device, Recording::Moment).unwrap();
    {
        let _current = benches[0].device.enter().unwrap();
        passed.record(own.stream).unwrap();
    }
    // To free the memory does not wait for a stream of the thread's own.
    while !passed.has_passed().unwrap() {
        std::thread::yield_now();
    }
    assert!(ranks.iter().all(|rank| !rank.is_broken()));
}

#[test]
fn one_thread_that_waits_for_itself_is_told_so() {
    if ndevices() == 0 {
        return;
    }
    let ranks = ranks(2, &Config { timeout_ms: 8000, ..config() });
    let call = |rank: usize| {
        let bench = Bench::new(ranks[rank].device().unwrap());
        let floats = Floats::new(&bench, &[1.0; 8]);
        // SAFETY: the memory lives until the stream is synchronized.
        let called = unsafe { ranks[rank].call(&sum(&floats, &bench)) };
        bench.stream.synchronize().unwrap();
        called
    };
    std::thread::scope(|scope| {
        scope.spawn(|| call(0).unwrap());
        call(1).unwrap();
    });
    // It has made the last call of the other one.
    let error = call(0).unwrap_err();
    assert!(matches!(error, Error::InvalidUsage(_)), "{error}");
    assert!(error.to_string().contains("between ringGroupStart and ringGroupEnd"), "{error}");
}

/// A thread that made all ranks may leave the others' calls to threads that are slower than it.
#[test]
fn the_thread_that_made_a_rank_need_not_call_it() {
    if ndevices() == 0 {
        return;
    }
    let ranks = ranks(2, &Config { timeout_ms: 9000, ..config() });
    let call = |rank: usize| {
        let bench = Bench::new(ranks[rank].device().unwrap());
        let floats = Floats::new(&bench, &[1.0; 8]);
        // SAFETY: the memory lives until it is read, or the call has failed.
        unsafe { ranks[rank].call(&sum(&floats, &bench)) }.map(|()| floats.read(&bench))
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(5000));
            assert_eq!(call(1).unwrap(), [2.0; 8]);
        });
        assert_eq!(call(0).unwrap(), [2.0; 8]);
    });
}

/// Nor is it told before the deadline that it might have to.
#[test]
fn the_thread_that_made_a_rank_is_told_at_the_deadline() {
    if ndevices() == 0 {
        return;
    }
    let config = Config { timeout_ms: 2000, ..config() };
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 8]);
    let mut memory = [1f32; 8];
    for seats in [spread(2), vec![DeviceChoice::Host, DeviceChoice::Device(0)]] {
        let ranks = Communicator::init_all_on(&seats, &config).unwrap();
        let in_host_memory = memory.as_mut_ptr().cast::<u8>();
        let call = match seats[0] {
            DeviceChoice::Host => {
                let call = Call::new(Collective::AllReduce, DataType::Float32);
                Call { send: in_host_memory, recv: in_host_memory, count: 8, ..call }
            }
            _ => sum(&floats, &bench),
        };
        // SAFETY: the memory lives until the end of the test.
        let error = unsafe { ranks[0].call(&call) }.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("this thread made rank 1 and may have to call it"), "{text}");
        assert_eq!(text.matches("between ringGroupStart and ringGroupEnd").count(), 1, "{text}");
    }
}

#[test]
fn different_calls_are_refused_and_named() {
    if ndevices() == 0 {
        return;
    }
    let errors = on_seats(&spread(2), &config(), |comm, bench| {
        let floats = Floats::new(bench, &[1.0; 64]);
        let call = Call { count: 32 + comm.rank(), ..sum(&floats, bench) };
        // SAFETY: shorter than the memory, which lives until here.
        unsafe { comm.call(&call) }.unwrap_err().to_string()
    });
    let named = |text: &String| text.contains("count=32") && text.contains("count=33");
    assert!(errors.iter().any(named), "{errors:?}");
}

#[test]
fn messages_move_device_memory() {
    if ndevices() == 0 {
        return;
    }
    on_seats(&spread(3), &config(), |comm, bench| {
        let last = (comm.rank() + 2) % 3;
        let mine = Floats::new(bench, &vec![comm.rank() as f32; 5000]);
        let theirs = Floats::new(bench, &[9.0; 5000]);
        for _ in 0..5 {
            let posted = exchange(comm, &mine, &theirs, Order::on(bench.stream.raw()));
            // SAFETY: the memory lives until it is read.
            unsafe { comm.post(&posted) }.unwrap();
        }
        assert_eq!(theirs.read(bench), vec![last as f32; 5000]);
    });
}

#[test]
fn a_stream_that_never_comes_ends_in_an_error_and_an_abort_ends_it_sooner() {
    let test = "streams::a_stream_that_never_comes_ends_in_an_error_and_an_abort_ends_it_sooner";
    if !may_hold(test) {
        return;
    }
    for aborts in [false, true] {
        // A rank of the host makes the others wait for their streams.
        let timeout_ms = if aborts { 60_000 } else { 5000 };
        let seats = [DeviceChoice::Device(0), DeviceChoice::Host];
        let config = Config { timeout_ms, ..config() };
        let ranks = Communicator::init_all_on(&seats, &config).unwrap();
        let bench = Bench::new(0);
        let floats = Floats::new(&bench, &[1.0; 16]);
        hold(&bench, Duration::from_secs(if aborts { 1 } else { 7 }));
        let error = std::thread::scope(|scope| {
            if aborts {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(100));
                    ranks[0].abort();
                });
            }
            // SAFETY: the memory lives until the end of the test.
            unsafe { ranks[0].call(&sum(&floats, &bench)) }.unwrap_err()
        });
        release();
        bench.stream.synchronize().unwrap();
        match aborts {
            true => assert!(matches!(error, Error::Aborted { .. }), "{error}"),
            false => {
                assert!(error.to_string().contains("earlier work on its own stream"), "{error}")
            }
        }
        // The other rank learns of it.
        let mut value = [0u8; 4];
        let call = Call {
            send: value.as_ptr(),
            recv: value.as_mut_ptr(),
            count: 4,
            ..Call::new(Collective::AllReduce, DataType::Uint8)
        };
        // SAFETY: four bytes.
        assert!(unsafe { ranks[1].call(&call) }.is_err());
    }
}

#[test]
fn a_dead_rank_ends_the_meeting_of_the_others() {
    if ndevices() == 0 {
        return;
    }
    let ranks = Communicator::init_all_on(&spread(3), &config()).unwrap();
    threads::run_all(&ranks, |comm| {
        let bench = Bench::new(comm.device().unwrap());
        let floats = Floats::new(&bench, &[1.0; 16]);
        if comm.rank() == 2 {
            std::thread::sleep(Duration::from_millis(100));
            return comm.abort();
        }
        // SAFETY: the memory lives until the end of the test.
        let error = unsafe { comm.call(&sum(&floats, &bench)) }.unwrap_err();
        assert!(error.to_string().contains("rank 2"), "{error}");
    });
}

#[test]
fn what_was_given_to_the_stream_before_a_call_is_done_before_it() {
    if ndevices() == 0 {
        return;
    }
    for seats in [spread(2), vec![DeviceChoice::Device(0), DeviceChoice::Host]] {
        on_seats(&seats, &config(), |comm, bench| {
            let floats = Floats::new(bench, &[0.0; 20_000]);
            for round in 0..10u8 {
                let pointer = floats.memory.pointer();
                if comm.device().is_some() {
                    let _current = bench.device.enter().unwrap();
                    // SAFETY: the memory's own length.
                    unsafe { fill(&bench.device, pointer, round, 80_000, bench.stream.raw()) }
                        .unwrap();
                }
                let mut on_host = vec![0u8; 80_000];
                let mut call = Call::new(Collective::AllReduce, DataType::Uint8);
                (call.send, call.recv) = (pointer, pointer);
                if comm.device().is_none() {
                    on_host.fill(round);
                    (call.send, call.recv) = (on_host.as_ptr(), on_host.as_mut_ptr());
                } else {
                    call.order = Order::on(bench.stream.raw());
                }
                call.count = 80_000;
                // SAFETY: the memory lives until it is read.
                unsafe { comm.call(&call) }.unwrap();
                let got = match comm.device() {
                    Some(_) => floats.read(bench)[7].to_bits().to_le_bytes()[0],
                    None => on_host[7],
                };
                assert_eq!(got, 2 * round, "round {round}");
            }
        });
    }
}
