//! Calls of ranks that are several processes of one machine, on one device or on several.
//!
//! ```text
//!  rank 0, leads its device          rank 1, of the same device
//!  stream: come (before = n)         stream: come (before = n)
//!  host:   cards  <----------------->  cards: where the buffers are
//!  stream: wait before of rank 1
//!          kernels on all buffers
//!          after = n
//!  host:   launched ---------------->  launched
//!                                    stream: wait after of rank 0
//! ```
//!
//! One rank of each device does that device's part of the call for all, in memory that it has
//! opened of the others. What a stream waits for is submitted before the wait is, so no number of
//! hardware queues can hang, and nothing spins on a device. The words that streams write and wait
//! for lie in host memory that all ranks share: what a dead rank will never write, the guardian of
//! every survivor writes in its place.
#![allow(unsafe_code)]

use super::super::call::Call;
use super::super::watch::OperationWatch;
use super::exports::{Exports, Imports, Part, offered};
use super::guardian::Guardian;
use super::launch::{has_room, launch_part};
use super::staging::{Guard, NAP, wait_for};
use crate::device::cuda::{
    Device, Event, Kernels, Recording, Registered, Stream, wait, wait_value, write_value,
};
use crate::error::{Error, Result};
use crate::executor::cuda::Place;
use crate::executor::device_page::DevicePage;
use crate::executor::flags::{Way, Work};
use crate::executor::links::{DevicePages, Links, Reach};
use crate::sync::atomic::{Ordering::SeqCst, fence};
use crate::transport::fifo::Stamp;
use crate::transport::wait::Watch;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a rank tells the others of its part in a call. Fits the smallest slot.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Card {
    input: Part,
    output: Part,
    scalar: f64,
    /// A [`FITS`] or one of the others.
    state: u64,
}

/// Kernels of other processes can do the call on the rank's buffers; its stream has come.
const FITS: u64 = 1;
/// They cannot: the call goes through the host.
const UNFIT: u64 = 0;
/// The rank has run into an error, which it will tell.
const FAILED: u64 = 2;

/// Words of exchanged messages are copied as they are.
pub trait Plain: Copy + Default {}
impl Plain for Card {}
impl Plain for u64 {}

/// One rank's part in the memory and the order that processes share.
pub struct Shared {
    device: Arc<Device>,
    kernels: Arc<Kernels>,
    rank: usize,
    nranks: usize,
    pages: DevicePages,
    /// By rank: its page, as this process's devices address it.
    words: Vec<Registered>,
    /// The rank that launches for each device: by device, in the order of ranks.
    leaders: Vec<usize>,
    exports: Exports,
    imports: Imports,
    /// This rank's stream is past the last call, for the next one's stream, and before anything
    /// that the call uses is let go.
    last: Event,
    /// A stream may have been given something that the event does not stand for.
    is_loose: bool,
    /// A call had to go through the host.
    has_detoured: bool,
    guardian: Option<Guardian>,
}

impl Shared {
    /// What a rank has by itself, before the others are asked.
    pub fn prepare(device: &Arc<Device>, kernels: &Arc<Kernels>, links: &Links) -> Result<Shared> {
        let pages = links.device_pages();
        let register = |rank: usize| {
            let start = std::ptr::from_ref(pages.of(rank)).cast_mut().cast();
            Registered::new(device, start, size_of::<DevicePage>())
        };
        Ok(Shared {
            words: (0..links.nranks).map(register).collect::<Result<_>>()?,
            device: device.clone(),
            kernels: kernels.clone(),
            rank: links.rank,
            nranks: links.nranks,
            pages,
            leaders: Vec::new(),
            exports: Exports::default(),
            imports: Imports::default(),
            last: Event::new(device, Recording::Moment)?,
            is_loose: false,
            has_detoured: false,
            guardian: None,
        })
    }

    /// All ranks are known: who launches, and who watches over their lives.
    pub fn appoint(&mut self, leaders: Vec<usize>, guardian: Guardian) {
        self.leaders = leaders;
        self.guardian = Some(guardian);
    }

    /// Close what was opened, unless a kernel may use it for ever.
    pub fn close_imports(&mut self) {
        let imports = std::mem::take(&mut self.imports);
        if !self.is_at_rest() {
            std::mem::forget(imports);
        }
    }

    /// How calls have run so far, in words.
    pub fn transport(&self) -> &'static str {
        if self.has_detoured { "cuda fused by ipc, or pinned" } else { "cuda fused by ipc" }
    }

    pub fn pages(&self) -> &DevicePages {
        &self.pages
    }

    fn mine(&self) -> &DevicePage {
        self.pages.of(self.rank)
    }

    /// Give the devices a call's work, if all ranks' buffers allow it; whether they did.
    /// `is_fit` says that this rank's do, as far as it knows.
    pub fn run(
        &mut self,
        call: &Call,
        is_fit: bool,
        links: &mut Links,
        (stamp, watch): (&Stamp, &OperationWatch),
    ) -> Result<bool> {
        let number = self.mine().begin();
        let came = self.come(call, is_fit, number);
        let mine = match &came {
            Ok(card) => *card,
            Err(_) => Card { state: FAILED, ..Card::default() },
        };
        let met = self.meet(call, mine, number, links, (stamp, watch));
        let ran = came.and(met);
        self.has_detoured |= matches!(ran, Ok(false));
        if mine.state != UNFIT && !matches!(ran, Ok(true)) {
            self.mark(call.order.stream);
        }
        ran
    }

    /// Meet the others with this rank's card; whether the devices have the call's work.
    fn meet(
        &mut self,
        call: &Call,
        mine: Card,
        number: u32,
        links: &mut Links,
        (stamp, watch): (&Stamp, &OperationWatch),
    ) -> Result<bool> {
        let cards = exchange(mine, 0..self.nranks, links, (stamp, watch))?;
        if let Some(failed) = cards.iter().position(|card| card.state == FAILED) {
            return Err(told(failed, watch));
        }
        if cards.iter().any(|card| card.state != FITS) {
            return Ok(false);
        }
        let mut led = Ok(());
        if let Some(part) = self.leaders.iter().position(|leader| *leader == self.rank) {
            led = self.lead(call, &cards, number, part, links, watch);
            let word = u64::from(led.is_ok());
            for peer in (0..self.nranks).filter(|peer| *peer != self.rank) {
                post(peer, word, links, (stamp, watch))?;
            }
        }
        // Heard also by a rank with an error of its own, so that no word is left for later.
        let mut failed = None;
        for leader in self.leaders.iter().filter(|leader| **leader != self.rank) {
            let word: u64 = receive(*leader, links, (stamp, watch))?;
            failed = failed.or((word == 0).then_some(*leader));
        }
        led?;
        if let Some(leader) = failed {
            return Err(told(leader, watch));
        }
        self.follow(call.order.stream, number).map(|()| true)
    }

    /// The stream of a call that did not come to its end may have been given some of it.
    fn mark(&mut self, stream: Stream) {
        let current = self.device.enter();
        let recorded = current.and_then(|_current| self.last.record(stream));
        self.is_loose |= recorded.is_err();
    }

    /// Say where this rank's buffers are, and let its stream say when it comes to the call.
    fn come(&mut self, call: &Call, is_fit: bool, number: u32) -> Result<Card> {
        let extents = call.extents(self.rank, self.nranks)?;
        if !is_fit || !has_room(call.collective, call.op, self.nranks) {
            return Ok(Card { state: UNFIT, ..Card::default() });
        }
        let _current = self.device.enter()?;
        self.exports.begin();
        let whose = (&*self.device, self.pages.of(self.rank));
        let mut part = |address: *const u8, bytes| {
            self.exports.part(whose, address.expose_provenance() as u64, bytes)
        };
        let input = part(call.send, extents.input)?;
        let output = part(call.recv, extents.output)?;
        let (Some(input), Some(output)) = (input, output) else {
            return Ok(Card { state: UNFIT, ..Card::default() });
        };
        // One call at a time, whatever streams they come from.
        wait(call.order.stream, &self.last)?;
        if self.leaders != [self.rank] {
            let word = self.words[self.rank].address(DevicePage::BEFORE);
            // SAFETY: the page is registered until `last` has passed.
            unsafe { write_value(&self.device, call.order.stream, word, number)? };
            self.mine().tell(number);
        }
        Ok(Card { input, output, scalar: call.scalar, state: FITS })
    }

    /// Launch part `part` of the call, between the other ranks' streams.
    fn lead(
        &mut self,
        call: &Call,
        cards: &[Card],
        number: u32,
        part: usize,
        links: &Links,
        watch: &OperationWatch,
    ) -> Result<()> {
        let _current = self.device.clone();
        let _current = _current.enter()?;
        let places: Vec<Place> = (0..self.nranks)
            .map(|rank| self.place(rank, &cards[rank], call, links, watch))
            .collect::<Result<_>>()?;
        let scalars: Vec<f64> = cards.iter().map(|card| card.scalar).collect();
        let work = Work {
            way: Way::Pieces,
            collective: call.collective,
            root: call.root,
            count: call.count,
            data_type: call.data_type,
            op: call.op,
            places: &places,
            scalars: &scalars,
        };
        let others: Vec<usize> = (0..self.nranks).filter(|rank| *rank != self.rank).collect();
        // A rank that has failed may use its buffers again; one that fails later waits for what is
        // launched here.
        links.visit(&others, watch)?;
        self.mine().launch(number);
        let launched = self.enqueue(&work, call.order.stream, number, part);
        links.end_visit();
        launched
    }

    fn enqueue(&self, work: &Work, stream: Stream, number: u32, part: usize) -> Result<()> {
        for rank in (0..self.nranks).filter(|rank| *rank != self.rank) {
            let word = self.words[rank].address(DevicePage::BEFORE);
            // SAFETY: the page is registered until `last` has passed.
            unsafe { wait_value(&self.device, stream, word, number)? };
        }
        launch_part(work, &self.kernels, stream, (part, self.leaders.len()))?;
        let word = self.words[self.rank].address(DevicePage::AFTER);
        // SAFETY: as above.
        unsafe { write_value(&self.device, stream, word, number) }
    }

    /// Let this rank's stream wait for what others have launched.
    fn follow(&mut self, stream: Stream, number: u32) -> Result<()> {
        let _current = self.device.enter()?;
        for leader in self.leaders.iter().filter(|leader| **leader != self.rank) {
            let word = self.words[*leader].address(DevicePage::AFTER);
            // SAFETY: the page is registered until `last` has passed.
            unsafe { wait_value(&self.device, stream, word, number)? };
        }
        self.last.record(stream)
    }

    /// Where a rank's buffers are in this process.
    fn place(
        &mut self,
        rank: usize,
        card: &Card,
        call: &Call,
        links: &Links,
        watch: &OperationWatch,
    ) -> Result<Place> {
        if rank == self.rank {
            return Ok(Place {
                input: call.send.expose_provenance() as u64,
                output: call.recv.expose_provenance() as u64,
            });
        }
        let extents = call.extents(rank, self.nranks)?;
        let mut address = |part: Part, bytes: usize| {
            if bytes == 0 {
                return Ok(0);
            }
            if links.reach(rank) == Reach::Process {
                // A process does not open its own memory, and needs not.
                return Ok(offered(&self.pages, rank, part.number)?.base + part.offset);
            }
            if let Some(found) = self.imports.find(rank, part, bytes) {
                return found;
            }
            // What is closed now may be used by the last call's kernels.
            wait_for(&self.last, watch)?;
            self.imports.open(&self.device, &self.pages, (rank, part.number))?;
            self.imports.find(rank, part, bytes).expect("it was opened")
        };
        Ok(Place {
            input: address(card.input, extents.input)?,
            output: address(card.output, extents.output)?,
        })
    }

    /// Wait, not for ever, until no launch of a peer's uses this rank's memory any more: it has
    /// failed, and its buffers are about to be the caller's again.
    pub fn see_launches_off(&self, longest: Duration) {
        if self.last.has_passed().is_err() {
            self.mine().lose();
        }
        // Pairs with the fence of a leader's visit: it sees this rank's failure, or its launch is
        // seen here.
        fence(SeqCst);
        let started = Instant::now();
        let is_used = |rank: usize| rank != self.rank && self.pages.of(rank).is_at_work();
        while (0..self.nranks).any(is_used) && started.elapsed() < longest {
            std::thread::sleep(NAP);
        }
    }

    /// Whether the last call is through, or is so soon.
    fn is_at_rest(&self) -> bool {
        /// As long as a copy of several gigabytes; what is before it on a stream may take for ever.
        const LONGEST: Duration = Duration::from_secs(2);
        !self.is_loose && wait_for(&self.last, &Within(LONGEST)).is_ok()
    }
}

impl Drop for Shared {
    /// What a stream still waits for, and memory that kernels still use, stays for good, and so
    /// does who lets the stream go.
    fn drop(&mut self) {
        if !self.is_at_rest() {
            std::mem::forget(self.pages.clone());
            std::mem::forget(std::mem::take(&mut self.words));
            std::mem::forget(std::mem::take(&mut self.imports));
            std::mem::forget(self.guardian.take());
        }
    }
}

/// Ends a wait after so long.
pub struct Within(pub Duration);

impl Guard for Within {
    fn look(&self, waited: Duration) -> Result<()> {
        if waited < self.0 {
            return Ok(());
        }
        let text = format!("work on the device did not end within {} ms", self.0.as_millis());
        Err(Error::Cuda(text))
    }
}

/// Tell all of `ranks` a value, and hear theirs: by rank.
pub fn exchange<T: Plain>(
    mine: T,
    ranks: std::ops::Range<usize>,
    links: &mut Links,
    how: (&Stamp, &OperationWatch),
) -> Result<Vec<T>> {
    let mut values = vec![mine; ranks.len()];
    let me = links.rank;
    for peer in ranks.clone().filter(|peer| *peer != me) {
        post(peer, mine, links, how)?;
    }
    for peer in ranks.filter(|peer| *peer != me) {
        values[peer] = receive(peer, links, how)?;
    }
    Ok(values)
}

fn post<T: Plain>(
    peer: usize,
    value: T,
    links: &mut Links,
    (stamp, watch): (&Stamp, &OperationWatch),
) -> Result<()> {
    let payload = links.reserve(peer, size_of::<T>(), watch)?;
    // SAFETY: the slot has room for it.
    unsafe { payload.cast::<T>().write_unaligned(value) };
    links.post(peer, stamp, size_of::<T>());
    Ok(())
}

fn receive<T: Plain>(
    peer: usize,
    links: &mut Links,
    (stamp, watch): (&Stamp, &OperationWatch),
) -> Result<T> {
    let payload = links.receive(peer, stamp, size_of::<T>(), watch)?;
    // SAFETY: the message has the bytes, and plain values have no others.
    let value = unsafe { payload.cast::<T>().read_unaligned() };
    links.free(peer);
    Ok(value)
}

/// The error of a rank that was told that `peer` has one: what the peer says of it, which it does
/// at once.
fn told(peer: usize, watch: &OperationWatch) -> Error {
    const LONGEST: Duration = Duration::from_secs(2);
    let started = Instant::now();
    while !watch.makes_communicator && started.elapsed() < LONGEST {
        if let Err(error) = watch.check(peer, Duration::ZERO) {
            return error;
        }
        std::thread::sleep(NAP);
    }
    Error::Cuda(format!("rank {peer} could not do its part in {}", watch.operation()))
}
