//! Point-to-point messages of device memory, through pinned host memory.
//!
//! A batch that fits there is copied to it whole, and the host's exchange runs as if it had always
//! been there. One that does not goes through it in
//! [`send_recv_pipeline`](super::send_recv_pipeline).
#![allow(unsafe_code)]

use super::send_recv_pipeline::StagedBounceBuffers;
use super::{Staging, StreamWaitCheck};
use crate::communicator::call::Order;
use crate::communicator::call::message::Message;
use crate::communicator::call::portions::LINE;
use crate::communicator::gpu::{Gpu, refuse_capture};
use crate::device::cuda::{Capture, PointerKind, RawStream, check_stream, copy, wait};
use crate::error::Result;
use crate::executor::bounced_send_recv;

/// A message with its place among what streams do.
#[derive(Clone, Copy)]
pub struct OrderedMessage {
    pub message: Message,
    pub order: Order,
}

impl AsRef<Message> for OrderedMessage {
    fn as_ref(&self) -> &Message {
        &self.message
    }
}

/// Where a message's elements are, and how many bytes.
fn buffer(message: &Message) -> (*mut u8, usize) {
    match message {
        Message::Send { buffer, count, data_type, .. } => {
            (buffer.cast_mut(), count.saturating_mul(data_type.size()))
        }
        Message::Recv { buffer, count, data_type, .. } => {
            (*buffer, count.saturating_mul(data_type.size()))
        }
    }
}

fn moved(message: &Message, to: *mut u8) -> Message {
    match *message {
        Message::Send { count, data_type, peer, .. } => {
            Message::Send { buffer: to, count, data_type, peer }
        }
        Message::Recv { count, data_type, peer, .. } => {
            Message::Recv { buffer: to, count, data_type, peer }
        }
    }
}

/// Messages, which of them are of device memory, and the streams that order them.
#[derive(Clone, Copy)]
struct MessageBatch<'a> {
    posted: &'a [OrderedMessage],
    staged: &'a [bool],
    streams: &'a [RawStream],
    watch: &'a dyn StreamWaitCheck,
}

/// Runs messages of host memory, and of other memory where there are bounce buffers.
pub type RunMessagesOnHost<'a> =
    dyn FnMut(&[Message], Option<&mut dyn bounced_send_recv::BounceBuffers>) -> Result<()> + 'a;

/// What messages were found to name, before anything of them is done.
pub(in crate::communicator) struct MessageKinds {
    /// Which of them are of device memory.
    staged: Vec<bool>,
    /// Those that order them: not all of it is in host memory, or a stream is named.
    streams: Vec<RawStream>,
    /// Bytes of pinned memory that those of device memory take.
    pub bytes: usize,
    /// Some bytes are, and all of those are the device's.
    pub is_away: bool,
}

impl Gpu {
    /// Look where messages' buffers are, and whether they can be run at all.
    pub(in crate::communicator) fn look_at(
        &self,
        posted: &[OrderedMessage],
    ) -> Result<MessageKinds> {
        let (mut staged, mut streams) = (vec![false; posted.len()], Vec::new());
        let (mut bytes, mut on_host): (usize, bool) = (0, false);
        let _current = self.device.enter()?;
        for (posted, staged) in posted.iter().zip(&mut staged) {
            let (start, len) = buffer(&posted.message);
            let stream = check_stream(posted.order.stream)?;
            *staged = len > 0 && self.device.kind(start)? != PointerKind::Host;
            on_host |= len > 0 && !*staged;
            if !*staged && stream.is_null() {
                continue;
            }
            let capture = Capture::of(&self.device, stream)?;
            refuse_capture(capture, "messages go through host memory")?;
            let room = if *staged { len.next_multiple_of(LINE) } else { 0 };
            bytes = bytes.saturating_add(room);
            if !streams.contains(&stream) {
                streams.push(stream);
            }
        }
        let is_away = bytes > 0 && !on_host;
        Ok(MessageKinds { staged, streams, bytes, is_away })
    }

    /// Run messages, whose streams order them, with `on_host`, the exchange there.
    pub fn exchange(
        &self,
        posted: &[OrderedMessage],
        watch: &dyn StreamWaitCheck,
        on_host: &mut RunMessagesOnHost,
    ) -> Result<()> {
        let MessageKinds { staged, streams, bytes, .. } = self.look_at(posted)?;
        if streams.is_empty() {
            let messages: Vec<Message> = posted.iter().map(|posted| posted.message).collect();
            return on_host(&messages, None);
        }
        streams.iter().try_for_each(|stream| self.follow_on(*stream, Capture::No))?;
        let mut staging = self.staging.lock();
        let batch = MessageBatch { posted, staged: &staged, streams: &streams, watch };
        match bytes <= 2 * self.portion_bytes {
            true => self.exchange_whole(&batch, bytes, &mut staging, on_host)?,
            false => self.exchange_long(&batch, &mut staging, on_host)?,
        }
        let settles = posted.iter().any(|posted| posted.order.settles);
        if settles { staging.arrive(&streams, watch) } else { Ok(()) }
    }

    /// Run messages for which the pinned memory has room.
    fn exchange_whole(
        &self,
        batch: &MessageBatch,
        bytes: usize,
        staging: &mut Staging,
        on_host: &mut RunMessagesOnHost,
    ) -> Result<()> {
        let MessageBatch { posted, staged, streams, watch } = *batch;
        let base = staging.room(bytes, watch)?;
        let messages = in_room(posted, staged, base);
        // SAFETY: the pinned memory has room; the buffers are the caller's promise until the call
        // is done, which waits for these copies.
        let copied = unsafe { staging.take_all(posted, &messages) };
        // Where one was refused, others may be under way.
        let arrived = staging.arrive(streams, watch);
        copied.and(arrived)?;
        on_host(&messages, None)?;
        // SAFETY: the pinned memory stays until `leave`'s event has passed; the buffers are the
        // caller's promise.
        let copied = unsafe { staging.give_all_back(posted, &messages) };
        let left = staging.leave(streams, watch);
        copied.and(left)
    }

    /// Run messages that are longer than the pinned memory.
    fn exchange_long(
        &self,
        batch: &MessageBatch,
        staging: &mut Staging,
        on_host: &mut RunMessagesOnHost,
    ) -> Result<()> {
        let MessageBatch { posted, staged, streams, watch } = *batch;
        let messages: Vec<Message> = posted.iter().map(|posted| posted.message).collect();
        // What peers wait for is not to wait for the streams, nor host memory to be touched sooner.
        staging.arrive(streams, watch)?;
        let mut bounce_buffers =
            StagedBounceBuffers::new(staging, self.nranks, posted, staged, watch)?;
        let ran = on_host(&messages, Some(&mut bounce_buffers));
        let is_loose = ran.is_err() && !bounce_buffers.are_at_rest();
        staging.is_loose = is_loose;
        ran?;
        staging.leave(streams, watch)
    }
}

/// Messages whose buffers are in pinned memory, one after another, where they were a device's.
fn in_room(posted: &[OrderedMessage], staged: &[bool], base: *mut u8) -> Vec<Message> {
    let mut at = base;
    let place = |(posted, staged): (&OrderedMessage, &bool)| {
        if !*staged {
            return posted.message;
        }
        let here = at;
        at = at.wrapping_add(buffer(&posted.message).1.next_multiple_of(LINE));
        moved(&posted.message, here)
    };
    posted.iter().zip(staged).map(place).collect()
}

impl Staging {
    /// Give the one stream of messages, all of which are of device memory, all but the host's part,
    /// which is the messages that are returned.
    ///
    /// # Safety
    /// The buffers are valid until the stream is past the messages.
    pub(in crate::communicator) unsafe fn give_messages(
        &mut self,
        posted: &[OrderedMessage],
        bytes: usize,
        ticket: u32,
    ) -> Result<Vec<Message>> {
        let stream = posted[0].order.stream;
        let staged: Vec<bool> = posted.iter().map(|one| buffer(&one.message).1 > 0).collect();
        let messages = in_room(posted, &staged, self.base(bytes)?);
        let device = self.device.clone();
        let _current = device.enter()?;
        // The calls before these have the memory until their results have left it.
        wait(stream, &self.left)?;
        self.is_loose = true;
        // SAFETY: the pinned memory stays until `left` has passed; the buffers are the caller's
        // promise.
        unsafe {
            self.take_all(posted, &messages)?;
            self.ask_host(stream, ticket)?;
            self.await_host(stream, ticket)?;
            self.give_all_back(posted, &messages)?;
        }
        self.left.record(stream)?;
        self.is_loose = false;
        Ok(messages)
    }

    /// Copy what is sent to where it is in pinned memory.
    ///
    /// # Safety
    /// Both are valid until the streams are past the copies.
    unsafe fn take_all(&self, posted: &[OrderedMessage], messages: &[Message]) -> Result<()> {
        posted.iter().zip(messages).try_for_each(|(posted, message)| match message {
            // SAFETY: the caller's promise.
            Message::Send { .. } => unsafe { self.copy(message, &posted.message, posted) },
            Message::Recv { .. } => Ok(()),
        })
    }

    /// Copy what was received from where it is in pinned memory.
    ///
    /// # Safety
    /// As for `take_all`.
    unsafe fn give_all_back(&self, posted: &[OrderedMessage], messages: &[Message]) -> Result<()> {
        posted.iter().zip(messages).try_for_each(|(posted, message)| match message {
            // SAFETY: the caller's promise.
            Message::Recv { .. } => unsafe { self.copy(&posted.message, message, posted) },
            Message::Send { .. } => Ok(()),
        })
    }

    /// From one message's buffer to the other's, if they differ, in the message's order.
    ///
    /// # Safety
    /// As for `take_all`.
    unsafe fn copy(&self, to: &Message, from: &Message, posted: &OrderedMessage) -> Result<()> {
        let ((to, len), (from, _)) = (buffer(to), buffer(from));
        if to == from {
            return Ok(());
        }
        let _current = self.device.enter()?;
        // SAFETY: the caller's promise.
        unsafe { copy(&self.device, to, from, len, posted.order.stream) }
    }
}
