//! Memory that processes share: what this rank exports to its peers and imports from them.
//!
//! A buffer inside an exported region (`ringMemAlloc`, or `ringCommRegister` of whole pages) has an
//! address for every rank of the machine: the region's number and an offset. The descriptor behind
//! a region travels once per communicator, through a socket that only its ranks hold, before the
//! first call that names the region. Pieces of devices' memory come through the same socket, and
//! wait here for whoever opens them.
#![allow(unsafe_code)]

use crate::communicator::call::{Call, Extents};
use crate::error::{Error, Result};
use crate::executor::direct::program::Used;
use crate::executor::direct::run::{Base, BufferAddresses, BufferLocation};
use crate::executor::send_recv::{Loan, SharedBuffers};
use crate::transport::shm_export::{self, Mailbox, MailboxSender, Sent, ShmImports};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};

/// Pieces of a device's memory: the bytes and the descriptor of each, one after another.
pub type Parcel = Vec<(usize, OwnedFd)>;

/// The bit that no region's number has: what is named with it is a piece of a parcel.
const PARCEL: u64 = 1 << 63;

/// Bits of a parcel's name that its rank has given.
const NUMBER_BITS: u32 = 40;

/// Regions below which it is not worth looking which are gone: 3 KiB of numbers.
const LEAST_KNOWN: usize = 128;

/// What the pieces of a rank's parcel are called.
fn parcel_name(rank: usize, number: u64) -> u64 {
    PARCEL | (rank as u64) << NUMBER_BITS | number
}

pub struct Registrations {
    /// All ranks are threads of this process: addresses are good as they are.
    one_process: bool,
    /// Regions whose descriptors all peers have been sent.
    announced: HashSet<u64>,
    /// Regions that one peer has been sent for a message.
    told: HashSet<(u64, usize)>,
    /// As many of both together as there may be before those that are gone are looked for.
    most_known: usize,
    /// By rank: how to send it descriptors; `None` for this rank and for threads of this process.
    peers: Vec<Option<MailboxSender>>,
    mailbox: Option<Mailbox>,
    /// Regions of all peers: numbers are unique on the machine.
    imports: ShmImports,
    /// Something came since what is given up was last looked for.
    imported: bool,
    /// Regions that came and could not be mapped, and why.
    lost: HashMap<u64, Error>,
    /// Pieces that were sent and not opened yet, by the name of their parcel.
    parcels: HashMap<u64, Parcel>,
}

impl Registrations {
    pub fn new(
        one_process: bool,
        mailbox: Option<Mailbox>,
        peers: Vec<Option<MailboxSender>>,
    ) -> Registrations {
        Registrations {
            one_process,
            announced: HashSet::new(),
            told: HashSet::new(),
            most_known: LEAST_KNOWN,
            peers,
            mailbox,
            imports: ShmImports::default(),
            imported: false,
            lost: HashMap::new(),
            parcels: HashMap::new(),
        }
    }

    /// Where this rank's buffers are, for the others; sends descriptors they do not have yet.
    pub fn buffer_addresses(
        &mut self,
        call: &Call,
        extents: &Extents,
        in_place: bool,
    ) -> Result<BufferAddresses> {
        self.drop_withdrawn();
        let (input_region, input_offset) = self.export_range(call.send, extents.input)?;
        let (output_region, output_offset) = self.export_range(call.recv, extents.output)?;
        Ok(BufferAddresses {
            input_region,
            input_offset,
            output_region,
            output_offset,
            in_place: u64::from(in_place),
            scalar: call.scalar,
        })
    }

    /// A call begins: no address of the one before is in use any more.
    pub fn drop_withdrawn(&mut self) {
        if std::mem::take(&mut self.imported) {
            self.imports.forget_withdrawn();
        }
    }

    /// The region of a buffer and where it lies there, which all peers have been told.
    pub fn export_range(&mut self, address: *const u8, bytes: usize) -> Result<(u64, u64)> {
        if bytes == 0 {
            return Ok((BufferLocation::UNUSED, 0));
        }
        if self.one_process {
            return Ok((BufferLocation::SAME_PROCESS, address.expose_provenance() as u64));
        }
        let Some(found) = shm_export::find(address, bytes) else {
            return Ok((BufferLocation::PRIVATE, 0));
        };
        if !self.announced.contains(&found.region) {
            self.collect();
            let told = |peer: &MailboxSender| peer.send(found.region).is_ok();
            if !self.peers.iter().flatten().all(told) {
                // Somebody's mailbox is full: this call goes through slots, a later one asks again.
                return Ok((BufferLocation::PRIVATE, 0));
            }
            self.announced.insert(found.region);
            self.forget_regions();
        }
        Ok((found.region, found.offset as u64))
    }

    /// Keep no numbers of regions that are freed, in a program that makes ever new ones: never more
    /// than twice as many as were there when they were last looked through.
    fn forget_regions(&mut self) {
        if self.announced.len() + self.told.len() <= self.most_known {
            return;
        }
        let present = shm_export::numbers();
        self.announced.retain(|region| present.contains(region));
        // What all peers have been sent, no peer need be sent again.
        self.told
            .retain(|(region, _)| present.contains(region) && !self.announced.contains(region));
        self.most_known = LEAST_KNOWN.max(2 * (self.announced.len() + self.told.len()));
    }

    /// Empty the mailbox, so that a rank that never needs its peers' memory does not block them.
    fn collect(&mut self) {
        // Where there is no room for descriptors they stay there for now.
        while let Some(Ok(Some(sent))) = self.mailbox.as_ref().map(Mailbox::receive) {
            self.put_or_note(sent);
        }
    }

    /// Keep what came out of the mailbox, or why that cannot be: a call that names it tells.
    fn put_or_note(&mut self, sent: Sent) {
        let name = sent.name;
        if let Err(error) = self.put(sent) {
            if self.lost.len() >= LEAST_KNOWN {
                self.lost.clear();
            }
            self.lost.insert(name, error);
        }
    }

    fn put(&mut self, sent: Sent) -> Result<()> {
        if sent.name & PARCEL != 0 {
            let pieces = sent.descriptors.into_iter().map(|descriptor| (sent.bytes, descriptor));
            self.parcels.entry(sent.name).or_default().extend(pieces);
            return Ok(());
        }
        self.imported = true;
        let (region, bytes, descriptor) = sent.region()?;
        self.imports.import(region, descriptor, bytes)
    }

    /// Send the pieces of a parcel of `rank`, this one, to peers in other processes. Where it
    /// fails, some may have some of it.
    pub fn hand(&mut self, rank: usize, number: u64, parcel: &Parcel, peers: &[usize]) -> bool {
        self.collect();
        let name = parcel_name(rank, number);
        peers.iter().all(|peer| {
            let Some(peer) = &self.peers[*peer] else { return false };
            // Pieces of one size go together.
            parcel.chunk_by(|one, next| one.0 == next.0).all(|alike| {
                let descriptors: Vec<_> = alike.iter().map(|(_, one)| one.as_fd()).collect();
                peer.hand(name, alike[0].0, &descriptors).is_ok()
            })
        })
    }

    /// The parcel of so many pieces that a peer has sent, if all of it is there.
    pub fn take(&mut self, rank: usize, number: u64, pieces: usize) -> Option<Parcel> {
        self.collect();
        let parcel = self.parcels.remove(&parcel_name(rank, number))?;
        (parcel.len() == pieces).then_some(parcel)
    }

    /// Close the pieces that came and that their rank does not offer any more.
    pub fn forget_parcels(&mut self, is_offered: impl Fn(usize, u64) -> bool) {
        self.collect();
        self.parcels.retain(|name, _| {
            let number = name & ((1 << NUMBER_BITS) - 1);
            is_offered(((name & !PARCEL) >> NUMBER_BITS) as usize, number)
        });
    }

    /// A peer's buffers in this process's address space, if all that is `used` of them is there. An
    /// error is this rank's own: it cannot map what the peer shares.
    ///
    /// Buffer addresses are what a peer claims: whatever it says, no address outside of the memory
    /// that the ranks share comes of it.
    pub fn resolve(
        &mut self,
        buffer_addresses: &BufferAddresses,
        used: &Used,
    ) -> Result<Option<Base>> {
        let input =
            self.address(buffer_addresses.input_region, buffer_addresses.input_offset, used.input)?;
        let output = self.address(
            buffer_addresses.output_region,
            buffer_addresses.output_offset,
            used.output,
        )?;
        let base = |(input, output): (*mut u8, _)| {
            Base::new(input.cast_const(), output, buffer_addresses.scalar)
        };
        Ok(input.zip(output).map(base))
    }

    /// The address of a range in a peer's region, if this process can have it.
    pub fn address(&mut self, region: u64, offset: u64, bytes: usize) -> Result<Option<*mut u8>> {
        let Ok(start) = usize::try_from(offset) else { return Ok(None) };
        Ok(match region {
            BufferLocation::UNUSED => (bytes == 0).then_some(std::ptr::null_mut()),
            // Only a thread of this process can know an address here.
            BufferLocation::SAME_PROCESS => {
                self.one_process.then(|| std::ptr::with_exposed_provenance_mut(start))
            }
            BufferLocation::PRIVATE => None,
            region => {
                // A region of this process itself, exported by another rank's thread, resolves too.
                if let Some(address) = shm_export::address(region, start, bytes) {
                    return Ok(Some(address));
                }
                loop {
                    if let Some(address) = self.imports.resolve(region, start, bytes) {
                        return Ok(Some(address));
                    }
                    if let Some(why) = self.lost.get(&region) {
                        return Err(why.clone());
                    }
                    // The descriptor was sent before the addresses, so it is in the mailbox.
                    let sent = self.mailbox.as_ref().map(Mailbox::receive).transpose()?;
                    let Some(sent) = sent.flatten() else { return Ok(None) };
                    self.put_or_note(sent);
                }
            }
        })
    }
}

impl SharedBuffers for Registrations {
    fn offer(&mut self, peer: usize, address: *const u8, bytes: usize) -> Loan {
        let nowhere = Loan { region: BufferLocation::PRIVATE, offset: 0 };
        let Some(found) = shm_export::find(address, bytes) else { return nowhere };
        let (region, offset) = (found.region, found.offset as u64);
        // A rank that gets no messages may never empty its mailbox, so only this peer is sent it.
        if !self.announced.contains(&region) && !self.told.contains(&(region, peer)) {
            self.collect();
            let sender = self.peers.get(peer).and_then(Option::as_ref);
            if sender.is_none_or(|sender| sender.send(region).is_err()) {
                return nowhere;
            }
            self.told.insert((region, peer));
            self.forget_regions();
        }
        Loan { region, offset }
    }

    fn find(&mut self, loan: &Loan, bytes: usize) -> Result<Option<*const u8>> {
        let address = self.address(loan.region, loan.offset, bytes)?;
        Ok(address.map(|address| address.cast_const()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 8192;

    /// A rank of another process, and the region that it was sent.
    fn importer() -> (Registrations, u64, *mut u8) {
        let address = shm_export::allocate(BYTES).unwrap();
        let region = shm_export::find(address, 1).unwrap().region;
        let (mailbox, sender) = Mailbox::pair().unwrap();
        MailboxSender::new(sender).send(region).unwrap();
        (Registrations::new(false, Some(mailbox), Vec::new()), region, address)
    }

    fn at(region: u64, offset: usize) -> BufferAddresses {
        let (input_region, input_offset) = (region, offset as u64);
        let (output_region, output_offset) = (region, offset as u64);
        BufferAddresses {
            input_region,
            input_offset,
            output_region,
            output_offset,
            ..BufferAddresses::default()
        }
    }

    #[test]
    fn a_lying_invitation_leads_nowhere() {
        let (mut memory, region, address) = importer();
        let used = |input, output| Used { input, output };
        let mut check = || {
            assert!(memory.resolve(&at(region, 0), &used(BYTES, BYTES)).unwrap().is_some());
            assert!(memory.resolve(&at(region, BYTES - 1), &used(1, 0)).unwrap().is_some());
            let outside = [
                (at(region, 0), used(BYTES + 1, 0)),
                (at(region, 0), used(0, BYTES + 1)),
                (at(region, BYTES - 1), used(2, 0)),
                (at(region, BYTES - 1), used(0, 2)),
                (at(region, usize::MAX), used(2, 2)),
                (at(region ^ 2, 0), used(1, 1)),
                (at(BufferLocation::PRIVATE, 0), used(0, 0)),
                (at(BufferLocation::UNUSED, 0), used(1, 0)),
                (at(BufferLocation::UNUSED, 0), used(0, 1)),
                // Addresses mean nothing between processes.
                (at(BufferLocation::SAME_PROCESS, address.addr()), used(1, 1)),
            ];
            for (buffer_addresses, used) in outside {
                let base = memory.resolve(&buffer_addresses, &used).unwrap();
                assert!(base.is_none(), "{buffer_addresses:?} with {used:?} gave {base:?}");
            }
            assert!(memory.resolve(&at(BufferLocation::UNUSED, 0), &used(0, 0)).unwrap().is_some());
        };
        check();
        // Looking for what is not there has emptied the mailbox: now as peers map it.
        shm_export::release(address).unwrap();
        assert!(shm_export::address(region, 0, 1).is_none());
        check();
    }

    #[test]
    fn numbers_of_regions_that_are_gone_are_forgotten() {
        let (mailbox, sender) = Mailbox::pair().unwrap();
        let mut memory = Registrations::new(false, None, vec![Some(MailboxSender::new(sender))]);
        let call = Call::new(crate::plan::Collective::AllReduce, crate::types::DataType::Uint8);
        let know = |memory: &mut Registrations, address: *mut u8| {
            let call = Call { send: address, recv: address, count: 1, ..call.clone() };
            let extents = call.extents(0, 2).unwrap();
            let loan = memory.offer(0, address, 1);
            let buffer_addresses = memory.buffer_addresses(&call, &extents, true).unwrap();
            assert_eq!(loan.region, buffer_addresses.input_region);
            let mut sent = 0;
            while mailbox.receive().unwrap().is_some() {
                sent += 1;
            }
            sent
        };
        let kept = [(); 3].map(|()| shm_export::allocate(1).unwrap());
        for address in kept {
            assert_eq!(know(&mut memory, address), 2, "for a message, and for all");
        }
        for _ in 0..20 * LEAST_KNOWN {
            let address = shm_export::allocate(1).unwrap();
            know(&mut memory, address);
            shm_export::release(address).unwrap();
        }
        assert!(memory.announced.len() + memory.told.len() <= LEAST_KNOWN);
        for address in kept {
            assert_eq!(know(&mut memory, address), 0, "known, and not sent again");
            shm_export::release(address).unwrap();
        }
    }

    #[test]
    fn a_lying_loan_leads_nowhere() {
        let (mut memory, region, address) = importer();
        let own = Loan { region, offset: 1 };
        assert_eq!(memory.find(&own, BYTES - 1), Ok(Some(address.wrapping_add(1).cast_const())));
        // As a peer maps it.
        shm_export::release(address).unwrap();
        assert!(memory.find(&own, BYTES - 1).unwrap().is_some());
        for (region, offset, bytes) in [
            (region, 0, BYTES + 1),
            (region, 1, BYTES),
            (region, u64::MAX, 2),
            (region ^ 2, 0, 1),
            (BufferLocation::PRIVATE, 0, 1),
            (BufferLocation::UNUSED, 0, 1),
            (BufferLocation::SAME_PROCESS, address.addr() as u64, 1),
        ] {
            let found = memory.find(&Loan { region, offset }, bytes).unwrap();
            assert!(found.is_none(), "{region:#x} + {offset} gave {found:?}");
        }
    }

    #[test]
    fn memory_that_is_given_up_during_a_call_stays_mapped_until_the_next() {
        let (mut memory, region, address) = importer();
        // Mapped as from another process: the table of this one must not know it.
        let (number, bytes, descriptor) =
            memory.mailbox.as_ref().unwrap().receive().unwrap().unwrap().region().unwrap();
        memory.imports.import(number, descriptor, bytes).unwrap();
        memory.imported = true;
        shm_export::release(address).unwrap();
        let used = Used { input: BYTES, output: BYTES };
        let base = memory.resolve(&at(region, 0), &used).unwrap().unwrap();
        // SAFETY: the mapping is there, though its owner has gone.
        unsafe { base.output.add(BYTES - 1).write(1) };
        let call = Call::new(crate::plan::Collective::Barrier, crate::types::DataType::Uint8);
        let extents = call.extents(0, 2).unwrap();
        memory.buffer_addresses(&call, &extents, false).unwrap();
        assert!(memory.resolve(&at(region, 0), &used).unwrap().is_none());
    }
}
