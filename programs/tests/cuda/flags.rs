//! Kernels that wait for each other: ranks on a device each, or all of one device in one launch.

use super::here::{has_devices, has_reach, is_apart};
use super::streams::{Floats, sum};
use super::support::samples::{COPYING, REDUCING, operations};
use super::support::{Case, Data, Prepared, Random, config, on_threads, small_slots, threads};
use super::{Bench, fake, ndevices, on_seats, spread};
use ringcomm::communicator::{Call, Communicator, Order, enqueue};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::{Event, Kernels, Recording, wait};
use ringcomm::error::Error;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::sync::Arc;
use std::time::Duration;

pub const ALGORITHMS: [&str; 9] =
    ["oneshot", "twoshot", "ring", "doubling", "halving", "tree", "chain", "binomial", "pairwise"];

/// Every collective, in and out of place, around the lengths at which ways and slices change.
pub fn cases(nranks: usize, seed: u64) -> Vec<Prepared> {
    let mut random = Random(seed);
    let mut cases = vec![Case::new(Collective::Barrier, nranks, 0, DataType::Uint8)];
    for collective in REDUCING.into_iter().chain(COPYING) {
        for bytes in [0usize, 1, 40, 3000, 30_000] {
            let data_type = random.pick(&DataType::ALL);
            let supported = |op: &_| ringcomm::types::ReduceOp::supports(*op, data_type);
            let op = random.pick(&operations().filter(supported).collect::<Vec<_>>());
            let in_place = random.chance(2) && collective != Collective::AllToAll;
            let (root, seed) = (random.below(nranks), random.next() >> 8);
            let count = bytes.div_ceil(data_type.size());
            let case = Case::new(collective, nranks, count, data_type);
            cases.push(Case { op, in_place, root, seed, ..case });
        }
    }
    cases.into_iter().map(Prepared::new).collect()
}

fn check_all(seats: &[DeviceChoice], transport: &str, config: &Config, seed: u64) {
    let cases = cases(seats.len(), seed);
    on_seats(seats, config, |comm, bench| {
        let mut went = 0;
        for case in &cases {
            if let Err(text) = case.outcome_on(comm, Some(bench)) {
                panic!("rank {} of {:?}, {config:?}: {text}", comm.rank(), case.case);
            }
            let answer = case.explain(comm);
            let is_asked = config.algorithm.as_deref().is_none_or(|name| name == answer.algorithm);
            went += usize::from(answer.transport == transport && is_asked);
        }
        assert!(went > 3, "{went} of {} calls over {transport} as {config:?}", cases.len());
    });
}

/// As many as there are devices.
fn alone() -> Option<Vec<DeviceChoice>> {
    (has_devices(2) && has_reach(2)).then(|| spread(ndevices()))
}

#[test]
fn every_algorithm_between_devices() {
    let Some(seats) = alone() else { return };
    for (index, name) in ALGORITHMS.into_iter().enumerate() {
        let slots = small_slots(seats.len(), [1024, 4096, 40_000][index % 3]);
        let config = Config { algorithm: Some(name.into()), ..slots };
        check_all(&seats, "gpu/p2p", &config, index as u64 + 1);
    }
    check_all(&seats, "gpu/p2p", &config(), 99);
}

#[test]
fn every_algorithm_in_one_launch() {
    if ndevices() == 0 {
        return;
    }
    for (index, name) in ALGORITHMS.into_iter().enumerate() {
        let nranks = [2, 3, 8][index % 3];
        let slots = small_slots(nranks, [40_000, 1024, 4096][index % 3]);
        let config = Config { algorithm: Some(name.into()), ..slots };
        check_all(
            &vec![DeviceChoice::Device(0); nranks],
            "gpu/cooperative",
            &config,
            index as u64 + 1,
        );
    }
}

/// What is fused says so, and has no algorithm's name or time; nor one that was asked for.
#[test]
fn a_fused_call_is_explained_as_what_it_is() {
    if ndevices() == 0 {
        return;
    }
    let check = |seats: &[DeviceChoice], config: &Config, want: &str| {
        let ranks = Communicator::init_all_on(seats, config).unwrap();
        let call = Call { count: 100, ..Call::new(Collective::AllReduce, DataType::Float32) };
        let answer = ranks[0].explain(&call).unwrap();
        assert_eq!((answer.algorithm, answer.transport, answer.channels), ("fused", want, 1));
        assert_eq!(answer.predicted_us, 0.0);
    };
    check(&[DeviceChoice::Device(0); 3], &config(), "gpu/fused");
    if alone().is_some() {
        // Neither all on one device nor each on its own: no kernels that wait.
        let ring = Config { algorithm: Some("ring".into()), ..config() };
        check(
            &[DeviceChoice::Device(0), DeviceChoice::Device(0), DeviceChoice::Device(1)],
            &ring,
            "gpu/fused, not as asked",
        );
    }
}

/// The processor's bits, with sums whose order shows: ways that are chosen by cost keep the order.
#[test]
fn what_is_chosen_has_the_serial_bits() {
    let Some(seats) = alone() else { return };
    let mut cases = Vec::new();
    for data_type in DataType::ALL.into_iter().filter(|one| one.is_float()) {
        for count in [3, 3000, 60_000] {
            let case = Case::new(Collective::AllReduce, seats.len(), count, data_type);
            cases.push(Prepared::new(Case { data: Data::Special, seed: count as u64, ..case }));
        }
    }
    let on_host = on_threads(seats.len(), &config(), |comm| {
        cases.iter().map(|case| case.outcome(comm).unwrap()).collect::<Vec<_>>()
    });
    let on_devices = on_seats(&seats, &config(), |comm, bench| {
        let all = |case: &Prepared| case.outcome_on(comm, Some(bench)).unwrap();
        cases.iter().map(all).collect::<Vec<_>>()
    });
    assert!(on_devices == on_host);
}

/// Two communicators on the same devices, called in different orders and from different threads:
/// with one hardware queue, kernels that wait would block each other if they came to the devices
/// in different orders.
#[test]
fn communicators_share_devices_in_any_order() {
    let Some(seats) = alone() else { return };
    let config = config();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                on_seats(&seats, &config, |comm, bench| {
                    let floats = Floats::new(bench, &[1.0; 3000]);
                    for _ in 0..40 {
                        // SAFETY: the memory lives until it is read.
                        unsafe { comm.call(&sum(&floats, bench)) }.unwrap();
                    }
                    let want = (seats.len() as f32).powi(40);
                    assert_eq!(floats.read(bench), vec![want; 3000]);
                });
            });
        }
    });
}

/// Calls of one communicator that change between streams are in the order of the calls.
#[test]
fn launches_follow_each_other_over_streams() {
    let Some(seats) = alone() else { return };
    const ROUNDS: usize = 20;
    on_seats(&seats, &config(), |comm, bench| {
        let benches = [Bench::new(bench.device.ordinal), Bench::new(bench.device.ordinal)];
        let floats: Vec<Floats> = benches.iter().map(|one| Floats::new(one, &[1.0; 900])).collect();
        let kernels = Kernels::of(&bench.device).unwrap().expect("there are kernels");
        for round in 0..ROUNDS {
            // What the call before has left, on the other stream, goes into the other memory.
            let [turn, other] = [round % 2, (round + 1) % 2];
            let target = floats[other].memory.pointer();
            let call = Call { recv: target, ..sum(&floats[turn], &benches[turn]) };
            if turn == 0 {
                let _current = bench.device.enter().unwrap();
                // SAFETY: a stream of this device. The other one would be through long before it.
                unsafe { kernels.delay(1_000_000, benches[0].stream.raw()) }.unwrap();
            }
            // SAFETY: the memory lives until it is read.
            unsafe { comm.call(&call) }.unwrap();
        }
        benches.iter().for_each(|one| one.stream.synchronize().unwrap());
        for (power, index) in [(ROUNDS - 1, 1), (ROUNDS, 0)] {
            // A sum that came too early has a factor less; what is rounded is far less.
            let want = (comm.nranks() as f32).powi(power as i32);
            let got = floats[index].read(&benches[index]);
            let is_near = |value: &f32| (value / want - 1.0).abs() < 0.01;
            assert!(got.iter().all(is_near), "{} is not {want}", got[0]);
        }
        assert!(comm.async_error().is_none());
    });
}

/// All streams in one graph; and one whose streams have a graph each is refused.
#[test]
fn all_streams_have_one_graph() {
    let Some(seats) = alone() else { return };
    for name in ["oneshot", "twoshot", "ring"] {
        let config = Config { algorithm: Some(name.into()), ..config() };
        let ranks = Communicator::init_all_on(&seats, &config).unwrap();
        let ranks: Vec<Arc<Communicator>> = ranks.into_iter().map(Arc::new).collect();
        let benches: Vec<Bench> = (0..seats.len()).map(|one| Bench::new(one as i32)).collect();
        let floats = benches.iter().map(|bench| Floats::new(bench, &[1.0; 200])).collect();
        let all = (ranks, benches, floats);
        let (_, benches, floats) = &all;
        let alone = benches[0].stream.capture(|| call_both(&all)).err().expect("one is captured");
        assert!(alone.to_string().contains("not all ranks' streams are in one capture"), "{alone}");
        let event = |bench: &Bench| Event::new(&bench.device, Recording::Moment).unwrap();
        let (fork, joins) = (event(&benches[0]), benches.iter().map(event).collect::<Vec<_>>());
        let replay = benches[0].stream.capture(|| {
            fork.record(benches[0].stream.raw())?;
            benches[1..].iter().try_for_each(|bench| {
                let _current = bench.device.enter()?;
                wait(bench.stream.raw(), &fork)
            })?;
            call_both(&all)?;
            benches[1..].iter().zip(&joins[1..]).try_for_each(|(bench, join)| {
                {
                    let _current = bench.device.enter()?;
                    join.record(bench.stream.raw())?;
                }
                wait(benches[0].stream.raw(), join)
            })
        });
        let replay = replay.unwrap();
        // A call of the same shape before the graph is launched for the first time.
        call_both(&all).unwrap();
        let mut want = seats.len() as f32;
        for _ in 0..3 {
            benches.iter().for_each(|bench| bench.stream.synchronize().unwrap());
            replay.launch(&benches[0].stream).unwrap();
            benches[0].stream.synchronize().unwrap();
            want *= seats.len() as f32;
            for (floats, bench) in floats.iter().zip(benches) {
                assert_eq!(floats.read(bench), vec![want; 200], "{name}");
            }
        }
    }
}

/// Whether this is the process in which `test` may ask the driver without a GPU for its tricks,
/// with two devices.
fn is_on_two(test: &str) -> bool {
    is_apart(test, &[("FAKECUDA_DEVICES", "2"), ("FAKECUDA_QUEUES", "8"), ("FAKECUDA_PEERS", "1")])
}

pub fn two(timeout_ms: u64, algorithm: &str) -> (Vec<Arc<Communicator>>, Vec<Bench>, Vec<Floats>) {
    let seats = [DeviceChoice::Device(0), DeviceChoice::Device(1)];
    let algorithm = Some(algorithm.into());
    let config = Config { timeout_ms, algorithm, ..config() };
    let ranks = Communicator::init_all_on(&seats, &config).unwrap();
    let benches: Vec<Bench> = (0..2).map(Bench::new).collect();
    let floats = benches.iter().map(|bench| Floats::new(bench, &[1.0; 3000])).collect();
    (ranks.into_iter().map(Arc::new).collect(), benches, floats)
}

pub fn call_both(
    (ranks, benches, floats): &(Vec<Arc<Communicator>>, Vec<Bench>, Vec<Floats>),
) -> Result<(), Error> {
    let calls: Vec<Call> = floats.iter().zip(benches).map(|(one, bench)| sum(one, bench)).collect();
    enqueue::start();
    for (rank, call) in ranks.iter().zip(&calls) {
        // SAFETY: the memory lives as long as the test.
        unsafe { enqueue::collective(rank, call, None) }.unwrap();
    }
    enqueue::end()
}

/// A kernel whose peer's stream never comes to the call.
fn hold(benches: &[Bench]) {
    let _current = benches[1].device.enter().unwrap();
    fake::hold(benches[1].stream.raw());
}

#[test]
fn a_kernel_that_waits_too_long_ends_and_names_whom_it_waited_for() {
    if !is_on_two("flags::a_kernel_that_waits_too_long_ends_and_names_whom_it_waited_for") {
        return;
    }
    for (algorithm, what) in [("twoshot", "the barrier"), ("ring", "a message")] {
        let all = two(4000, algorithm);
        let (ranks, benches, _) = &all;
        hold(benches);
        call_both(&all).unwrap();
        // The kernel ends by itself: its stream comes to an end.
        benches[0].stream.synchronize().unwrap();
        let error = ranks[0].async_error().expect("an error of the kernel's").to_string();
        assert!(error.contains("rank 0 waited 4000 ms for rank 1"), "{error}");
        assert!(error.contains(what) && error.contains("on CUDA device 0"), "{error}");
        fake::release();
        let text = call_both(&all).unwrap_err().to_string();
        assert!(text.contains("waited 4000 ms for rank 1"), "{text}");
        benches.iter().for_each(|bench| bench.stream.synchronize().unwrap());
    }
}

#[test]
fn an_abort_reaches_kernels_that_wait() {
    if !is_on_two("flags::an_abort_reaches_kernels_that_wait") {
        return;
    }
    for algorithm in ["oneshot", "twoshot", "ring"] {
        let all = two(60_000, algorithm);
        let (ranks, benches, _) = &all;
        hold(benches);
        call_both(&all).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        // Of the rank whose kernel has not begun.
        ranks[1].abort();
        benches[0].stream.synchronize().unwrap();
        assert!(matches!(ranks[1].async_error(), Some(Error::Aborted { .. })));
        assert!(ranks[0].async_error().expect("news").to_string().contains("rank 1"));
        fake::release();
        // And what begins later ends, too.
        benches[1].stream.synchronize().unwrap();
    }
}

/// A call that comes back only when it is through, and whose kernel was stopped, has no result.
#[test]
fn an_abort_ends_a_call_that_settles_with_an_error() {
    if !is_on_two("flags::an_abort_ends_a_call_that_settles_with_an_error") {
        return;
    }
    // Its kernel ends a moment before the reason is there: often both come in time.
    for algorithm in ["oneshot", "twoshot", "ring"].repeat(4) {
        let (ranks, benches, floats) = two(60_000, algorithm);
        hold(&benches);
        // As numbers, for threads.
        let address = |rank: usize| floats[rank].memory.pointer().expose_provenance();
        let stream = |rank: usize| benches[rank].stream.raw().expose_provenance();
        let places = [0, 1].map(|rank| (address(rank), stream(rank)));
        let call = |rank: usize, settles: bool| {
            let (memory, stream) = places[rank];
            let memory = std::ptr::with_exposed_provenance_mut(memory);
            let mut order = Order::on(std::ptr::with_exposed_provenance_mut(stream));
            order.settles = settles;
            let call = Call {
                send: memory,
                recv: memory,
                count: 3000,
                order,
                ..Call::new(Collective::AllReduce, DataType::Float32)
            };
            // SAFETY: the memory lives as long as the test.
            unsafe { ranks[rank].call(&call) }
        };
        std::thread::scope(|scope| {
            let settled = scope.spawn(|| call(0, true));
            call(1, false).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            ranks[1].abort();
            let text = settled.join().unwrap().unwrap_err().to_string();
            assert!(text.contains("rank 1") && text.contains("abort"), "{algorithm}: {text}");
        });
        fake::release();
        benches.iter().for_each(|bench| bench.stream.synchronize().unwrap());
    }
}

/// A rank whose stream is through after an abort has its output for itself: a peer's kernel that
/// begins later, and finds all of its data there, leaves it alone.
#[test]
fn no_peer_writes_after_an_abort() {
    if !is_on_two("flags::no_peer_writes_after_an_abort") {
        return;
    }
    const POISON: f32 = -77.0;
    for algorithm in ["oneshot", "twoshot", "ring"] {
        let (ranks, benches, inputs) = two(60_000, algorithm);
        let output = |bench| Floats::new(bench, &[POISON; 3000]);
        let outputs: Vec<Floats> = benches.iter().map(output).collect();
        hold(&benches);
        enqueue::start();
        for (index, rank) in ranks.iter().enumerate() {
            let recv = outputs[index].memory.pointer();
            let call = Call { recv, ..sum(&inputs[index], &benches[index]) };
            // SAFETY: the memory lives as long as the test.
            unsafe { enqueue::collective(rank, &call, None) }.unwrap();
        }
        enqueue::end().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        ranks[0].abort();
        benches[0].stream.synchronize().unwrap();
        fake::release();
        benches[1].stream.synchronize().unwrap();
        let left = outputs[0].read(&benches[0]);
        assert!(left.iter().all(|value| *value == POISON), "{algorithm}");
    }
}

#[test]
fn a_launch_that_is_refused_ends_those_that_wait_for_it() {
    if !is_on_two("flags::a_launch_that_is_refused_ends_those_that_wait_for_it") {
        return;
    }
    let all = two(60_000, "twoshot");
    let (ranks, benches, _) = &all;
    // The second device's.
    fake::fail("cuLaunchKernel", 2, 4711);
    let error = call_both(&all).unwrap_err().to_string();
    fake::fail("", 0, 0);
    assert!(error.contains("4711"), "{error}");
    benches.iter().for_each(|bench| bench.stream.synchronize().unwrap());
    assert!(ranks.iter().all(|rank| rank.async_error().is_some()));
}

/// Tables that graphs keep leave no room for others: a call that needs one is refused, and calls
/// that need none are as right as before.
#[test]
fn a_call_without_room_for_its_tables_is_refused_alone() {
    if ndevices() == 0 {
        return;
    }
    ["twoshot", "ring"].into_iter().for_each(fill_tables);
}

fn fill_tables(algorithm: &str) {
    let config = Config { algorithm: Some(algorithm.into()), ..config() };
    let ranks = Communicator::init_all_on(&[DeviceChoice::Device(0); 4], &config).unwrap();
    let ranks: Vec<Arc<Communicator>> = ranks.into_iter().map(Arc::new).collect();
    let bench = Bench::new(0);
    let floats: Vec<Floats> = (0..4).map(|_| Floats::new(&bench, &[1.0; 3000])).collect();
    let call_all = |count: usize| {
        enqueue::start();
        for (rank, floats) in ranks.iter().zip(&floats) {
            let call = Call { count, ..sum(floats, &bench) };
            // SAFETY: no longer than the memory, which lives as long as the test.
            unsafe { enqueue::collective(rank, &call, None) }.unwrap();
        }
        enqueue::end()
    };
    call_all(3000).unwrap();
    let captured = |count| bench.stream.capture(|| call_all(count)).err();
    let error = (1..2999).find_map(captured).expect("no room").to_string();
    assert!(error.contains("no room for tables of kernels in a graph"), "{error}");
    call_all(3000).unwrap();
    let error = call_all(2999).unwrap_err().to_string();
    assert!(error.contains("beside those that graphs keep"), "{error}");
    call_all(3000).unwrap();
    for (rank, floats) in ranks.iter().zip(&floats) {
        assert_eq!(floats.read(&bench), [64.0; 3000], "{algorithm}");
        assert!(rank.async_error().is_none());
    }
}

/// Room for tables comes with a stream that passes. Where none does, a call is refused before any
/// rank's kernel waits for it.
#[test]
fn a_call_whose_room_is_not_given_up_in_time_is_refused_alone() {
    if !is_on_two("flags::a_call_whose_room_is_not_given_up_in_time_is_refused_alone") {
        return;
    }
    let all = two(4000, "ring");
    let (ranks, benches, floats) = &all;
    let filling: Vec<Floats> =
        benches.iter().map(|bench| Floats::new(bench, &[1.0; 3000])).collect();
    for bench in benches {
        let _current = bench.device.enter().unwrap();
        fake::hold(bench.stream.raw());
    }
    let filled = |count: usize| {
        enqueue::start();
        for ((rank, bench), floats) in ranks.iter().zip(benches).zip(&filling) {
            let call = Call { count, ..sum(floats, bench) };
            // SAFETY: no longer than the memory, which lives as long as the test.
            unsafe { enqueue::collective(rank, &call, None) }.unwrap();
        }
        enqueue::end()
    };
    let refused = (1..2000).find_map(|count| filled(count).err());
    let error = refused.expect("no room").to_string();
    assert!(error.contains("while the stream does not come to the call"), "{error}");
    fake::release();
    benches.iter().for_each(|bench| bench.stream.synchronize().unwrap());
    call_both(&all).unwrap();
    for ((rank, bench), floats) in ranks.iter().zip(benches).zip(floats) {
        assert_eq!(floats.read(bench), [2.0; 3000]);
        assert!(rank.async_error().is_none());
    }
}

#[test]
fn devices_that_refuse_access_are_said_to() {
    let none = [("FAKECUDA_DEVICES", "2"), ("FAKECUDA_PEERS", "0"), ("RINGCOMM_DEBUG", "1")];
    if !is_apart("flags::devices_that_refuse_access_are_said_to", &none) {
        return;
    }
    let config = Config { debug: 1, ..config() };
    let ranks = Communicator::init_all_on(&spread(2), &config).unwrap();
    threads::run_all(&ranks, |comm| {
        let bench = Bench::new(comm.rank() as i32);
        let floats = Floats::new(&bench, &[1.5; 70]);
        let transport = comm.explain(&sum(&floats, &bench)).unwrap().transport;
        assert_eq!(transport, "gpu/staged (no peer access)");
    });
}
