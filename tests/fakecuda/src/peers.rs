//! Which device may touch whose memory. A kernel that goes elsewhere breaks its context.

use crate::memory::{Block, block};
use crate::{Answer, PEER_ACCESS_ALREADY_ENABLED, lock};
use std::sync::{LazyLock, Mutex};

/// Pairs of devices of which the first may touch the second's plain memory.
static PEERS: LazyLock<Mutex<Vec<(usize, usize)>>> = LazyLock::new(Mutex::default);

/// What a device says that touches what it may not.
pub const ILLEGAL_ADDRESS: i32 = 700;

pub fn enable(from: usize, to: usize) -> Answer {
    let mut peers = lock(&PEERS);
    if peers.contains(&(from, to)) {
        return Err(PEER_ACCESS_ALREADY_ENABLED);
    }
    peers.push((from, to));
    Ok(())
}

fn may_touch(ordinal: usize, block: &Block) -> bool {
    let Some(owner) = block.ordinal else { return true };
    match block.rights {
        Some(rights) => rights >> ordinal & 1 == 1,
        None => owner == ordinal || lock(&PEERS).contains(&(ordinal, owner)),
    }
}

/// Whether a device may touch all that these words name, where they are addresses.
pub fn may_touch_all(ordinal: usize, words: &[u64]) -> bool {
    let named = words.iter().filter_map(|word| block(*word));
    named.into_iter().all(|(_, block)| may_touch(ordinal, &block))
}

fn is_others(ordinal: usize, word: u64) -> bool {
    let owner = block(word).and_then(|(_, block)| block.ordinal);
    owner.is_some_and(|owner| owner != ordinal)
}

/// Whether these words name memory of another device.
pub fn names_others(ordinal: usize, words: &[u64]) -> bool {
    words.iter().any(|word| is_others(ordinal, *word))
}

/// Let what a kernel of a device leaves in other devices' memory be wrong, where these words name
/// some.
///
/// # Safety
/// Nobody else uses that memory now.
pub unsafe fn spoil_others(ordinal: usize, words: &[u64]) {
    for word in words.iter().filter(|word| is_others(ordinal, **word)) {
        let place: *mut u8 = std::ptr::with_exposed_provenance_mut(*word as usize);
        // SAFETY: mapped; the caller's promise.
        unsafe { *place ^= 0x40 };
    }
}
