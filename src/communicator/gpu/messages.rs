//! Point-to-point messages of device memory, through pinned host memory.
//!
//! A batch that fits there is copied to it whole, and the host's exchange runs as if it had always
//! been there. One that does not goes through it in [`bays`](super::bays).
#![allow(unsafe_code)]

use super::super::portions::LINE;
use super::super::{Message, Order};
use super::bays::Bays;
use super::staging::{Guard, Staging};
use super::{Gpu, refuse_capture};
use crate::device::cuda::{Capture, Kind, Stream, check_stream, copy};
use crate::error::Result;
use crate::executor::bays;

/// A message with its place among what streams do.
#[derive(Clone, Copy)]
pub struct Posted {
    pub message: Message,
    pub order: Order,
}

impl AsRef<Message> for Posted {
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
struct Batch<'a> {
    posted: &'a [Posted],
    staged: &'a [bool],
    streams: &'a [Stream],
    watch: &'a dyn Guard,
}

/// Runs messages of host memory, and of other memory where there are bays.
pub type OnHost<'a> = dyn FnMut(&[Message], Option<&mut dyn bays::Bays>) -> Result<()> + 'a;

impl Gpu {
    /// Run messages, whose streams order them, with `on_host`, the exchange there.
    pub fn exchange(
        &self,
        posted: &[Posted],
        watch: &dyn Guard,
        on_host: &mut OnHost,
    ) -> Result<()> {
        let mut staged = vec![false; posted.len()];
        let (mut streams, mut bytes): (Vec<Stream>, usize) = (Vec::new(), 0);
        {
            let _current = self.device.enter()?;
            for (posted, staged) in posted.iter().zip(&mut staged) {
                let (start, len) = buffer(&posted.message);
                let stream = check_stream(posted.order.stream)?;
                *staged = len > 0 && self.device.kind(start)? != Kind::Host;
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
        }
        if streams.is_empty() {
            let messages: Vec<Message> = posted.iter().map(|posted| posted.message).collect();
            return on_host(&messages, None);
        }
        streams.iter().try_for_each(|stream| self.follow_on(*stream, Capture::No))?;
        let mut staging = self.staging.lock();
        let batch = Batch { posted, staged: &staged, streams: &streams, watch };
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
        batch: &Batch,
        bytes: usize,
        staging: &mut Staging,
        on_host: &mut OnHost,
    ) -> Result<()> {
        let Batch { posted, staged, streams, watch } = *batch;
        let mut messages: Vec<Message> = posted.iter().map(|posted| posted.message).collect();
        let mut at = staging.room(bytes, watch)?;
        let mut copied = Ok(());
        for ((message, posted), _) in
            messages.iter_mut().zip(posted).zip(staged).filter(|one| *one.1)
        {
            let (start, len) = buffer(message);
            *message = moved(message, at);
            if matches!(message, Message::Send { .. }) && copied.is_ok() {
                // SAFETY: the pinned memory has room; the buffer is the caller's promise until the
                // call is done, which waits for this copy.
                copied = unsafe { self.copy(at, start, len, posted.order.stream) };
            }
            at = at.wrapping_add(len.next_multiple_of(LINE));
        }
        // Where one was refused, others may be under way.
        let arrived = staging.arrive(streams, watch);
        copied.and(arrived)?;
        on_host(&messages, None)?;
        let mut copied = Ok(());
        for ((message, posted), _) in messages.iter().zip(posted).zip(staged).filter(|one| *one.1) {
            if let Message::Recv { buffer: from, .. } = message
                && copied.is_ok()
            {
                let (to, len) = buffer(&posted.message);
                // SAFETY: the pinned memory stays until `leave`'s event has passed; the buffer is
                // the caller's promise.
                copied = unsafe { self.copy(to, *from, len, posted.order.stream) };
            }
        }
        let left = staging.leave(streams, watch);
        copied.and(left)
    }

    /// Run messages that are longer than the pinned memory.
    fn exchange_long(
        &self,
        batch: &Batch,
        staging: &mut Staging,
        on_host: &mut OnHost,
    ) -> Result<()> {
        let Batch { posted, staged, streams, watch } = *batch;
        let messages: Vec<Message> = posted.iter().map(|posted| posted.message).collect();
        // What peers wait for is not to wait for the streams, nor host memory to be touched sooner.
        staging.arrive(streams, watch)?;
        let mut bays = Bays::new(staging, self.nranks, posted, staged, watch)?;
        let ran = on_host(&messages, Some(&mut bays));
        let is_loose = ran.is_err() && !bays.are_at_rest();
        staging.is_loose = is_loose;
        ran?;
        staging.leave(streams, watch)
    }

    /// # Safety
    /// As for [`copy`].
    unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize, stream: Stream) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: the caller's promise.
        unsafe { copy(&self.device, to, from, len, stream) }
    }
}
