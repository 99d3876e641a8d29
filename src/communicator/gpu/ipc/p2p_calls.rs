//! Calls of ranks that are processes with a device each, by kernels that wait for each other's
//! ([`p2p`](super::p2p)): those of graphs, and those for which an algorithm is asked.
//!
//! The ranks meet as for every call ([`ipc`](crate::communicator::gpu::ipc)), also while they
//! capture: so they cannot differ, and each knows that all have what they need before any kernel is
//! launched. Then each launches its own.
#![allow(unsafe_code)]

use super::p2p::{Own, P2pProcesses, Prepared};
use super::{IpcRank, OfferedBuffers};
use crate::communicator::call::Call;
use crate::communicator::gpu::is_apart;
use crate::communicator::gpu::p2p::kernel_select::ChosenKernelPath;
use crate::communicator::gpu::p2p::threads;
use crate::communicator::gpu::refuse_capture::refuse_capture;
use crate::device::cuda::{Capture, RawStream, wait, write_value};
use crate::error::{Error, Result};
use crate::executor::control_block::device::DevicePage;
use crate::executor::device_p2p::KernelPath;
use crate::executor::device_work::RankBuffers;

impl IpcRank {
    /// The ranks' kernels can wait for each other's, or not, and why.
    pub fn set_p2p_processes(&mut self, p2p_processes: Result<P2pProcesses>) {
        match p2p_processes {
            Ok(p2p_processes) => self.p2p_processes = Some(p2p_processes),
            Err(error) => self.alone = Some(error),
        }
    }

    /// Why its calls cannot be part of a graph, if none can.
    pub fn refuses_captures(&self) -> Option<String> {
        let why = "its ranks are several processes, which meet anew for each call";
        match (&self.p2p_processes, &self.alone) {
            (Some(_), _) => None,
            (None, None) => Some(format!("{why}; with a device each they would not have to")),
            (None, Some(error)) => {
                Some(format!("{why}, as there are no kernels of theirs that need not: {error}"))
            }
        }
    }

    /// How kernels that wait for each other do a call outside of graphs, if an algorithm is asked
    /// for, with the channels and the name of that.
    pub fn explain(&mut self, call: &Call) -> Option<(ChosenKernelPath, usize, &'static str)> {
        let p2p_processes = self
            .p2p_processes
            .as_mut()
            .filter(|p2p_processes| p2p_processes.is_asked() && !is_apart(call))?;
        let shape = shape(call);
        let chosen = p2p_processes.way(shape).ok().flatten()?;
        Some((chosen, p2p_processes.channels(&shape, chosen.way), "gpu/p2p by ipc"))
    }

    /// How kernels that wait for each other do the call, if they do.
    pub(in crate::communicator::gpu) fn way(
        &mut self,
        call: &Call,
        capture: Capture,
    ) -> Result<Option<KernelPath>> {
        if capture == Capture::Broken {
            // Here, where the others are told of it.
            refuse_capture(capture, "")?;
        }
        let is_captured = capture != Capture::No;
        let Some(p2p_processes) = self
            .p2p_processes
            .as_mut()
            .filter(|p2p_processes| is_captured || p2p_processes.is_asked())
        else {
            return Ok(None);
        };
        if is_apart(call) {
            refuse_capture(capture, "it has no kernel")?;
            return Ok(None);
        }
        let chosen = p2p_processes.way(shape(call))?;
        if chosen.is_none() {
            refuse_capture(capture, "no kernel that waits for other processes' does it")?;
        }
        Ok(chosen.map(|chosen| chosen.way))
    }

    /// Give this rank's stream what its kernel needs; `None` where the kernel does not reach its
    /// buffers.
    pub(in crate::communicator::gpu) fn prepare_launch(
        &mut self,
        call: &Call,
        buffers: OfferedBuffers,
        way: KernelPath,
        on: (RawStream, Capture),
    ) -> Result<Option<Prepared>> {
        if buffers == OfferedBuffers::Unfit {
            refuse_capture(on.1, "a buffer is not on its rank's device")?;
            return Ok(None);
        }
        let Some(p2p_processes) = &mut self.p2p_processes else { return Ok(None) };
        p2p_processes.begin()?;
        if on.1 == Capture::No {
            let _current = self.device.enter()?;
            wait(on.0, &self.last)?;
        }
        match p2p_processes.prepare(&shape(call), way, on) {
            // Without room for its tables a call goes through the host.
            Err(Error::InvalidArgument(_)) if on.1 == Capture::No => {
                p2p_processes.cancel(None, on).map(|()| None)
            }
            prepared => prepared.map(Some),
        }
    }

    /// Launch what is ready, in the call of this number.
    pub(in crate::communicator::gpu) fn launch(
        &mut self,
        call: &Call,
        prepared: Prepared,
        number: u32,
        on: (RawStream, Capture),
    ) -> Result<()> {
        let Some(p2p_processes) = &mut self.p2p_processes else { return Ok(()) };
        let place = RankBuffers {
            input: call.send.expose_provenance() as u64,
            output: call.recv.expose_provenance() as u64,
        };
        let own = Own { place, scalar: call.scalar };
        // SAFETY: the caller promised the buffers, until the stream has passed.
        unsafe { p2p_processes.launch(&shape(call), prepared, own, on)? };
        if on.1 != Capture::No {
            return Ok(());
        }
        let _current = self.device.enter()?;
        // Of a rank that leaves and ends before, the others' guardians find its part undone.
        self.pages().of(self.rank).announce_write(number);
        let word = self.words[self.rank].address(DevicePage::BEFORE);
        // SAFETY: the page is registered until `last` has passed.
        unsafe { write_value(&self.device, on.0, word, number)? };
        self.last.record(on.0)
    }
}

/// A call as kernels that wait are asked about it, which do not look at the peers' buffers.
fn shape(call: &Call) -> threads::P2pCall {
    threads::P2pCall {
        collective: call.collective,
        root: call.root,
        count: call.count,
        data_type: call.data_type,
        op: call.op,
        is_plain: false,
    }
}
