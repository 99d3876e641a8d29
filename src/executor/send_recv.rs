//! Point-to-point messages: a batch of sends and receives that complete in any order.
//!
//! Messages between the same two ranks in the same direction keep their call order; all others go
//! on as their peers allow, so a batch cannot deadlock however its ranks ordered it.
//!
//! A message may be lent: the sender posts where it is, the receiver copies from there and frees
//! the message, which tells the sender that its buffer is its own again. Within a process that is
//! any memory, between processes what they share, and, where the kernel reads it for them and that
//! is faster, the rest. A message above the slot size goes so where it can. A shorter one does
//! where that is faster and its sender waits for others anyway: by itself it leaves as soon as it
//! has a slot, as programs rely on, and so does one from memory that a message of the same batch
//! lands in.
#![allow(unsafe_code)]

use super::bounced_send_recv::{self, BounceBuffers, Passage};
use super::direct::run::{BufferLocation, Unread, reached};
use super::host::move_bytes;
use super::links::{Links, Reach};
use super::progress_watch::ProgressWatch;
use super::zero_copy::ZeroCopyPolicy;
use crate::device::host::streaming_threshold;
use crate::error::Result;
use crate::transport::cma;
use crate::transport::fifo::Stamp;
use crate::transport::wait::{self, OnBell, WaitCheck, Waiting};
use std::ops::Range;
use std::time::Duration;

/// One message under way.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub sends: bool,
    /// It goes through a bounce buffer, as the processor does not reach the buffer.
    pub is_away: bool,
    pub peer: usize,
    /// The buffer; only read where `sends`.
    pub address: *mut u8,
    pub bytes: usize,
    pub stamp: Stamp,
    pub(super) state: MessageState,
}

// SAFETY: the address is only used during the call that owns the buffer.
unsafe impl Send for Transfer {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageState {
    /// Bytes moved so far.
    Moving(usize),
    /// The peer is to be told where it lies.
    Lending(Loan),
    /// The peer reads it where it lies.
    Lent,
    /// It is read where the peer lends it, through a bounce buffer.
    Taking(Loan),
    Done,
}

impl Transfer {
    pub fn new(sends: bool, peer: usize, address: *mut u8, bytes: usize, stamp: Stamp) -> Transfer {
        let (is_away, state) = (false, MessageState::Moving(0));
        Transfer { sends, is_away, peer, address, bytes, stamp, state }
    }

    /// Bytes of it that have moved.
    fn done(&self) -> usize {
        match self.state {
            MessageState::Moving(done) => done,
            MessageState::Lending(_) | MessageState::Lent | MessageState::Taking(_) => 0,
            MessageState::Done => self.bytes,
        }
    }
}

/// What a message carries instead of data: where they are, in a region or in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Loan {
    /// As in [`super::direct::run::BufferAddresses`].
    pub region: u64,
    pub offset: u64,
}

/// Fewer than any slot has and than what is lent, so that its length tells a loan from data.
pub(super) const LOAN_BYTES: usize = size_of::<Loan>();

/// The memory that processes share, as far as messages need it.
pub trait SharedBuffers {
    /// Where a buffer of this rank lies for a peer, which has been sent what it needs for that.
    fn offer(&mut self, peer: usize, address: *const u8, bytes: usize) -> Loan;

    /// The address of what a peer in another process lends, if all of it is there; an error where
    /// this rank cannot map it.
    fn find(&mut self, loan: &Loan, bytes: usize) -> Result<Option<*const u8>>;
}

/// Nothing is shared.
impl SharedBuffers for () {
    fn offer(&mut self, _: usize, _: *const u8, _: usize) -> Loan {
        Loan { region: BufferLocation::PRIVATE, offset: 0 }
    }

    fn find(&mut self, _: &Loan, _: usize) -> Result<Option<*const u8>> {
        Ok(None)
    }
}

/// By peer: whether an earlier message to it (1) or from it (0) is still under way.
pub type PendingByPeer = Vec<[bool; 2]>;

/// Run the batch to its end. `pending` has an entry for each rank; it only saves an allocation.
///
/// Panics where messages of the rank to itself do not match.
///
/// # Safety
/// Every buffer is valid for its bytes and used by nothing else; so is, for one that is away, what
/// its bounce buffer is.
pub unsafe fn run(
    batch: &mut [Transfer],
    pending: &mut PendingByPeer,
    links: &mut Links,
    memory: &mut dyn SharedBuffers,
    zero_copy: ZeroCopyPolicy,
    bounce_buffers: &mut dyn BounceBuffers,
    watch: &dyn WaitCheck,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { run_local(batch, links.rank, bounce_buffers)? };
    let is_away = batch.iter().any(|transfer| transfer.is_away);
    lend(batch, links, memory, zero_copy);
    // Where all are empty there still is something to be done.
    let all = batch.iter().map(|transfer| transfer.bytes).sum::<usize>().max(1);
    let all = || all;
    let watch = &ProgressWatch::new(watch, &all);
    loop {
        // Until the wait is over nothing moves.
        watch.at(batch.iter().map(Transfer::done).sum());
        let Some(waiting) = batch.iter().find(|transfer| transfer.state != MessageState::Done)
        else {
            return links.flush(watch);
        };
        let (peer, patience) = (waiting.peer, links.patience);
        // SAFETY: the pages outlive the links.
        let bells = unsafe { (&*links.bell(links.rank), &*links.bell(peer)) };
        let mut moves = Moves { batch, links, pending, memory, bounce_buffers, watch };
        if moves.links.one_machine() && !is_away {
            wait::wait(patience, bells, peer, watch, || moves.poll())??;
        } else {
            wait::wait_on(patience, peer, watch, &mut moves)??;
        }
    }
}

/// Waiting until anything of a batch moves. Only made by [`run`], whose promises it relies on.
struct Moves<'a> {
    batch: &'a mut [Transfer],
    links: &'a mut Links,
    pending: &'a mut PendingByPeer,
    memory: &'a mut dyn SharedBuffers,
    bounce_buffers: &'a mut dyn BounceBuffers,
    watch: &'a dyn WaitCheck,
}

impl Waiting for Moves<'_> {
    type Value = Result<()>;

    fn poll(&mut self) -> Option<Result<()>> {
        // SAFETY: the promise made to `run`.
        match unsafe { sweep(self) } {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    }

    fn sleep(&mut self, time: Duration) -> Option<Result<()>> {
        let time =
            if self.bounce_buffers.is_waiting() { time.min(bounced_send_recv::NAP) } else { time };
        if self.links.one_machine() {
            // SAFETY: the pages outlive the links.
            let bell = unsafe { &*self.links.bell(self.links.rank) };
            return OnBell { bell, theirs: None, poll: || self.poll() }.sleep(time);
        }
        self.links.sleep(time);
        None
    }
}

/// Copy the messages that a rank sends itself, in order; the caller has seen that they match.
unsafe fn run_local(
    batch: &mut [Transfer],
    rank: usize,
    bounce_buffers: &mut dyn BounceBuffers,
) -> Result<()> {
    loop {
        let open = |sends: bool| {
            batch
                .iter()
                .position(|t| t.peer == rank && t.sends == sends && t.state != MessageState::Done)
        };
        let (Some(send), Some(recv)) = (open(true), open(false)) else {
            assert_eq!(open(true), open(false), "a message to itself has two ends");
            return Ok(());
        };
        assert_eq!(batch[send].bytes, batch[recv].bytes, "a message to itself has one length");
        let (target, source) = (batch[recv].address, batch[send].address);
        if batch[recv].is_away || batch[send].is_away {
            bounce_buffers.copy(send, recv)?;
        } else {
            // SAFETY: the caller's promise.
            unsafe { move_bytes(target, source, batch[send].bytes, false) };
        }
        batch[send].state = MessageState::Done;
        batch[recv].state = MessageState::Done;
    }
}

/// The addresses from the first to behind the last of some messages' buffers.
fn span<'a>(messages: impl Iterator<Item = &'a Transfer>) -> Range<usize> {
    let one = |message: &Transfer| message.address.addr()..message.address.addr() + message.bytes;
    let unite = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
    messages.map(one).reduce(unite).unwrap_or(0..0)
}

/// Whether a message's buffer shares bytes with a range.
fn meets(message: &Transfer, range: &Range<usize>) -> bool {
    let own = span(std::iter::once(message));
    own.start < range.end && range.start < own.end
}

/// Decide what is lent.
fn lend(
    batch: &mut [Transfer],
    links: &Links,
    memory: &mut dyn SharedBuffers,
    zero_copy: ZeroCopyPolicy,
) {
    let slot = links.geometry.slot_bytes;
    let receives = |one: &&Transfer| !one.sends && one.peer != links.rank;
    let sends = |one: &&Transfer| one.sends && one.peer != links.rank;
    let zero_copy = zero_copy.of(slot, batch.iter().any(|one| receives(&one)));
    let least = zero_copy.reached.min(zero_copy.by_cma);
    // Most batches of short messages.
    if !batch.iter().any(|one| sends(&one) && one.bytes >= least) {
        return;
    }
    // Where a message that a slot holds leaves from where another lands, it leaves first if its
    // send comes first, as it always has; so none before it may wait for its receiver.
    let landing = span(batch.iter().filter(receives));
    let is_overwritten = |one: &Transfer| {
        let range = span(std::iter::once(one));
        meets(one, &landing) && batch.iter().filter(receives).any(|other| meets(other, &range))
    };
    let swaps = batch.iter().filter(sends).any(|one| one.bytes <= slot && is_overwritten(one));
    let least = if swaps { least.max(slot + 1) } else { least };
    for transfer in batch.iter_mut() {
        let Transfer { sends, is_away, peer, address, bytes, .. } = *transfer;
        if !sends || is_away || peer == links.rank || bytes < least {
            continue;
        }
        let here = |region: u64| Loan { region, offset: address.expose_provenance() as u64 };
        let nowhere = Loan { region: BufferLocation::PRIVATE, offset: 0 };
        let loan = match links.reach(peer) {
            Reach::Process if bytes >= zero_copy.reached => here(BufferLocation::SAME_PROCESS),
            Reach::Process => nowhere,
            Reach::Machine => {
                let offered = match bytes >= zero_copy.reached {
                    true => memory.offer(peer, address, bytes),
                    false => nowhere,
                };
                let by_cma = offered.region == BufferLocation::PRIVATE && bytes >= zero_copy.by_cma;
                match by_cma && cma::is_lendable(address, bytes) {
                    true => here(BufferLocation::CMA),
                    false => offered,
                }
            }
            Reach::Network => continue,
        };
        if loan.region != BufferLocation::PRIVATE {
            transfer.state = MessageState::Lending(loan);
        }
    }
}

/// Move everything that can move now; whether anything did.
unsafe fn sweep(moves: &mut Moves) -> Result<bool> {
    let Moves { batch, links, pending, memory, bounce_buffers, watch } = moves;
    pending.fill([false; 2]);
    let mut moved = false;
    let open = |(_, transfer): &(usize, &mut Transfer)| transfer.state != MessageState::Done;
    for (index, transfer) in batch.iter_mut().enumerate().filter(open) {
        let pending = &mut pending[transfer.peer][usize::from(transfer.sends)];
        if *pending {
            continue;
        }
        // SAFETY: the caller's promise.
        moved |= unsafe {
            if transfer.is_away {
                let (memory, bounce_buffers) = (&mut **memory, &mut **bounce_buffers);
                bounced_send_recv::advance(
                    transfer,
                    index,
                    &mut Passage { links, memory, bounce_buffers, watch: *watch },
                )?
            } else {
                match (transfer.sends, links.is_remote(transfer.peer)) {
                    (true, false) => advance_send(transfer, links),
                    (false, false) => advance_recv(transfer, links, *memory, *watch)?,
                    (_, true) => advance_remote(transfer, links, *watch)?,
                }
            }
        };
        let is_run = transfer.sends && transfer.bytes >= LONGEST_RUN;
        *pending = transfer.state != MessageState::Done || is_run && links.is_remote(transfer.peer);
    }
    Ok(moved)
}

unsafe fn advance_send(transfer: &mut Transfer, links: &mut Links) -> bool {
    let slot = links.geometry.slot_bytes;
    let peer = transfer.peer;
    let mut moved = false;
    loop {
        match transfer.state {
            MessageState::Moving(done) => {
                let bytes = (transfer.bytes - done).min(slot);
                let Some(payload) = links.try_reserve(peer, bytes) else { break };
                // SAFETY: the slot and the buffer hold `bytes`.
                unsafe {
                    let source = transfer.address.add(done);
                    move_bytes(payload, source, bytes, links.streams(peer, bytes));
                }
                links.post(peer, &transfer.stamp, bytes);
                transfer.state = after(done + bytes, transfer.bytes);
            }
            MessageState::Lending(loan) => {
                let Some(payload) = links.try_reserve(peer, LOAN_BYTES) else { break };
                // SAFETY: the slot holds `LOAN_BYTES`.
                unsafe { payload.cast::<Loan>().write_unaligned(loan) };
                links.post(peer, &transfer.stamp, LOAN_BYTES);
                transfer.state = MessageState::Lent;
            }
            MessageState::Lent if links.freed_all(peer) => transfer.state = MessageState::Done,
            MessageState::Lent | MessageState::Taking(_) | MessageState::Done => break,
        }
        moved = true;
    }
    moved
}

/// The state of a message of which `done` bytes have moved.
pub(super) fn after(done: usize, bytes: usize) -> MessageState {
    if done == bytes { MessageState::Done } else { MessageState::Moving(done) }
}

unsafe fn advance_recv(
    transfer: &mut Transfer,
    links: &mut Links,
    memory: &mut dyn SharedBuffers,
    watch: &dyn WaitCheck,
) -> Result<bool> {
    let slot = links.geometry.slot_bytes;
    let Transfer { peer, address, stamp, .. } = *transfer;
    let streaming = is_long(transfer.bytes, links);
    let mut moved = false;
    while let MessageState::Moving(done) = transfer.state {
        let bytes = (transfer.bytes - done).min(slot);
        let may_be_lent = done == 0 && transfer.bytes > LOAN_BYTES;
        let other = if may_be_lent { LOAN_BYTES } else { bytes };
        let come = links.try_receive_either(peer, &stamp, [bytes, other], watch)?;
        let Some((payload, length)) = come else { break };
        if length == bytes {
            // SAFETY: the message and the buffer hold `bytes`.
            unsafe { move_bytes(address.add(done), payload, bytes, streaming) };
            transfer.state = after(done + bytes, transfer.bytes);
        } else {
            // SAFETY: a message of this length is a loan.
            let loan = unsafe { payload.cast::<Loan>().read_unaligned() };
            // SAFETY: the stamp proves that the sender lends as many bytes as this rank expects.
            unsafe { take_loan(transfer, &loan, links, memory, watch)? };
            transfer.state = MessageState::Done;
        }
        links.free(peer);
        moved = true;
    }
    Ok(moved)
}

/// Whether a message is longer than caches hold, as every rank may have one: it is written past
/// them.
fn is_long(bytes: usize, links: &Links) -> bool {
    bytes.saturating_mul(links.nranks) > streaming_threshold()
}

/// Copy what a peer lends; if it gives up it waits for the visit to end.
pub(super) unsafe fn take_loan(
    transfer: &Transfer,
    loan: &Loan,
    links: &Links,
    memory: &mut dyn SharedBuffers,
    watch: &dyn WaitCheck,
) -> Result<()> {
    let Transfer { peer, address, bytes, .. } = *transfer;
    if loan.region == BufferLocation::CMA {
        // SAFETY: the caller's promise.
        return unsafe { read_loan(transfer, loan, links, watch) };
    }
    let source = match links.reach(peer) {
        // Only a thread of this process knows an address here.
        Reach::Process => Ok(Some(std::ptr::with_exposed_provenance(loan.offset as usize))),
        _ => memory.find(loan, bytes),
    };
    let source = reached(source, links, peer, watch)?;
    links.begin_remote_access(&[peer], watch)?;
    let streaming = is_long(bytes, links);
    // SAFETY: the caller's promise for what is lent here; other memory was found to hold it all.
    unsafe { move_bytes(address, source, bytes, streaming) };
    links.end_remote_access();
    Ok(())
}

/// Have the kernel copy what a process lends.
unsafe fn read_loan(
    transfer: &Transfer,
    loan: &Loan,
    links: &Links,
    watch: &dyn WaitCheck,
) -> Result<()> {
    let Transfer { peer, address, bytes, .. } = *transfer;
    let process = links.process(peer)?;
    links.begin_remote_access(&[peer], watch)?;
    let go_on = &mut || watch.check(peer, Duration::ZERO);
    // SAFETY: the caller's promise.
    let read = unsafe { cma::read_on(process, address, loan.offset, bytes, go_on) };
    links.end_remote_access();
    read.map_err(|why| Unread { peer, why }.error(links, watch))?;
    // The peer has not died meanwhile, so the number was its own.
    watch.check(peer, Duration::ZERO)
}

/// Bytes that a message to another machine is ahead of those that come, before these are looked
/// for; one that is as long is so by itself. The kernel would hold several MiB in each direction,
/// and no cache does: messages of 64 MiB both ways take 18.4 ms so, and 12.8 as it is
/// (`benches/results/messages-2026-11-25.txt`).
const LONGEST_RUN: usize = 1 << 20;

/// Move a message to or from another machine: from and to the buffers themselves.
unsafe fn advance_remote(
    transfer: &mut Transfer,
    links: &mut Links,
    watch: &dyn WaitCheck,
) -> Result<bool> {
    let Transfer { peer, stamp, .. } = *transfer;
    let (mut moved, mut sent) = (false, 0);
    while let MessageState::Moving(done) = transfer.state {
        if sent >= LONGEST_RUN {
            break;
        }
        let bytes = links.next_piece(transfer.bytes, done);
        let address = transfer.address.wrapping_add(done);
        // SAFETY: the buffer holds these bytes until the batch is over, which ends with a flush.
        let went = unsafe {
            match transfer.sends {
                true => links.try_send_zero_copy(peer, &stamp, address, bytes, watch)?,
                false => links.try_receive_into(peer, &stamp, address, bytes, watch)?,
            }
        };
        if !went {
            break;
        }
        moved = true;
        transfer.state = match done + bytes == transfer.bytes {
            true => MessageState::Done,
            false => MessageState::Moving(done + bytes),
        };
        sent += if transfer.sends { bytes } else { 0 };
    }
    Ok(moved)
}
