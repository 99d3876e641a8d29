//! Memory that processes share: what this rank exports to its peers and imports from them.
//!
//! A buffer inside an exported region (`ringMemAlloc`, or `ringCommRegister` of whole pages) has an
//! address for every rank of the machine: the region's number and an offset. The descriptor behind
//! a region travels once per communicator, through a socket that only its ranks hold, before the
//! first call that names the region.
#![allow(unsafe_code)]

use super::call::{Call, Extents};
use crate::error::Result;
use crate::executor::meeting::{ADDRESS, Base, Invitation, NOWHERE, UNUSED};
use crate::transport::exports::{self, Imports, Mailbox, MailboxSender};
use std::collections::HashSet;

pub struct Memory {
    /// All ranks are threads of this process: addresses are good as they are.
    one_process: bool,
    /// Regions whose descriptors the peers have been sent.
    announced: HashSet<u64>,
    /// By rank: how to send it descriptors; `None` for this rank and for threads of this process.
    peers: Vec<Option<MailboxSender>>,
    mailbox: Option<Mailbox>,
    /// Regions of all peers: numbers are unique on the machine.
    imports: Imports,
}

impl Memory {
    pub fn new(
        one_process: bool,
        mailbox: Option<Mailbox>,
        peers: Vec<Option<MailboxSender>>,
    ) -> Memory {
        Memory {
            one_process,
            announced: HashSet::new(),
            peers,
            mailbox,
            imports: Imports::default(),
        }
    }

    /// Where this rank's buffers are, for the others; sends descriptors they do not have yet.
    pub fn invite(&mut self, call: &Call, extents: &Extents, in_place: bool) -> Result<Invitation> {
        let (input_region, input_offset) = self.locate(call.send, extents.input)?;
        let (output_region, output_offset) = self.locate(call.recv, extents.output)?;
        Ok(Invitation {
            input_region,
            input_offset,
            output_region,
            output_offset,
            in_place: u64::from(in_place),
        })
    }

    fn locate(&mut self, address: *const u8, bytes: usize) -> Result<(u64, u64)> {
        if bytes == 0 {
            return Ok((UNUSED, 0));
        }
        if self.one_process {
            return Ok((ADDRESS, address.expose_provenance() as u64));
        }
        let Some(found) = exports::find(address, bytes) else { return Ok((NOWHERE, 0)) };
        if !self.announced.contains(&found.region) {
            self.collect();
            let told = |peer: &MailboxSender| peer.send(found.region).is_ok();
            if !self.peers.iter().flatten().all(told) {
                // Somebody's mailbox is full: this call goes through slots, a later one asks again.
                return Ok((NOWHERE, 0));
            }
            self.announced.insert(found.region);
        }
        Ok((found.region, found.offset as u64))
    }

    /// Empty the mailbox, so that a rank that never needs its peers' memory does not block them.
    fn collect(&mut self) {
        while let Some(Ok(Some((region, bytes, descriptor)))) =
            self.mailbox.as_ref().map(Mailbox::receive)
        {
            // One that cannot be mapped now is found missing when a call names it.
            let _ = self.imports.import(region, descriptor, bytes);
        }
    }

    /// A peer's buffers in this process's address space.
    pub fn resolve(&mut self, invitation: &Invitation) -> Option<Base> {
        let input = self.address(invitation.input_region, invitation.input_offset)?;
        let output = self.address(invitation.output_region, invitation.output_offset)?;
        Some(Base { input: input.cast_const(), output })
    }

    fn address(&mut self, region: u64, offset: u64) -> Option<*mut u8> {
        match region {
            UNUSED => Some(std::ptr::null_mut()),
            ADDRESS => Some(std::ptr::with_exposed_provenance_mut(offset as usize)),
            NOWHERE => None,
            region => {
                // A region of this process itself, exported by another rank's thread, resolves too.
                if let Some(address) = exports::address(region, offset as usize) {
                    return Some(address);
                }
                loop {
                    if let Some(address) = self.imports.resolve(region, offset as usize) {
                        return Some(address);
                    }
                    // The descriptor was sent before the invitation, so it is in the mailbox.
                    let (region, bytes, descriptor) = self.mailbox.as_ref()?.receive().ok()??;
                    self.imports.import(region, descriptor, bytes).ok()?;
                }
            }
        }
    }
}
