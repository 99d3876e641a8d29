//! Ranks that are processes and die or fail in the middle of a call: the others are told, and
//! nobody's buffers are used once they are the caller's again.

use super::fake;
use super::here::{HeldStream, has_one_device, has_reach, hold, is_on_fake, release};
use super::ndevices;
use super::processes::{apart, check_sum, join};
use super::streams::{Floats, sum};
use super::support::processes::{Ranks, Seat as Place};
use super::support::{HARD_DEADLINE_S, config};
use ringcomm::cycle_counter::monotonic_us;
use std::time::{Duration, Instant};

/// How a rank dies in the middle of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Its stream has not come to the call, whose work the others have.
    Behind,
    /// It has not made the call.
    Before,
}

/// Longer than all that is done while a stream is held, where it cannot be let go sooner.
const HELD: Duration = Duration::from_secs(8);

fn die(place: &Place, victim: usize, moment: Moment) -> String {
    let (comm, bench) = join(place);
    check_sum(&comm, &bench, 1000);
    let floats = Floats::new(&bench, &[1.0; 1000]);
    if place.rank == victim {
        if moment == Moment::Behind {
            hold(&bench, HELD);
            // SAFETY: the memory lives as long as the process.
            unsafe { comm.call(&sum(&floats, &bench)) }.unwrap();
        }
        // SAFETY: it ends this process, as from outside.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    // SAFETY: the memory lives until the driver frees it.
    let called = unsafe { comm.call(&sum(&floats, &bench)) };
    // Whatever the call said: the stream comes to its end.
    bench.stream.synchronize().unwrap();
    let error = match called {
        Err(error) => error,
        // SAFETY: as above.
        Ok(()) => unsafe { comm.call(&sum(&floats, &bench)) }.unwrap_err(),
    };
    let text = error.to_string();
    assert!(text.contains("AllReduce(count=1000, type=float, op=sum"), "{text}");
    assert!(text.contains(&format!("rank {victim}")), "{text}");
    assert!(comm.dump().contains("AllReduce"), "{}", comm.dump());
    // The stream is good for other work.
    let fresh = Floats::new(&bench, &[5.0; 10]);
    assert_eq!(fresh.read(&bench), [5.0; 10]);
    drop(comm);
    let pairs = [
        ("cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"),
        ("cuMemHostRegister_v2", "cuMemHostUnregister"),
    ];
    for (opens, closes) in pairs.iter().filter(|_| fake::is_there()) {
        assert_eq!(fake::calls(opens), fake::calls(closes), "{opens} and {closes}");
    }
    text
}

#[test]
fn survivors_of_a_death_in_a_call_are_told_and_their_streams_go_on() {
    if ndevices() == 0 || !has_reach(3) {
        return;
    }
    // Rank 0 launches on the first device, the last never does on one.
    for victim in [0, 2] {
        for moment in [0, 1] {
            let argument = format!("{victim} {moment}");
            let mut ranks = Ranks::start_apart(3, &config(), &argument, |place, argument| {
                let words: Vec<usize> = argument.split(' ').flat_map(str::parse).collect();
                die(place, words[0], [Moment::Behind, Moment::Before][words[1]])
            });
            let deadline = Instant::now() + Duration::from_secs(HARD_DEADLINE_S);
            let who = ranks.who(victim);
            for rank in 0..3 {
                let end = ranks.end(rank, deadline);
                assert_eq!(end.killed, rank == victim);
                if rank != victim {
                    let text = end.result.unwrap_or_else(|why| panic!("rank {rank}: {why}"));
                    assert!(text.contains(&who), "{text}");
                }
            }
        }
    }
}

/// A death fails the communicator for all, but what a living rank's device was given still comes:
/// until then the others' streams stay where they are, behind kernels that use their buffers.
#[test]
fn streams_are_not_let_go_from_the_launch_of_a_rank_that_lives() {
    if ndevices() == 0 || !has_reach(3) {
        return;
    }
    let mut ranks = Ranks::start_apart(3, &config(), "", |place, _| {
        let (comm, bench) = join(place);
        check_sum(&comm, &bench, 1000);
        let floats = Floats::new(&bench, &[1.0; 1000]);
        let stream = (place.rank == 0).then(|| HeldStream::new(&bench));
        // SAFETY: the memory lives until the stream is synchronized, or as long as the process.
        unsafe { comm.call(&sum(&floats, &bench)) }.unwrap();
        if place.rank == 2 {
            // SAFETY: it ends this process, as from outside.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        // SAFETY: as above.
        unsafe { comm.call(&sum(&floats, &bench)) }.unwrap_err();
        let failed = monotonic_us();
        if let Some(stream) = stream {
            // Longer than any thread takes to look at a rank that has failed.
            std::thread::sleep(Duration::from_secs(3));
            let held = monotonic_us();
            stream.go_on(&bench);
            return held.to_string();
        }
        bench.stream.synchronize().unwrap();
        format!("{failed} {}", monotonic_us())
    });
    let deadline = Instant::now() + Duration::from_secs(HARD_DEADLINE_S);
    let mut moments = Vec::new();
    for rank in 0..3 {
        let end = ranks.end(rank, deadline);
        assert_eq!(end.killed, rank == 2);
        if rank != 2 {
            let text = end.result.unwrap_or_else(|why| panic!("rank {rank}: {why}"));
            moments.extend(text.split(' ').map(|number| number.parse::<f64>().unwrap()));
        }
    }
    let [held, failed, passed] = moments[..] else { panic!("{moments:?}") };
    assert!(failed < held, "nothing is shown: the death was told {} us late", failed - held);
    assert!(passed >= held, "the stream was let go {} us before the launch", held - passed);
}

/// The first device has the launch, its stream is behind, and then the other rank fails before its
/// own stream is told to wait: its buffers are its caller's again only after the launch.
#[test]
fn a_rank_that_fails_behind_a_launch_waits_for_it() {
    if !is_on_fake() || !has_one_device() {
        return;
    }
    apart(2, "", |place, _| {
        let (comm, bench) = join(place);
        check_sum(&comm, &bench, 1000);
        let floats = Floats::new(&bench, &[1.0; 1000]);
        if place.rank == 0 {
            hold(&bench, HELD);
            // SAFETY: the memory lives until the stream is synchronized.
            unsafe { comm.call(&sum(&floats, &bench)) }.unwrap();
            // Longer than the other takes to fail, and less than it waits for a launch.
            std::thread::sleep(Duration::from_millis(700));
            release();
            bench.stream.synchronize().unwrap();
            assert_eq!(floats.read(&bench), [2.0; 1000]);
            // SAFETY: as above.
            let error = unsafe { comm.call(&sum(&floats, &bench)) }.unwrap_err().to_string();
            assert!(error.contains("rank 1") && error.contains("4711"), "{error}");
            return String::new();
        }
        // The first wait of its stream's is for the launch.
        fake::fail("cuStreamWaitValue32_v2", 1, 4711);
        // SAFETY: the memory lives as long as the process.
        let error = unsafe { comm.call(&sum(&floats, &bench)) }.unwrap_err().to_string();
        assert!(error.contains("4711"), "{error}");
        // No stream of this process waits for the launch, and yet it is through.
        assert_eq!(floats.read(&bench), [2.0; 1000]);
        String::new()
    });
}
