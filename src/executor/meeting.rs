//! Running a direct program: everybody says where its buffers are, works, and waits to be left
//! alone.
//!
//! The first meeting is a message to each rank that uses this one's buffers; freeing that message
//! is how a peer says at the second meeting that it is done. Both are the ordinary connections, so
//! a mismatched call, a dead peer and the deadline are found as everywhere else.
#![allow(unsafe_code)]

use super::direct::{Direct, Place, Used};
use super::host::{Buffers, move_bytes};
use super::links::Links;
use super::progress::Progress;
use crate::device::host::{Job, Reduction};
use crate::error::{Error, Result};
use crate::transport::fifo::Stamp;
use crate::transport::wait::Watch;
use crate::types::ReduceOp;
use std::time::Duration;

/// Where a rank's buffers are, as its peers are told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Invitation {
    /// The exported region that holds the input: 0 [`NOWHERE`], [`UNUSED`], or [`ADDRESS`].
    pub input_region: u64,
    pub input_offset: u64,
    pub output_region: u64,
    pub output_offset: u64,
    /// 1 where input and output share memory.
    pub in_place: u64,
    /// What a pre-multiplied sum multiplies the input by.
    pub scalar: f64,
}

/// The region number that says: the offset is an address of this process.
pub const ADDRESS: u64 = u64::MAX;

/// The region number of a buffer that nobody else can reach.
pub const NOWHERE: u64 = 0;

/// The region number of a buffer that the call does not use on its rank.
pub const UNUSED: u64 = u64::MAX - 1;

/// One rank's buffers as this rank addresses them, and its factor of a pre-multiplied sum.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    pub input: *const u8,
    pub output: *mut u8,
    pub scalar: f64,
}

impl Base {
    pub const NULL: Base =
        Base { input: std::ptr::null(), output: std::ptr::null_mut(), scalar: 1.0 };

    fn of(buffers: &Buffers) -> Base {
        Base { input: buffers.input, output: buffers.output, scalar: buffers.scalar }
    }
}

/// Room for the addresses of one call, kept between calls.
pub struct Bases {
    bases: Vec<Base>,
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
            targets: Vec::with_capacity(nranks + 1),
            sources: Vec::with_capacity(nranks + 1),
            scalars: Vec::with_capacity(nranks + 1),
        }
    }
}

/// How the arithmetic of a program is done.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    pub reduction: Option<&'a Reduction>,
    pub element: usize,
    /// How many targets of a step, the first ones, are written past the cache at most.
    pub streamed: usize,
}

/// Turns a peer's invitation into addresses; `None` where not all that it uses of the peer's
/// buffers is there, an error where this rank cannot map them.
pub type Resolve<'a> = dyn FnMut(&Invitation, &Used) -> Result<Option<Base>> + 'a;

const BYTES: usize = size_of::<Invitation>();

/// Run a program between the threads of one process, where every address is good everywhere.
///
/// # Safety
/// `buffers` cover what the call that `program` was made for says, and nothing else uses them.
pub unsafe fn run(
    program: &Direct,
    work: &Work,
    buffers: &Buffers,
    links: &mut Links,
    room: &mut Bases,
    stamp: &Stamp,
    watch: &dyn Watch,
) -> Result<()> {
    let mine = Invitation {
        input_region: ADDRESS,
        input_offset: buffers.input.expose_provenance() as u64,
        output_region: ADDRESS,
        output_offset: buffers.output.expose_provenance() as u64,
        in_place: 0,
        scalar: buffers.scalar,
    };
    room.bases[links.rank] = Base::of(buffers);
    let steps = || program.touches.len() + 1 + program.touched_by.len();
    let watch = &Progress::new(watch, &steps);
    for &peer in &program.touched_by {
        // SAFETY: `invite` writes inside the slot it reserved.
        unsafe { invite(peer, &mine, links, stamp, watch)? };
    }
    for &peer in &program.touches {
        let payload = links.receive(peer, stamp, BYTES, watch)?;
        // SAFETY: the message has `BYTES` bytes, written by `invite`.
        let theirs = unsafe { payload.cast::<Invitation>().read_unaligned() };
        room.bases[peer] = Base {
            input: std::ptr::with_exposed_provenance(theirs.input_offset as usize),
            output: std::ptr::with_exposed_provenance_mut(theirs.output_offset as usize),
            scalar: theirs.scalar,
        };
        watch.step();
    }
    links.visit(&program.touches, watch)?;
    // SAFETY: the stamps proved that all ranks run this call, whose buffers the caller vouches for;
    // an owner that gives up waits for this visit to end.
    unsafe { work_on(program, work, room) };
    links.end_visit();
    watch.step();
    part(program, links, watch)
}

/// Run a program between processes if every rank's buffers can be reached by all; whether it ran.
///
/// All ranks tell all others, so that all come to the same answer.
///
/// # Safety
/// As [`run`].
#[allow(clippy::too_many_arguments)]
pub unsafe fn try_run(
    program: &Direct,
    work: &Work,
    buffers: &Buffers,
    mine: &Invitation,
    resolve: &mut Resolve,
    links: &mut Links,
    room: &mut Bases,
    stamp: &Stamp,
    watch: &dyn Watch,
) -> Result<bool> {
    room.bases[links.rank] = Base::of(buffers);
    let nranks = links.nranks;
    let steps = || nranks + program.touched_by.len();
    let watch = &Progress::new(watch, &steps);
    let mut all = is_reachable(mine, program);
    tell(mine, links, stamp, watch, &mut |links, peer, theirs| {
        all &= is_reachable(&theirs, program);
        if all && program.touches.contains(&peer) {
            let found = resolve(&theirs, &program.used[peer]);
            room.bases[peer] = reached(found, links, peer, watch)?;
        }
        Ok(())
    })?;
    if all {
        links.visit(&program.touches, watch)?;
        // SAFETY: as in `run`.
        unsafe { work_on(program, work, room) };
        links.end_visit();
        watch.step();
    }
    for peer in others(links) {
        links.free(peer);
    }
    if all {
        part_from(program, links, watch)?;
    }
    Ok(all)
}

/// The other ranks.
pub(super) fn others(links: &Links) -> impl Iterator<Item = usize> + use<> {
    let rank = links.rank;
    (0..links.nranks).filter(move |peer| *peer != rank)
}

/// Say something to all other ranks and hear what each of them says, which is to be freed.
pub(super) fn tell(
    mine: &Invitation,
    links: &mut Links,
    stamp: &Stamp,
    watch: &Progress,
    hear: &mut dyn FnMut(&Links, usize, Invitation) -> Result<()>,
) -> Result<()> {
    for peer in others(links) {
        // SAFETY: `invite` writes inside the slot it reserved.
        unsafe { invite(peer, mine, links, stamp, watch)? };
    }
    for peer in others(links) {
        let payload = links.receive(peer, stamp, BYTES, watch)?;
        // SAFETY: the message has `BYTES` bytes, written by `invite`.
        let theirs = unsafe { payload.cast::<Invitation>().read_unaligned() };
        hear(links, peer, theirs)?;
        watch.step();
    }
    Ok(())
}

/// What was found of a buffer that a peer announced, or why it is out of reach.
pub(super) fn reached<T>(
    found: Result<Option<T>>,
    links: &Links,
    peer: usize,
    watch: &dyn Watch,
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
fn unmapped(why: Option<Error>, links: &Links, peer: usize, watch: &dyn Watch) -> Error {
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

/// Whether the rank's buffers have addresses for its peers, and the program suits them.
fn is_reachable(invitation: &Invitation, program: &Direct) -> bool {
    invitation.input_region != NOWHERE
        && invitation.output_region != NOWHERE
        && (program.in_place || invitation.in_place == 0)
}

unsafe fn invite(
    peer: usize,
    mine: &Invitation,
    links: &mut Links,
    stamp: &Stamp,
    watch: &dyn Watch,
) -> Result<()> {
    let payload = links.reserve(peer, BYTES, watch)?;
    // SAFETY: the slot has room for `BYTES`.
    unsafe { payload.cast::<Invitation>().write_unaligned(*mine) };
    links.post(peer, stamp, BYTES);
    Ok(())
}

/// Free the invitations, which tells their senders, and wait until this rank's are freed.
fn part(program: &Direct, links: &mut Links, watch: &Progress) -> Result<()> {
    for &peer in &program.touches {
        links.free(peer);
    }
    part_from(program, links, watch)
}

/// Wait until the ranks that use this one's buffers have freed its invitations.
fn part_from(program: &Direct, links: &mut Links, watch: &Progress) -> Result<()> {
    for &peer in &program.touched_by {
        links.drained(peer, watch)?;
        watch.step();
    }
    Ok(())
}

unsafe fn work_on(program: &Direct, work: &Work, room: &mut Bases) {
    for step in &program.steps {
        if step.bytes == 0 {
            continue;
        }
        let address = |bases: &[Base], place: &Place| {
            let base = bases[place.rank];
            let base = if place.output { base.output } else { base.input.cast_mut() };
            base.wrapping_add(place.offset)
        };
        room.sources.clear();
        room.sources.extend(step.sources.iter().map(|p| address(&room.bases, p).cast_const()));
        room.targets.clear();
        room.targets.extend(step.targets.iter().map(|p| address(&room.bases, p)));
        match work.reduction {
            Some(reduction) => {
                room.scalars.clear();
                if reduction.op() == ReduceOp::PreMulSum {
                    // Sources are inputs, each with the factor of its rank.
                    let factor = |place: &Place| room.bases[place.rank].scalar;
                    room.scalars.extend(step.sources.iter().map(factor));
                }
                let count = step.bytes / work.element;
                let job = Job {
                    finish: step.finish,
                    scalars: &room.scalars,
                    streaming: work.streamed.min(room.targets.len()),
                    ..Job::new(&room.targets, &room.sources, count)
                };
                // SAFETY: the places lie inside the ranks' buffers.
                unsafe { reduction.run(&job) };
            }
            None => {
                for (index, target) in room.targets.iter().enumerate() {
                    let streams = index < work.streamed;
                    // SAFETY: as above.
                    unsafe { move_bytes(*target, room.sources[0], step.bytes, streams) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{self, Algorithm};
    use crate::error::Error;
    use crate::executor::layout::Layout;
    use crate::executor::links::{Reach, SegmentMap};
    use crate::plan::Collective;
    use crate::transport::fifo::Geometry;
    use crate::transport::segment::Segment;
    use crate::transport::wait::Patience;
    use std::sync::Arc;
    use std::time::Duration;

    /// Rank 1 has sent all that it will; whether it has died since.
    struct After {
        a_death: bool,
    }

    impl Watch for After {
        fn check(&self, peer: usize, waited: Duration) -> Result<()> {
            match (self.a_death, waited.is_zero()) {
                (true, _) => Err(Error::usage(format!("rank {peer} died"))),
                (false, true) => Ok(()),
                (false, false) => panic!("nobody else is there to wait for"),
            }
        }
    }

    #[test]
    fn a_buffer_that_cannot_be_reached_whole_is_not_touched() {
        let false_claim = "does not hold the whole buffer that rank 1 announced";
        for (watch, text) in [
            (After { a_death: false }, false_claim),
            // It has given its memory up.
            (After { a_death: true }, "rank 1 died"),
        ] {
            let error = meet_a_buffer_that_is_not_whole(&watch).to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    /// What comes of a claim of rank 1's that does not resolve; nothing is touched.
    fn meet_a_buffer_that_is_not_whole(watch: &After) -> Error {
        let map = SegmentMap { nranks: 2, geometry: Geometry { depth: 2, slot_bytes: 128 } };
        let segments: Vec<_> =
            (0..2).map(|_| Arc::new(Segment::anonymous(map.bytes()).unwrap())).collect();
        let links = |rank| {
            let patience = Patience::new(2, 2, None);
            Links::new(rank, map, segments.clone(), &[Reach::Machine; 2], patience)
        };
        let (mut mine, mut theirs) = (links(0), links(1));
        let plan = |rank| algorithm::plan(Algorithm::OneShot, Collective::AllGather, rank, 2, 0);
        let plans = [0, 1].map(|rank| plan(rank).unwrap());
        let layout = Layout::new(Collective::AllGather, 0, 2, plans[0].nchunks, 8, None);
        let program = Direct::new(&plans, 0, &layout, 1).unwrap();
        let stamp = Stamp { fingerprint: 1, source: 1, ..Stamp::default() };
        let claim = Invitation { input_region: 5, output_region: 5, ..Invitation::default() };
        // SAFETY: `invite` writes inside the slot it reserved.
        unsafe { invite(0, &claim, &mut theirs, &stamp, watch).unwrap() };
        let (input, mut output) = ([7u8; 8], [0u8; 16]);
        let buffers = Buffers {
            input: input.as_ptr(),
            output: output.as_mut_ptr(),
            scratch: std::ptr::null_mut(),
            scalar: 1.0,
        };
        let work = Work { reduction: None, element: 1, streamed: 0 };
        let mut asked = Vec::new();
        let mut resolve = |invitation: &Invitation, used: &Used| {
            asked.push((*invitation, *used));
            Ok(None)
        };
        let mut room = Bases::new(2);
        let mine_says = Invitation { input_region: 3, output_region: 3, ..Invitation::default() };
        // SAFETY: the buffers hold what an all-gather of eight bytes a rank needs.
        let ran = unsafe {
            try_run(
                &program,
                &work,
                &buffers,
                &mine_says,
                &mut resolve,
                &mut mine,
                &mut room,
                &stamp,
                watch,
            )
        };
        let needed = program.used[1];
        assert_eq!(needed.input.max(needed.output), if needed.output > 0 { 16 } else { 8 });
        assert_eq!(asked, [(claim, needed)]);
        assert_eq!(output, [0; 16]);
        ran.unwrap_err()
    }
}
