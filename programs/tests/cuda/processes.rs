//! Ranks that are processes, each on a device, several of them on one.

use super::fake;
use super::gate::scratch;
use super::here::{has_reach, is_apart, is_on_fake, skip};
use super::streams::{Floats, sum};
use super::support::processes::{Ranks, Seat as Place};
use super::support::samples::sample;
use super::support::{HARD_DEADLINE_S, Prepared, config};
use super::{Bench, ndevices};
use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How calls run where processes work in each other's memory.
pub const SHARED: &str = "gpu/fused by ipc";

/// How they run where that was tried in vain.
pub const TRIED: &str = "gpu/staged (no shared memory)";

/// A rank on a device: the ranks take turns over the devices.
pub fn join(place: &Place) -> (Communicator, Bench) {
    join_as(place, place.rank, place.nranks)
}

fn join_as(place: &Place, rank: usize, nranks: usize) -> (Communicator, Bench) {
    let seat = DeviceChoice::Device((rank % ndevices()) as i32);
    let config = Config { device: seat, ..place.config.clone() };
    let comm = Communicator::init_rank(nranks, &place.id, rank, &config).expect("a rank");
    let bench = Bench::new(comm.device().expect("it is on one"));
    (comm, bench)
}

pub fn transport(comm: &Communicator) -> &'static str {
    comm.explain(&Call::new(Collective::AllReduce, DataType::Float32)).unwrap().transport
}

/// Whether this driver lets devices into each other's memory, where ranks are on several.
pub fn is_within_reach(nranks: usize) -> bool {
    let apart = std::env::var("FAKECUDA_PEERS").is_ok_and(|peers| peers == "0");
    nranks.min(ndevices()) == 1 || !apart
}

/// Start ranks and wait for all; what each said.
pub fn finish(mut ranks: Ranks, nranks: usize) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(HARD_DEADLINE_S);
    let ends = (0..nranks).map(|rank| ranks.end(rank, deadline).result);
    ends.enumerate()
        .map(|(rank, end)| end.unwrap_or_else(|why| panic!("rank {rank}: {why}")))
        .collect()
}

/// Run `body` on ranks that are processes; what each said. Without a device there is nothing to do.
#[track_caller]
pub fn apart<F>(nranks: usize, argument: &str, body: F) -> Vec<String>
where
    F: Fn(&Place, &str) -> String,
{
    if ndevices() == 0 {
        return Vec::new();
    }
    finish(Ranks::start_apart(nranks, &config(), argument, body), nranks)
}

/// Sum in place and hold what came against the sum of the ranks' numbers.
pub fn check_sum(comm: &Communicator, bench: &Bench, count: usize) {
    let floats = Floats::new(bench, &vec![comm.rank() as f32 + 1.0; count]);
    // SAFETY: the memory lives until it is read.
    unsafe { comm.call(&sum(&floats, bench)) }.unwrap();
    let want = (1..=comm.nranks()).sum::<usize>() as f32;
    let got = floats.read(bench);
    assert!(got.iter().all(|value| *value == want), "{:?} is not {want}", &got[..3.min(count)]);
}

#[test]
fn processes_on_devices_compute_what_threads_do() {
    if ndevices() == 0 {
        return;
    }
    // Three ranks on two devices, or on one; and with connections of the smallest slots.
    for (nranks, buff_size) in [(3, None), (2, Some(512))] {
        let config = Config { buff_size, ..config() };
        let ranks = Ranks::start_apart(nranks, &config, "", |place, _| {
            let (comm, bench) = join(place);
            for case in sample(place.nranks, 70) {
                let case = Prepared::of(case, place.rank);
                if let Err(text) = case.outcome_on(&comm, Some(&bench)) {
                    panic!("rank {} of {:?}: {text}", place.rank, case.case);
                }
            }
            transport(&comm).into()
        });
        let shared = is_within_reach(nranks);
        for transport in finish(ranks, nranks) {
            assert_eq!(transport.starts_with(SHARED), shared, "{transport}");
        }
    }
}

/// Two processes of two threads each: some of the memory is to be opened, some is the process's.
#[test]
fn threads_of_several_processes_meet() {
    let said = apart(2, "", |place, _| {
        std::thread::scope(|scope| {
            let rank = |thread: usize| {
                let (comm, bench) = join_as(place, 2 * place.rank + thread, 4);
                for case in sample(4, 71).into_iter().take(150) {
                    let case = Prepared::of(case, comm.rank());
                    if let Err(text) = case.outcome_on(&comm, Some(&bench)) {
                        panic!("rank {} of {:?}: {text}", comm.rank(), case.case);
                    }
                }
                transport(&comm)
            };
            let threads = [0, 1].map(|thread| scope.spawn(move || rank(thread)));
            threads.map(|thread| thread.join().expect("no panic"))[0].into()
        })
    });
    for transport in said {
        assert_eq!(transport.starts_with(SHARED), is_within_reach(4), "{transport}");
    }
}

/// Many operations on two streams in turn, each on what the one before left, and no look at the
/// device before the end.
#[test]
fn operations_follow_each_other_whatever_streams_they_come_from() {
    apart(2, "", |place, _| {
        let (comm, bench) = join(place);
        let other = Bench::new(comm.device().unwrap());
        let floats = Floats::new(&bench, &[1.0; 1000]);
        let mut want = 1.0;
        for index in 0..600 {
            let call = sum(&floats, if index % 3 == 0 { &other } else { &bench });
            // A mean of equals, or a sum.
            let op = match want < 1e6 {
                true => ringcomm::types::ReduceOp::Sum,
                false => ringcomm::types::ReduceOp::Avg,
            };
            want *= if want < 1e6 { 2.0 } else { 1.0 };
            // SAFETY: the memory lives until it is read.
            unsafe { comm.call(&Call { op, ..call }) }.unwrap();
        }
        other.stream.synchronize().unwrap();
        assert_eq!(floats.read(&bench), vec![want; 1000]);
        String::new()
    });
}

/// Memory that was freed, and comes again at the same address, is another; and of more than peers
/// keep open, some are opened anew.
#[test]
fn memory_that_comes_and_goes_is_never_mistaken() {
    apart(2, "", |place, _| {
        let (comm, bench) = join(place);
        for index in 0..80 {
            check_sum(&comm, &bench, 1000 + index % 3);
        }
        let many: Vec<Floats> = (0..40).map(|_| Floats::new(&bench, &[1.0; 10])).collect();
        for floats in many.iter().chain(&many).rev() {
            // SAFETY: the memory lives until it is read.
            unsafe { comm.call(&sum(floats, &bench)) }.unwrap();
        }
        assert!(many.iter().all(|floats| floats.read(&bench) == [4.0; 10]));
        let shared = transport(&comm) == SHARED;
        drop(comm);
        // An attempt that fails opens nothing.
        if fake::is_there() && is_within_reach(2) {
            let pairs = [
                ("cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"),
                ("cuMemHostRegister_v2", "cuMemHostUnregister"),
            ];
            for (opens, closes) in pairs {
                assert_eq!(fake::calls(opens), fake::calls(closes), "{opens} and {closes}");
            }
            let opened = fake::calls("cuIpcOpenMemHandle_v2");
            assert_eq!(opened > 80, shared && place.rank < ndevices(), "{opened}");
        }
        String::new()
    });
}

/// Two communicators' calls on memory that its owner has freed meanwhile and got again elsewhere in
/// the same place: the driver opens nothing beside what one of them still has open.
#[test]
fn memory_that_takes_the_place_of_other_memory_is_opened() {
    let test = "processes::memory_that_takes_the_place_of_other_memory_is_opened";
    if !is_apart(test, &[("FAKECUDA_REUSES", "1")]) || !is_within_reach(2) {
        return;
    }
    apart(2, "", |place, _| {
        let both = [join(place), join(place)];
        fake::fail("", 0, 0);
        for (comm, bench) in both.iter().chain(&both) {
            check_sum(comm, bench, 1000);
            assert_eq!(transport(comm), SHARED);
        }
        let is_leader = place.rank < ndevices();
        assert_eq!(fake::calls("cuIpcCloseMemHandle") >= 3, is_leader, "nothing was in the way");
        String::new()
    });
}

/// What does not go away goes on to be in the way: the call goes through the host, for one rank
/// that launches as for all, and the next finds the way free.
#[test]
fn memory_whose_place_stays_taken_goes_through_the_host() {
    if !is_on_fake() || !has_reach(2) {
        return;
    }
    const ALREADY_MAPPED: i32 = 208;
    let folder = scratch("taken");
    let said = folder.join("said");
    let (config, argument) = (Config { debug: 1, ..config() }, said.to_str().expect("UTF-8"));
    let ranks = Ranks::start_apart(2, &config, argument, |place, said| {
        if place.rank == 0 {
            let said = File::create(said).unwrap();
            // SAFETY: both are descriptors of this process.
            assert!(unsafe { libc::dup2(said.as_raw_fd(), libc::STDERR_FILENO) } >= 0);
        }
        let (comm, bench) = join(place);
        check_sum(&comm, &bench, 1000);
        assert_eq!(transport(&comm), SHARED);
        if place.rank == 0 {
            fake::fail("cuIpcOpenMemHandle_v2", 1, ALREADY_MAPPED);
            fake::fail_too("cuIpcOpenMemHandle_v2", 2, ALREADY_MAPPED);
        }
        let floats = Floats::new(&bench, &[1.0; 1000]);
        for want in [2.0, 4.0, 8.0] {
            // SAFETY: the memory lives until it is read.
            unsafe { comm.call(&sum(&floats, &bench)) }.unwrap();
            assert_eq!(floats.read(&bench), [want; 1000]);
            assert_eq!(transport(&comm), "gpu/fused by ipc, or gpu/staged");
        }
        if place.rank == 0 {
            assert_eq!(fake::calls("cuIpcOpenMemHandle_v2"), 3, "it was not tried again");
        }
        String::new()
    });
    finish(ranks, 2);
    let said = std::fs::read_to_string(said).expect("rank 0 has made it");
    std::fs::remove_dir_all(&folder).expect("it was made above");
    let why = "rank 0 of 2: a call on devices went through the host: CUDA: the driver does not \
               open rank 1's memory: this process still has open what was there before";
    assert!(said.contains(why), "{said}");
}

/// One rank's buffers are in host memory: the call goes through the host on all ranks, between
/// calls that do not.
#[test]
fn a_buffer_that_cannot_be_shared_takes_the_call_through_the_host() {
    apart(2, "", |place, _| {
        let (comm, bench) = join(place);
        for round in 0..4 {
            check_sum(&comm, &bench, 1000);
            if is_within_reach(2) {
                assert_eq!(transport(&comm) == SHARED, round == 0, "{}", transport(&comm));
            }
            if round % 2 != place.rank {
                check_sum(&comm, &bench, 500);
                continue;
            }
            let mut values = vec![place.rank as f32 + 1.0; 500];
            let call = Call {
                send: values.as_ptr().cast(),
                recv: values.as_mut_ptr().cast(),
                count: values.len(),
                ..Call::new(Collective::AllReduce, DataType::Float32)
            };
            // SAFETY: so many floats.
            unsafe { comm.call(&call) }.unwrap();
            assert_eq!(values, [3.0; 500]);
        }
        String::new()
    });
}

/// Processes meet anew for each call, which a graph would not replay: where they share a device, so
/// that their kernels cannot wait for each other's, or have none, a capture is refused with the
/// reason, and calls go on.
#[test]
fn a_capture_among_processes_without_a_device_each_is_refused_and_they_go_on() {
    if ndevices() > 1 && is_within_reach(2) {
        return skip("needs processes on one device, or devices that do not reach each other");
    }
    apart(2, "", |place, _| {
        let (comm, bench) = join(place);
        let floats = Floats::new(&bench, &[1.0; 100]);
        // SAFETY: the memory lives; nothing is run.
        let captured = bench.stream.capture(|| unsafe { comm.call(&sum(&floats, &bench)) });
        let error = captured.err().expect("no graph").to_string();
        let why = match transport(&comm) {
            SHARED => "several processes, which meet anew for each call",
            _ => "goes through host memory, which a graph cannot replay",
        };
        assert!(error.contains("the stream is being captured") && error.contains(why), "{error}");
        assert!(!comm.is_broken());
        check_sum(&comm, &bench, 1000);
        assert_eq!(floats.read(&bench), [1.0; 100], "a captured call ran");
        assert_eq!(transport(&comm) == SHARED, is_within_reach(2));
        String::new()
    });
}

#[test]
fn different_calls_of_processes_are_told() {
    apart(2, "", |place, _| {
        let (comm, bench) = join(place);
        let floats = Floats::new(&bench, &vec![1.0; 100 + place.rank]);
        // SAFETY: the memory lives until the driver frees it.
        let error = unsafe { comm.call(&sum(&floats, &bench)) }.unwrap_err().to_string();
        assert!(error.contains("AllReduce(count=10"), "{error}");
        bench.stream.synchronize().unwrap();
        String::new()
    });
}

/// Whoever has no device to share says so, and calls are right all the same.
#[test]
fn a_rank_of_the_host_among_processes_on_devices() {
    apart(3, "", |place, _| {
        if place.rank > 0 {
            let (comm, bench) = join(place);
            check_sum(&comm, &bench, 100_000);
            assert_eq!(transport(&comm), "gpu/staged");
            return String::new();
        }
        let comm = place.join();
        let mut values = vec![1f32; 100_000];
        let call = Call {
            send: values.as_ptr().cast(),
            recv: values.as_mut_ptr().cast(),
            count: values.len(),
            ..Call::new(Collective::AllReduce, DataType::Float32)
        };
        // SAFETY: so many floats.
        unsafe { comm.call(&call) }.unwrap();
        assert!(values.iter().all(|value| *value == 6.0));
        String::new()
    });
}

/// Ranks of several hosts, which share no memory, and of each two on one device.
#[test]
fn ranks_on_devices_of_several_hosts_go_through_the_network() {
    if ndevices() == 0 {
        return;
    }
    let ranks = Ranks::start_on_hosts(&[0, 0, 1], &config(), "", |place, _| {
        let (comm, bench) = join(place);
        for case in sample(3, 72).into_iter().take(120) {
            let case = Prepared::of(case, place.rank);
            if let Err(text) = case.outcome_on(&comm, Some(&bench)) {
                panic!("rank {} of {:?}: {text}", place.rank, case.case);
            }
        }
        transport(&comm).into()
    });
    for transport in finish(ranks, 3) {
        assert_eq!(transport, "gpu/staged, then net");
    }
}

/// Every entry point that only processes use, failing on one of them at each of its calls: the
/// ranks go through the host and say why, or end with an error; nobody waits for ever.
#[test]
fn an_error_of_what_processes_share_ends_in_words() {
    if !is_on_fake() || ndevices() == 0 {
        return;
    }
    // With the rank whose first call fails, and the other one's second: on one device only the
    // first opens memory and launches.
    const SYMBOLS: [(&str, usize); 9] = [
        ("cuMemGetAddressRange_v2", 1),
        ("cuIpcGetMemHandle", 0),
        ("cuIpcOpenMemHandle_v2", 0),
        ("cuMemHostRegister_v2", 0),
        ("cuMemHostGetDevicePointer_v2", 1),
        ("cuStreamWriteValue32_v2", 0),
        ("cuStreamWaitValue32_v2", 1),
        ("cuLaunchKernel", 0),
        ("cuPointerGetAttributes", 1),
    ];
    let mut told = 0;
    for (symbol, first) in SYMBOLS {
        for nth in 1..=3 {
            let victim = (first + nth + 1) % 2;
            let code = [999, 700, 9999][nth - 1];
            let argument = format!("{symbol} {nth} {victim} {code}");
            let said = apart(2, &argument, |place, argument| {
                with_failure(place, &argument.split(' ').collect::<Vec<_>>())
            });
            let code = code.to_string();
            let is_told = |said: &String| said.contains(&code) || said.starts_with(TRIED);
            let is_one = said.iter().any(is_told);
            assert!(nth > 1 || is_one, "{argument}: {said:?}");
            told += usize::from(is_one);
            let is_mute = |said: &String| said == SHARED;
            assert!(said.iter().all(is_mute) || !said.iter().any(is_mute), "{argument}: {said:?}");
        }
    }
    println!("{told} errors were told");
    assert!(told >= SYMBOLS.len(), "{told} errors were told");
}

/// A rank of the test above: what it says of itself.
fn with_failure(place: &Place, words: &[&str]) -> String {
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    if number(2) == place.rank as u64 {
        fake::fail(words[0], number(1), number(3) as i32);
    }
    let seat = DeviceChoice::Device((place.rank % ndevices()) as i32);
    let config = Config { device: seat, timeout_ms: 20_000, ..place.config.clone() };
    let comm = match Communicator::init_rank(place.nranks, &place.id, place.rank, &config) {
        Ok(comm) => comm,
        Err(error) => return error.to_string(),
    };
    let mut said = transport(&comm).to_string();
    // What the test itself asks of the driver panics.
    let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let bench = Bench::new(comm.device().unwrap());
        let floats = Floats::new(&bench, &[1.0; 100]);
        // As many as show every rank what the first ones have broken.
        for _ in 0..6 {
            // SAFETY: the memory lives until the stream is synchronized.
            unsafe { comm.call(&sum(&floats, &bench)) }.map_err(|error| error.to_string())?;
        }
        match floats.read(&bench) == [64.0; 100] {
            true => Ok(()),
            false => Err("a wrong sum".to_string()),
        }
    }));
    match called {
        Ok(Ok(())) => {}
        Ok(Err(text)) => {
            assert!(text != "a wrong sum");
            said += &format!(", then {text}");
        }
        Err(_) => {
            comm.abort();
            said += ", then the test's own use of the driver failed";
        }
    }
    said
}
