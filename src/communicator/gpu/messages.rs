//! Point-to-point messages of device memory, through pinned host memory.
#![allow(unsafe_code)]

use super::super::{Message, Order};
use super::staging::Guard;
use super::{Gpu, refuse_capture};
use crate::device::cuda::{Capture, Kind, Stream, check_stream, copy};
use crate::error::Result;

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

impl Gpu {
    /// Run messages, whose streams order them, with `on_host`, the exchange there.
    pub fn exchange(
        &self,
        posted: &[Posted],
        watch: &dyn Guard,
        on_host: &mut dyn FnMut(&[Message]) -> Result<()>,
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
                bytes += if *staged { len.next_multiple_of(64) } else { 0 };
                if !streams.contains(&stream) {
                    streams.push(stream);
                }
            }
        }
        let mut messages: Vec<Message> = posted.iter().map(|posted| posted.message).collect();
        if streams.is_empty() {
            return on_host(&messages);
        }
        streams.iter().try_for_each(|stream| self.follow_on(*stream, Capture::No))?;
        let mut staging = self.staging.lock();
        let mut at = staging.room(bytes, watch)?;
        let mut copied = Ok(());
        for ((message, posted), _) in
            messages.iter_mut().zip(posted).zip(&staged).filter(|one| *one.1)
        {
            let (start, len) = buffer(message);
            *message = moved(message, at);
            if matches!(message, Message::Send { .. }) && copied.is_ok() {
                // SAFETY: the pinned memory has room; the buffer is the caller's promise until the
                // call is done, which waits for this copy.
                copied = unsafe { self.copy(at, start, len, posted.order.stream) };
            }
            at = at.wrapping_add(len.next_multiple_of(64));
        }
        // Where one was refused, others may be under way.
        let arrived = staging.arrive(&streams, watch);
        copied.and(arrived)?;
        on_host(&messages)?;
        let mut copied = Ok(());
        for ((message, posted), _) in messages.iter().zip(posted).zip(&staged).filter(|one| *one.1)
        {
            if let Message::Recv { buffer: from, .. } = message
                && copied.is_ok()
            {
                let (to, len) = buffer(&posted.message);
                // SAFETY: the pinned memory stays until `leave`'s event has passed; the buffer is
                // the caller's promise.
                copied = unsafe { self.copy(to, *from, len, posted.order.stream) };
            }
        }
        let left = staging.leave(&streams, watch);
        copied.and(left)?;
        let settles = posted.iter().any(|posted| posted.order.settles);
        if settles { staging.arrive(&streams, watch) } else { Ok(()) }
    }

    /// # Safety
    /// As for [`copy`].
    unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize, stream: Stream) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: the caller's promise.
        unsafe { copy(&self.device, to, from, len, stream) }
    }
}
