//! A page of a rank on a device that the processes of its machine share: how far its stream has
//! come, and what memory of its device they may open.
//!
//! Devices read and write the two flags, so the page is one of the kernel's, to be registered with
//! a driver. All else is written by the owner alone, before it sends the message that names it.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// A word that a stream writes and others wait for, on a line of its own.
#[repr(C, align(128))]
pub struct Flag(AtomicU32);

/// More than all barriers that are under way, and less than half of what a word counts.
const FAR: u32 = 1 << 30;

impl Flag {
    /// Do in the owner's place what it was to do in the call of this number, if it has not; whether
    /// it was done for it, now or before. Several ranks may do so. To be asked again: a write that
    /// the device had taken may land later, and bring the word back.
    fn release_waiters(&self, number: u32) -> bool {
        if !self.has_reached(number) {
            // Relaxed: a device looks at it, and finds nothing else by it.
            self.0.store(number.wrapping_add(FAR), Relaxed);
        }
        self.has_reached(number.wrapping_add(FAR / 2))
    }

    /// Whether it has come to `value`.
    pub fn has_reached(&self, value: u32) -> bool {
        // Acquire: pairs with the device's write, which comes after what it did before.
        self.0.load(Acquire).wrapping_sub(value) as i32 >= 0
    }
}

/// Allocations that a rank shares at once: as many as fit the page.
pub const EXPORTS: usize = 29;

/// An allocation that peers may open.
#[repr(C, align(128))]
pub struct ExportEntry {
    /// Its number, which no other of this rank ever has; 0 while there is none.
    number: AtomicU64,
    /// Where it is in its owner's process, for ranks that are threads of that.
    base: AtomicU64,
    bytes: AtomicU64,
    pieces: AtomicU64,
    handle: [AtomicU64; 8],
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    pub base: u64,
    pub bytes: u64,
    /// Of how many pieces it is, which its owner has sent; 0 for memory that the handle opens.
    pub pieces: u64,
    /// The driver's handle; of pieces the first word says how they travel.
    pub handle: [u64; 8],
}

/// Of `leaving`: no kernel of the owner's will run any more; it has nothing of its peers' open.
const RESTS: u32 = 1;
const CLOSED: u32 = 2;

/// The page. Zeroed memory is a valid one.
#[repr(C, align(4096))]
pub struct DevicePage {
    /// The rank's stream has come to the call of this number.
    pub before: Flag,
    /// The launches of the rank's process for the call of this number are through.
    pub after: Flag,
    /// The call of this number is being launched, or was.
    launched: AtomicU32,
    /// The rank has come to the call of this number.
    begun: AtomicU32,
    /// The rank's stream has been given the write of `before` for the call of this number.
    told: AtomicU32,
    /// 1 when the owner's device does nothing any more of what it was given.
    is_lost: AtomicU32,
    /// How far the owner has gone from kernels that wait for other ranks'.
    leaving: AtomicU32,
    entries: [ExportEntry; EXPORTS],
}

const _: () = assert!(size_of::<DevicePage>() == 4096);

impl DevicePage {
    /// Where the flags are, in bytes from the start.
    pub const BEFORE: usize = std::mem::offset_of!(DevicePage, before);
    pub const AFTER: usize = std::mem::offset_of!(DevicePage, after);

    /// The owner begins a call; its number.
    pub fn begin(&self) -> u32 {
        // Relaxed, and only the owner counts: who looks on needs to be near it only.
        let number = self.begun().wrapping_add(1);
        self.begun.store(number, Relaxed);
        number
    }

    pub fn begun(&self) -> u32 {
        self.begun.load(Relaxed)
    }

    /// The owner's stream will say that it comes to the call of this number.
    pub fn announce_write(&self, number: u32) {
        // Release: pairs with the Acquire in `release_waiters`. Peers wait only after a message of
        // this.
        self.told.store(number, Release);
    }

    /// The owner's device has an error that it does not recover from.
    pub fn mark_lost(&self) {
        // Release: pairs with the Acquire in `is_lost`.
        self.is_lost.store(1, Release);
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Acquire) == 1
    }

    /// No kernel of the owner's that waits for others' runs any more, or will.
    pub fn mark_quiesced(&self) {
        // Release: pairs with the Acquire in `rests`, after all that the kernels have done.
        self.leaving.store(RESTS, Release);
    }

    /// Nor has it open what they need of its peers'. Also in the place of an owner that is no more.
    pub fn close(&self) {
        self.leaving.store(CLOSED, Release);
    }

    pub fn rests(&self) -> bool {
        self.leaving.load(Acquire) >= RESTS
    }

    pub fn has_closed(&self) -> bool {
        self.leaving.load(Acquire) == CLOSED
    }

    /// Do in the owner's place all that its device was given and never does; whether there is such
    /// work. Peers wait for nothing else.
    pub fn release_when_idle(&self) -> bool {
        let before = self.before.release_waiters(self.told.load(Acquire));
        let after = self.after.release_waiters(self.launched.load(Acquire));
        before || after
    }

    /// The owner is about to launch what uses its peers' memory.
    pub fn mark_launched(&self, number: u32) {
        // Release: pairs with the Acquire in `is_at_work`. The caller's visit has the full fence.
        self.launched.store(number, Release);
    }

    /// Whether a launch of the owner's may still use its peers' memory.
    pub fn is_at_work(&self) -> bool {
        !self.after.has_reached(self.launched.load(Acquire))
    }

    /// The entry of an export's number.
    fn entry(&self, number: u64) -> &ExportEntry {
        &self.entries[number as usize % EXPORTS]
    }

    /// Let peers find an allocation under `number`, or, without one, find nothing there any more.
    pub fn offer(&self, number: u64, shared: Option<&ExportInfo>) {
        let entry = self.entry(number);
        let Some(shared) = shared else { return entry.number.store(0, Release) };
        entry.base.store(shared.base, Relaxed);
        entry.bytes.store(shared.bytes, Relaxed);
        entry.pieces.store(shared.pieces, Relaxed);
        for (place, word) in entry.handle.iter().zip(shared.handle) {
            place.store(word, Relaxed);
        }
        // Release: pairs with the Acquire in `offered`.
        entry.number.store(number, Release);
    }

    /// Whether the owner still offers an allocation.
    pub fn offers(&self, number: u64) -> bool {
        number > 0 && self.entry(number).number.load(Acquire) == number
    }

    /// What the owner offers under `number`.
    pub fn offered(&self, number: u64) -> Option<ExportInfo> {
        if !self.offers(number) {
            return None;
        }
        let entry = self.entry(number);
        let word = |word: &AtomicU64| word.load(Relaxed);
        let handle = std::array::from_fn(|index| word(&entry.handle[index]));
        let (base, bytes, pieces) = (word(&entry.base), word(&entry.bytes), word(&entry.pieces));
        Some(ExportInfo { base, bytes, pieces, handle })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn page() -> DevicePage {
        let flag = || Flag(AtomicU32::new(0));
        let word = || AtomicU64::new(0);
        let handle = || std::array::from_fn(|_| word());
        let entry = |_| ExportEntry {
            number: word(),
            base: word(),
            bytes: word(),
            pieces: word(),
            handle: handle(),
        };
        let entries = std::array::from_fn(entry);
        let number = || AtomicU32::new(0);
        DevicePage {
            before: flag(),
            after: flag(),
            launched: number(),
            begun: number(),
            told: number(),
            is_lost: number(),
            leaving: number(),
            entries,
        }
    }

    #[test]
    fn what_is_offered_is_found_until_it_is_withdrawn() {
        let page = page();
        let shared = ExportInfo { base: 16, bytes: 4096, pieces: 3, handle: [7; 8] };
        assert!(!page.offers(0) && page.offered(0).is_none());
        page.offer(5, Some(&shared));
        assert_eq!(page.offered(5), Some(shared));
        // Another that shares the entry.
        let later = 5 + EXPORTS as u64;
        assert_eq!(page.offered(later), None);
        page.offer(later, Some(&shared));
        assert!(page.offers(later) && !page.offers(5));
        page.offer(later, None);
        assert!(!page.offers(later));
    }

    #[test]
    fn a_flag_that_was_let_go_holds_nobody_back() {
        let page = page();
        for start in [0, u32::MAX - 3, 1 << 31] {
            page.before.0.store(start, Relaxed);
            assert!(
                page.before.has_reached(start) && !page.before.has_reached(start.wrapping_add(1))
            );
            assert!(!page.before.release_waiters(start));
            assert!(page.before.release_waiters(start.wrapping_add(1)));
            // Another survivor, which finds it done.
            assert!(page.before.release_waiters(start.wrapping_add(1)));
            assert!((0..1000).all(|ahead| page.before.has_reached(start.wrapping_add(ahead))));
            // A late write of the device's.
            page.before.0.store(start, Relaxed);
            assert!(page.before.release_waiters(start.wrapping_add(1)));
            assert!(page.before.has_reached(start.wrapping_add(1)));
        }
    }

    #[test]
    fn only_what_was_given_and_is_not_done_is_let_go() {
        let page = page();
        page.begin();
        assert!(
            !page.release_when_idle() && !page.before.has_reached(1) && !page.after.has_reached(1)
        );
        page.announce_write(1);
        page.mark_launched(1);
        assert!(page.is_at_work());
        assert!(page.release_when_idle() && page.before.has_reached(1) && !page.is_at_work());
    }
}
