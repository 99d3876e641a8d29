//! A call whose buffers are in host memory: whole, in portions, or block by block as messages.
#![allow(unsafe_code)]

use super::Engine;
use crate::communicator::call::Call;
use crate::communicator::call::fingerprint;
use crate::communicator::call::portions::{CallExtent, Portions, Side};
use crate::communicator::health::wait_check::OpWaitCheck;
use crate::communicator::tuning::plan_cache::{BoundCall, DataPath};
use crate::config::Config;
use crate::error::Result;
use crate::executor::chunk_layout::Layout;
use crate::executor::send_recv::Transfer;
use crate::plan::Collective;
use crate::transport::fifo::Stamp;

/// The operation that a call is run in.
pub struct RunningCall<'a> {
    pub config: &'a Config,
    pub stamp: &'a Stamp,
    pub watch: &'a OpWaitCheck<'a>,
}

impl Engine {
    /// Run a call, or a portion of `ready`, whose buffers are in host memory.
    ///
    /// # Safety
    /// The buffers of `call` are valid for the extents its collective defines.
    pub unsafe fn on_host(
        &mut self,
        call: &Call,
        part: CallExtent,
        ready: &BoundCall,
        running: &RunningCall,
    ) -> Result<()> {
        // SAFETY: the caller's promise, for all of these.
        unsafe {
            match (part, &ready.portions) {
                (CallExtent::Portion(index), Some(portions)) => {
                    self.run_portion(call, (portions, index), ready, running)
                }
                (CallExtent::Whole, Some(portions)) if portions.number > 1 => {
                    self.in_portions(call, portions, ready, running)
                }
                _ => {
                    let in_place = ready.extents.check(call, self.links.rank)?;
                    self.execute(call, in_place, ready, running.stamp, running.watch)
                }
            }
        }
    }

    /// Run a call that other ranks run in portions, as their memory is a device's.
    unsafe fn in_portions(
        &mut self,
        call: &Call,
        portions: &Portions,
        ready: &BoundCall,
        running: &RunningCall,
    ) -> Result<()> {
        let mut room = std::mem::take(&mut self.portion_room);
        let is_whole = |side| portions.blocks(call, side) < 2;
        let (takes, gives) = (!is_whole(Side::Input), !is_whole(Side::Output));
        if takes || gives {
            room.resize(self.plan_context.portion_bytes.unwrap_or(0), 0);
        }
        let base = room.as_mut_ptr();
        let first =
            |side, index| portions.runs(call, side, index).next().map_or(0, |run| run.offset);
        let ran = (0..portions.number).try_for_each(|index| {
            let output = base.wrapping_add(portions.start_of_output(call, index));
            let mut buffers = (base.cast_const(), output);
            // SAFETY: the caller's promise; a portion has its room.
            unsafe {
                match takes {
                    true => portions.pack(call, index, base),
                    false => buffers.0 = call.send.wrapping_add(first(Side::Input, index)),
                }
                if !gives {
                    buffers.1 = call.recv.wrapping_add(first(Side::Output, index));
                }
                let lists = portions.lists(call, index);
                let part = portions.call(call, index, buffers, lists.as_ref());
                self.run_portion(&part, (portions, index), ready, running)?;
                if gives {
                    portions.unpack(call, index, output);
                }
            }
            Ok(())
        });
        self.portion_room = room;
        ran
    }

    /// Run a portion, packed, as a part of the operation that `of` is: that is what ranks compare.
    unsafe fn run_portion(
        &mut self,
        call: &Call,
        (portions, index): (&Portions, usize),
        of: &BoundCall,
        running: &RunningCall,
    ) -> Result<()> {
        let RunningCall { config, stamp, watch } = running;
        let ready = self.ready(call, config)?;
        watch.portion(index, portions.number);
        let in_place = ready.extents.check(call, self.links.rank)?;
        // SAFETY: the caller's promise.
        let ran = unsafe {
            match (&ready.way, &of.way) {
                (DataPath::Messages(layout), DataPath::Messages(whole)) => {
                    self.run_messages(call, (layout, whole), index > 0, stamp, watch)
                }
                _ => self.execute(call, in_place, &ready, stamp, watch),
            }
        };
        self.keep(ready);
        ran
    }

    /// Run a `v` form, or a portion of the one that `whole` lays out, as messages under the
    /// collective's own stamp. Of a `later` portion, blocks that have no more are no messages.
    ///
    /// # Safety
    /// As for [`Engine::on_host`].
    pub(super) unsafe fn run_messages(
        &mut self,
        call: &Call,
        (layout, whole): (&Layout, &Layout),
        later: bool,
        stamp: &Stamp,
        watch: &OpWaitCheck,
    ) -> Result<()> {
        let (rank, nranks) = (self.links.rank, self.links.nranks);
        let size = call.data_type.size();
        self.transfers.clear();
        let is_over = |chunk: &usize| later && layout.count(*chunk) == 0;
        for peer in (0..nranks).map(|step| (rank + step) % nranks) {
            let (to, from) = match call.collective {
                Collective::AllToAll => (Some(rank * nranks + peer), Some(peer * nranks + rank)),
                Collective::Gather => {
                    ((peer == call.root).then_some(rank), (rank == call.root).then_some(peer))
                }
                _ => ((rank == call.root).then_some(peer), (peer == call.root).then_some(rank)),
            };
            if let Some(chunk) = to.filter(|chunk| !is_over(chunk)) {
                let offset = layout.input(rank, chunk).expect("its own block") * size;
                let address = call.send.cast_mut().wrapping_add(offset);
                let bytes = layout.count(chunk) * size;
                let stamp = block(stamp, whole.count(chunk));
                self.transfers.push(Transfer::new(true, peer, address, bytes, stamp));
            }
            if let Some(chunk) = from.filter(|chunk| !is_over(chunk)) {
                let offset = layout.output(rank, chunk).expect("its own block") * size;
                let address = call.recv.wrapping_add(offset);
                let bytes = layout.count(chunk) * size;
                let stamp = block(stamp, whole.count(chunk));
                self.transfers.push(Transfer::new(false, peer, address, bytes, stamp));
            }
        }
        // SAFETY: the caller's promise; the blocks lie inside the call's buffers.
        unsafe { self.run_transfers(&mut (), watch) }
    }
}

/// The stamp of one block of a `v` form: only its two ranks know its size, and must agree on it.
fn block(stamp: &Stamp, count: usize) -> Stamp {
    Stamp { fingerprint: fingerprint::of_block(stamp.fingerprint, count), ..*stamp }
}
