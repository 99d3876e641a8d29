//! Memory of devices between processes: what this rank offers its peers, and what it has opened of
//! theirs.
//!
//! An allocation is offered under a number, on the rank's page, when a call first names it, and is
//! found again by the driver's number for it: another allocation at the same address has another.
//! What is offered no more is closed by those who opened it when they next open something. So the
//! memory of an allocation that its owner has freed stays until then, or until the communicator is
//! gone; that of as many as there are entries at most.

use crate::device::cuda::{Address, Allocation, Device, Imported, Shareable};
use crate::error::{Error, Result};
use crate::executor::device_page::{DevicePage, EXPORTS, Shared};
use crate::executor::links::DevicePages;
use std::sync::Arc;

/// Where a buffer is, as peers are told: in which allocation, and how far in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Part {
    /// 0 for a buffer that the call does not use.
    pub number: u64,
    pub offset: u64,
}

/// An allocation that peers may open.
struct Export {
    number: u64,
    allocation: Allocation,
    /// The call that named it last.
    used: u64,
}

/// What a rank offers.
#[derive(Default)]
pub struct Exports {
    offered: Vec<Export>,
    /// Numbers given out, and calls.
    numbers: u64,
    calls: u64,
}

impl Exports {
    /// A call begins.
    pub fn begin(&mut self) {
        self.calls += 1;
    }

    /// Where `bytes` bytes at `address` are for peers, who can then open them; `None` where the
    /// driver shares no such memory. The context is current.
    pub fn part(
        &mut self,
        (device, page): (&Device, &DevicePage),
        address: Address,
        bytes: usize,
    ) -> Result<Option<Part>> {
        if bytes == 0 {
            return Ok(Some(Part::default()));
        }
        let Some(id) = device.allocation_id(address)? else { return Ok(None) };
        let same = |export: &&mut Export| export.allocation.id == id;
        if let Some(export) = self.offered.iter_mut().find(same) {
            export.used = self.calls;
            let offset = export.allocation.offset(address, bytes);
            return Ok(offset.map(|offset| Part { number: export.number, offset }));
        }
        let Some(allocation) = device.allocation(address)? else { return Ok(None) };
        let Some(offset) = allocation.offset(address, bytes) else { return Ok(None) };
        let Some(handle) = device.export(&allocation)? else { return Ok(None) };
        self.make_room(device, page)?;
        let number = self.number(page);
        let Allocation { base, bytes, .. } = allocation;
        page.offer(number, Some(&Shared { base, bytes: bytes as u64, handle: handle.0 }));
        self.offered.push(Export { number, allocation, used: self.calls });
        Ok(Some(Part { number, offset }))
    }

    /// Withdraw what is no more, and of what is there the one that was not used for longest, where
    /// there is no entry left.
    fn make_room(&mut self, device: &Device, page: &DevicePage) -> Result<()> {
        let mut kept = Vec::with_capacity(EXPORTS);
        for export in self.offered.drain(..) {
            let id = device.allocation_id(export.allocation.base)?;
            if id == Some(export.allocation.id) {
                kept.push(export);
            } else {
                page.offer(export.number, None);
            }
        }
        self.offered = kept;
        if self.offered.len() == EXPORTS {
            let oldest = (0..EXPORTS).min_by_key(|index| self.offered[*index].used);
            let oldest = self.offered.swap_remove(oldest.expect("there are some"));
            page.offer(oldest.number, None);
        }
        Ok(())
    }

    /// A number that was never given, whose entry is free.
    fn number(&mut self, page: &DevicePage) -> u64 {
        loop {
            self.numbers += 1;
            let rival =
                |export: &Export| export.number % EXPORTS as u64 == self.numbers % EXPORTS as u64;
            if !self.offered.iter().any(rival) {
                debug_assert!(!page.offers(self.numbers));
                return self.numbers;
            }
        }
    }
}

/// What a rank has opened of its peers' memory.
#[derive(Default)]
pub struct Imports {
    opened: Vec<(usize, u64, Imported)>,
}

impl Imports {
    /// The address here of a part of another process's memory, of which `bytes` bytes are used;
    /// `None` where it was not opened yet.
    pub fn find(&self, peer: usize, part: Part, bytes: usize) -> Option<Result<Address>> {
        let is_it = |(rank, number, _): &&(usize, u64, _)| (*rank, *number) == (peer, part.number);
        let (.., imported) = self.opened.iter().find(is_it)?;
        Some(imported.address(part.offset, bytes))
    }

    /// Open what `peer` offers, and close what nobody offers any more. Nothing uses it, and the
    /// context is current.
    pub fn open(
        &mut self,
        device: &Arc<Device>,
        pages: &DevicePages,
        (peer, number): (usize, u64),
    ) -> Result<()> {
        self.opened.retain(|(rank, number, _)| pages.of(*rank).offers(*number));
        let shared = offered(pages, peer, number)?;
        let imported = Imported::new(device, Shareable(shared.handle))?;
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
