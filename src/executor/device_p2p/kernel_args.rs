//! What kernels are given: the structures that their calls share, and what a station's memory
//! begins with.
#![allow(unsafe_code)]

use super::KernelWork;
use super::sizing::{FLAG, P2pSizing};
use crate::device::cuda::{Address, abi};
use crate::executor::device_work::PieceShape;
use crate::plan::Collective;

/// The bytes of structures of the kernels'.
pub(super) fn bytes_of<T: Copy>(all: &[T]) -> &[u8] {
    // SAFETY: numbers without gaps between them: the kernels' layout names every byte.
    unsafe { std::slice::from_raw_parts(all.as_ptr().cast(), size_of_val(all)) }
}

/// What the private memory begins with, from the flags' addresses on.
pub(super) fn first(geometry: &P2pSizing, rank: usize, grounds: &[Address]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut part = |part: &[u8]| {
        bytes.extend_from_slice(part);
        bytes.resize(bytes.len().next_multiple_of(FLAG), 0);
    };
    let inbox = geometry.inbox() as Address;
    let inboxes: Vec<Address> = grounds.iter().map(|ground| ground + inbox).collect();
    part(bytes_of(grounds));
    part(bytes_of(&inboxes));
    let connections = |sends: bool| -> Vec<abi::Connection> {
        let all = (0..geometry.channels)
            .flat_map(|channel| (0..geometry.nranks).map(move |peer| (channel, peer)));
        let connection = |(channel, peer): (usize, usize)| {
            let (sender, receiver) = if sends { (rank, peer) } else { (peer, rank) };
            let at = |of: usize, offset: usize| grounds[of] + offset as Address;
            abi::Connection {
                slots: at(receiver, geometry.slots(channel, sender)),
                posted: at(receiver, geometry.posted(channel, sender)),
                freed: at(sender, geometry.freed(channel, receiver)),
                position: 0,
            }
        };
        all.map(connection).collect()
    };
    part(bytes_of(&connections(true)));
    part(bytes_of(&connections(false)));
    bytes
}

pub(super) fn shape(work: &KernelWork) -> PieceShape {
    let KernelWork { collective, root, count, data_type, .. } = *work;
    PieceShape { collective, root, count, size: data_type.size() }
}

pub(super) fn plan_arguments(work: &KernelWork) -> abi::PlanArgs {
    abi::PlanArgs {
        data_type: work.data_type as i32,
        op: work.op as i32,
        parts: work.places.len() as u64,
        ..abi::PlanArgs::default()
    }
}

pub(super) fn oneshot_arguments(work: &KernelWork) -> abi::OneshotArgs {
    let gathers = work.collective == Collective::AllGather;
    abi::OneshotArgs {
        data_type: work.data_type as i32,
        op: work.op as i32,
        parts: work.places.len() as u64,
        collective: if gathers { abi::ALL_GATHER } else { abi::ALL_REDUCE },
        ..abi::OneshotArgs::default()
    }
}
