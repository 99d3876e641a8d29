//! Messages whose buffers the processor does not reach, a GPU's say: a bounce buffer that it does
//! reach goes over each of them, piece by piece.
//!
//! A message that is sent comes into its bounce buffer ahead of the exchange, which posts it from
//! there; one that is received leaves its bounce buffer as the exchange fills it. An exchange moves
//! one message for each peer and direction at a time, so that as many bounce buffers do for any
//! batch, however long and in whatever order its ranks named its messages.
#![allow(unsafe_code)]

use super::host::move_bytes;
use super::links::Links;
use super::send_recv::{LOAN_BYTES, Loan, MessageState, SharedBuffers, Transfer, after, take_loan};
use crate::error::Result;
use crate::transport::wait::WaitCheck;
use std::time::Duration;

/// The longest sleep between two looks at something that rings no bell, as a device's copy: a
/// hundredth of what a person notices.
pub const NAP: Duration = Duration::from_micros(200);

/// Where a message goes on.
#[derive(Clone, Copy, Debug)]
pub struct MessageCursor {
    pub address: *mut u8,
    /// Bytes of the message that have moved before.
    pub done: usize,
    /// Bytes that lie there one after another.
    pub bytes: usize,
}

/// The bounce buffers of a batch's messages, which are named by their places in the batch.
pub trait BounceBuffers {
    /// Whether a message goes through one.
    fn has(&self, message: usize) -> bool;

    /// Where the next bytes of a message are, or belong; `None` while copies are under way. There
    /// are as many as the message has, or a multiple of `chunk`, which stays the same for all of a
    /// message. One message for each peer and direction is asked for until all of it has moved.
    fn at(
        &mut self,
        message: usize,
        chunk: usize,
        links: &mut Links,
    ) -> Result<Option<MessageCursor>>;

    /// So many of the bytes at the place have been read, or written.
    fn moved(&mut self, message: usize, bytes: usize) -> Result<()>;

    /// Copy a message of this rank to itself, and wait for that.
    fn copy(&mut self, from: usize, to: usize) -> Result<()>;

    /// Whether copies are under way.
    fn is_waiting(&self) -> bool;
}

/// Every buffer is memory of the processor's.
impl BounceBuffers for () {
    fn has(&self, _: usize) -> bool {
        false
    }

    fn at(&mut self, _: usize, _: usize, _: &mut Links) -> Result<Option<MessageCursor>> {
        unreachable!("no message goes through a bay")
    }

    fn moved(&mut self, _: usize, _: usize) -> Result<()> {
        unreachable!("no message goes through a bay")
    }

    fn copy(&mut self, _: usize, _: usize) -> Result<()> {
        unreachable!("no message goes through a bay")
    }

    fn is_waiting(&self) -> bool {
        false
    }
}

/// What messages go through bounce buffers with.
pub(super) struct Passage<'a> {
    pub links: &'a mut Links,
    pub memory: &'a mut dyn SharedBuffers,
    pub bounce_buffers: &'a mut dyn BounceBuffers,
    pub watch: &'a dyn WaitCheck,
}

/// Move what can move now of a message that goes through a bounce buffer; whether anything did.
///
/// # Safety
/// The bounce buffers' places are valid, and used by nothing else until the bytes there have moved.
pub(super) unsafe fn advance(
    transfer: &mut Transfer,
    message: usize,
    passage: &mut Passage,
) -> Result<bool> {
    let is_remote = passage.links.is_remote(transfer.peer);
    let chunk = match is_remote {
        true => passage.links.longest_piece(),
        false => passage.links.geometry.slot_bytes,
    };
    let mut moved = false;
    while transfer.state != MessageState::Done {
        let Some(place) = passage.bounce_buffers.at(message, chunk, passage.links)? else { break };
        // SAFETY: the caller's promise.
        let bytes = unsafe {
            match (is_remote, transfer.sends) {
                (true, _) => over_the_network(transfer, place, chunk, passage)?,
                (false, true) => send(transfer, place, chunk, passage.links),
                (false, false) => receive(transfer, place, chunk, passage)?,
            }
        };
        let Some(bytes) = bytes else { break };
        moved = true;
        if bytes > 0 {
            passage.bounce_buffers.moved(message, bytes)?;
        }
    }
    Ok(moved)
}

/// Post what is in a bounce buffer; how many bytes, if there was a slot.
unsafe fn send(
    transfer: &mut Transfer,
    place: MessageCursor,
    chunk: usize,
    links: &mut Links,
) -> Option<usize> {
    let (peer, bytes) = (transfer.peer, place.bytes.min(chunk));
    let payload = links.try_reserve(peer, bytes)?;
    // SAFETY: the slot and the bounce buffer hold `bytes`.
    unsafe { move_bytes(payload, place.address, bytes, links.streams(peer, bytes)) };
    links.post(peer, &transfer.stamp, bytes);
    transfer.state = after(place.done + bytes, transfer.bytes);
    Some(bytes)
}

/// Have what comes in a bounce buffer; how many bytes, if anything did. A loan comes without any,
/// and is then taken piece by piece.
unsafe fn receive(
    transfer: &mut Transfer,
    place: MessageCursor,
    chunk: usize,
    passage: &mut Passage,
) -> Result<Option<usize>> {
    let Passage { links, memory, watch, .. } = passage;
    let Transfer { peer, stamp, .. } = *transfer;
    if let MessageState::Taking(loan) = transfer.state {
        let offset = loan.offset.wrapping_add(place.done as u64);
        let piece = Transfer { address: place.address, bytes: place.bytes, ..*transfer };
        // SAFETY: the stamp proves that the sender lends as many bytes as this rank expects.
        unsafe { take_loan(&piece, &Loan { offset, ..loan }, links, *memory, *watch)? };
        if place.done + place.bytes == transfer.bytes {
            transfer.state = MessageState::Done;
            links.free(peer);
        }
        return Ok(Some(place.bytes));
    }
    let bytes = place.bytes.min(chunk);
    let may_be_lent = place.done == 0 && transfer.bytes > LOAN_BYTES;
    let other = if may_be_lent { LOAN_BYTES } else { bytes };
    let come = links.try_receive_either(peer, &stamp, [bytes, other], *watch)?;
    let Some((payload, length)) = come else { return Ok(None) };
    if length != bytes {
        // SAFETY: a message of this length is a loan, which stays until it is freed.
        transfer.state = MessageState::Taking(unsafe { payload.cast::<Loan>().read_unaligned() });
        return Ok(Some(0));
    }
    // SAFETY: the message and the bounce buffer hold `bytes`.
    unsafe { move_bytes(place.address, payload, bytes, false) };
    transfer.state = after(place.done + bytes, transfer.bytes);
    links.free(peer);
    Ok(Some(bytes))
}

/// Lend what is in a bounce buffer to a socket, which gives it back before the bounce buffer goes
/// on, or have what comes from one in a bounce buffer; how many bytes, if any.
unsafe fn over_the_network(
    transfer: &mut Transfer,
    place: MessageCursor,
    chunk: usize,
    passage: &mut Passage,
) -> Result<Option<usize>> {
    let Passage { links, watch, .. } = passage;
    let Transfer { peer, stamp, .. } = *transfer;
    let (address, bytes) = (place.address, place.bytes.min(chunk));
    // SAFETY: the bounce buffer is this message's until the bytes have moved; whoever gives it
    // others settles what is lent of it, and the batch ends with a flush.
    let went = unsafe {
        match transfer.sends {
            true => links.try_send_zero_copy(peer, &stamp, address, bytes, *watch)?,
            false => links.try_receive_into(peer, &stamp, address, bytes, *watch)?,
        }
    };
    if !went {
        return Ok(None);
    }
    transfer.state = after(place.done + bytes, transfer.bytes);
    Ok(Some(bytes))
}
