//! Batches of messages that are longer than the pinned memory: each goes through a bounce buffer of
//! it, piece by piece.
//!
//! A batch must not be cut into rounds. One rank may send a long message and receive a short one in
//! a batch, and the receiver of the long one wait for what follows from the short one. So all
//! messages of a batch go on as their peers allow, as those of the host do. The host's exchange
//! moves one at a time to each peer and one from it; these have the bounce buffers, as many as two
//! for each rank. A bounce buffer has two places: while the exchange has one piece of a message,
//! the stream copies another. Behind each copy the stream writes the copy's number to a word of the
//! place, which the exchange looks at, as it would take an event for each place to know otherwise.
#![allow(unsafe_code)]

use super::send_recv::OrderedMessage;
use super::{NAP, SOON, Staging, StreamWaitCheck, address, wait_until};
use crate::communicator::call::portions::LINE;
use crate::device::cuda::{copy, write_value};
use crate::error::Result;
use crate::executor::bounced_send_recv::{self, MessageCursor};
use crate::executor::links::Links;
use crate::sync::atomic::Ordering::Acquire;
use std::time::Instant;

/// Places of a bounce buffer.
const PLACES: usize = 2;

/// Of all bounce buffers of a rank, where there are so many.
pub fn places(nranks: usize) -> usize {
    2 * PLACES * nranks
}

/// A message that has a bounce buffer, and how far it is.
#[derive(Clone, Copy, Default)]
struct Under {
    message: Option<usize>,
    /// Bytes of a piece, of which each place holds one.
    piece: usize,
    places: usize,
    /// Pieces whose copies to the host were given to the stream, where it is sent.
    given: usize,
    /// Bytes that the exchange has moved.
    done: usize,
}

/// The bounce buffers of a batch.
pub struct StagedBounceBuffers<'a> {
    staging: &'a mut Staging,
    base: *mut u8,
    /// Bytes of a bounce buffer.
    bytes: usize,
    posted: &'a [OrderedMessage],
    /// Which of them go through bounce buffers.
    staged: &'a [bool],
    /// By peer, and whether it is sent there.
    under: Vec<Under>,
    /// A copy was given that no number stands for.
    is_loose: bool,
    watch: &'a dyn StreamWaitCheck,
}

impl<'a> StagedBounceBuffers<'a> {
    /// The memory's, which no copy uses any more.
    pub fn new(
        staging: &'a mut Staging,
        nranks: usize,
        posted: &'a [OrderedMessage],
        staged: &'a [bool],
        watch: &'a dyn StreamWaitCheck,
    ) -> Result<StagedBounceBuffers<'a>> {
        let bytes = staging.portion_bytes / nranks / LINE * LINE;
        let base = staging.room(2 * staging.portion_bytes, watch)?;
        let under = vec![Under::default(); 2 * nranks];
        // Of its copies only words know.
        staging.is_loose = true;
        Ok(StagedBounceBuffers {
            staging,
            base,
            bytes,
            posted,
            staged,
            under,
            is_loose: false,
            watch,
        })
    }

    /// After a failure: whether all copies that were given are through, or are so soon.
    pub fn are_at_rest(&self) -> bool {
        let started = Instant::now();
        while self.is_under_way() {
            if started.elapsed() > SOON {
                return false;
            }
            std::thread::sleep(NAP);
        }
        !self.is_loose
    }

    fn is_under_way(&self) -> bool {
        (0..self.staging.numbers.len()).any(|place| !self.has_come(place))
    }

    /// Whether the last copy of a place is through.
    fn has_come(&self, place: usize) -> bool {
        // Acquire: pairs with the stream's write, which comes after its copy.
        self.staging.words.place(place).load(Acquire) == self.staging.numbers[place]
    }

    /// Let the stream of a message copy from or to a device, and say so at a place.
    fn give(
        &mut self,
        message: usize,
        place: usize,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let stream = self.posted[message].order.stream;
        let number = self.staging.numbers[place].wrapping_add(1);
        let word = address(self.staging.words.place(place));
        let device = &self.staging.device;
        let _current = device.enter()?;
        // SAFETY: the pinned memory and the word are given up, not freed, while a copy may use
        // them; the buffer is the caller's promise until its stream is past the messages.
        unsafe {
            copy(device, to, from, bytes, stream)?;
            let written = write_value(device, stream, word, number);
            self.is_loose |= written.is_err();
            written?;
        }
        self.staging.numbers[place] = number;
        Ok(())
    }

    /// The bounce buffer of a message, its buffer and its bytes.
    fn stage(&self, message: usize) -> (usize, *mut u8, usize) {
        let (sends, peer, buffer, count, data_type) = self.posted[message].message.parts();
        (2 * peer + usize::from(sends), buffer, count * data_type.size())
    }

    /// The place of a piece: its number, and where it is.
    fn place(&self, stage: usize, piece: usize) -> (usize, *mut u8) {
        let place = piece % self.under[stage].places;
        let offset = stage * self.bytes + place * self.under[stage].piece;
        (PLACES * stage + place, self.base.wrapping_add(offset))
    }

    /// A message begins whose pieces are of whole chunks.
    fn begin(&mut self, stage: usize, message: usize, chunk: usize) {
        let chunks = self.bytes / chunk;
        assert!(chunks > 0, "a stage holds what a slot holds");
        let places = PLACES.min(chunks);
        let piece = chunks / places * chunk;
        self.under[stage] = Under { message: Some(message), piece, places, given: 0, done: 0 };
    }

    /// Copy as many pieces of a message that is sent as have a place.
    fn fill(&mut self, stage: usize, message: usize, links: &mut Links) -> Result<()> {
        let (_, buffer, all) = self.stage(message);
        loop {
            let Under { piece, places, given, done, .. } = self.under[stage];
            let (place, address) = self.place(stage, given);
            let start = given * piece;
            if start >= all || given >= done / piece + places || !self.has_come(place) {
                return Ok(());
            }
            let bytes = piece.min(all - start);
            // A socket may not have written all of the piece that was there.
            links.settle(address, bytes);
            self.give(message, place, address, buffer.wrapping_add(start), bytes)?;
            self.under[stage].given += 1;
        }
    }
}

impl bounced_send_recv::BounceBuffers for StagedBounceBuffers<'_> {
    fn has(&self, message: usize) -> bool {
        self.staged[message]
    }

    fn at(
        &mut self,
        message: usize,
        chunk: usize,
        links: &mut Links,
    ) -> Result<Option<MessageCursor>> {
        let (stage, _, all) = self.stage(message);
        let sends = self.posted[message].message.parts().0;
        if self.under[stage].message != Some(message) {
            self.begin(stage, message, chunk);
        }
        if sends {
            self.fill(stage, message, links)?;
        }
        let Under { piece, given, done, .. } = self.under[stage];
        let index = done / piece;
        let (place, address) = self.place(stage, index);
        if sends && given <= index || !self.has_come(place) {
            return Ok(None);
        }
        let offset = done % piece;
        let bytes = (piece - offset).min(all - done);
        Ok(Some(MessageCursor { address: address.wrapping_add(offset), done, bytes }))
    }

    fn moved(&mut self, message: usize, bytes: usize) -> Result<()> {
        let (stage, buffer, all) = self.stage(message);
        let sends = self.posted[message].message.parts().0;
        self.under[stage].done += bytes;
        let Under { piece, done, .. } = self.under[stage];
        if sends || !(done.is_multiple_of(piece) || done == all) {
            return Ok(());
        }
        let index = (done - 1) / piece;
        let (place, address) = self.place(stage, index);
        let start = index * piece;
        self.give(message, place, buffer.wrapping_add(start), address, done - start)
    }

    fn copy(&mut self, from: usize, to: usize) -> Result<()> {
        let (_, source, bytes) = self.stage(from);
        let (stage, target, _) = self.stage(to);
        // All streams have come to the batch, so any of them will do; that of host memory may be
        // none.
        let message = if self.staged[to] { to } else { from };
        self.give(message, PLACES * stage, target, source, bytes)?;
        wait_until(|| Ok(self.has_come(PLACES * stage)), self.watch)
    }

    fn is_waiting(&self) -> bool {
        self.is_under_way()
    }
}
