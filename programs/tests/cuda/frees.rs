//! Memory that comes and goes beside kernels that wait for each other, on a driver which does with
//! that the worst that it may: it waits for all kernels, and lets nobody launch meanwhile.

use super::Bench;
use super::ahead::add;
use super::fake::{self, Stalled};
use super::flags::{call_both, two};
use super::here::{has_devices, has_reach, is_apart, is_on_fake};
use super::processes::{apart, check_sum, join, transport};
use super::streams::{Floats, sum};
use super::support::config;
use ringcomm::communicator::{Call, Communicator, Message, Order, OrderedMessage, enqueue};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::{DeferredFree, HostRegistration, SpinKernelsActive};
use ringcomm::error::Error;
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

/// Whether this is the process in which `test` has that driver, and two devices.
fn is_strict(test: &str) -> bool {
    let strict = [("FAKECUDA_FREES_ALONE", "1"), ("FAKECUDA_DEVICES", "2")];
    let other = [("FAKECUDA_QUEUES", "0"), ("FAKECUDA_PEERS", "1")];
    is_apart(test, &[strict, other].concat())
}

/// Longer than anything takes here that is not held up.
const LONGEST: Duration = Duration::from_secs(20);

/// Wait until something is so, but not for ever; whether it is.
fn comes_true(is_so: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !is_so() && started.elapsed() < LONGEST {
        sleep(Duration::from_millis(1));
    }
    is_so()
}

fn stalled(symbol: &str, nth: u64) -> Stalled {
    fake::fail("", 0, 0);
    fake::stall(symbol, nth)
}

/// What came of a call of all ranks, on the host and on the devices.
fn called(all: &(Vec<Arc<Communicator>>, Vec<Bench>, Vec<Floats>)) -> Result<(), Error> {
    call_both(all)?;
    all.1.iter().try_for_each(|bench| bench.stream.synchronize())?;
    all.0.iter().find_map(|rank| rank.async_error()).map_or(Ok(()), Err)
}

/// A communicator that has memory of its own beside others.
fn alone() -> Communicator {
    Communicator::init_all_on(&[DeviceChoice::Device(0)], &config()).unwrap().remove(0)
}

const FREES: [&str; 2] = ["cuMemFreeHost", "cuMemFree_v2"];
const ALLOCATIONS: [&str; 2] = ["cuMemHostAlloc", "cuMemAlloc_v2"];

fn calls(symbols: [&str; 2]) -> [u64; 2] {
    symbols.map(fake::calls)
}

/// One device has its kernel, which waits for the other's, and that is not launched yet.
#[test]
fn nothing_is_freed_between_the_launches_of_a_call_and_nobody_waits() {
    if !is_strict("frees::nothing_is_freed_between_the_launches_of_a_call_and_nobody_waits") {
        return;
    }
    for what in ["pinned memory", "a company"] {
        let all = two(8000, "twoshot");
        let going = match what {
            "a company" => two(8000, "ring").0,
            _ => vec![alone().into()],
        };
        scope(|scope| {
            let between = stalled("cuLaunchKernel", 2);
            let call = scope.spawn(move || called(&all));
            assert!(comes_true(|| between.has_come()), "no second launch");
            let goer = scope.spawn(|| drop(going));
            comes_true(|| goer.is_finished() || calls(FREES) != [0, 0]);
            let (waits, freed) = (!goer.is_finished(), calls(FREES));
            drop(between);
            let called = call.join().expect("no panic");
            assert_eq!(freed, [0, 0], "{what}");
            assert!(!waits, "{what} was let go, and who did waited for a launch");
            called.unwrap();
        });
    }
}

#[test]
fn memory_comes_between_the_launches_of_two_calls() {
    if !is_strict("frees::memory_comes_between_the_launches_of_two_calls") {
        return;
    }
    let all = two(8000, "twoshot");
    scope(|scope| {
        let between = stalled("cuLaunchKernel", 2);
        let call = scope.spawn(move || called(&all));
        assert!(comes_true(|| between.has_come()), "no second launch");
        let comer = scope.spawn(alone);
        // As long as it takes to come where it must not.
        sleep(Duration::from_millis(300));
        let came = calls(ALLOCATIONS);
        drop(between);
        let called = call.join().expect("no panic");
        comer.join().expect("no panic");
        assert_eq!(came, [0, 0]);
        called.unwrap();
    });
}

/// What would wait for a stream that does not come to an end holds nobody up.
#[test]
fn what_goes_waits_for_no_stream_and_holds_up_no_launch() {
    if !is_strict("frees::what_goes_waits_for_no_stream_and_holds_up_no_launch") {
        return;
    }
    let (all, going, held) = (two(8000, "twoshot"), alone(), Bench::new(0));
    {
        let _current = held.device.enter().unwrap();
        fake::hold(held.stream.raw());
    }
    scope(|scope| {
        let goer = scope.spawn(|| drop(going));
        let is_gone = comes_true(|| goer.is_finished());
        let call = is_gone.then(|| called(&all));
        fake::release();
        assert!(is_gone, "who let memory go waited for a stream");
        call.into_iter().for_each(Result::unwrap);
    });
}

/// A free that began before there were kernels that wait is over before there are.
#[test]
fn no_kernel_waits_while_an_earlier_free_goes_on() {
    if !is_strict("frees::no_kernel_waits_while_an_earlier_free_goes_on") {
        return;
    }
    let call = Call { count: 3000, ..Call::new(Collective::AllReduce, DataType::Float32) };
    let seats = [DeviceChoice::Device(0), DeviceChoice::Device(1)];
    for waits in [true, false] {
        let going = alone();
        // Half of it, at most, is spent on that.
        let timeout_ms = if waits { 60_000 } else { 8000 };
        let config = Config { timeout_ms, algorithm: Some("ring".into()), ..config() };
        scope(|scope| {
            let freeing = stalled("cuMemFreeHost", 1);
            scope.spawn(|| drop(going));
            assert!(comes_true(|| freeing.has_come()), "nothing was freed");
            let made = scope.spawn(|| Communicator::init_all_on(&seats, &config));
            if waits {
                // As long as it takes where it does not wait.
                sleep(Duration::from_secs(1));
                let was_made = made.is_finished();
                drop(freeing);
                let made = made.join().expect("no panic").unwrap();
                assert!(!was_made, "kernels that wait were tried while memory was freed");
                assert_eq!(made[0].explain(&call).unwrap().transport, "gpu/p2p");
            } else {
                // It does without such kernels, and says so.
                let made = made.join().expect("no panic").unwrap();
                drop(freeing);
                assert_eq!(made[0].explain(&call).unwrap().algorithm, "fused");
            }
        });
    }
}

/// Communicators that come and go beside a lasting one use the same memory again and again, and
/// the last of them leaves none.
#[test]
fn what_is_kept_is_used_again_and_freed_at_last() {
    if !is_strict("frees::what_is_kept_is_used_again_and_freed_at_last") {
        return;
    }
    fake::fail("", 0, 0);
    let all = two(20_000, "twoshot");
    // Before there were kernels that wait.
    let [probed, _] = calls(FREES);
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 100]);
    let come_and_go = || {
        drop(two(20_000, "ring").0);
        // A rank of the host makes the other one's calls go through pinned memory.
        let seats = [DeviceChoice::Device(0), DeviceChoice::Host];
        let ranks = Communicator::init_all_on(&seats, &config()).unwrap();
        scope(|scope| {
            let host = &ranks[1];
            let host = scope.spawn(move || {
                let mut values = vec![1f32; 100];
                let call = Call {
                    send: values.as_ptr().cast(),
                    recv: values.as_mut_ptr().cast(),
                    count: 100,
                    ..Call::new(Collective::AllReduce, DataType::Float32)
                };
                // SAFETY: as many floats.
                unsafe { host.call(&call) }.unwrap();
            });
            // SAFETY: the memory lives until the stream is synchronized.
            unsafe { ranks[0].call(&sum(&floats, &bench)) }.unwrap();
            bench.stream.synchronize().unwrap();
            host.join().expect("no panic");
        });
    };
    come_and_go();
    let before = (calls(ALLOCATIONS), calls(FREES));
    (0..10).for_each(|_| come_and_go());
    let after = (calls(ALLOCATIONS), calls(FREES));
    // The test's own two buffers in each turn, each with its mirror.
    assert_eq!(after.0, before.0.map(|calls| calls + 20), "more memory in every turn");
    assert_eq!(after.1, before.1.map(|calls| calls + 20), "memory was freed beside kernels");
    assert_eq!(before.1[0], probed + 2, "memory was freed beside kernels");
    drop((all, floats, bench));
    assert_eq!(calls(ALLOCATIONS), calls(FREES));
}

/// A sum in place on the rank's stream, as the C interface makes it.
fn give(comm: &Arc<Communicator>, floats: &Floats, bench: &Bench) -> Result<(), Error> {
    // SAFETY: the memory lives as long as the test.
    unsafe { enqueue::collective(comm, &sum(floats, bench), None) }
}

/// A message from rank 1 to rank 0, at either end.
fn message(comm: &Arc<Communicator>, floats: &Floats, bench: &Bench) -> Result<(), Error> {
    let (buffer, count, data_type) = (floats.memory.pointer(), floats.count, DataType::Float32);
    let message = match comm.rank() {
        0 => Message::Recv { buffer, count, data_type, peer: 1 },
        _ => Message::Send { buffer, count, data_type, peer: 0 },
    };
    // SAFETY: the memory lives as long as the test.
    unsafe {
        let posted = OrderedMessage { message, order: Order::on(bench.stream.raw()) };
        enqueue::message(comm, posted, None)
    }
}

/// A program frees memory while a stream waits for another rank's call. This cannot be made, as the
/// driver is the free's, which waits for the stream.
#[test]
fn a_free_that_keeps_another_ranks_call_from_the_driver_is_told_before_the_deadline() {
    if !is_strict(
        "frees::a_free_that_keeps_another_ranks_call_from_the_driver_is_told_before_the_deadline",
    ) {
        return;
    }
    // Half of it is waited.
    let config = Config { timeout_ms: 16_000, ..config() };
    let seats = [DeviceChoice::Device(0), DeviceChoice::Device(1), DeviceChoice::Host];
    for messages in [false, true] {
        let ranks = Communicator::init_all_on(&seats, &config).unwrap();
        let ranks: Vec<Arc<Communicator>> = ranks.into_iter().map(Arc::new).collect();
        // From rank 1 to rank 0, or of all.
        let give = move |comm: &Arc<Communicator>, floats: &Floats, bench: &Bench| match messages {
            true => message(comm, floats, bench),
            false => give(comm, floats, bench),
        };
        let [mine, theirs] = [0, 1].map(|device| {
            let bench = Bench::new(device);
            (Floats::new(&bench, &[1.0; 100]), bench)
        });
        let spare = Floats::new(&mine.1, &[1.0; 100]);
        scope(|scope| {
            give(&ranks[0], &mine.0, &mine.1).unwrap();
            let before = fake::calls("cuMemFree_v2");
            scope.spawn(|| drop(spare));
            assert!(comes_true(|| fake::calls("cuMemFree_v2") > before), "nothing was freed");
            // Until the free has the driver.
            sleep(Duration::from_millis(200));
            let started = Instant::now();
            // It comes late, and finds that its peer has failed.
            let late = ranks[1].clone();
            let late = scope.spawn(move || give(&late, &theirs.0, &theirs.1).err());
            let host = (!messages).then(|| scope.spawn(|| add(&ranks[2], 100, 1.0)));
            assert!(comes_true(|| ranks[0].async_error().is_some()), "nothing is told");
            let (error, waited) = (ranks[0].async_error().unwrap(), started.elapsed());
            late.join().expect("no panic");
            host.into_iter().for_each(|host| assert!(host.join().expect("no panic").is_err()));
            let text = error.to_string();
            assert!(text.contains("which waits for the call of rank 1"), "{text}");
            assert!(waited < Duration::from_secs(14), "after {waited:?}: {text}");
        });
    }
}

/// What processes share is registered and opened by each, and let go when no kernel waits.
#[test]
fn what_processes_share_outlasts_kernels_that_wait() {
    if !is_on_fake() || !has_devices(2) || !has_reach(2) {
        return;
    }
    apart(2, "", |place, _| {
        let company = two(20_000, "twoshot");
        let (comm, bench) = join(place);
        check_sum(&comm, &bench, 1000);
        assert_eq!(transport(&comm), super::processes::SHARED);
        drop(comm);
        let closes = ["cuMemHostUnregister", "cuIpcCloseMemHandle"];
        let opens = ["cuMemHostRegister_v2", "cuIpcOpenMemHandle_v2"];
        assert_eq!(calls(closes), [0, 0]);
        assert!(calls(opens).iter().all(|opened| *opened > 0));
        drop(company);
        assert_eq!(calls(closes), calls(opens));
        String::new()
    });
}

/// The same of what is registered, by itself.
#[test]
fn registered_memory_outlasts_kernels_that_wait() {
    if !is_strict("frees::registered_memory_outlasts_kernels_that_wait") {
        return;
    }
    #[repr(align(4096))]
    struct Page(#[expect(dead_code, reason = "only its address matters")] [u8; 4096]);
    let page = Box::new(Page([0; 4096]));
    let device = Bench::new(0).device;
    fake::fail("", 0, 0);
    let start = std::ptr::from_ref(&*page).cast_mut().cast();
    let register = || DeferredFree::new(|| HostRegistration::new(&device, start, 4096)).unwrap();
    let first = register();
    drop(first);
    assert_eq!(fake::calls("cuMemHostUnregister"), 1);
    let waiting = [(); 2].map(|()| SpinKernelsActive::begin(LONGEST).unwrap());
    let second = register();
    drop(second);
    let [one, other] = waiting;
    drop(one);
    assert_eq!(fake::calls("cuMemHostUnregister"), 1);
    drop(other);
    assert_eq!(fake::calls("cuMemHostUnregister"), 2);
}
