//! The part of the rank that launches for its device: in memory of all processes, between their
//! streams.
#![allow(unsafe_code)]

use super::exports::BufferRef;
use super::imports::offered;
use super::peer_values::PeerValues;
use super::{CallOffer, IpcRank};
use crate::communicator::call::Call;
use crate::communicator::gpu::fused::launch::launch_part;
use crate::communicator::gpu::staging::wait_for;
use crate::device::cuda::{RawStream, wait_value, write_value};
use crate::error::Result;
use crate::executor::control_block::device::DevicePage;
use crate::executor::device_p2p::{KernelPath, KernelWork};
use crate::executor::device_work::RankBuffers;
use crate::executor::links::Reach;

/// What a rank says of the memory that it is to open.
const OPEN: u64 = 1;
const NOT_OPEN: u64 = 2;
/// It has run into an error, which it will tell.
const FAILED: u64 = 0;

impl IpcRank {
    /// Let the ranks that launch open what is not open yet; whether all could. That is known before
    /// any of them launches: the host must find a call's buffers as they were.
    pub(super) fn all_open(
        &mut self,
        call: &Call,
        offers: &[CallOffer],
        talk: &mut PeerValues,
    ) -> Result<bool> {
        let mut opened = Ok(Ok(Vec::new()));
        if self.leaders.contains(&self.rank) {
            opened = self.places(call, offers, talk);
        }
        let word = match &opened {
            Ok(Ok(_)) => OPEN,
            Ok(Err(_)) => NOT_OPEN,
            Err(_) => FAILED,
        };
        let words = talk.exchange(word, 0..self.nranks)?;
        self.detour = opened?.err();
        match words.iter().position(|word| *word == FAILED) {
            Some(failed) => Err(talk.told(failed)),
            None => Ok(words.iter().all(|word| *word == OPEN)),
        }
    }

    /// Launch part `part` of the call of this number, between the other ranks' streams.
    pub(super) fn lead(
        &mut self,
        call: &Call,
        offers: &[CallOffer],
        (number, part): (u32, usize),
        talk: &mut PeerValues,
    ) -> Result<()> {
        let device = self.device.clone();
        let _current = device.enter()?;
        let places = self.places(call, offers, talk)??;
        let scalars: Vec<f64> = offers.iter().map(|card| card.scalar).collect();
        let work = KernelWork {
            way: KernelPath::Pieces,
            collective: call.collective,
            root: call.root,
            count: call.count,
            data_type: call.data_type,
            op: call.op,
            places: &places,
            scalars: &scalars,
        };
        let others: Vec<usize> = (0..self.nranks).filter(|rank| *rank != self.rank).collect();
        // A rank that has failed may use its buffers again; one that fails later waits for what is
        // launched here.
        talk.links.begin_remote_access(&others, talk.watch)?;
        self.pages.of(self.rank).mark_launched(number);
        let launched = self.enqueue(&work, call.order.stream, number, part);
        talk.links.end_remote_access();
        launched
    }

    fn enqueue(
        &self,
        work: &KernelWork,
        stream: RawStream,
        number: u32,
        part: usize,
    ) -> Result<()> {
        for rank in (0..self.nranks).filter(|rank| *rank != self.rank) {
            let word = self.words[rank].address(DevicePage::BEFORE);
            // SAFETY: the page is registered until `last` has passed.
            unsafe { wait_value(&self.device, stream, word, number)? };
        }
        launch_part(work, &self.kernels, stream, (part, self.leaders.len()))?;
        let word = self.words[self.rank].address(DevicePage::AFTER);
        // SAFETY: as above.
        unsafe { write_value(&self.device, stream, word, number) }
    }

    /// Where all ranks' buffers are in this process, or why the driver does not open some.
    fn places(
        &mut self,
        call: &Call,
        offers: &[CallOffer],
        talk: &mut PeerValues,
    ) -> Result<Result<Vec<RankBuffers>>> {
        let device = self.device.clone();
        let _current = device.enter()?;
        self.imports.close_stale(&self.pages, || device.is_idle(call.order.stream))?;
        offers.iter().enumerate().map(|(rank, card)| self.place(rank, card, call, talk)).collect()
    }

    /// Where a rank's buffers are in this process.
    fn place(
        &mut self,
        rank: usize,
        card: &CallOffer,
        call: &Call,
        talk: &mut PeerValues,
    ) -> Result<Result<RankBuffers>> {
        if rank == self.rank {
            return Ok(Ok(RankBuffers {
                input: call.send.expose_provenance() as u64,
                output: call.recv.expose_provenance() as u64,
            }));
        }
        let extents = call.extents(rank, self.nranks)?;
        let mut address = |part: BufferRef, bytes: usize| {
            if bytes == 0 {
                return Ok(Ok(0));
            }
            if talk.links.reach(rank) == Reach::Process {
                // A process does not open its own memory, and needs not.
                let shared = offered(&self.pages, rank, part.number)?;
                return Ok(Ok(shared.base + part.offset));
            }
            if let Some(found) = self.imports.find(rank, part, bytes) {
                return found.map(Ok);
            }
            // What is closed now may be used by the last call's kernels.
            wait_for(&self.last, talk.watch)?;
            let opened = self.imports.open(&self.device, &self.pages, (rank, part.number), talk)?;
            let find = |()| self.imports.find(rank, part, bytes).expect("it was opened");
            opened.map(find).map_or_else(|why| Ok(Err(why)), |found| found.map(Ok))
        };
        let input = match address(card.input, extents.input)? {
            Ok(input) => input,
            Err(why) => return Ok(Err(why)),
        };
        Ok(address(card.output, extents.output)?.map(|output| RankBuffers { input, output }))
    }
}
