//! Groups in which one thread makes the calls of all ranks of a device: no other thread is woken.

use super::gate::{child, is_child};
use super::here::is_apart;
use super::streams::{Floats, sum};
use super::support::config;
use super::{Bench, fake, ndevices};
use ringcomm::communicator::{Call, Communicator, enqueue};
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ranks of the first device, with a stream and seventy numbers each.
struct Group {
    ranks: Vec<Arc<Communicator>>,
    benches: Vec<Bench>,
    floats: Vec<Floats>,
}

impl Group {
    fn of(nranks: usize, config: &Config) -> Group {
        let all =
            Communicator::init_all_on(&vec![DeviceChoice::Device(0); nranks], config).unwrap();
        let benches: Vec<Bench> = (0..nranks).map(|_| Bench::new(0)).collect();
        let floats = benches.iter().map(|bench| Floats::new(bench, &[1.0; 70])).collect();
        Group { ranks: all.into_iter().map(Arc::new).collect(), benches, floats }
    }

    fn sum(&self, rank: usize) -> Call<'static> {
        sum(&self.floats[rank], &self.benches[rank])
    }

    /// So many calls of every rank in one group.
    fn call(&self, times: usize, of: impl Fn(usize) -> Call<'static>) -> Result<(), Error> {
        enqueue::start();
        for _ in 0..times {
            for (rank, comm) in self.ranks.iter().enumerate() {
                // SAFETY: the memory lives until it is read.
                unsafe { enqueue::collective(comm, &of(rank), None) }.unwrap();
            }
        }
        enqueue::end()
    }

    fn expect(&self, value: f32) {
        for (floats, bench) in self.floats.iter().zip(&self.benches) {
            assert_eq!(floats.read(bench), [value; 70]);
        }
    }
}

/// Threads of this process that communicators have for what does not run where it is called.
fn workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
    };
    tasks.map(name).filter(|name| name.trim() == "ringcomm stream").count()
}

#[test]
fn a_group_of_one_thread_on_one_device_wakes_no_other() {
    if !is_child() {
        if ndevices() > 0 {
            // Other tests of this process have threads of their own.
            child("rows::a_group_of_one_thread_on_one_device_wakes_no_other", &[]);
        }
        return;
    }
    let group = Group::of(3, &config());
    for value in [3.0, 9.0, 27.0] {
        group.call(1, |rank| group.sum(rank)).unwrap();
        group.expect(value);
    }
    group.call(3, |rank| group.sum(rank)).unwrap();
    group.expect(729.0);
    assert_eq!(workers(), 0, "a call was handed to a thread");
    // Host memory, of which only the barrier shows that it is not the device's: the ranks leave it
    // and meet again on threads of their own.
    let mut host = vec![1f32; 70];
    let place = host.as_mut_ptr().cast::<u8>();
    let of = |rank: usize| match rank {
        1 => Call { send: place, recv: place, ..group.sum(rank) },
        _ => group.sum(rank),
    };
    group.call(2, of).unwrap();
    let value = group.floats[0].read(&group.benches[0])[0];
    assert_eq!((value, group.floats[2].read(&group.benches[2])), (3.0 * 1459.0, vec![value; 70]));
    assert_eq!(host, [value; 70]);
    assert!(workers() > 0);
    group.call(1, |rank| group.sum(rank)).unwrap();
    assert_eq!(group.floats[0].read(&group.benches[0]), [2.0 * value + 729.0; 70]);
}

/// The driver is asked once for each buffer where it is.
#[test]
fn a_call_asks_once_for_each_of_its_buffers() {
    if !is_apart("rows::a_call_asks_once_for_each_of_its_buffers", &[]) {
        return;
    }
    let group = Group::of(2, &config());
    let other = Group::of(2, &config());
    let asked = |of: &dyn Fn(usize) -> Call<'static>| {
        fake::fail("", 0, 0);
        group.call(1, of).unwrap();
        (fake::calls("cuPointerGetAttributes"), fake::calls("cuPointerGetAttribute"))
    };
    assert_eq!(asked(&|rank| group.sum(rank)), (2, 0));
    assert_eq!(asked(&|rank| Call { recv: other.sum(rank).recv, ..group.sum(rank) }), (4, 0));
}

/// A rank that is refused or broken is no reason to wait for it longer than elsewhere.
#[test]
fn a_group_of_one_thread_ends_where_a_rank_cannot_come() {
    if ndevices() == 0 {
        return;
    }
    for culprit in 0..3 {
        let group = Group::of(3, &config());
        let of = |rank: usize| match rank == culprit {
            true => Call { count: 7, ..group.sum(rank) },
            false => group.sum(rank),
        };
        let error = group.call(2, of).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("different calls") || text.contains("ranks disagree"), "{text}");

        let group = Group::of(3, &Config { timeout_ms: 60_000, ..config() });
        group.ranks[culprit].abort();
        let started = Instant::now();
        let error = group.call(1, |rank| group.sum(rank)).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(20), "{error}");
    }
}
