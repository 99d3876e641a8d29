//! Memory of devices that a rank offers its peers in other processes.
//!
//! Memory is offered under a number, on the rank's page, when a call first names it, and is found
//! again by the driver's numbers for what is there: another allocation at the same address has
//! another. What is no more is withdrawn: every call looks at one of the entries, in turn, so that
//! nothing is offered for more calls than there are entries after it was freed.
//!
//! Plain allocations are opened by a handle. Of memory that is mapped piece by piece, the pieces
//! around the buffer are sent to the ranks that launch, before the entry's number is.

use crate::communicator::memory::peer_regions::{Parcel, Registrations};
use crate::device::cuda::{
    Address, Allocation, Carriers, Device, MappedRun, Mapping, PhysicalPiece,
};
use crate::error::Result;
use crate::executor::control_block::device::{DevicePage, EXPORTS, ExportInfo};
use std::sync::Arc;

/// Where a buffer is, as peers are told: in what is offered under a number, and how far in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BufferRef {
    /// 0 for a buffer that the call does not use.
    pub number: u64,
    pub offset: u64,
}

/// Pieces of a window: buffers near each other are offered together. With pieces of 20 MiB, as
/// PyTorch makes them, windows are of 640 MiB.
const WINDOW: u64 = 32;

/// Pieces that are offered under one number at most: an eighth of the 1024 descriptors that a
/// process usually may have, as they are all open while they travel.
const MOST_PIECES: usize = 128;

/// What is offered.
enum Offered {
    Allocation(Allocation),
    /// Pieces, one after another.
    Pieces(Vec<Mapping>),
}

impl Offered {
    fn bounds(&self) -> Allocation {
        match self {
            Offered::Allocation(allocation) => *allocation,
            Offered::Pieces(mappings) => {
                let bytes = mappings.iter().map(|mapping| mapping.bytes).sum();
                Allocation { base: mappings[0].base, bytes, id: 0 }
            }
        }
    }

    /// Whether what was offered is still there, as far as a range of it reaches.
    fn is_there(&self, device: &Device, (start, bytes): (Address, usize)) -> Result<bool> {
        match self {
            Offered::Allocation(allocation) => {
                Ok(device.allocation_id(allocation.base)? == Some(allocation.id))
            }
            Offered::Pieces(mappings) => {
                let is_meant = |mapping: &&Mapping| {
                    mapping.base < start + bytes as u64
                        && start < mapping.base + mapping.bytes as u64
                };
                for mapping in mappings.iter().filter(is_meant) {
                    if device.block(mapping.base)? != Some(mapping.block) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }
}

/// Memory that peers may open.
struct Export {
    number: u64,
    what: Offered,
    /// The call that named it first, and last.
    made: u64,
    used: u64,
    /// All that launch have opened it, for a call before this one.
    is_open: bool,
}

/// What a rank offers.
#[derive(Default)]
pub struct Exports {
    offered: Vec<Export>,
    /// Numbers given out, and calls.
    numbers: u64,
    calls: u64,
    /// Which entry is to be looked at next.
    next: usize,
    /// How pieces have come to all peers when it was tried.
    pub carriers: Carriers,
}

/// Through what a rank offers.
pub struct Offering<'a> {
    pub device: &'a Arc<Device>,
    pub page: &'a DevicePage,
    pub rank: usize,
    pub memory: &'a mut Registrations,
    /// The ranks that open what is offered, if all can be sent pieces.
    pub openers: Option<&'a [usize]>,
}

impl Exports {
    /// A call begins. The context is current.
    pub fn begin(&mut self, device: &Device, page: &DevicePage) -> Result<()> {
        self.calls += 1;
        if self.offered.is_empty() {
            return Ok(());
        }
        let index = self.next % self.offered.len();
        let Allocation { base, bytes, .. } = self.offered[index].what.bounds();
        if self.offered[index].what.is_there(device, (base, bytes))? {
            self.next = index + 1;
        } else {
            // The last is in its place now, and the next to be looked at.
            page.offer(self.offered.swap_remove(index).number, None);
        }
        Ok(())
    }

    /// Where `bytes` bytes at `address` are for peers, who can then open them; `None` where the
    /// driver shares no such memory. `is_plain` says that all memory of the call is plain. The
    /// context is current.
    pub fn part(
        &mut self,
        offering: &mut Offering,
        is_plain: bool,
        (address, bytes): (Address, usize),
    ) -> Result<Option<BufferRef>> {
        if bytes == 0 {
            return Ok(Some(BufferRef::default()));
        }
        if is_plain || offering.device.is_plain(address)? {
            self.plain_part(offering, address, bytes)
        } else {
            self.pieces_part(offering, address, bytes)
        }
    }

    fn plain_part(
        &mut self,
        offering: &mut Offering,
        address: Address,
        bytes: usize,
    ) -> Result<Option<BufferRef>> {
        let device = offering.device;
        let Some(id) = device.allocation_id(address)? else { return Ok(None) };
        let same = |export: &&mut Export| match &export.what {
            Offered::Allocation(allocation) => allocation.id == id,
            Offered::Pieces(_) => false,
        };
        if let Some(export) = self.offered.iter_mut().find(same) {
            export.used = self.calls;
            let offset = export.what.bounds().offset(address, bytes);
            return Ok(offset.map(|offset| BufferRef { number: export.number, offset }));
        }
        let Some(allocation) = device.allocation(address)? else { return Ok(None) };
        let Some(offset) = allocation.offset(address, bytes) else { return Ok(None) };
        let Some(handle) = device.export(&allocation)? else { return Ok(None) };
        let what = Offered::Allocation(allocation);
        let number = self.offer(offering, what, (0, handle.0))?;
        Ok(Some(BufferRef { number, offset }))
    }

    fn pieces_part(
        &mut self,
        offering: &mut Offering,
        address: Address,
        bytes: usize,
    ) -> Result<Option<BufferRef>> {
        let device = offering.device;
        for export in &mut self.offered {
            let Offered::Pieces(_) = &export.what else { continue };
            let Some(offset) = export.what.bounds().offset(address, bytes) else { continue };
            if export.what.is_there(device, (address, bytes))? {
                export.used = self.calls;
                return Ok(Some(BufferRef { number: export.number, offset }));
            }
        }
        let Some(openers) = offering.openers else { return Ok(None) };
        let window = (WINDOW, MOST_PIECES);
        let Some(run) = device.run(address, bytes, window, self.carriers)? else { return Ok(None) };
        let Some(parcel) = packed(device, &run)? else { return Ok(None) };
        let (offset, mut handle) = (address - run.base(), [0; 8]);
        handle[0] = run.carrier as u64;
        let how = (parcel.len() as u64, handle);
        // Offered first: peers close what is sent and not offered.
        let number = self.offer(offering, Offered::Pieces(run.mappings), how)?;
        if offering.memory.hand(offering.rank, number, &parcel, openers) {
            return Ok(Some(BufferRef { number, offset }));
        }
        // Somebody's mailbox is full: a later call asks again.
        self.offered.retain(|export| export.number != number);
        offering.page.offer(number, None);
        Ok(None)
    }

    /// Offer something new.
    fn offer(
        &mut self,
        offering: &Offering,
        what: Offered,
        (pieces, handle): (u64, [u64; 8]),
    ) -> Result<u64> {
        let Offering { device, page, .. } = offering;
        self.make_room(device, page)?;
        let number = self.number(page);
        let Allocation { base, bytes, .. } = what.bounds();
        page.offer(number, Some(&ExportInfo { base, bytes: bytes as u64, pieces, handle }));
        let (made, used, is_open) = (self.calls, self.calls, false);
        self.offered.push(Export { number, what, made, used, is_open });
        Ok(number)
    }

    /// Whether this call has named what was not opened yet.
    pub fn has_unopened(&self) -> bool {
        self.offered.iter().any(|export| export.used == self.calls && !export.is_open)
    }

    /// All that this call has named is open.
    pub fn mark_open(&mut self) {
        let named = self.offered.iter_mut().filter(|export| export.used == self.calls);
        named.for_each(|export| export.is_open = true);
    }

    /// The call runs another way: withdraw pieces that were sent for it, which nobody has opened.
    pub fn take_back(&mut self, page: &DevicePage) {
        let calls = self.calls;
        self.offered.retain(|export| {
            let is_kept = export.made != calls || matches!(export.what, Offered::Allocation(_));
            if !is_kept {
                page.offer(export.number, None);
            }
            is_kept
        });
    }

    /// Withdraw what is no more, and of what is there the one that was not used for longest, where
    /// there is no entry left.
    fn make_room(&mut self, device: &Device, page: &DevicePage) -> Result<()> {
        let mut kept = Vec::with_capacity(EXPORTS);
        for export in self.offered.drain(..) {
            let Allocation { base, bytes, .. } = export.what.bounds();
            // What this call has found there is about to be named.
            if export.used == self.calls || export.what.is_there(device, (base, bytes))? {
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

/// What peers open the pieces of a run by; `None` where the driver does not give that.
fn packed(device: &Arc<Device>, run: &MappedRun) -> Result<Option<Parcel>> {
    let mut parcel = Parcel::new();
    for mapping in &run.mappings {
        let Some(piece) = PhysicalPiece::at(device, mapping)? else { return Ok(None) };
        let Some(packed) = piece.pack(run.carrier)? else { return Ok(None) };
        parcel.push((mapping.bytes, packed));
    }
    Ok(Some(parcel))
}
