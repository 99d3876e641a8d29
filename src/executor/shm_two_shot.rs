//! Two-shot all-reduce through scratch memory that the processes of a host share, in windows.
//!
//! Between processes whose buffers nobody else can reach, slots are one way: every message has one
//! reader, so a finished block is written once for each rank that wants it, and ranks wait for each
//! other every few slots. In windows each rank copies a piece of its input, but for the block that
//! is its own to reduce, to scratch that its peers map; then all run the direct program of that
//! piece, as if the scratch were their buffers; then each copies what the others finished to its
//! output. That is two barriers for a window, which stays in the cache meanwhile. The steps are
//! those of the plan, so the bits are those of the interpreter. Nobody uses a user's buffer but its
//! own rank.
#![allow(unsafe_code)]

use super::chunk_layout::Layout;
use super::direct::processes::{self, DirectPrograms};
use super::direct::program::{Direct, Used};
use super::direct::run::{self, Arithmetic, Bases, BufferAddresses, BufferLocation, Resolve};
use super::host::{CallBuffers, move_bytes};
use super::links::Links;
use super::progress_watch::ProgressWatch;
use crate::error::{Error, Result};
use crate::plan::{Collective, Plan};
use crate::transport::fifo::Stamp;
use crate::transport::wait::WaitCheck;
use std::ops::Range;

/// A piece of the vector, and what this rank does with it.
struct Window {
    program: Direct,
    bytes: usize,
    /// The bytes of it that this rank reduces.
    own: Range<usize>,
}

/// Find out with all other ranks whether each reaches `bytes` of the scratch of all: each says
/// where its own is, tries the others', and says how that went. All come to the same answer.
pub fn open(
    mine: &BufferAddresses,
    bytes: usize,
    resolve: &mut Resolve,
    links: &mut Links,
    stamp: &Stamp,
    watch: &dyn WaitCheck,
) -> Result<bool> {
    let nranks = links.nranks;
    let steps = || 2 * (nranks - 1);
    let watch = &ProgressWatch::new(watch, &steps);
    let used = Used { input: bytes, output: bytes };
    let mut all = mine.output_region != BufferLocation::PRIVATE;
    run::exchange_addresses(mine, links, stamp, false, watch, &mut |_, _, theirs| {
        all &= theirs.output_region != BufferLocation::PRIVATE
            && matches!(resolve(&theirs, &used), Ok(Some(_)));
        Ok(())
    })?;
    run::others(links).for_each(|peer| links.free(peer));
    let verdict = if all { *mine } else { BufferAddresses::default() };
    run::exchange_addresses(&verdict, links, stamp, false, watch, &mut |_, _, theirs| {
        all &= theirs.output_region != BufferLocation::PRIVATE;
        Ok(())
    })?;
    run::others(links).for_each(|peer| links.free(peer));
    Ok(all)
}

/// An all-reduce in windows.
pub struct ShmTwoShot {
    whole: Window,
    /// The last one, where it is shorter.
    rest: Option<Window>,
    total: usize,
}

impl ShmTwoShot {
    /// `plans` are those of all ranks, in which each finishes the chunk of its number; `None` where
    /// they need slots. A window has `bytes` at most.
    pub fn new(
        plans: &[Plan],
        rank: usize,
        (count, element): (usize, usize),
        bytes: usize,
    ) -> Option<ShmTwoShot> {
        let most = (bytes / element).max(1);
        let window = |count: usize| {
            let layout =
                Layout::new(Collective::AllReduce, rank, plans.len(), plans.len(), count, None);
            let program = Direct::new(plans, rank, &layout, element)?;
            let start = layout.output(rank, rank).expect("every rank has the vector") * element;
            let own = start..start + layout.count(rank) * element;
            program.in_place.then_some(Window { program, bytes: count * element, own })
        };
        let rest = count % most;
        Some(ShmTwoShot {
            whole: window(most.min(count))?,
            rest: if count > most && rest > 0 { Some(window(rest)?) } else { None },
            total: count * element,
        })
    }

    /// Bytes of a chunk in a window.
    pub fn slice_bytes(&self) -> usize {
        self.whole.program.chunk_bytes
    }

    /// How many windows there are.
    pub fn count(&self) -> usize {
        self.total.div_ceil(self.whole.bytes.max(1))
    }

    /// Run it in scratch that all ranks have opened: this rank's, and what peers are told of it.
    ///
    /// # Safety
    /// `buffers` cover the vector, `scratch` the longest window, and nothing else uses them.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn run(
        &self,
        work: &Arithmetic,
        buffers: &CallBuffers,
        (scratch, buffer_addresses): (*mut u8, &BufferAddresses),
        resolve: &mut Resolve,
        links: &mut Links,
        room: &mut Bases,
        stamp: &Stamp,
        watch: &dyn WaitCheck,
    ) -> Result<()> {
        // A rank's own output is a step's first target; the others are scratch, and read at once.
        let work = &Arithmetic { streamed: work.streamed.min(1), ..*work };
        let streams = work.streamed > 0;
        let two_shot = || self.count();
        // Who looks on is told of windows.
        let watch = &ProgressWatch::new(watch, &two_shot);
        let mut begin = 0;
        while begin < self.total {
            let window = match &self.rest {
                Some(rest) if self.total - begin < self.whole.bytes => rest,
                _ => &self.whole,
            };
            let here = CallBuffers {
                input: buffers.input.wrapping_add(begin),
                output: buffers.output.wrapping_add(begin),
                ..*buffers
            };
            // SAFETY: the caller's promise: the window lies inside the vector and the scratch.
            let ran = unsafe {
                for part in window.others() {
                    let (target, source) = (scratch.wrapping_add(part.start), here.input);
                    move_bytes(target, source.wrapping_add(part.start), part.len(), false);
                }
                processes::try_run(
                    DirectPrograms { mapped: Some(&window.program), kernel: None },
                    work,
                    &here,
                    buffer_addresses,
                    resolve,
                    links,
                    room,
                    stamp,
                    watch,
                )?
            };
            if !ran {
                return Err(Error::Internal("a rank says that its scratch is nowhere".into()));
            }
            for part in window.others() {
                let target = here.output.wrapping_add(part.start);
                // SAFETY: as above.
                unsafe {
                    let source = scratch.wrapping_add(part.start);
                    move_bytes(target, source, part.len(), streams);
                }
            }
            watch.step();
            begin += window.bytes;
        }
        Ok(())
    }
}

impl Window {
    /// What this rank does not reduce itself.
    fn others(&self) -> [Range<usize>; 2] {
        [0..self.own.start, self.own.end..self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::direct::run::Base;
    use crate::executor::links::{Reach, SegmentMap};
    use crate::transport::fifo::FifoShape;
    use crate::transport::segment::Segment;
    use crate::transport::wait::SpinPolicy;
    use std::sync::Arc;
    use std::time::Duration;

    /// Nobody fails.
    struct Calm;

    impl WaitCheck for Calm {
        fn check(&self, peer: usize, waited: Duration) -> Result<()> {
            assert!(waited < Duration::from_secs(20), "rank {peer} does not come");
            Ok(())
        }
    }

    /// What three ranks make of it where rank 1 `has` scratch or not, and rank 2 `reaches` it.
    fn opened(has: bool, reaches: bool) -> [bool; 3] {
        const BYTES: usize = 4096;
        let map = SegmentMap::new(3, FifoShape { depth: 2, slot_bytes: 64 });
        let segments: Vec<_> =
            (0..3).map(|_| Arc::new(Segment::anonymous(map.bytes()).unwrap())).collect();
        let open_on = |rank: usize| {
            let patience = SpinPolicy::new(3, 2, None);
            let mut links = Links::new(rank, map, segments.clone(), &[Reach::Machine; 3], patience);
            let region = if has || rank != 1 { rank as u64 + 1 } else { BufferLocation::PRIVATE };
            let mine = BufferAddresses {
                input_region: region,
                output_region: region,
                ..BufferAddresses::default()
            };
            let mut resolve = |theirs: &BufferAddresses, used: &Used| {
                assert_eq!((used.input, used.output), (BYTES, BYTES));
                let found = reaches || rank != 2 || theirs.output_region != 2;
                Ok(found.then_some(Base::NULL))
            };
            let stamp = Stamp { source: rank as u32, ..Stamp::default() };
            open(&mine, BYTES, &mut resolve, &mut links, &stamp, &Calm).unwrap()
        };
        let open_on = &open_on;
        std::thread::scope(|scope| {
            let ranks = [0, 1, 2].map(|rank| scope.spawn(move || open_on(rank)));
            ranks.map(|rank| rank.join().unwrap())
        })
    }

    #[test]
    fn scratch_is_open_to_all_ranks_or_to_none() {
        assert_eq!(opened(true, true), [true; 3]);
        assert_eq!(opened(false, true), [false; 3]);
        // Only one rank sees that it does not reach another's.
        assert_eq!(opened(true, false), [false; 3]);
    }
}
