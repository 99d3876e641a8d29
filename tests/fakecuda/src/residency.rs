//! Blocks of cooperative grids that are on a device at once.
//!
//! No documentation says that a device starts none of a grid's blocks before it has room for all.
//! So the worst is assumed: of two grids that do not fit together each is there in part, and they
//! would wait for ever. Here that breaks the context, for a test to find.

use crate::entry::MULTIPROCESSORS;
use crate::failures::break_with;
use crate::{LAUNCH_FAILED, lock};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

/// As long as a grid of a real device is there at least: its blocks' start and two barriers.
const LEAST: Duration = Duration::from_micros(50);

/// Blocks, by device.
static BLOCKS: LazyLock<Mutex<HashMap<usize, u32>>> = LazyLock::new(Mutex::default);

/// A cooperative grid that runs.
pub struct Resident(usize, u32);

/// A grid of so many blocks comes to a device.
pub fn enter(ordinal: usize, blocks: u32) -> Resident {
    let all = {
        let mut all = lock(&BLOCKS);
        let all = all.entry(ordinal).or_default();
        *all += blocks;
        *all
    };
    if all > MULTIPROCESSORS {
        break_with(LAUNCH_FAILED);
    }
    std::thread::sleep(LEAST);
    Resident(ordinal, blocks)
}

impl Drop for Resident {
    fn drop(&mut self) {
        *lock(&BLOCKS).entry(self.0).or_default() -= self.1;
    }
}
