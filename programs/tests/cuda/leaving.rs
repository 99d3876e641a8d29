//! What processes with a device each have of each other's grounds, and when it goes.

use super::crew::{asking, each, has_one_each, sum_on_host};
use super::fake;
use super::here::is_on_fake;
use super::processes::{SHARED, check_sum, join, transport};
use super::support::config;
use ringcomm::config::{Config, DeviceChoice};

/// What a rank has open of the others' memory.
fn open() -> u64 {
    fake::calls("cuIpcOpenMemHandle_v2") - fake::calls("cuIpcCloseMemHandle")
}

/// Whoever leaves first keeps what the other's kernels may still use, and closes it with a later
/// communicator.
#[test]
fn what_processes_open_of_each_others_grounds_is_closed_whoever_leaves_first() {
    if !is_on_fake() {
        return;
    }
    each(2, &asking("ring"), "", |place, _| {
        let (comm, bench) = join(place);
        let base = open();
        for first in [0, 1] {
            let child = comm.split(0, place.rank as i32, None).unwrap().expect("a color");
            check_sum(&child, &bench, 1000);
            assert_eq!(open(), base + 1);
            let is_first = place.rank == first;
            if !is_first {
                // The other has gone.
                sum_on_host(&comm, 0.0);
            }
            drop(child);
            // It left before this one was at rest; this one found it at rest.
            assert_eq!(open(), base + u64::from(is_first), "rank {}", place.rank);
            if is_first {
                sum_on_host(&comm, 0.0);
            }
            let mut later = 0;
            // As often on both ranks.
            while sum_on_host(&comm, (open() - base) as f32) > 0.0 {
                later += 1;
                assert!(later < 20, "{} are open, and {base} were", open());
                let other = comm.split(0, place.rank as i32, None).unwrap().expect("a color");
                check_sum(&other, &bench, 10);
            }
            assert!(later > 0);
        }
        String::new()
    });
}

/// Where the grounds cannot all be opened, nobody frees one that another rank still has open: here
/// since kernels of another communicator's may wait there.
#[test]
fn a_ground_that_a_peer_has_open_outlives_a_crew_that_comes_to_nothing() {
    if !is_on_fake() || !has_one_each(3) {
        return;
    }
    each(3, &config(), "", |place, _| {
        const OPENED: &str = "cuIpcOpenMemHandle_v2";
        let (parent, bench) = join(place);
        let held = || fake::calls("cuMemAlloc_v2") - fake::calls("cuMemFree_v2");
        let seat = DeviceChoice::Device(place.rank as i32);
        let split = |color: usize| {
            let (key, config) = (place.rank as i32, Config { device: seat, ..asking("ring") });
            parent.split(color as i32, key, Some(&config)).unwrap().expect("a color")
        };
        let base = (open(), held());
        // A later communicator finds that all have closed; as often on all ranks.
        let settle = |failed: u64| {
            for turn in 0.. {
                let mine = (open() - failed, held());
                if sum_on_host(&parent, f32::from(u8::from(mine != base))) == 0.0 {
                    return;
                }
                assert!(turn < 20, "rank {}: {mine:?}, not {base:?}", place.rank);
                drop(split(0));
            }
        };
        // The last two of what is opened are the grounds, each time.
        let before = fake::calls(OPENED);
        drop(split(0));
        let nopened = fake::calls(OPENED) - before;
        settle(0);
        let pair = split(place.rank % 2);
        if place.rank != 1 {
            // From here on its kernels wait for each other.
            check_sum(&pair, &bench, 1000);
        }
        sum_on_host(&parent, 0.0);
        let before = (open(), held());
        let counted = fake::calls(OPENED);
        if place.rank == 0 {
            fake::fail_too(OPENED, counted + nopened, 4711);
        }
        let trio = split(0);
        assert!(transport(&trio).starts_with(SHARED));
        assert_eq!(fake::calls(OPENED) - counted, nopened, "another call failed");
        check_sum(&trio, &bench, 1000);
        drop(trio);
        sum_on_host(&parent, 0.0);
        let of_trio = (open() - before.0, held() - before.1);
        // Its own ground at least, which others have open; those also what they cannot let go now.
        assert!(of_trio.1 > 0, "rank {}: {of_trio:?}", place.rank);
        assert!(of_trio.0 > 0 || place.rank == 1, "rank {}: {of_trio:?}", place.rank);
        drop(pair);
        settle(u64::from(place.rank == 0));
        String::new()
    });
}
