//! Direct (zero-copy) executor: ranks exchange the addresses of their buffers, read and write each
//! other's memory as a direct program says, and meet at a barrier before they go on.
//!
//! The first barrier is a message to each rank that uses this one's buffers; freeing that message
//! is how a peer says at the second barrier that it is done. Both are the ordinary connections, so
//! a mismatched call, a dead peer and the deadline are found as everywhere else.
#![allow(unsafe_code)]

use super::program::{BlockRef, Direct, DirectStep, Used};
use crate::device::host::{Job, Reduction, STREAMED_LEAST};
use crate::error::{Error, Result};
use crate::executor::host::{CallBuffers, move_bytes};
use crate::executor::links::Links;
use crate::executor::progress_watch::ProgressWatch;
use crate::transport::cma;
use crate::transport::fifo::Stamp;
use crate::transport::pidfd::ReadableProcess;
use crate::transport::wait::WaitCheck;
use crate::types::ReduceOp;
use std::time::{Duration, Instant};

/// Where a rank's buffers are, as its peers are told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct BufferAddresses {
    /// The exported region that holds the input, or a [`BufferLocation`].
    pub input_region: u64,
    pub input_offset: u64,
    pub output_region: u64,
    pub output_offset: u64,
    /// 1 where input and output share memory.
    pub in_place: u64,
    /// What a pre-multiplied sum multiplies the input by.
    pub scalar: f64,
}

/// Where a buffer is that is in no region: what [`BufferAddresses`] says in place of a region's
/// number.
pub struct BufferLocation;

impl BufferLocation {
    /// Where nobody else can reach it.
    pub const PRIVATE: u64 = 0;
    /// The offset is an address of this process.
    pub const SAME_PROCESS: u64 = u64::MAX;
    /// The call does not use the buffer on its rank.
    pub const UNUSED: u64 = u64::MAX - 1;
    /// The offset is an address of the owner's process, which the kernel reads for others.
    pub const CMA: u64 = u64::MAX - 2;
}

/// One rank's buffers as this rank addresses them, and its factor of a pre-multiplied sum.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    pub input: *const u8,
    pub output: *mut u8,
    pub scalar: f64,
    /// The process whose address `input` is; `None` where it is one of this process.
    process: Option<ReadableProcess>,
    /// Its rank's core is far, so that what is written there goes past the cache.
    is_far: bool,
}

impl Base {
    pub const NULL: Base = Base::new(std::ptr::null(), std::ptr::null_mut(), 1.0);

    pub const fn new(input: *const u8, output: *mut u8, scalar: f64) -> Base {
        Base { input, output, scalar, process: None, is_far: false }
    }

    pub(in crate::executor) fn of(buffers: &CallBuffers) -> Base {
        Base::new(buffers.input, buffers.output, buffers.scalar)
    }

    /// The same, of a peer whose core may be far.
    pub(super) fn at(self, links: &Links, peer: usize) -> Base {
        Base { is_far: links.streams(peer, STREAMED_LEAST), ..self }
    }

    /// A peer's input that only the kernel reads.
    pub(super) fn elsewhere(addresses: &BufferAddresses, process: ReadableProcess) -> Base {
        let input = std::ptr::without_provenance(addresses.input_offset as usize);
        let process = Some(process);
        Base { process, ..Base::new(input, std::ptr::null_mut(), addresses.scalar) }
    }
}

/// Room for the addresses of one call, kept between calls.
pub struct Bases {
    pub(super) bases: Vec<Base>,
    /// What the other ranks have said of theirs.
    pub(super) all_addresses: Vec<BufferAddresses>,
    targets: Vec<*mut u8>,
    sources: Vec<*const u8>,
    scalars: Vec<f64>,
}

// SAFETY: the pointers are only used during the call that stored them.
unsafe impl Send for Bases {}

impl Bases {
    pub fn new(nranks: usize) -> Bases {
        Bases {
            bases: vec![Base::NULL; nranks],
            all_addresses: vec![BufferAddresses::default(); nranks],
            targets: Vec::with_capacity(nranks + 1),
            sources: Vec::with_capacity(nranks + 1),
            scalars: Vec::with_capacity(nranks + 1),
        }
    }
}

/// How the arithmetic of a program is done.
#[derive(Clone, Copy)]
pub struct Arithmetic<'a> {
    pub reduction: Option<&'a Reduction>,
    pub element: usize,
    /// How many targets of a step, the first ones, are written past the cache at most.
    pub streamed: usize,
}

/// Turns what a peer says of its buffers into addresses; `None` where not all that it uses of the
/// peer's buffers is there, an error where this rank cannot map them.
pub type Resolve<'a> = dyn FnMut(&BufferAddresses, &Used) -> Result<Option<Base>> + 'a;

const BYTES: usize = size_of::<BufferAddresses>();

/// Run a program between the threads of one process, where every address is good everywhere.
///
/// # Safety
/// `buffers` cover what the call that `program` was made for says, and nothing else uses them.
pub unsafe fn run(
    program: &Direct,
    work: &Arithmetic,
    buffers: &CallBuffers,
    links: &mut Links,
    room: &mut Bases,
    stamp: &Stamp,
    watch: &dyn WaitCheck,
) -> Result<()> {
    let mine = BufferAddresses {
        input_region: BufferLocation::SAME_PROCESS,
        input_offset: buffers.input.expose_provenance() as u64,
        output_region: BufferLocation::SAME_PROCESS,
        output_offset: buffers.output.expose_provenance() as u64,
        in_place: 0,
        scalar: buffers.scalar,
    };
    room.bases[links.rank] = Base::of(buffers);
    let steps = || program.touches.len() + 1 + program.touched_by.len();
    let watch = &ProgressWatch::new(watch, &steps);
    for &peer in &program.touched_by {
        // SAFETY: `post_addresses` writes inside the slot it reserved.
        unsafe { post_addresses(peer, &mine, links, stamp, watch)? };
    }
    let learns = program.pushes && links.learns();
    for &peer in &program.touches {
        if learns {
            links.time_arrival(peer);
        }
        let payload = links.receive(peer, stamp, BYTES, watch)?;
        // SAFETY: the message has `BYTES` bytes, written by `post_addresses`.
        let theirs = unsafe { payload.cast::<BufferAddresses>().read_unaligned() };
        room.bases[peer] = Base::new(
            std::ptr::with_exposed_provenance(theirs.input_offset as usize),
            std::ptr::with_exposed_provenance_mut(theirs.output_offset as usize),
            theirs.scalar,
        )
        .at(links, peer);
        watch.step();
    }
    links.begin_remote_access(&program.touches, watch)?;
    // SAFETY: the stamps proved that all ranks run this call, whose buffers the caller vouches for;
    // an owner that gives up waits for this visit to end.
    let worked = unsafe { work_on(program, work, room, watch) };
    links.end_remote_access();
    worked.map_err(|unread| unread.error(links, watch))?;
    watch.step();
    for &peer in &program.touches {
        links.free(peer);
    }
    wait_for_readers(program, links, learns, watch)
}

/// The other ranks.
pub(in crate::executor) fn others(links: &Links) -> impl Iterator<Item = usize> + use<> {
    let rank = links.rank;
    (0..links.nranks).filter(move |peer| *peer != rank)
}

/// Say something to all other ranks and hear what each of them says, which is to be freed.
pub(in crate::executor) fn exchange_addresses(
    mine: &BufferAddresses,
    links: &mut Links,
    stamp: &Stamp,
    learns: bool,
    watch: &ProgressWatch,
    hear: &mut dyn FnMut(&Links, usize, BufferAddresses) -> Result<()>,
) -> Result<()> {
    for peer in others(links) {
        // SAFETY: `post_addresses` writes inside the slot it reserved.
        unsafe { post_addresses(peer, mine, links, stamp, watch)? };
    }
    for peer in others(links) {
        if learns {
            links.time_arrival(peer);
        }
        let payload = links.receive(peer, stamp, BYTES, watch)?;
        // SAFETY: the message has `BYTES` bytes, written by `post_addresses`.
        let theirs = unsafe { payload.cast::<BufferAddresses>().read_unaligned() };
        hear(links, peer, theirs)?;
        watch.step();
    }
    Ok(())
}

/// What was found of a buffer that a peer announced, or why it is out of reach.
pub(in crate::executor) fn reached<T>(
    found: Result<Option<T>>,
    links: &Links,
    peer: usize,
    watch: &dyn WaitCheck,
) -> Result<T> {
    match found {
        Ok(Some(found)) => Ok(found),
        found => Err(unmapped(found.err(), links, peer, watch)),
    }
}

/// Why a region that a peer announced is not mapped here, or does not hold its buffer. A peer that
/// has failed since has given it up; else this process has no room for it, or the announcement is
/// false.
#[cold]
fn unmapped(why: Option<Error>, links: &Links, peer: usize, watch: &dyn WaitCheck) -> Error {
    let rank = links.rank;
    watch.check(peer, Duration::ZERO).err().unwrap_or_else(|| match why {
        Some(Error::System { what, errno }) => {
            let what = format!("rank {rank} cannot reach the memory of rank {peer}: {what}");
            Error::System { what, errno }
        }
        Some(other) => other,
        None => Error::Internal(format!(
            "rank {rank} was not sent the memory that rank {peer} registered, or it does not hold \
             the whole buffer that rank {peer} announced in it"
        )),
    })
}

pub(super) unsafe fn post_addresses(
    peer: usize,
    mine: &BufferAddresses,
    links: &mut Links,
    stamp: &Stamp,
    watch: &dyn WaitCheck,
) -> Result<()> {
    let payload = links.reserve(peer, BYTES, watch)?;
    // SAFETY: the slot has room for `BYTES`.
    unsafe { payload.cast::<BufferAddresses>().write_unaligned(*mine) };
    links.post(peer, stamp, BYTES);
    Ok(())
}

/// Wait until the ranks that use this one's buffers have freed its addresses.
pub(super) fn wait_for_readers(
    program: &Direct,
    links: &mut Links,
    learns: bool,
    watch: &ProgressWatch,
) -> Result<()> {
    for &peer in &program.touched_by {
        if learns {
            links.time_release(peer);
        }
        links.wait_until_drained(peer, watch)?;
        watch.step();
    }
    Ok(())
}

/// A read of another process's memory that failed.
pub(in crate::executor) struct Unread {
    pub peer: usize,
    pub why: Error,
}

/// How long a peer whose memory cannot be read may take to be known as dead, where it may be for
/// another reason that it cannot.
const DYING: Duration = Duration::from_millis(100);

/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(1);

impl Unread {
    /// What became of the peer, if something did: memory goes before its process has ended, by
    /// seconds where it is much. One that has none any more will end, or the deadline comes.
    #[cold]
    pub fn error(self, links: &Links, watch: &dyn WaitCheck) -> Error {
        let Unread { peer, why } = self;
        let is_ending = matches!(why, Error::System { errno: libc::ESRCH, .. });
        let started = Instant::now();
        loop {
            let waited = started.elapsed();
            let known = watch.check(peer, if is_ending { waited } else { Duration::ZERO });
            match known {
                Err(known) => return known,
                Ok(()) if !is_ending && waited > DYING => break,
                Ok(()) => std::thread::sleep(LOOK),
            }
        }
        unmapped(Some(why), links, peer, watch)
    }
}

/// Where a place in the ranks' buffers lies.
fn address(bases: &[Base], place: &BlockRef) -> *mut u8 {
    let base = bases[place.rank];
    let start = if place.output { base.output } else { base.input.cast_mut() };
    start.wrapping_add(place.offset)
}

/// Put a step's targets into the room; how many of them, the first ones, go past the cache.
#[inline]
fn aim(step: &DirectStep, work: &Arithmetic, room: &mut Bases) -> usize {
    let Bases { bases, targets, .. } = room;
    targets.clear();
    let is_far = |place: &&BlockRef| bases[place.rank].is_far;
    let is_long = step.bytes >= STREAMED_LEAST;
    if work.streamed > 0 || !is_long || !step.targets.iter().any(|place| is_far(&place)) {
        targets.extend(step.targets.iter().map(|place| address(bases, place)));
        return work.streamed.min(targets.len());
    }
    targets.extend(step.targets.iter().filter(is_far).map(|place| address(bases, place)));
    let streamed = targets.len();
    let near = step.targets.iter().filter(|place| !is_far(place));
    targets.extend(near.map(|place| address(bases, place)));
    streamed
}

pub(super) unsafe fn work_on(
    program: &Direct,
    work: &Arithmetic,
    room: &mut Bases,
    watch: &dyn WaitCheck,
) -> Result<(), Unread> {
    // Read by the kernel since the watch was looked at.
    let mut unseen = 0;
    for step in &program.steps {
        if step.bytes == 0 {
            continue;
        }
        room.sources.clear();
        room.sources.extend(step.sources.iter().map(|p| address(&room.bases, p).cast_const()));
        let streamed = aim(step, work, room);
        match work.reduction {
            Some(reduction) => {
                room.scalars.clear();
                debug_assert!(reduction.factor(1.0) == 1.0, "inputs come together in one step");
                if reduction.op() == ReduceOp::PreMulSum {
                    // Sources are inputs, each with the factor of its rank.
                    let factor = |place: &BlockRef| room.bases[place.rank].scalar;
                    room.scalars.extend(step.sources.iter().map(factor));
                }
                let count = step.bytes / work.element;
                let job = Job {
                    finish: step.finish,
                    scalars: &room.scalars,
                    streaming: streamed,
                    ..Job::new(&room.targets, &room.sources, count)
                };
                // SAFETY: the places lie inside the ranks' buffers.
                unsafe { reduction.run(&job) };
            }
            None => {
                let BlockRef { rank: peer, .. } = step.sources[0];
                let process = room.bases[peer].process;
                for (index, target) in room.targets.iter().enumerate() {
                    if let Some(process) = process {
                        let source = room.sources[0].addr() as u64;
                        let go_on = &mut || watch.check(peer, Duration::ZERO);
                        unseen += step.bytes;
                        if unseen > cma::PIECE {
                            unseen = 0;
                            go_on().map_err(|why| Unread { peer, why })?;
                        }
                        // SAFETY: the targets are this rank's own.
                        let read =
                            unsafe { cma::read_on(process, *target, source, step.bytes, go_on) };
                        read.map_err(|why| Unread { peer, why })?;
                        continue;
                    }
                    let streams = index < streamed;
                    // SAFETY: as above.
                    unsafe { move_bytes(*target, room.sources[0], step.bytes, streams) };
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_at_far_peers_comes_first_and_goes_past_the_cache() {
        let mut memory = [0u8; 3];
        let mut room = Bases::new(3);
        for (rank, byte) in memory.iter_mut().enumerate() {
            room.bases[rank] = Base::new(std::ptr::null(), byte, 1.0);
        }
        let at = |rank: usize| room.bases[rank].output;
        let [own, near, far] = [at(0), at(1), at(2)];
        room.bases[2].is_far = true;
        let target = |rank| BlockRef { rank, output: true, offset: 0 };
        let step = |bytes| DirectStep {
            targets: [0, 1, 2].map(target).into(),
            sources: Box::default(),
            bytes,
            finish: false,
        };
        let mut aimed = |bytes, streamed| {
            let work = Arithmetic { reduction: None, element: 1, streamed };
            (aim(&step(bytes), &work, &mut room), room.targets.clone())
        };
        assert_eq!(aimed(STREAMED_LEAST, 0), (1, vec![far, own, near]));
        assert_eq!(aimed(STREAMED_LEAST - 1, 0), (0, vec![own, near, far]));
        assert_eq!(aimed(STREAMED_LEAST, 1), (1, vec![own, near, far]));
        assert_eq!(aimed(STREAMED_LEAST, usize::MAX), (3, vec![own, near, far]));
    }
}
