//! What one end of a connection has posted: slots, and messages on their way into the sockets.
//!
//! A message keeps its slot until all of its bytes are the kernel's. Sockets take messages in order
//! of position, each the next one as soon as it is through with its last: a slow data socket takes
//! fewer.
#![allow(unsafe_code)]

use super::frame::{FRAME_BYTES, Frame};
use super::protect::checksum;
use super::slot_pool::SlotPool;
use crate::config::Protection;
use crate::crypto::{Aead, TAG_BYTES};
use crate::transport::fifo::{FifoShape, Stamp};

/// A message that is posted, with its bytes where the data socket finds them.
pub struct PostedMessage {
    pub header: [u8; FRAME_BYTES],
    pub payload: *mut u8,
    pub length: usize,
    pub tag: [u8; TAG_BYTES],
    stamp: Stamp,
    /// The slot's block that holds the payload.
    block: Option<usize>,
    /// In the user's memory.
    lent: bool,
    written: bool,
}

/// The sending half of a connection.
pub struct Outbound {
    blocks: SlotPool,
    /// The block of the message that is being made.
    reserved: Option<usize>,
    geometry: FifoShape,
    protection: Protection,
    /// Messages go from slots alone.
    copies: bool,
    messages: Box<[PostedMessage]>,
    /// Messages posted, taken by data sockets, and written with everything before them.
    posted: u64,
    taken: u64,
    written: u64,
    /// Lent messages that are not written yet.
    lent: usize,
    /// An engine has the block that is beside those of the slots.
    has_lent: bool,
}

// SAFETY: payloads point into `blocks` or into buffers of the running call, which its thread owns.
unsafe impl Send for Outbound {}

impl Outbound {
    /// As many blocks as `geometry` says, or none.
    pub fn new(blocks: SlotPool, geometry: FifoShape, protection: Protection) -> Outbound {
        let empty = || PostedMessage {
            header: [0; FRAME_BYTES],
            payload: std::ptr::null_mut(),
            length: 0,
            tag: [0; TAG_BYTES],
            stamp: Stamp::default(),
            block: None,
            lent: false,
            written: true,
        };
        Outbound {
            blocks,
            reserved: None,
            geometry,
            protection,
            copies: protection == Protection::Encrypted,
            messages: (0..geometry.depth).map(|_| empty()).collect(),
            posted: 0,
            taken: 0,
            written: 0,
            lent: 0,
            has_lent: false,
        }
    }

    /// Send nothing from the user's memory, or do so again.
    pub fn copy_all(&mut self, copies: bool) {
        self.copies = copies || self.protection == Protection::Encrypted;
    }

    /// Keep the slots' memory for good: somebody may still read it.
    pub fn keep_slots(&mut self) {
        self.blocks.keep();
    }

    /// The slots' memory.
    pub fn memory(&self) -> Option<(*mut u8, usize)> {
        self.blocks.memory()
    }

    fn index(&self, position: u64) -> usize {
        (position % self.geometry.depth as u64) as usize
    }

    pub fn is_bare(&self) -> bool {
        !self.blocks.are_there()
    }

    pub fn has_room(&self) -> bool {
        self.posted - self.written < self.geometry.depth as u64 && !self.is_bare()
    }

    /// Everything posted is the kernel's.
    pub fn is_written(&self) -> bool {
        self.written == self.posted
    }

    /// Everything posted was taken by a data socket or an engine.
    pub fn is_taken(&self) -> bool {
        self.taken == self.posted && self.lent == 0
    }

    /// Where to write the next message of `length` bytes, or `None` while all slots are taken.
    pub fn try_reserve(&mut self, length: usize) -> Option<*mut u8> {
        assert!(length <= self.geometry.slot_bytes, "a message fits its slot");
        if !self.has_room() {
            return None;
        }
        let block = *self.reserved.get_or_insert_with(|| self.blocks.take());
        Some(self.blocks.address(block))
    }

    /// Queue the reserved message.
    pub fn post(&mut self, stamp: &Stamp, length: usize) {
        let block = self.reserved.take().expect("what is posted was reserved");
        self.queue(stamp, self.blocks.address(block), length, Some(block));
    }

    /// Queue a message that lies in the user's memory and stays there until it is written; whether
    /// there was room. An encrypted message is sealed in its slot instead, as are all where nothing
    /// may be lent.
    ///
    /// # Safety
    /// `payload` is valid for `length` bytes until [`Outbound::is_written`].
    pub unsafe fn send_zero_copy(
        &mut self,
        stamp: &Stamp,
        payload: *const u8,
        length: usize,
    ) -> bool {
        if !self.has_room() {
            return false;
        }
        // Nothing may lie nowhere.
        if self.copies || length == 0 {
            let slot = self.try_reserve(length).expect("there is room");
            if length > 0 {
                // SAFETY: the slot was reserved for as many bytes; the payload is the caller's.
                unsafe { slot.copy_from_nonoverlapping(payload, length) };
            }
            self.post(stamp, length);
        } else {
            // Every message may yet need a block.
            if let Some(unused) = self.reserved.take() {
                self.blocks.give(unused);
            }
            self.queue(stamp, payload.cast_mut(), length, None);
        }
        true
    }

    fn queue(&mut self, stamp: &Stamp, payload: *mut u8, length: usize, block: Option<usize>) {
        let position = self.posted;
        let mut frame = Frame { position, length: length as u32, payload_check: 0, stamp: *stamp };
        if self.protection == Protection::Checksum && length > 0 {
            // SAFETY: the slot or the lent buffer holds `length` bytes that nobody writes now.
            let bytes = unsafe { std::slice::from_raw_parts(payload, length) };
            frame.payload_check = checksum(bytes);
        }
        let index = self.index(position);
        let message = &mut self.messages[index];
        message.header = frame.encode();
        (message.payload, message.length, message.stamp) = (payload, length, *stamp);
        (message.block, message.lent, message.written) = (block, block.is_none(), false);
        self.posted += 1;
        self.lent += usize::from(block.is_none());
    }

    /// The next message that no data socket has taken, sealed with the data socket's key where it
    /// has one.
    pub fn take(&mut self, cipher: Option<&Aead>) -> Option<u64> {
        if self.taken == self.posted {
            return None;
        }
        let position = self.taken;
        self.taken += 1;
        if let Some(cipher) = cipher {
            let index = self.index(position);
            let message = &mut self.messages[index];
            // SAFETY: an encrypted message lies in its slot, which nobody else uses.
            let payload =
                unsafe { std::slice::from_raw_parts_mut(message.payload, message.length) };
            message.tag = cipher.seal(position, &message.header, payload);
        }
        Some(position)
    }

    /// A block for an engine's own words, for good, where there is one beside those of the slots.
    pub fn lend(&mut self) -> Option<*mut u8> {
        let is_more = self.blocks.count() > self.geometry.depth && !self.has_lent;
        self.has_lent |= is_more;
        is_more.then(|| {
            let block = self.blocks.take();
            self.blocks.address(block)
        })
    }

    /// Put bytes directly behind a message's payload, for which its block has room: where the
    /// payload begins, and the length of both. A message in the user's memory moves to a block.
    pub fn append(&mut self, position: u64, bytes: &[u8]) -> (*mut u8, usize) {
        let index = self.index(position);
        if self.messages[index].lent {
            self.move_to_block(index);
        }
        let PostedMessage { payload, length, .. } = self.messages[index];
        assert!(length + bytes.len() <= self.blocks.stride(), "blocks have room behind a slot");
        // SAFETY: the block is the message's, and has room for both.
        unsafe { payload.add(length).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        (payload, length + bytes.len())
    }

    pub fn message(&self, position: u64) -> &PostedMessage {
        &self.messages[self.index(position)]
    }

    /// A data socket is through with a message.
    pub fn done(&mut self, position: u64) {
        let index = self.index(position);
        let message = &mut self.messages[index];
        message.written = true;
        self.lent -= usize::from(std::mem::take(&mut message.lent));
        if let Some(block) = message.block.take() {
            self.blocks.give(block);
        }
        while self.written < self.taken && self.messages[self.index(self.written)].written {
            self.written += 1;
        }
    }

    /// Whoever took messages is through with all but these.
    pub fn all_done_but(&mut self, others: &[u64]) {
        for position in self.written..self.taken {
            if !others.contains(&position) && !self.message(position).written {
                self.done(position);
            }
        }
    }

    /// Move unwritten messages that lie in these bytes of the user's memory to their slots: the
    /// memory is about to be overwritten.
    pub fn settle(&mut self, address: *const u8, bytes: usize) {
        if self.lent == 0 {
            return;
        }
        let (start, end) = (address.addr(), address.addr() + bytes);
        for position in self.written..self.posted {
            let index = self.index(position);
            let message = &self.messages[index];
            let first = message.payload.addr();
            if message.lent && first < end && start < first + message.length {
                self.move_to_block(index);
            }
        }
    }

    /// Move a lent message to a block.
    fn move_to_block(&mut self, index: usize) {
        let block = self.blocks.take();
        let slot = self.blocks.address(block);
        let message = &mut self.messages[index];
        // SAFETY: the lent bytes are valid and unchanged until now; the block is nobody else's.
        unsafe { slot.copy_from_nonoverlapping(message.payload, message.length) };
        (message.payload, message.block, message.lent) = (slot, Some(block), false);
        self.lent -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbound(protection: Protection) -> Outbound {
        let geometry = FifoShape { depth: 2, slot_bytes: 64 };
        Outbound::new(SlotPool::new(geometry, 0).unwrap(), geometry, protection)
    }

    #[test]
    fn slots_return_in_order_of_position() {
        let mut outbound = outbound(Protection::Checksum);
        for _ in 0..2 {
            outbound.try_reserve(8).unwrap();
            outbound.post(&Stamp::default(), 8);
        }
        assert!(outbound.try_reserve(8).is_none());
        assert_eq!((outbound.take(None), outbound.take(None)), (Some(0), Some(1)));
        assert_eq!(outbound.take(None), None);
        outbound.done(1);
        assert!(!outbound.has_room(), "the first one is still under way");
        outbound.done(0);
        assert!(outbound.is_written() && outbound.has_room());
    }

    #[test]
    fn what_an_engine_took_is_done_when_it_goes() {
        let mut outbound = outbound(Protection::Clear);
        for position in 0..2 {
            outbound.try_reserve(8).unwrap();
            outbound.post(&Stamp::default(), 8);
            assert_eq!(outbound.take(None), Some(position));
        }
        outbound.all_done_but(&[1]);
        assert!(outbound.has_room() && !outbound.is_written(), "a socket has the second");
        outbound.done(1);
        assert!(outbound.is_written());
    }

    /// So that what is sent is in the cache, where the kernel keeps up.
    #[test]
    fn a_message_is_made_where_the_last_one_was() {
        let mut outbound = outbound(Protection::Clear);
        let mut places = (0..5).map(|position| {
            let place = outbound.try_reserve(8).unwrap();
            outbound.post(&Stamp::default(), 8);
            assert_eq!(outbound.take(None), Some(position));
            outbound.done(position);
            place
        });
        let first = places.next().unwrap();
        assert!(places.all(|place| place == first));
    }

    #[test]
    fn what_is_reserved_is_not_where_a_lent_message_goes() {
        let mut outbound = outbound(Protection::Clear);
        let mut user = [1u8; 32];
        // SAFETY: the buffer outlives the test's use of it.
        assert!(unsafe { outbound.send_zero_copy(&Stamp::default(), user.as_mut_ptr(), 32) });
        let reserved = outbound.try_reserve(8).unwrap();
        outbound.settle(user.as_ptr(), 32);
        user.fill(2);
        assert_ne!(outbound.message(0).payload, reserved);
        assert_eq!(outbound.try_reserve(8), Some(reserved));
        outbound.post(&Stamp::default(), 8);
        assert_eq!(outbound.message(1).payload, reserved);
    }

    #[test]
    fn every_lent_message_finds_a_block_though_one_was_reserved() {
        let mut outbound = outbound(Protection::Clear);
        let user = [1u8; 32];
        outbound.try_reserve(8).unwrap();
        for _ in 0..2 {
            // SAFETY: the buffer outlives the test's use of it.
            assert!(unsafe { outbound.send_zero_copy(&Stamp::default(), user.as_ptr(), 32) });
        }
        outbound.settle(user.as_ptr(), 32);
        assert_ne!(outbound.message(0).payload, outbound.message(1).payload);
        assert_eq!(outbound.lent, 0);
    }

    #[test]
    fn what_goes_behind_a_payload_lies_there_and_not_in_the_users_memory() {
        let geometry = FifoShape { depth: 2, slot_bytes: 64 };
        let with_more = FifoShape { depth: 3, ..geometry };
        let blocks = SlotPool::new(with_more, 16).unwrap();
        let mut outbound = Outbound::new(blocks, geometry, Protection::Clear);
        let words = outbound.lend().expect("there is one more");
        assert!(outbound.lend().is_none());
        let user = [1u8; 64];
        for _ in 0..2 {
            // SAFETY: the buffer outlives the test's use of it.
            assert!(unsafe { outbound.send_zero_copy(&Stamp::default(), user.as_ptr(), 64) });
        }
        for position in 0..2 {
            assert_eq!(outbound.take(None), Some(position));
            let (address, length) = outbound.append(position, &[2; 16]);
            assert_ne!(address, words);
            // SAFETY: the block holds both.
            let bytes = unsafe { std::slice::from_raw_parts(address, length) };
            assert_eq!(bytes, [[1; 64].as_slice(), &[2; 16]].concat());
        }
        assert_eq!((user, outbound.lent), ([1; 64], 0));
    }

    #[test]
    fn a_lent_message_survives_what_overwrites_it() {
        let mut outbound = outbound(Protection::Clear);
        let mut user = [1u8; 32];
        let address = user.as_mut_ptr();
        // SAFETY: the buffer outlives the test's use of it.
        assert!(unsafe { outbound.send_zero_copy(&Stamp::default(), address, 32) });
        outbound.settle(address.wrapping_add(32), 1);
        assert_eq!(outbound.message(0).payload, address, "next to it is not in it");
        outbound.settle(address.wrapping_add(31), 1);
        user.fill(2);
        let message = outbound.message(0);
        // SAFETY: the slot holds the message.
        let kept = unsafe { std::slice::from_raw_parts(message.payload, message.length) };
        assert_eq!(kept, [1; 32]);
        assert_eq!(outbound.take(None), Some(0));
        outbound.done(0);
        assert!(outbound.is_written() && outbound.lent == 0);
    }
}
