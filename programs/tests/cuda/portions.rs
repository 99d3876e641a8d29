//! Long calls through the host: portion after portion, through pinned memory of a fixed size.

use super::ahead::add;
use super::here::is_apart;
use super::streams::{Floats, sum};
use super::support::samples::{long_cases, mixed, v_cases};
use super::support::{Prepared, Random, joined_hosts, small_slots, threads};
use super::{Bench, fake, ndevices, on_seats, spread};
use ringcomm::communicator::{Call, Communicator, Order, VectorCounts, enqueue};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::error::Error;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// Floats of a vector in a portion: 4 KiB are the least that it has, for input and output.
const SHARE: usize = 496;

/// Connections so small that portions are, too.
fn narrow(nranks: usize) -> Config {
    small_slots(nranks, 256)
}

/// A rank on the device, and one of the host.
fn two(config: &Config) -> Vec<Arc<Communicator>> {
    let ranks =
        Communicator::init_all_on(&[DeviceChoice::Device(0), DeviceChoice::Host], config).unwrap();
    ranks.into_iter().map(Arc::new).collect()
}

/// Wait until something is so, but not for ever; whether it is.
fn comes_true(is_so: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !is_so() && started.elapsed() < Duration::from_secs(20) {
        sleep(Duration::from_millis(1));
    }
    is_so()
}

fn cases(nranks: usize, seed: u64) -> Vec<Prepared> {
    let mut cases = long_cases(nranks);
    cases.extend(mixed(&vec![0; nranks], seed));
    cases.extend(v_cases(nranks, 1, &mut Random(seed)));
    cases.into_iter().map(Prepared::new).collect()
}

#[test]
fn ranks_of_the_host_and_of_devices_cut_alike() {
    if ndevices() == 0 {
        return;
    }
    let seats =
        [DeviceChoice::Host, DeviceChoice::Device(0), DeviceChoice::Host, DeviceChoice::Device(0)];
    let cases = cases(seats.len(), 301);
    on_seats(&seats, &narrow(seats.len()), |comm, bench| {
        for case in &cases {
            match comm.device() {
                None => case.run(comm),
                Some(_) => check(case, comm, bench),
            }
        }
    });
}

#[test]
fn a_rank_may_have_one_buffer_of_a_long_call_in_host_memory() {
    if ndevices() == 0 {
        return;
    }
    let cases = cases(3, 401);
    on_seats(&spread(3), &narrow(3), |comm, bench| {
        let mut bench = Bench::beside(bench);
        for (index, case) in cases.iter().enumerate() {
            bench.on_host = (index + comm.rank()) as u32 % 4;
            check(case, comm, &bench);
        }
    });
}

/// Between hosts messages leave from where they lie, and come to where they belong.
#[test]
fn portions_go_over_the_network() {
    if ndevices() == 0 {
        return;
    }
    let hosts = [0, 0, 1];
    let mut cases = mixed(&hosts, 501);
    cases.extend(long_cases(3).into_iter().step_by(3));
    cases.extend(v_cases(3, 1, &mut Random(501)));
    let cases: Vec<_> = cases.into_iter().map(Prepared::new).collect();
    let config = Config { device: DeviceChoice::Device(0), ..narrow(3) };
    threads::run_all(&joined_hosts(&hosts, &config), |comm| {
        let bench = Bench::new(0);
        cases.iter().for_each(|case| check(case, comm, &bench));
    });
}

fn check(case: &Prepared, comm: &Communicator, bench: &Bench) {
    if let Err(text) = case.outcome_on(comm, Some(bench)) {
        panic!("rank {} of {:?}: {text}", comm.rank(), case.case);
    }
}

/// In which every sum shows its order.
fn numbers(count: usize, rank: usize) -> Vec<f32> {
    let mut random = Random(7 + rank as u64);
    let number = |_| {
        (random.below(1 << 20) as f32 - 5e5) * 1.000_1f32.powi(random.below(90_000) as i32 % 900)
    };
    (0..count).map(number).collect()
}

/// The sum of `numbers` on ranks that sit there, as the first rank has it.
fn summed(seats: &[DeviceChoice], config: &Config, count: usize) -> Vec<u32> {
    let all = on_seats(seats, config, |comm, bench| {
        let mut values = numbers(count, comm.rank());
        if comm.device().is_some() {
            let floats = Floats::new(bench, &values);
            // SAFETY: the memory lives until it is read.
            unsafe { comm.call(&sum(&floats, bench)) }.unwrap();
            values = floats.read(bench);
        } else {
            let call = Call {
                send: values.as_ptr().cast(),
                recv: values.as_mut_ptr().cast(),
                count,
                ..Call::new(Collective::AllReduce, DataType::Float32)
            };
            // SAFETY: as many floats.
            unsafe { comm.call(&call) }.unwrap();
        }
        values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    assert!(all.iter().all(|one| *one == all[0]));
    all[0].clone()
}

/// Also where the algorithm's order of a sum is another in every part of the vector.
#[test]
fn portions_have_the_bits_of_the_whole_call() {
    if ndevices() == 0 {
        return;
    }
    let hosts = [DeviceChoice::Host; 3];
    let some = [DeviceChoice::Host, DeviceChoice::Device(0), DeviceChoice::Host];
    for algorithm in [None, Some("ring"), Some("halving"), Some("tree")] {
        let config = Config { algorithm: algorithm.map(Into::into), ..narrow(3) };
        for count in [SHARE * 3, 10_007] {
            assert!(
                summed(&hosts, &config, count) == summed(&some, &config, count),
                "{algorithm:?}"
            );
        }
    }
}

/// Entry points that give memory, or what else lasts.
const LASTING: [&str; 7] = [
    "cuMemHostAlloc",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemHostRegister_v2",
    "cuEventCreate",
    "cuStreamCreate",
    "cuModuleLoadData",
];

#[test]
fn a_call_of_any_length_allocates_nothing_on_the_device_or_for_it() {
    let test = "portions::a_call_of_any_length_allocates_nothing_on_the_device_or_for_it";
    if !is_apart(test, &[]) {
        return;
    }
    let ranks = two(&narrow(2));
    let bench = Bench::new(0);
    // One, some, what is given to a stream whole, and half a thousand times the pinned memory.
    let counts = [1, SHARE, 1000, 50_000, 1 << 20];
    // No two portions have the same numbers in the same places.
    let plus = |count: usize, more: f32| -> Vec<f32> {
        (0..count).map(|index| (index % 997) as f32 + more).collect()
    };
    let all = counts.map(|count| Floats::new(&bench, &plus(count, 0.0)));
    fake::fail("", 0, 0);
    scope(|scope| {
        scope.spawn(|| {
            for count in counts {
                for more in [10.0, 20.0] {
                    assert!(add(&ranks[1], count, 10.0).unwrap() == plus(count, more));
                }
            }
        });
        for floats in &all {
            // SAFETY: the memory lives until it is read.
            unsafe { ranks[0].call(&sum(floats, &bench)) }.unwrap();
            // SAFETY: as above.
            unsafe { enqueue::collective(&ranks[0], &sum(floats, &bench), None) }.unwrap();
        }
        for (floats, count) in all.iter().zip(counts) {
            assert!(floats.read(&bench) == plus(count, 20.0));
        }
    });
    assert_eq!(LASTING.map(fake::calls), [0; 7], "{LASTING:?}");
    let copies: usize = counts.iter().map(|count| count.div_ceil(SHARE)).sum();
    // The third fits as it lies; two calls each, there and back; and each was read.
    let copies = 4 * (copies - 2) + counts.len();
    assert_eq!(fake::calls("cuMemcpyAsync"), copies as u64);
}

/// The order in which streams and the host have what is to be done.
#[test]
fn the_next_portion_is_copied_while_the_host_has_one() {
    let test = "portions::the_next_portion_is_copied_while_the_host_has_one";
    if !is_apart(test, &[]) {
        return;
    }
    let ranks = two(&narrow(2));
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 5000]);
    fake::fail("", 0, 0);
    let copies = || fake::calls("cuMemcpyAsync");
    scope(|scope| {
        let other = scope.spawn(|| {
            // This rank has not come, so that the host is not through with the first.
            let is_ahead = comes_true(|| copies() == 2);
            sleep(Duration::from_millis(50));
            let given = copies();
            add(&ranks[1], 5000, 1.0).unwrap();
            (is_ahead, given)
        });
        // SAFETY: the memory lives until it is read.
        unsafe { ranks[0].call(&sum(&floats, &bench)) }.unwrap();
        assert_eq!(other.join().expect("no panic"), (true, 2), "given to the stream");
    });
    // Of a call that is given whole the stream has as much before it waits.
    fake::fail("", 0, 0);
    let waits = fake::stall("cuStreamWaitValue32_v2", 1);
    scope(|scope| {
        let other = scope.spawn(|| {
            let has_come = comes_true(|| waits.has_come());
            let given = (copies(), fake::calls("cuStreamWriteValue32_v2"));
            drop(waits);
            add(&ranks[1], 5000, 1.0).unwrap();
            (has_come, given)
        });
        // SAFETY: as above.
        unsafe { enqueue::collective(&ranks[0], &sum(&floats, &bench), None) }.unwrap();
        assert_eq!(other.join().expect("no panic"), (true, (2, 2)), "given to the stream");
    });
    assert_eq!(floats.read(&bench), [3.0; 5000]);
}

/// Both ranks are through with some portions.
#[test]
fn an_abort_in_the_middle_of_a_long_call_ends_it() {
    let test = "portions::an_abort_in_the_middle_of_a_long_call_ends_it";
    if !is_apart(test, &[]) {
        return;
    }
    let ranks = two(&narrow(2));
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 5000]);
    // Of the first two portions and the input of the third.
    let copy = fake::stall("cuMemcpyAsync", 5);
    scope(|scope| {
        let theirs = scope.spawn(|| add(&ranks[1], 5000, 1.0));
        let other = scope.spawn(|| {
            let has_come = comes_true(|| copy.has_come());
            ranks[1].abort();
            let theirs = theirs.join().expect("no panic");
            drop(copy);
            (has_come, theirs)
        });
        // SAFETY: the memory lives until the stream is synchronized.
        let mine = unsafe { ranks[0].call(&sum(&floats, &bench)) }.unwrap_err();
        let (has_come, theirs) = other.join().expect("no panic");
        assert!(has_come, "no fifth copy");
        assert!(matches!(theirs, Err(Error::Aborted { .. })), "{theirs:?}");
        assert!(mine.to_string().contains("rank 1"), "{mine}");
    });
    bench.stream.synchronize().unwrap();
}

#[test]
fn an_abort_lets_a_stream_go_on_that_has_all_of_a_long_call() {
    let test = "portions::an_abort_lets_a_stream_go_on_that_has_all_of_a_long_call";
    if !is_apart(test, &[]) {
        return;
    }
    let ranks = two(&narrow(2));
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 50_000]);
    // SAFETY: the memory lives until the stream is synchronized.
    unsafe { enqueue::collective(&ranks[0], &sum(&floats, &bench), None) }.unwrap();
    // The stream waits for a rank that has not come, and then for nobody.
    ranks[0].abort();
    bench.stream.synchronize().unwrap();
    let theirs = add(&ranks[1], 50_000, 1.0);
    assert!(theirs.is_err(), "a call with a rank that has aborted");
    // SAFETY: as above.
    let next = unsafe { enqueue::collective(&ranks[0], &sum(&floats, &bench), None) };
    assert!(matches!(next, Err(Error::Aborted { .. })), "{next:?}");
}

/// A stream holds so many entries; what would be more waits in its caller, not in the driver.
#[test]
fn long_calls_that_a_stream_has_no_room_for_return_when_they_are_done() {
    let test = "portions::long_calls_that_a_stream_has_no_room_for_return_when_they_are_done";
    if !is_apart(test, &[]) {
        return;
    }
    let ranks = two(&narrow(2));
    let bench = Bench::new(0);
    let floats = [1.0, 2.0].map(|value| Floats::new(&bench, &[value; 50_000]));
    // SAFETY: the memory lives until the stream is synchronized.
    let give = |floats| unsafe { enqueue::collective(&ranks[0], &sum(floats, &bench), None) };
    give(&floats[0]).unwrap();
    let has_come = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            sleep(Duration::from_millis(50));
            has_come.store(true, SeqCst);
            (0..2).for_each(|_| drop(add(&ranks[1], 50_000, 1.0).unwrap()));
        });
        give(&floats[1]).unwrap();
        assert!(has_come.load(SeqCst), "the stream was given both calls");
    });
    bench.stream.synchronize().unwrap();
    assert!(floats[0].read(&bench) == [2.0; 50_000] && floats[1].read(&bench) == [3.0; 50_000]);
    // Then there is room again: this returns before the other rank has come.
    give(&floats[0]).unwrap();
    drop(add(&ranks[1], 50_000, 1.0).unwrap());
    bench.stream.synchronize().unwrap();
}

#[test]
fn a_count_that_is_another_is_told_whether_it_is_cut_or_not() {
    if ndevices() == 0 {
        return;
    }
    for counts in [[5000, SHARE], [SHARE, 5000], [5000, 5001], [5000, 400]] {
        let ranks = two(&narrow(2));
        let bench = Bench::new(0);
        let floats = Floats::new(&bench, &vec![1.0; counts[0]]);
        scope(|scope| {
            let theirs = scope.spawn(|| add(&ranks[1], counts[1], 1.0));
            // SAFETY: the memory lives until the stream is synchronized.
            let mine = unsafe { ranks[0].call(&sum(&floats, &bench)) }.unwrap_err();
            let theirs = theirs.join().expect("no panic").unwrap_err();
            for error in [mine, theirs] {
                let text = error.to_string();
                assert!(
                    counts.iter().all(|count| text.contains(&format!("count={count},"))),
                    "{text}"
                );
            }
        });
        bench.stream.synchronize().unwrap();
    }
}

/// Of which only two ranks know, also where they have as much in the first portions.
#[test]
fn a_block_of_another_count_is_told() {
    if ndevices() == 0 {
        return;
    }
    for counts in [[3000, 600], [600, 3000], [480, 240]] {
        let ranks = two(&narrow(2));
        let call_with = |comm: &Communicator, count: usize, memory: *mut u8, order: Order| {
            let mut vector = VectorCounts {
                send_counts: vec![0; 2],
                send_displacements: vec![0; 2],
                recv_counts: vec![0; 2],
                recv_displacements: vec![0; 2],
            };
            if comm.rank() == 0 {
                vector.send_counts[1] = count;
            } else {
                vector.recv_counts[0] = count;
            }
            let call = Call {
                send: memory,
                recv: memory,
                vector: Some(&vector),
                order,
                ..Call::new(Collective::AllToAll, DataType::Float32)
            };
            // SAFETY: the one buffer that is used has as many floats.
            unsafe { comm.call(&call) }
        };
        let bench = Bench::new(0);
        let floats = Floats::new(&bench, &vec![1.0; counts[0]]);
        scope(|scope| {
            let theirs = scope.spawn(|| {
                let mut values = vec![0f32; counts[1]];
                call_with(&ranks[1], counts[1], values.as_mut_ptr().cast(), Order::default())
            });
            let order = Order::on(bench.stream.raw());
            let _ = call_with(&ranks[0], counts[0], floats.memory.pointer(), order);
            let text = theirs.join().expect("no panic").unwrap_err().to_string();
            assert!(counts.iter().all(|count| text.contains(&format!("count={count} "))), "{text}");
        });
        bench.stream.synchronize().unwrap();
    }
}

#[test]
fn an_explanation_is_of_all_portions() {
    if ndevices() == 0 {
        return;
    }
    let ranks = two(&Config { algorithm: Some("ring".into()), ..narrow(2) });
    let explain = |comm: &Communicator, portions| {
        let count = portions * SHARE;
        let call = Call { count, ..Call::new(Collective::AllReduce, DataType::Int32) };
        comm.explain(&call).unwrap()
    };
    for comm in &ranks {
        let (one, ten) = (explain(comm, 1), explain(comm, 10));
        assert_eq!((ten.slices, ten.slice_bytes), (10 * one.slices, one.slice_bytes));
        assert!((ten.predicted_us / one.predicted_us - 10.0).abs() < 0.01);
    }
}

/// In the flight record, too.
#[test]
fn a_long_call_is_one_operation() {
    if ndevices() == 0 {
        return;
    }
    let ranks = two(&narrow(2));
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 5000]);
    scope(|scope| {
        scope.spawn(|| add(&ranks[1], 5000, 1.0).unwrap());
        // SAFETY: the memory lives until it is read.
        unsafe { ranks[0].call(&sum(&floats, &bench)) }.unwrap();
    });
    for comm in &ranks {
        let dump = comm.dump();
        assert_eq!(dump.matches("\"call\":").count(), 1, "{dump}");
        assert!(dump.contains("\"call\":\"AllReduce(count=5000,"), "{dump}");
    }
}
