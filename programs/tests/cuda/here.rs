//! What there is here to test on: tests that need another machine say so, and are counted.

use super::gate::{child, is_child};
use super::processes::is_within_reach;
use super::{Bench, fake, ndevices};
use ringcomm::device::cuda::{Kernels, Pinned, wait_value};
use std::io::{Write, stderr};
use std::time::Duration;

/// Say, past the harness, that the test that runs has nothing to do here: the harness will count it
/// as passed, and the scripts count these lines.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let _ = writeln!(stderr(), "skipped: {}: {why}", thread.name().unwrap_or("cuda::a_test"));
}

/// Whether the driver is the one without a GPU; says so where the test needs it and it is not.
pub fn is_on_fake() -> bool {
    if !fake::is_there() && ndevices() > 0 {
        skip("only the driver without a GPU fails, counts or lies on demand");
    }
    fake::is_there()
}

/// Whether there are so many devices; says so where there are some, and fewer.
pub fn has_devices(count: usize) -> bool {
    let found = ndevices();
    if (1..count).contains(&found) {
        skip(&format!("needs {count} devices, and there are {found}"));
    }
    found >= count
}

/// Whether there is one device and no more; says so where there are several.
pub fn has_one_device() -> bool {
    let found = ndevices();
    if found > 1 {
        skip(&format!("needs ranks on one device, and there are {found}"));
    }
    found == 1
}

/// Whether ranks spread over the devices reach each other's; says so where they do not.
pub fn has_reach(nranks: usize) -> bool {
    let reaches = is_within_reach(nranks);
    if ndevices() > 0 && !reaches {
        skip("needs devices that reach each other, which these do not");
    }
    reaches
}

/// Whether this is the process in which `test` may ask the driver without a GPU for its tricks;
/// where that driver is there and this is not, runs that process, with other variables.
pub fn is_apart(test: &str, variables: &[(&str, &str)]) -> bool {
    if is_child() {
        return true;
    }
    if is_on_fake() {
        child(test, variables);
    }
    false
}

/// Whether this is the process in which `test` may [`hold`] streams, or capture them in a mode that
/// forbids other threads something, which is one of its own: what is held on a device may hold up
/// whoever frees memory in the same process, and on the driver without a GPU others of its queue
/// for longer than they have to; and other tests do what a capture forbids.
pub fn may_hold(test: &str) -> bool {
    if ndevices() == 0 || is_child() {
        return ndevices() > 0;
    }
    child(test, &[]);
    false
}

/// Give a stream something that takes so long; on the driver without a GPU until [`release`].
pub fn hold(bench: &Bench, time: Duration) {
    let _current = bench.device.enter().unwrap();
    if fake::is_there() {
        return fake::hold(bench.stream.raw());
    }
    let kernels = Kernels::of(&bench.device).unwrap().expect("built with kernels");
    // SAFETY: the bench's own stream.
    unsafe { kernels.delay(time.as_nanos() as u64, bench.stream.raw()) }.unwrap();
}

/// A stream that waits for a word of the host's: on every driver until the test lets it go on.
pub struct HeldStream(Pinned);

impl HeldStream {
    pub fn new(bench: &Bench) -> HeldStream {
        let word = Pinned::new(&bench.device, size_of::<u32>()).unwrap();
        let _current = bench.device.enter().unwrap();
        // SAFETY: the word is zero, and lives until `go_on`, which is after the stream has passed.
        unsafe {
            word.pointer().cast::<u32>().write_volatile(0);
            let address = word.pointer().expose_provenance() as u64;
            wait_value(&bench.device, bench.stream.raw(), address, 1).unwrap();
        }
        HeldStream(word)
    }

    /// Let the stream go on, and wait until it is through.
    pub fn go_on(self, bench: &Bench) {
        // SAFETY: the word lives; nobody else writes it.
        unsafe { self.0.pointer().cast::<u32>().write_volatile(1) };
        bench.stream.synchronize().unwrap();
    }
}

pub fn release() {
    if fake::is_there() {
        fake::release();
    }
}
