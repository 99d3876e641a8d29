//! Memory of other processes' devices that a rank which launches has opened.
//!
//! What is offered no more is closed as soon as a launch finds that nothing uses it: when no call
//! before is under way, or when something else is opened, for which that is waited for.

use super::super::memory::Parcel;
use super::exports::Part;
use super::talk::Talk;
use crate::device::cuda::{Address, Carrier, Device, Imported, Lasting, Shareable};
use crate::error::{Error, Result};
use crate::executor::device_page::Shared;
use crate::executor::links::DevicePages;
use std::sync::Arc;

/// What a rank has opened of its peers' memory: whose, under which number.
#[derive(Default)]
pub struct Imports {
    opened: Vec<(usize, u64, Lasting<Imported>)>,
}

impl Imports {
    /// The address here of a part of another process's memory, of which `bytes` bytes are used;
    /// `None` where it was not opened yet.
    pub fn find(&self, peer: usize, part: Part, bytes: usize) -> Option<Result<Address>> {
        let is_it = |(rank, number, _): &&(usize, u64, _)| (*rank, *number) == (peer, part.number);
        let (.., imported) = self.opened.iter().find(is_it)?;
        Some(imported.address(part.offset, bytes))
    }

    /// Whether something is open that nobody offers any more.
    pub fn is_stale(&self, pages: &DevicePages) -> bool {
        self.opened.iter().any(|(rank, number, _)| !pages.of(*rank).offers(*number))
    }

    /// Close what nobody offers any more. Nothing uses it, and the context is current.
    pub fn close_stale(&mut self, pages: &DevicePages) {
        self.opened.retain(|(rank, number, _)| pages.of(*rank).offers(*number));
    }

    /// Open what `peer` offers, and close what nobody offers any more. Nothing uses it, and the
    /// context is current.
    pub fn open(
        &mut self,
        device: &Arc<Device>,
        pages: &DevicePages,
        (peer, number): (usize, u64),
        talk: &mut Talk,
    ) -> Result<()> {
        self.close_stale(pages);
        let shared = offered(pages, peer, number)?;
        let imported = if shared.pieces == 0 {
            let (handle, bytes) = (Shareable(shared.handle), shared.bytes as usize);
            Lasting::new(|| Imported::new(device, handle, bytes))?
        } else {
            let parcel = talk.memory.take(peer, number, shared.pieces as usize);
            let carrier = Carrier::of(shared.handle[0]);
            let is_whole = |parcel: &Parcel| {
                let sum = |sum: usize, piece: &(usize, _)| sum.checked_add(piece.0);
                parcel.iter().try_fold(0, sum) == Some(shared.bytes as usize)
            };
            let (Some(parcel), Some(carrier)) = (parcel.filter(is_whole), carrier) else {
                return Err(Error::usage(format!(
                    "rank {peer} named memory (number {number}) whose pieces it has not sent"
                )));
            };
            Lasting::new(|| Imported::of_pieces(device, &parcel, carrier))?
        };
        self.opened.push((peer, number, imported));
        Ok(())
    }
}

/// What `peer` offers under a number that it has named.
pub fn offered(pages: &DevicePages, peer: usize, number: u64) -> Result<Shared> {
    pages.of(peer).offered(number).ok_or_else(|| {
        Error::usage(format!("rank {peer} named memory (number {number}) that it does not offer"))
    })
}
