//! Processes that cannot let go of what they have of each other: nobody is told, as there is
//! nothing to be done, and nobody waits for it.

use super::fake::{calls, fail, fail_too};
use super::gate::scratch;
use super::here::{has_reach, is_on_fake};
use super::pieces::Mapped;
use super::processes::{apart, check_sum, join};
use super::streams::{Floats, sum};
use super::support::processes::{Ranks, Seat as Place};
use super::support::{HARD_DEADLINE_S, config};
use super::{codes, ndevices};
use ringcomm::device::cuda::{HandleType, Imported, IpcMemHandle};
use std::time::{Duration, Instant};

/// Entry points that close, unmap and unregister what is other processes' or shared with them.
pub const CLOSING: [&str; 4] =
    ["cuMemUnmap", "cuMemAddressFree", "cuIpcCloseMemHandle", "cuMemHostUnregister"];

/// Let every call of all of them fail from now.
fn fail_all(code: i32) {
    fail("", 0, 0);
    for symbol in CLOSING {
        (1..=99).for_each(|nth| fail_too(symbol, nth, code));
    }
}

/// Rank 1 frees memory in the middle, and at the end; rank 0 has it open, and cannot close it.
#[test]
fn errors_of_what_closes_hold_nobody_up() {
    if !is_on_fake() || !has_reach(2) {
        return;
    }
    for symbol in CLOSING {
        for (nth, code) in [(1, 999), (2, 9999)] {
            let said = apart(2, &format!("{symbol} {nth} {code}"), |place, argument| {
                let words: Vec<&str> = argument.split(' ').collect();
                let number = |index: usize| words[index].parse::<u64>().expect("a number");
                let (symbol, nth, code) = (words[0], number(1), number(2) as i32);
                let (comm, bench) = join(place);
                if place.rank == 0 {
                    fail(symbol, nth, code);
                }
                let mut kept = Vec::new();
                for salt in 0..40 {
                    let mapped = Mapped::new(&bench, 1, Some(HandleType::Descriptor));
                    mapped.check_sum(&comm, &bench, salt);
                    check_sum(&comm, &bench, 1000);
                    if place.rank == 0 || salt % 8 == 0 {
                        kept.push(mapped);
                    }
                }
                drop(comm);
                let has_failed = place.rank == 0 && calls(symbol) >= nth;
                fail("", 0, 0);
                let fresh = Floats::new(&bench, &[5.0; 10]);
                assert_eq!(fresh.read(&bench), [5.0; 10]);
                has_failed.to_string()
            });
            assert_eq!(said[0], "true", "call {nth} of {symbol} never came");
        }
    }
}

/// The same at the very end, with an error that breaks the context, and where a rank has died.
#[test]
fn errors_of_what_closes_after_a_death_hold_nobody_up() {
    if !is_on_fake() || !has_reach(3) {
        return;
    }
    for code in [999, 700] {
        let mut ranks = Ranks::start_apart(3, &config(), &code.to_string(), |place, code| {
            die(place, code.parse().expect("a number"))
        });
        let deadline = Instant::now() + Duration::from_secs(HARD_DEADLINE_S);
        let who = ranks.who(2);
        for rank in 0..3 {
            let end = ranks.end(rank, deadline);
            assert_eq!(end.killed, rank == 2);
            if rank != 2 {
                let text = end.result.unwrap_or_else(|why| panic!("rank {rank}: {why}"));
                assert!(text.contains(&who), "{text}");
            }
        }
    }
}

/// A rank of the test above: what it is told of the death of rank 2.
fn die(place: &Place, code: i32) -> String {
    let (comm, bench) = join(place);
    check_sum(&comm, &bench, 1000);
    let mapped = Mapped::new(&bench, 2, Some(HandleType::Descriptor));
    mapped.check_sum(&comm, &bench, 3);
    let floats = Floats::new(&bench, &[1.0; 1000]);
    // SAFETY: the memory lives until the driver frees it.
    let call = || unsafe { comm.call(&sum(&floats, &bench)) };
    call().unwrap();
    assert_eq!(floats.read(&bench), [3.0; 1000]);
    if place.rank == 2 {
        // SAFETY: it ends this process, as from outside.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let error = call().err().unwrap_or_else(|| call().expect_err("rank 2 is dead"));
    bench.stream.synchronize().unwrap();
    // Of each device the first rank has the others' memory open.
    let opens = place.rank < ndevices();
    fail_all(code);
    drop(comm);
    let came = CLOSING.map(calls);
    fail("", 0, 0);
    // In a context that is broken by the first of them nothing more is asked for.
    let wanted =
        if code == 700 { came.map(|calls| calls > 0) } else { [opens, opens, opens, true] };
    assert_eq!(came.map(|calls| calls > 0), wanted, "{came:?}");
    assert!(came.iter().sum::<u64>() > 0);
    error.to_string()
}

/// What closes memory of another process, which answers with every code below.
pub const CLOSED: [&str; 1] = ["cuIpcCloseMemHandle"];

/// Rank 0 opens memory of rank 1's again and again, and cannot close it.
#[test]
fn memory_that_does_not_close_is_silent_and_the_next_opens() {
    if !is_on_fake() || !has_reach(2) {
        return;
    }
    let folder = scratch("closing");
    let place = folder.join("handle");
    apart(2, place.to_str().expect("UTF-8"), |place, path| {
        let (comm, bench) = join(place);
        let _current = bench.device.enter().unwrap();
        let floats = Floats::new(&bench, &[1.0; 100]);
        if place.rank == 1 {
            let allocation = bench.device.allocation(floats.memory.pointer().addr() as u64);
            let handle = bench.device.export(&allocation.unwrap().expect("it is there")).unwrap();
            let words = handle.expect("it is plain").0.map(u64::to_ne_bytes);
            std::fs::write(path, words.as_flattened()).unwrap();
        }
        // Both have come, and the handle with them.
        check_sum(&comm, &bench, 10);
        if place.rank == 0 {
            let bytes = std::fs::read(path).unwrap();
            let word = |at: usize| u64::from_ne_bytes(bytes[8 * at..][..8].try_into().unwrap());
            let handle = IpcMemHandle(std::array::from_fn(word));
            let opened = |imported: Option<_>| drop(imported.expect("nothing is in the way"));
            let open = || Imported::new(&bench.device, handle, 400).map(opened);
            for code in codes::all() {
                fail(CLOSED[0], 1, code);
                open().unwrap_or_else(|error| panic!("{code}: {error}"));
                assert_eq!(calls(CLOSED[0]), 1);
                fail("", 0, 0);
                open().unwrap_or_else(|error| panic!("after {code}: {error}"));
            }
        }
        check_sum(&comm, &bench, 10);
        String::new()
    });
    std::fs::remove_dir_all(&folder).expect("it was made above");
}
