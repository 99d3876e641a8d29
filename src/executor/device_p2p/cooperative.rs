//! All ranks of one device in one cooperative launch: the kernels of ranks on a device each, with a
//! row of the grid for each rank.
//!
//! The driver refuses what does not fit the device, launches of several communicators take turns
//! ([`CooperativeOrder`]), and the blocks wait for nothing outside of the launch; so it may wait
//! where two launches must not.
//!
//! [`CooperativeOrder`]: crate::device::cuda::CooperativeOrder
#![allow(unsafe_code)]

use super::kernel_args::{bytes_of, oneshot_arguments, plan_arguments, shape};
use super::kernel_launcher::KernelLauncher;
use super::plan_programs::append;
use super::{KernelPath, KernelWork};
use crate::algorithm::Algorithm;
use crate::device::cuda::{Address, Capture, Grid, KernelFamily, Kernels, RawStream, abi, tile};
use crate::error::Result;
use crate::executor::device_work::pieces;
use crate::types::DataType;

/// Launch all ranks' parts of `work`.
///
/// # Safety
/// The buffers that `work` names are valid until the stream has passed.
pub unsafe fn launch(
    stations: &mut [KernelLauncher],
    kernels: &Kernels,
    work: &KernelWork,
    stream: RawStream,
    capture: Capture,
) -> Result<()> {
    let device = kernels.device().clone();
    let _current = device.enter()?;
    stations.iter_mut().try_for_each(|station| station.follow(stream, capture))?;
    let after = stations[0].after(capture).clone();
    kernels.turns().take((stream, capture), &after, || {
        // SAFETY: the caller's promise.
        let launched = unsafe { launch_rows(stations, kernels, work, stream) };
        // Also where it was refused: tables may be on their way to the device.
        let marked = stations.iter_mut().try_for_each(|station| station.mark(stream, capture));
        launched.and(marked)
    })
}

/// # Safety
/// As for [`launch`].
unsafe fn launch_rows(
    stations: &mut [KernelLauncher],
    kernels: &Kernels,
    work: &KernelWork,
    stream: RawStream,
) -> Result<()> {
    let rows = stations.len() as u32;
    let grid = |blocks| Grid { rows, is_cooperative: true, ..Grid::of(blocks) };
    match work.way {
        KernelPath::OneShot => {
            let calls: Vec<_> = stations.iter().map(|station| station.oneshot_call(work)).collect();
            let mut arguments = oneshot_arguments(work);
            arguments.calls = table(&mut stations[0], bytes_of(&calls), stream)?;
            let what = (KernelFamily::OneShot, work.data_type);
            let blocks = stations[0].lines_grid(work).blocks;
            // SAFETY: the kernel's structure; its memory is the stations', or promised.
            unsafe { kernels.run(what, &arguments, grid(blocks), stream)? };
        }
        KernelPath::Pieces => {
            let blocks = stations[0].barrier_blocks(work);
            let (data_type, arguments) = pieces_of(stations, blocks, work, stream)?;
            // SAFETY: as above.
            unsafe {
                kernels.run((KernelFamily::Reduce, data_type), &arguments, grid(blocks), stream)?
            };
        }
        KernelPath::Plan(algorithm) => {
            let clearings = stations[0].tables.clearings;
            let (mut table, mut channels) = plan_table(stations, work, algorithm, stream)?;
            if stations[0].tables.clearings != clearings {
                // Room was made, perhaps where the programs were: now there is room for both.
                (table, channels) = plan_table(stations, work, algorithm, stream)?;
            }
            let mut arguments = plan_arguments(work);
            arguments.calls = table;
            let what = (KernelFamily::Plan, work.data_type);
            // SAFETY: as above.
            unsafe { kernels.run(what, &arguments, grid(channels), stream)? };
        }
    }
    Ok(())
}

/// The calls of a plan's rows, and its channels.
fn plan_table(
    stations: &mut [KernelLauncher],
    work: &KernelWork,
    algorithm: Algorithm,
    stream: RawStream,
) -> Result<(Address, u32)> {
    let mut channels = 1;
    let mut calls = Vec::new();
    for station in stations.iter_mut() {
        let (programs, count) = station.programs(work, algorithm, stream)?;
        channels = count;
        calls.push(station.plan_call(work, programs));
    }
    Ok((table(&mut stations[0], bytes_of(&calls), stream)?, channels))
}

/// Keep a table, named by what it says: calls on the same buffers find it again.
fn table(station: &mut KernelLauncher, content: &[u8], stream: RawStream) -> Result<Address> {
    station.table(content, stream, content.len(), |_, place| place.copy_from_slice(content))
}

/// A row for each rank with its part of every block, between two barriers.
fn pieces_of(
    stations: &mut [KernelLauncher],
    blocks: u32,
    work: &KernelWork,
    stream: RawStream,
) -> Result<(DataType, abi::ReduceArgs)> {
    let nranks = stations.len();
    let (reduces, size) = (work.collective.reduces(), work.data_type.size());
    let flags = if reduces { abi::FINISH } else { abi::COPY };
    let data_type = work.moved_as();
    let unit = size / data_type.size();
    let bytes = work.count.saturating_mul(size) / nranks;
    let tile = tile(bytes, blocks, nranks, data_type.size());
    let (mut calls, mut all, mut ends) = (Vec::new(), Vec::<abi::Piece>::new(), Vec::new());
    for (rank, station) in stations.iter().enumerate() {
        let first_piece = all.len();
        let mut ntiles = 0;
        pieces(&shape(work), work.places, (rank, nranks), |sources, targets, len| {
            let count = len * unit;
            all.push(abi::Piece {
                count: count as u64,
                first_tile: ntiles,
                first_end: ends.len() as u32,
                nsources: sources.len() as u16,
                ntargets: targets.len() as u16,
                flags,
            });
            ends.extend(sources.iter().chain(targets).copied());
            ntiles += count.div_ceil(tile as usize) as u32;
            Ok(())
        })?;
        calls.push(abi::ReduceCall {
            first_piece: first_piece as u32,
            npieces: (all.len() - first_piece) as u32,
            ntiles,
            unused: 0,
            barrier: station.barrier(),
        });
    }
    let mut content = Vec::new();
    calls.iter().for_each(|call| append(&mut content, call));
    let pieces_at = content.len();
    all.iter().for_each(|piece| append(&mut content, piece));
    let ends_at = content.len();
    ends.iter().for_each(|end| append(&mut content, end));
    let base = table(&mut stations[0], &content, stream)?;
    let mut arguments = abi::ReduceArgs {
        data_type: data_type as i32,
        op: if reduces { work.op as i32 } else { 0 },
        parts: nranks as u64,
        tile,
        calls: base,
        pieces: base + pieces_at as Address,
        ends: base + ends_at as Address,
        ..abi::ReduceArgs::default()
    };
    let places = arguments.inline_scalars.iter_mut();
    places.zip(work.scalars).for_each(|(place, scalar)| *place = *scalar);
    Ok((data_type, arguments))
}
