//! Running a direct program between processes, where it depends on the buffers whether it can.
//!
//! All ranks tell all others where their buffers are: in memory that they share, or only somewhere
//! in their process, from where the kernel may read for others. So all come to the same answer.
#![allow(unsafe_code)]

use super::program::{Direct, Used};
use super::run::{
    Arithmetic, Base, Bases, BufferAddresses, BufferLocation, Resolve, exchange_addresses, others,
    reached, wait_for_readers, work_on,
};
use crate::error::Result;
use crate::executor::host::CallBuffers;
use crate::executor::links::Links;
use crate::executor::progress_watch::ProgressWatch;
use crate::transport::fifo::Stamp;
use crate::transport::wait::WaitCheck;
use std::time::Duration;

/// What processes may run with each other's buffers.
#[derive(Clone, Copy, Default)]
pub struct DirectPrograms<'a> {
    /// Where all buffers of all ranks are in memory that they share.
    pub mapped: Option<&'a Direct>,
    /// Else, where the kernel reads the inputs of all: one that writes nothing at its peers.
    pub kernel: Option<&'a Direct>,
}

/// Run a program between processes if the buffers of all ranks suit it; whether one ran.
///
/// All ranks tell all others, so that all come to the same answer.
///
/// # Safety
/// As [`super::run::run`].
#[allow(clippy::too_many_arguments)]
pub unsafe fn try_run(
    programs: DirectPrograms,
    work: &Arithmetic,
    buffers: &CallBuffers,
    mine: &BufferAddresses,
    resolve: &mut Resolve,
    links: &mut Links,
    room: &mut Bases,
    stamp: &Stamp,
    watch: &dyn WaitCheck,
) -> Result<bool> {
    room.bases[links.rank] = Base::of(buffers);
    let nranks = links.nranks;
    let most = |program: Option<&Direct>| program.map_or(0, |program| program.touched_by.len());
    let steps = || nranks + most(programs.mapped).max(most(programs.kernel));
    let watch = &ProgressWatch::new(watch, &steps);
    let mut mapped = programs.mapped.filter(|program| is_reachable(mine, program));
    let mut kernel = programs.kernel.filter(|program| is_readable(mine, program));
    let all_addresses = &mut room.all_addresses;
    let learns = programs.mapped.is_some_and(|program| program.pushes) && links.learns();
    exchange_addresses(mine, links, stamp, learns, watch, &mut |_, peer, theirs| {
        mapped = mapped.filter(|program| is_reachable(&theirs, program));
        kernel = kernel.filter(|program| is_readable(&theirs, program));
        all_addresses[peer] = theirs;
        Ok(())
    })?;
    let program = mapped.or(kernel);
    if let Some(program) = program {
        for &peer in &program.touches {
            let (theirs, used) = (&room.all_addresses[peer], &program.used[peer]);
            room.bases[peer] = match mapped {
                Some(_) => reached(resolve(theirs, used), links, peer, watch)?.at(links, peer),
                None => readable(theirs, used, resolve, links, peer, watch)?,
            };
        }
        links.begin_remote_access(&program.touches, watch)?;
        // SAFETY: as in `run::run`; what is another process's address only the kernel reads.
        let worked = unsafe { work_on(program, work, room, watch) };
        links.end_remote_access();
        worked.map_err(|unread| unread.error(links, watch))?;
        if let (None, Some(&peer)) = (mapped, program.touches.first()) {
            // Nobody has died meanwhile, so that no number was another process's.
            watch.check(peer, Duration::ZERO)?;
        }
        watch.step();
    }
    for peer in others(links) {
        links.free(peer);
    }
    if let Some(program) = program {
        wait_for_readers(program, links, learns, watch)?;
    }
    Ok(program.is_some())
}

/// A peer's input for a program that only reads: mapped, or for the kernel.
fn readable(
    theirs: &BufferAddresses,
    used: &Used,
    resolve: &mut Resolve,
    links: &Links,
    peer: usize,
    watch: &dyn WaitCheck,
) -> Result<Base> {
    if theirs.input_region == BufferLocation::CMA {
        return Ok(Base::elsewhere(theirs, links.process(peer)?));
    }
    // Nothing is written there, wherever it is.
    let theirs = BufferAddresses { output_region: BufferLocation::UNUSED, ..*theirs };
    reached(resolve(&theirs, used), links, peer, watch)
}

/// Whether the rank's buffers have addresses for its peers, and the program suits them.
fn is_reachable(buffer_addresses: &BufferAddresses, program: &Direct) -> bool {
    let is_mapped =
        |region: u64| region != BufferLocation::PRIVATE && region != BufferLocation::CMA;
    is_mapped(buffer_addresses.input_region)
        && is_mapped(buffer_addresses.output_region)
        && (program.in_place || buffer_addresses.in_place == 0)
}

/// Whether the rank's input can be read by its peers, and the program suits its buffers.
fn is_readable(buffer_addresses: &BufferAddresses, program: &Direct) -> bool {
    buffer_addresses.input_region != BufferLocation::PRIVATE
        && (program.in_place || buffer_addresses.in_place == 0)
}

#[cfg(test)]
mod tests {
    use super::super::run::{Unread, post_addresses};
    use super::*;
    use crate::algorithm::{self, Algorithm};
    use crate::error::Error;
    use crate::executor::chunk_layout::Layout;
    use crate::executor::links::{Reach, SegmentMap};
    use crate::plan::Collective;
    use crate::transport::fifo::FifoShape;
    use crate::transport::segment::Segment;
    use crate::transport::wait::SpinPolicy;
    use std::sync::Arc;
    use std::time::Duration;

    /// Rank 1 has sent all that it will; whether it has died since.
    struct After {
        a_death: bool,
    }

    impl WaitCheck for After {
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
        let map = SegmentMap::new(2, FifoShape { depth: 2, slot_bytes: 128 });
        let segments: Vec<_> =
            (0..2).map(|_| Arc::new(Segment::anonymous(map.bytes()).unwrap())).collect();
        let links = |rank| {
            let patience = SpinPolicy::new(2, 2, None);
            Links::new(rank, map, segments.clone(), &[Reach::Machine; 2], patience)
        };
        let (mut mine, mut theirs) = (links(0), links(1));
        let plan = |rank| algorithm::plan(Algorithm::OneShot, Collective::AllGather, rank, 2, 0);
        let plans = [0, 1].map(|rank| plan(rank).unwrap());
        let layout = Layout::new(Collective::AllGather, 0, 2, plans[0].nchunks, 8, None);
        let program = Direct::new(&plans, 0, &layout, 1).unwrap();
        let stamp = Stamp { fingerprint: 1, source: 1, ..Stamp::default() };
        let claim =
            BufferAddresses { input_region: 5, output_region: 5, ..BufferAddresses::default() };
        // SAFETY: `post_addresses` writes inside the slot it reserved.
        unsafe { post_addresses(0, &claim, &mut theirs, &stamp, watch).unwrap() };
        let (input, mut output) = ([7u8; 8], [0u8; 16]);
        let buffers = CallBuffers {
            input: input.as_ptr(),
            output: output.as_mut_ptr(),
            scratch: std::ptr::null_mut(),
            scalar: 1.0,
        };
        let work = Arithmetic { reduction: None, element: 1, streamed: 0 };
        let mut asked = Vec::new();
        let mut resolve = |buffer_addresses: &BufferAddresses, used: &Used| {
            asked.push((*buffer_addresses, *used));
            Ok(None)
        };
        let mut room = Bases::new(2);
        let mine_says =
            BufferAddresses { input_region: 3, output_region: 3, ..BufferAddresses::default() };
        // SAFETY: the buffers hold what an all-gather of eight bytes a rank needs.
        let ran = unsafe {
            try_run(
                DirectPrograms { mapped: Some(&program), kernel: None },
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

    /// A rank that dies only when a wait has taken so long: its memory is being given back.
    struct Ending(Duration);

    impl WaitCheck for Ending {
        fn check(&self, peer: usize, waited: Duration) -> Result<()> {
            match waited > self.0 {
                true => Err(Error::usage(format!("rank {peer} died"))),
                false => Ok(()),
            }
        }
    }

    #[test]
    fn a_process_without_memory_is_waited_for_until_it_has_died() {
        let map = SegmentMap::new(2, FifoShape { depth: 2, slot_bytes: 128 });
        let segments: Vec<_> =
            (0..2).map(|_| Arc::new(Segment::anonymous(map.bytes()).unwrap())).collect();
        let links = Links::new(0, map, segments, &[Reach::Machine; 2], SpinPolicy::new(2, 2, None));
        let late = Ending(Duration::from_millis(300));
        let error = |errno| {
            let why = Error::System { what: "reading".into(), errno };
            Unread { peer: 1, why }.error(&links, &late).to_string()
        };
        assert!(error(libc::ESRCH).contains("rank 1 died"));
        assert!(error(libc::EFAULT).contains("rank 0 cannot reach the memory of rank 1"));
    }
}
