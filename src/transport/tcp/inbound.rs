//! What one end of a connection receives: slots that put messages back in order of position.
//!
//! A message goes to the slot of its position, or, where the reader has said so before it came,
//! to the place in the user's memory where it is wanted.
#![allow(unsafe_code)]

use super::frame::Frame;
use super::slot_pool::SlotPool;
#[cfg(test)]
use crate::error::Result;
use crate::transport::fifo::{FifoShape, ReceivedMessage, Stamp};

/// Where the payload of a message goes.
#[derive(Clone, Copy)]
pub struct PayloadTarget {
    pub address: *mut u8,
    /// The slot's block; in the user's memory there is none.
    pub block: Option<usize>,
}

/// Where the reader wants the next message.
struct Landing {
    address: *mut u8,
    length: usize,
    stamp: Stamp,
}

/// What has come of a position.
#[derive(Clone, Copy)]
enum InboundSlot {
    Empty,
    Coming,
    Arrived { length: usize, stamp: Stamp, place: PayloadTarget },
}

/// The receiving half of a connection.
pub struct Inbound {
    blocks: SlotPool,
    geometry: FifoShape,
    slots: Box<[InboundSlot]>,
    /// The position that is read next.
    next: u64,
    landing: Option<Landing>,
    /// By block: an engine has it for good.
    is_lent: Box<[bool]>,
    /// Lent blocks whose messages were read.
    returned: Vec<usize>,
}

// SAFETY: the landing place belongs to the running call, whose thread owns this.
unsafe impl Send for Inbound {}

/// What to do with a frame.
pub enum FrameAdmission {
    Into(PayloadTarget),
    /// Its slot is not free yet: leave it in the socket.
    Later,
}

impl Inbound {
    /// As many blocks as `geometry` says, and those that an engine may have; without any, nothing
    /// is admitted.
    pub fn new(blocks: SlotPool, geometry: FifoShape) -> Inbound {
        Inbound {
            is_lent: vec![false; blocks.count()].into(),
            returned: Vec::with_capacity(blocks.count().saturating_sub(geometry.depth)),
            blocks,
            geometry,
            slots: vec![InboundSlot::Empty; geometry.depth].into(),
            next: 0,
            landing: None,
        }
    }

    /// Blocks for it.
    #[cfg(test)]
    fn blocks(geometry: FifoShape) -> Result<SlotPool> {
        SlotPool::new(geometry, 0)
    }

    /// Keep the slots' memory for good: somebody may still write to it.
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

    /// Blocks beside those of the slots, which an engine may have to receive into.
    pub fn lendable(&self) -> usize {
        self.blocks.count().saturating_sub(self.geometry.depth)
    }

    pub fn slot_bytes(&self) -> usize {
        self.geometry.slot_bytes
    }

    /// A block for an engine, for good, and where it is.
    pub fn lend(&mut self) -> Option<(usize, *mut u8)> {
        if self.is_lent.iter().filter(|is_lent| **is_lent).count() >= self.lendable() {
            return None;
        }
        let block = self.blocks.take();
        self.is_lent[block] = true;
        Some((block, self.blocks.address(block)))
    }

    /// A lent block whose message was read, and where it is.
    pub fn take_returned(&mut self) -> Option<(usize, *mut u8)> {
        self.returned.pop().map(|block| (block, self.blocks.address(block)))
    }

    /// Whether a frame's slot is free now, or why the frame cannot be right.
    fn check(&self, frame: &Frame) -> std::result::Result<bool, &'static str> {
        if frame.length as usize > self.geometry.slot_bytes {
            return Err("a message is longer than a slot");
        }
        let depth = self.geometry.depth as u64;
        let ahead = frame.position.wrapping_sub(self.next);
        // A sender runs ahead of the reader by what the sockets hold, and never behind it.
        if ahead > u64::MAX / 2 {
            return Err("a message came twice");
        }
        if ahead >= depth {
            return Ok(false);
        }
        match self.slots[self.index(frame.position)] {
            InboundSlot::Empty => Ok(true),
            _ => Err("a message came twice"),
        }
    }

    /// Take a message whose payload lies in a lent block already.
    pub fn admit_into(
        &mut self,
        frame: &Frame,
        block: usize,
    ) -> std::result::Result<FrameAdmission, &'static str> {
        assert!(self.is_lent[block], "what an engine receives into was lent to it");
        if !self.check(frame)? {
            return Ok(FrameAdmission::Later);
        }
        let index = self.index(frame.position);
        self.slots[index] = InboundSlot::Coming;
        let address = self.blocks.address(block);
        Ok(FrameAdmission::Into(PayloadTarget { address, block: Some(block) }))
    }

    /// Where a frame's payload goes, or why the frame cannot be right.
    pub fn admit(&mut self, frame: &Frame) -> std::result::Result<FrameAdmission, &'static str> {
        if !self.check(frame)? {
            return Ok(FrameAdmission::Later);
        }
        let index = self.index(frame.position);
        self.slots[index] = InboundSlot::Coming;
        let wanted = self.landing.as_ref().filter(|landing| {
            frame.length > 0
                && frame.position == self.next
                && landing.length == frame.length as usize
                && landing.stamp.sequence == frame.stamp.sequence
                && landing.stamp.fingerprint == frame.stamp.fingerprint
        });
        Ok(FrameAdmission::Into(match wanted {
            Some(landing) => PayloadTarget { address: landing.address, block: None },
            None => {
                let block = self.blocks.take();
                PayloadTarget { address: self.blocks.address(block), block: Some(block) }
            }
        }))
    }

    /// A frame's payload is all there.
    pub fn arrived(&mut self, frame: &Frame, place: PayloadTarget) {
        let (length, stamp) = (frame.length as usize, frame.stamp);
        self.slots[self.index(frame.position)] = InboundSlot::Arrived { length, stamp, place };
    }

    /// The next message, if it has come, and whether it lies where it was wanted.
    pub fn ready(&self) -> Option<(ReceivedMessage, bool)> {
        match self.slots[self.index(self.next)] {
            InboundSlot::Arrived { length, stamp, place } => {
                let payload = place.address.cast_const();
                Some((ReceivedMessage { payload, length, stamp }, place.block.is_none()))
            }
            _ => None,
        }
    }

    /// Want the next message at `address`, if it has not begun to come.
    pub fn want_at(&mut self, address: *mut u8, length: usize, stamp: &Stamp) {
        self.landing = Some(Landing { address, length, stamp: *stamp });
    }

    pub fn want_nowhere(&mut self) {
        self.landing = None;
    }

    /// The reader is through with the next message.
    pub fn free(&mut self) {
        let index = self.index(self.next);
        let slot = std::mem::replace(&mut self.slots[index], InboundSlot::Empty);
        if let InboundSlot::Arrived { place: PayloadTarget { block: Some(block), .. }, .. } = slot {
            match self.is_lent[block] {
                true => self.returned.push(block),
                false => self.blocks.give(block),
            }
        }
        self.next += 1;
        self.landing = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(position: u64) -> Frame {
        Frame { position, length: 8, payload_check: 0, stamp: Stamp::default() }
    }

    fn inbound() -> Inbound {
        let geometry = FifoShape { depth: 2, slot_bytes: 64 };
        Inbound::new(Inbound::blocks(geometry).unwrap(), geometry)
    }

    fn admitted(inbound: &mut Inbound, position: u64) -> PayloadTarget {
        match inbound.admit(&frame(position)) {
            Ok(FrameAdmission::Into(place)) => place,
            _ => panic!("not admitted"),
        }
    }

    #[test]
    fn messages_are_read_in_order_of_position() {
        let mut inbound = inbound();
        let second = admitted(&mut inbound, 1);
        inbound.arrived(&frame(1), second);
        assert!(inbound.ready().is_none(), "the first is still missing");
        let first = admitted(&mut inbound, 0);
        inbound.arrived(&frame(0), first);
        assert!(matches!(inbound.admit(&frame(2)), Ok(FrameAdmission::Later)));
        for place in [first, second] {
            let (message, _) = inbound.ready().expect("it has come");
            assert_eq!(message.payload, place.address.cast_const());
            inbound.free();
        }
        assert!(matches!(inbound.admit(&frame(2)), Ok(FrameAdmission::Into(_))));
    }

    /// So that the bytes which a reader that keeps up works on stay in its cache.
    #[test]
    fn a_message_comes_to_where_the_last_one_was_read() {
        let mut inbound = inbound();
        let mut places = (0..5).map(|position| {
            let place = admitted(&mut inbound, position);
            inbound.arrived(&frame(position), place);
            inbound.free();
            place.address
        });
        let first = places.next().unwrap();
        assert!(places.all(|place| place == first));
    }

    #[test]
    fn lent_blocks_are_beside_those_of_the_slots_and_come_back_when_read() {
        let geometry = FifoShape { depth: 2, slot_bytes: 64 };
        let with_more = FifoShape { depth: 3, ..geometry };
        let mut inbound = Inbound::new(Inbound::blocks(with_more).unwrap(), geometry);
        let (block, address) = inbound.lend().expect("there is one more");
        assert!(inbound.lendable() == 1 && inbound.lend().is_none());
        assert!(matches!(inbound.admit_into(&frame(2), block), Ok(FrameAdmission::Later)));
        let Ok(FrameAdmission::Into(lent)) = inbound.admit_into(&frame(1), block) else {
            panic!("not admitted");
        };
        assert_eq!(lent.address, address);
        inbound.arrived(&frame(1), lent);
        // A socket's message finds a block all the same.
        let place = admitted(&mut inbound, 0);
        assert_ne!(place.address, address);
        inbound.arrived(&frame(0), place);
        inbound.free();
        assert!(inbound.take_returned().is_none());
        inbound.free();
        assert_eq!(inbound.take_returned(), Some((block, address)));
        assert!(inbound.take_returned().is_none());
        assert!((2..4).all(|position| admitted(&mut inbound, position).address != address));
    }

    #[test]
    fn impossible_frames_are_refused() {
        let mut inbound = inbound();
        assert!(inbound.admit(&Frame { length: 65, ..frame(0) }).is_err());
        let place = admitted(&mut inbound, 0);
        assert!(inbound.admit(&frame(0)).is_err(), "twice");
        inbound.arrived(&frame(0), place);
        inbound.free();
        assert!(inbound.admit(&frame(0)).is_err(), "long past");
    }

    #[test]
    fn a_message_lands_where_it_is_wanted() {
        let mut inbound = inbound();
        let mut user = [0u8; 8];
        let stamp = Stamp::default();
        let mut lands = |inbound: &mut Inbound, length: u32, position| {
            inbound.want_at(user.as_mut_ptr(), 8, &stamp);
            match inbound.admit(&Frame { length, ..frame(position) }) {
                Ok(FrameAdmission::Into(place)) => place,
                _ => panic!("not admitted"),
            }
        };
        let (other, later) = (lands(&mut inbound, 7, 0), lands(&mut inbound, 8, 1));
        assert!(other.block.is_some(), "another length");
        assert!(later.block.is_some(), "not the next");
        for (position, place) in [(0, other), (1, later)] {
            inbound.arrived(&frame(position), place);
            inbound.free();
        }
        assert!(lands(&mut inbound, 8, 2).block.is_none());
    }
}
