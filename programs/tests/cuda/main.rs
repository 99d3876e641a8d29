//! Ranks on CUDA devices, on a driver without a GPU (tests/fakecuda) or on a real one.
//!
//! The suite `cuda` of scripts/test runs this with one, two and eight devices and different numbers
//! of hardware queues. Where there is no driver, every test says so.

mod ahead;
mod allocations;
mod bits;
mod calls;
mod capture;
mod closing;
mod codes;
mod crew;
mod deaths;
mod endings;
mod failures;
mod fake;
mod flags;
mod frees;
mod gangs;
mod gate;
mod here;
mod interface;
mod leaving;
mod messages;
mod perf;
mod pieces;
mod portions;
mod probes;
mod processes;
mod rows;
mod streams;
mod stress;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod together;

use ringcomm::communicator::Communicator;
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::Driver;
use std::io::{Write, stderr};
use std::sync::Once;
use support::device::Bench;
use support::threads;

/// How many devices there are; says so, past the harness, where there is none. A driver that fails
/// is no machine without a device, and where there should be devices there are.
fn ndevices() -> usize {
    let asked = std::env::var("FAKECUDA_DEVICES").ok().and_then(|text| text.parse().ok());
    let asked: usize = asked.unwrap_or(0);
    let count = match Driver::get().and_then(Driver::devices) {
        Ok(count) => count as usize,
        Err(error) if asked == 0 && has_none(&error.to_string()) => 0,
        Err(error) => panic!("the driver does not start: {error}"),
    };
    assert!(count >= asked, "{count} devices instead of {asked}");
    static SAID: Once = Once::new();
    if count == 0 {
        SAID.call_once(|| {
            let _ = writeln!(stderr(), "skipped: no device");
        });
    }
    count
}

/// Whether an error says that the machine has no driver, or that its driver has no device.
fn has_none(text: &str) -> bool {
    text.contains("there is no CUDA driver here") || text.contains("CUDA_ERROR_NO_DEVICE")
}

/// Ranks spread over the devices, in turn.
fn spread(nranks: usize) -> Vec<DeviceChoice> {
    let ndevices = ndevices().max(1);
    (0..nranks).map(|rank| DeviceChoice::Device((rank % ndevices) as i32)).collect()
}

/// Run `body` on every rank of a communicator on these seats; it is given the rank's bench, on the
/// first device for ranks of the host.
fn on_seats<T: Send>(
    seats: &[DeviceChoice],
    config: &Config,
    body: impl Fn(&Communicator, &Bench) -> T + Sync,
) -> Vec<T> {
    let ranks = Communicator::init_all_on(seats, config).expect("a communicator");
    threads::run_all(&ranks, |comm| {
        let bench = match seats[comm.rank()] {
            DeviceChoice::Device(ordinal) => Bench::new(ordinal),
            _ => Bench::new(0),
        };
        body(comm, &bench)
    })
}
