//! A connection: a ring of slots from one rank to another, with one writer and one reader.
//!
//! ```text
//!   freed ┆ header│payload ┆ header│payload ┆ ...     depth slots, in any memory both can address
//! ```
//! The sender reserves a slot, writes the payload in place and posts; the receiver waits, reads in
//! place and frees. `posted` in a slot's header holds the position of its message plus one, so the
//! receiver watches a single line, and a payload of up to [`INLINE`] bytes travels in that line.
//! `freed` counts what the receiver has given back, on a line of its own that the sender reads only
//! when the ring looks full. Every message carries the stamp of its operation.
//!
//! The algorithm is Lamport's single-producer, single-consumer queue (1977) with the position kept
//! in the slot, as in Vyukov's bounded queue.
#![allow(unsafe_code)]

mod label;

use super::prefetch;
use crate::sync::atomic::{AtomicU64, Ordering::*};
use crate::sync::{Site, UnsafeCell, ordering};
use label::Label;

/// Payload bytes that fit the header line: what 64 leaves after the position and the label.
pub const INLINE: usize = 24;

/// The shape of a ring. Both ends must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FifoShape {
    /// Slots; at least 2.
    pub depth: usize,
    /// Payload bytes of a slot, a multiple of 64.
    pub slot_bytes: usize,
}

impl FifoShape {
    /// Bytes of a ring. Zeroed memory of that many bytes, 128-byte aligned, is an empty one.
    pub fn bytes(&self) -> usize {
        size_of::<Freed>() + self.depth * self.stride()
    }

    fn stride(&self) -> usize {
        size_of::<SlotHeader>() + self.slot_bytes
    }
}

/// Which operation a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Stamp {
    /// The communicator's number, the same on all its ranks.
    pub communicator: u32,
    /// How many splits and shrinks its communicator is from the one that the ranks came to.
    pub epoch: u32,
    /// The operation's sequence number.
    pub sequence: u64,
    /// A hash of everything that ranks must agree on in the call. Never 0.
    pub fingerprint: u64,
    /// The sending rank.
    pub source: u32,
}

/// The first line of a slot.
#[repr(C, align(64))]
struct SlotHeader {
    /// The position of the message in this slot plus one; 0 before the first.
    posted: AtomicU64,
    label: UnsafeCell<Label>,
    inline: UnsafeCell<[u8; INLINE]>,
}

/// The receiver's line: messages freed so far. Two lines wide, because processors fetch pairs.
#[repr(C, align(128))]
struct Freed(AtomicU64);

#[cfg(not(loom))]
const _: () = assert!(size_of::<SlotHeader>() == 64 && size_of::<Freed>() == 128);

/// Payload bytes from which going round the whole ring pays: the first line then comes from the
/// shared cache, which takes longer, and every further one saves a little of that: these 32
/// lines win it back.
const MOVING_LEAST: usize = 2048;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The longest message after which the next one's lines are asked for: 256 lines, a third of a
/// processor's nearest cache or half of it, so that they stay until they are written.
const AHEAD_MOST: usize = 16 << 10;

/// The shortest message beyond its header's line after which they are: one of fewer lines lies in
/// the pair that the receiver fetches as it polls the header, and loses more than it wins.
const AHEAD_LEAST: usize = 256;

/// How far an end has come.
#[derive(Clone, Copy, Default)]
struct FifoPosition {
    /// Messages posted, or freed.
    position: u64,
    /// The slot of the next message.
    index: usize,
    /// Times round the ring.
    lap: u32,
}

/// A ring's memory, from one of its ends.
#[derive(Clone, Copy)]
struct FifoMemory {
    base: *mut u8,
    geometry: FifoShape,
}

impl FifoMemory {
    #[inline]
    fn freed(&self) -> &AtomicU64 {
        // SAFETY: the ring starts with the counter and outlives its ends (`Sender::new`).
        unsafe { &(*self.base.cast::<Freed>()).0 }
    }

    #[inline]
    fn header(&self, index: usize) -> &SlotHeader {
        let offset = size_of::<Freed>() + index * self.geometry.stride();
        // SAFETY: `index` is below the depth, so the slot lies in the ring.
        unsafe { &*self.base.add(offset).cast::<SlotHeader>() }
    }

    /// Where a payload of `length` bytes lies in a slot.
    ///
    /// A payload of [`MOVING_LEAST`] bytes that leaves room in its slot moves on with every lap of
    /// the ring, so that messages of any such size go round all of its memory: a line that both
    /// caches have let go is written and read faster than one that the reader has just read.
    #[inline]
    fn payload(&self, place: &FifoPosition, length: usize) -> *mut u8 {
        let header = std::ptr::from_ref(self.header(place.index)).cast_mut().cast::<u8>();
        // SAFETY: both offsets lie in the slot: `lap % rooms` payloads fit before this one.
        unsafe {
            if length <= INLINE {
                return header.add(std::mem::offset_of!(SlotHeader, inline));
            }
            if length < MOVING_LEAST {
                return header.add(size_of::<SlotHeader>());
            }
            let room = length.next_multiple_of(LINE) as u32;
            let rooms = (self.geometry.slot_bytes as u32 / room).max(1);
            header.add(size_of::<SlotHeader>() + (place.lap % rooms * room) as usize)
        }
    }

    #[inline]
    fn advance(&self, place: &mut FifoPosition) {
        place.position += 1;
        place.index += 1;
        if place.index == self.geometry.depth {
            place.index = 0;
            place.lap = place.lap.wrapping_add(1);
        }
    }
}

/// The writing end.
pub struct Sender {
    ring: FifoMemory,
    place: FifoPosition,
    /// `freed` as last read; the truth is at least this.
    freed: u64,
}

/// The reading end.
pub struct Receiver {
    ring: FifoMemory,
    place: FifoPosition,
}

// SAFETY: an end is used by one thread at a time (`&mut self`), and the ring is made for two
// threads.
unsafe impl Send for Sender {}
// SAFETY: as above.
unsafe impl Send for Receiver {}

/// A message that has come and is not freed yet.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedMessage {
    pub payload: *const u8,
    /// Payload bytes, never more than a slot holds.
    pub length: usize,
    pub stamp: Stamp,
}

impl ReceivedMessage {
    /// Whether the message is the one of `length` bytes that the operation expects; its source is
    /// known from the connection.
    #[inline]
    pub fn matches(&self, stamp: &Stamp, length: usize) -> bool {
        // Built only to time what the comparison costs (`benches/mismatch-cost`).
        cfg!(ringcomm_unchecked)
            || self.stamp.sequence == stamp.sequence
                && self.stamp.fingerprint == stamp.fingerprint
                && self.stamp.communicator == stamp.communicator
                && self.stamp.epoch == stamp.epoch
                && self.length == length
    }
}

impl Sender {
    /// The writing end of the ring at `base`.
    ///
    /// # Safety
    /// `base` is 128-byte aligned and points to `geometry.bytes()` bytes that were zero when the
    /// ring was made, outlive this end, and have no other sender.
    pub unsafe fn new(base: *mut u8, geometry: FifoShape) -> Sender {
        Sender { ring: FifoMemory { base, geometry }, place: FifoPosition::default(), freed: 0 }
    }

    /// Where to write the next message of `length` bytes, or `None` while the ring is full.
    #[inline]
    pub fn try_reserve(&mut self, length: usize) -> Option<*mut u8> {
        assert!(length <= self.ring.geometry.slot_bytes, "a message fits its slot");
        if self.is_full() {
            // Acquire: pairs with the Release in `free`, so that the reader is done with the slot.
            self.freed = self.ring.freed().load(ordering(Site::Reserve, Acquire));
            if self.is_full() {
                return None;
            }
        }
        Some(self.ring.payload(&self.place, length))
    }

    /// Whether no slot is known to be free, so that reserving one reads the receiver's line.
    ///
    /// The receiver's count is a claim: one that cannot be, of more than was posted or less than it
    /// freed before, is none.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.place.position.wrapping_sub(self.freed) >= self.ring.geometry.depth as u64
    }

    /// Make the reserved message visible.
    #[inline]
    pub fn post(&mut self, stamp: &Stamp, length: usize) {
        let header = self.ring.header(self.place.index);
        // SAFETY: the slot is this end's between `try_reserve` and the store below.
        header.label.with_mut(|cell| unsafe { Label::write(cell, stamp, length as u32) });
        self.ring.advance(&mut self.place);
        // Release: pairs with the Acquire in `peek`, so that label and payload are seen.
        header.posted.store(self.place.position, ordering(Site::Post, Release));
    }

    /// Ask for the lines of the next message, which will be as long as the one that was posted, if
    /// any is: those of the header alone where `length` is 0.
    ///
    /// The receiver's core has had them since the last lap. They come while the message that was
    /// posted crosses, instead of while the next is written.
    #[inline]
    pub fn prefetch_next(&self, length: usize) {
        if length > INLINE && length < AHEAD_LEAST {
            return;
        }
        prefetch::to_write(std::ptr::from_ref(self.ring.header(self.place.index)).cast());
        if length > INLINE && length <= AHEAD_MOST {
            let payload = self.ring.payload(&self.place, length);
            for offset in (0..length).step_by(LINE) {
                prefetch::to_write(payload.wrapping_add(offset));
            }
        }
    }

    /// Whether the receiver has freed everything that was posted.
    #[inline]
    pub fn is_drained(&mut self) -> bool {
        // Acquire: pairs with the Release in `free`.
        self.freed = self.ring.freed().load(ordering(Site::Drained, Acquire));
        self.freed == self.place.position
    }
}

impl Receiver {
    /// The reading end of the ring at `base`.
    ///
    /// # Safety
    /// As [`Sender::new`], with no other receiver.
    pub unsafe fn new(base: *mut u8, geometry: FifoShape) -> Receiver {
        Receiver { ring: FifoMemory { base, geometry }, place: FifoPosition::default() }
    }

    /// The next message, if it has come. It stays until it is freed.
    #[inline]
    pub fn peek(&mut self) -> Option<ReceivedMessage> {
        if !self.has_come() {
            return None;
        }
        let header = self.ring.header(self.place.index);
        // SAFETY: the message is posted and not freed, so nobody writes its label.
        let label = header.label.with(|cell| unsafe { Label::read(cell) });
        // A peer's length is a claim: it is never believed beyond the slot.
        let length = (label.length as usize).min(self.ring.geometry.slot_bytes);
        Some(ReceivedMessage {
            payload: self.ring.payload(&self.place, length),
            length,
            stamp: Stamp {
                communicator: label.communicator,
                epoch: label.epoch,
                sequence: label.sequence,
                fingerprint: label.fingerprint,
                source: label.source,
            },
        })
    }

    /// Whether the next message has come.
    #[inline]
    pub fn has_come(&self) -> bool {
        let posted = &self.ring.header(self.place.index).posted;
        // Acquire: pairs with the Release in `post`.
        posted.load(ordering(Site::Wait, Acquire)) == self.place.position + 1
    }

    /// Ask for the header of the message after the next: for a receiver that finds the next one
    /// there, whose sender is ahead of it.
    #[inline]
    pub fn prepare(&self) {
        let mut next = self.place;
        self.ring.advance(&mut next);
        prefetch::to_read(std::ptr::from_ref(self.ring.header(next.index)).cast());
    }

    /// Give the message back; its payload must not be read any more.
    #[inline]
    pub fn free(&mut self) {
        self.ring.advance(&mut self.place);
        // Release: pairs with the Acquire in `try_reserve` and `is_drained`.
        self.ring.freed().store(self.place.position, ordering(Site::Free, Release));
    }
}

/// Make an empty ring where zeroed memory is not one.
#[cfg(loom)]
pub unsafe fn construct(base: *mut u8, geometry: FifoShape) {
    let ring = FifoMemory { base, geometry };
    // SAFETY: the caller gives `geometry.bytes()` aligned bytes.
    unsafe {
        base.cast::<Freed>().write(Freed(AtomicU64::new(0)));
        for index in 0..geometry.depth {
            let header = std::ptr::from_ref(ring.header(index)).cast_mut();
            header.write(SlotHeader {
                posted: AtomicU64::new(0),
                label: UnsafeCell::new(Label::default()),
                inline: UnsafeCell::new([0; INLINE]),
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const GEOMETRY: FifoShape = FifoShape { depth: 2, slot_bytes: 128 };

    fn ring() -> (Sender, Receiver, Vec<u128>) {
        let mut memory = vec![0u128; GEOMETRY.bytes() / 16 + 8];
        let base = memory.as_mut_ptr().cast::<u8>();
        let base = base.wrapping_add(base.align_offset(128));
        // SAFETY: zeroed, aligned, returned with the ends.
        unsafe { (Sender::new(base, GEOMETRY), Receiver::new(base, GEOMETRY), memory) }
    }

    fn stamp(sequence: u64) -> Stamp {
        Stamp { communicator: 1, epoch: 2, sequence, fingerprint: 3, source: 4 }
    }

    fn send(sender: &mut Sender, sequence: u64, bytes: &[u8]) -> bool {
        let Some(payload) = sender.try_reserve(bytes.len()) else { return false };
        // SAFETY: the slot was reserved for as many bytes.
        unsafe { payload.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        sender.post(&stamp(sequence), bytes.len());
        true
    }

    #[test]
    fn messages_of_every_length_arrive_in_order() {
        let (mut sender, mut receiver, _memory) = ring();
        for length in 0..=GEOMETRY.slot_bytes {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
            assert!(receiver.peek().is_none());
            assert!(send(&mut sender, length as u64, &bytes));
            let message = receiver.peek().unwrap();
            // SAFETY: the message is not freed yet.
            let got = unsafe { std::slice::from_raw_parts(message.payload, message.length) };
            assert_eq!((got, message.stamp), (&bytes[..], stamp(length as u64)));
            receiver.free();
        }
    }

    #[test]
    fn a_message_of_another_operation_or_time_does_not_match() {
        let (mut sender, mut receiver, _memory) = ring();
        assert!(send(&mut sender, 7, &[1, 2]));
        let message = receiver.peek().unwrap();
        let expected = stamp(7);
        assert!(message.matches(&expected, 2) && !message.matches(&expected, 1));
        let others = [
            Stamp { communicator: 9, ..expected },
            Stamp { epoch: 3, ..expected },
            Stamp { sequence: 8, ..expected },
            Stamp { fingerprint: 9, ..expected },
        ];
        assert!(others.iter().all(|other| !message.matches(other, 2)));
    }

    #[test]
    fn long_payloads_move_through_their_slots_and_arrive() {
        let geometry = FifoShape { depth: 3, slot_bytes: 3 * MOVING_LEAST };
        let mut memory = vec![0u128; geometry.bytes() / 16 + 8];
        let base = memory.as_mut_ptr().cast::<u8>();
        let base = base.wrapping_add(base.align_offset(128));
        // SAFETY: zeroed, aligned, outlives the ends.
        let (mut sender, mut receiver) =
            unsafe { (Sender::new(base, geometry), Receiver::new(base, geometry)) };
        let mut places = std::collections::HashSet::new();
        for round in 0..40 {
            // Short ones between long ones of several lengths, some that leave no room.
            let length = [MOVING_LEAST, 3 * MOVING_LEAST, 100, MOVING_LEAST + 1][round % 4];
            let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + round) as u8).collect();
            assert!(send(&mut sender, round as u64, &bytes));
            let message = receiver.peek().unwrap();
            // SAFETY: the message is not freed yet.
            let got = unsafe { std::slice::from_raw_parts(message.payload, message.length) };
            assert_eq!(got, bytes);
            places.insert(message.payload.addr());
            receiver.free();
        }
        assert!(places.len() > 2 * geometry.depth, "payloads stay where they were");
    }

    #[test]
    fn a_full_ring_refuses_and_a_freed_slot_is_reused() {
        let (mut sender, mut receiver, _memory) = ring();
        assert!(send(&mut sender, 0, &[1]) && send(&mut sender, 1, &[2]));
        assert!(!send(&mut sender, 2, &[3]) && !sender.is_drained());
        assert_eq!(receiver.peek().unwrap().stamp.sequence, 0);
        receiver.free();
        assert!(send(&mut sender, 2, &[3]));
        receiver.free();
        receiver.free();
        assert!(sender.is_drained());
    }

    #[test]
    fn a_lying_count_of_freed_messages_frees_nothing() {
        let (mut sender, mut receiver, _memory) = ring();
        assert!(send(&mut sender, 0, &[1]) && send(&mut sender, 1, &[2]));
        for claim in [3, 1000, u64::MAX] {
            sender.ring.freed().store(claim, Relaxed);
            assert!(!send(&mut sender, 2, &[3]) && !sender.is_drained(), "{claim}");
        }
        receiver.free();
        assert!(send(&mut sender, 2, &[3]));
    }

    #[test]
    fn a_lying_length_is_cut_to_the_slot() {
        let (mut sender, mut receiver, _memory) = ring();
        sender.try_reserve(0).unwrap();
        sender.post(&stamp(0), usize::MAX);
        assert_eq!(receiver.peek().unwrap().length, GEOMETRY.slot_bytes);
    }
}
