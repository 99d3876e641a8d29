//! Long calls through the host: portion after portion, through pinned memory that holds two.
//!
//! A stream copies the input of a portion to its place while the host has the portion before it,
//! and the output of that one back while the host has the next:
//!
//! ```text
//! stream   in 0, in 1        out 0, in 2      out 1, in 3     ...
//! host             portion 0        portion 1       portion 2 ...
//! ```
//!
//! So when the input of a portion has come, the output of the one two before it, whose place it
//! has, has left.
#![allow(unsafe_code)]

use super::{Staging, wait_for};
use crate::communicator::call::Call;
use crate::communicator::call::portions::{CallExtent, Portions, RunOnHost, Side};
use crate::communicator::gpu::BufferKinds;
use crate::communicator::health::wait_check::OpWaitCheck;
use crate::device::cuda::{copy, wait};
use crate::error::Result;

/// The place of a portion in turn, in the pinned memory at `base`.
pub(super) fn at(base: *mut u8, index: usize, portion_bytes: usize) -> *mut u8 {
    base.wrapping_add(index % 2 * portion_bytes)
}

/// Where a portion's input and its output are packed at its place.
pub(super) fn packed(
    call: &Call,
    portions: &Portions,
    index: usize,
    place: *mut u8,
) -> (*const u8, *mut u8) {
    (place.cast_const(), place.wrapping_add(portions.start_of_output(call, index)))
}

impl Staging {
    /// Run `call` on the host in portions: `on_host` is the collective there.
    pub fn run_portions(
        &mut self,
        call: &Call,
        portions: &Portions,
        found: &BufferKinds,
        watch: &OpWaitCheck,
        on_host: &mut RunOnHost,
    ) -> Result<()> {
        let base = self.room(2 * self.portion_bytes, watch)?;
        self.is_loose = true;
        let ran = self.in_turns(call, portions, found, base, watch, on_host);
        let recorded = {
            let _current = self.device.enter()?;
            // It stands for all that the one stream was given, also where the call has failed.
            self.left.record(call.order.stream)
        };
        self.is_loose = recorded.is_err();
        ran.and(recorded)
    }

    fn in_turns(
        &self,
        call: &Call,
        portions: &Portions,
        found: &BufferKinds,
        base: *mut u8,
        watch: &OpWaitCheck,
        on_host: &mut RunOnHost,
    ) -> Result<()> {
        let mut given = 0;
        for index in 0..portions.number {
            let current = self.device.enter()?;
            while given < portions.number.min(index + 2) {
                if found.sends {
                    self.take_in(call, portions, given, base)?;
                }
                self.arrived[given % 2].record(call.order.stream)?;
                given += 1;
            }
            drop(current);
            wait_for(&self.arrived[index % 2], watch)?;
            let place = at(base, index, self.portion_bytes);
            let (input, output) = packed(call, portions, index, place);
            if !found.sends {
                // SAFETY: the caller's buffer, which is its stream's no more; a portion has room.
                unsafe { portions.pack(call, index, input.cast_mut()) };
            }
            let lists = portions.lists(call, index);
            let part = portions.call(call, index, (input, output), lists.as_ref());
            on_host(&part, CallExtent::Portion(index))?;
            if found.receives {
                let _current = self.device.enter()?;
                self.give_back(call, portions, index, base)?;
            } else {
                // SAFETY: as above.
                unsafe { portions.unpack(call, index, output) };
            }
        }
        Ok(())
    }

    /// Give a call's stream all of it but the host's part of its portions, the last of which has
    /// the number `last`. Both buffers, as far as they are used, are device memory.
    pub fn give_portions(&mut self, call: &Call, portions: &Portions, last: u32) -> Result<()> {
        let stream = call.order.stream;
        let base = self.base(2 * self.portion_bytes)?;
        let device = self.device.clone();
        let _current = device.enter()?;
        // The calls before this one have the memory until their results have left it.
        wait(stream, &self.left)?;
        self.is_loose = true;
        let ticket = |index: usize| last.wrapping_sub((portions.number - 1 - index) as u32);
        let mut given = 0;
        for index in 0..portions.number {
            while given < portions.number.min(index + 2) {
                self.take_in(call, portions, given, base)?;
                self.ask_host(stream, ticket(given))?;
                given += 1;
            }
            self.await_host(stream, ticket(index))?;
            self.give_back(call, portions, index, base)?;
        }
        self.left.record(stream)?;
        self.is_loose = false;
        Ok(())
    }

    /// Copy a portion's input to its place.
    fn take_in(&self, call: &Call, portions: &Portions, index: usize, base: *mut u8) -> Result<()> {
        let to = at(base, index, self.portion_bytes);
        portions.runs(call, Side::Input, index).try_for_each(|run| {
            let (to, from) = (to.wrapping_add(run.at), call.send.wrapping_add(run.offset));
            // SAFETY: a portion has its room, which is its stream's until the host is asked; the
            // buffer is the caller's promise until the stream is past the call.
            unsafe { copy(&self.device, to, from, run.bytes, call.order.stream) }
        })
    }

    /// Copy a portion's output to where the call wants it.
    fn give_back(
        &self,
        call: &Call,
        portions: &Portions,
        index: usize,
        base: *mut u8,
    ) -> Result<()> {
        let (_, from) = packed(call, portions, index, at(base, index, self.portion_bytes));
        portions.runs(call, Side::Output, index).try_for_each(|run| {
            let (to, from) = (call.recv.wrapping_add(run.offset), from.wrapping_add(run.at));
            // SAFETY: as above; the place is another portion's only behind this copy.
            unsafe { copy(&self.device, to, from.cast_const(), run.bytes, call.order.stream) }
        })
    }
}
