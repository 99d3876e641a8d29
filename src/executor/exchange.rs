//! Point-to-point messages: a batch of sends and receives that complete in any order.
//!
//! Messages between the same two ranks in the same direction keep their call order; all others go
//! on as their peers allow, so a batch cannot deadlock however its ranks ordered it. Within a
//! process a message above the slot size is lent: the sender posts its address, the receiver copies
//! from there and frees the message, which tells the sender that its buffer is its own again.
#![allow(unsafe_code)]

use super::host::move_bytes;
use super::links::{Links, Reach};
use crate::error::Result;
use crate::transport::fifo::Stamp;
use crate::transport::wait::{self, Waiting, Watch};
use std::time::Duration;

/// One message under way.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub sends: bool,
    pub peer: usize,
    /// The buffer; only read where `sends`.
    pub address: *mut u8,
    pub bytes: usize,
    pub stamp: Stamp,
    state: State,
}

// SAFETY: the address is only used during the call that owns the buffer.
unsafe impl Send for Transfer {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Bytes moved so far.
    Moving(usize),
    /// The peer reads it where it lies.
    Lent,
    Done,
}

impl Transfer {
    pub fn new(sends: bool, peer: usize, address: *mut u8, bytes: usize, stamp: Stamp) -> Transfer {
        Transfer { sends, peer, address, bytes, stamp, state: State::Moving(0) }
    }
}

/// Bytes of a message that carries an address instead of data.
const LOAN_BYTES: usize = size_of::<usize>();

/// By peer: whether an earlier message to it (1) or from it (0) is still under way.
pub type Lanes = Vec<[bool; 2]>;

/// Run the batch to its end. `lanes` has an entry for each rank; it only saves an allocation.
///
/// Panics where messages of the rank to itself do not match.
///
/// # Safety
/// Every buffer is valid for its bytes and used by nothing else.
pub unsafe fn run(
    batch: &mut [Transfer],
    lanes: &mut Lanes,
    links: &mut Links,
    watch: &dyn Watch,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { run_local(batch, links.rank) };
    loop {
        let Some(waiting) = batch.iter().find(|transfer| transfer.state != State::Done) else {
            return links.flush(watch);
        };
        let (peer, patience) = (waiting.peer, links.patience);
        // SAFETY: the pages outlive the links.
        let bells = unsafe { (&*links.bell(links.rank), &*links.bell(peer)) };
        let mut moves = Moves { batch, links, lanes, watch };
        if moves.links.one_machine() {
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
    lanes: &'a mut Lanes,
    watch: &'a dyn Watch,
}

impl Waiting for Moves<'_> {
    type Value = Result<()>;

    fn poll(&mut self) -> Option<Result<()>> {
        // SAFETY: the promise made to `run`.
        match unsafe { sweep(self.batch, self.links, self.lanes, self.watch) } {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        }
    }

    fn sleep(&mut self, time: Duration) -> Option<Result<()>> {
        self.links.sleep(time);
        None
    }
}

/// Copy the messages that a rank sends itself, in order; the caller has seen that they match.
unsafe fn run_local(batch: &mut [Transfer], rank: usize) {
    loop {
        let open = |sends: bool| {
            batch.iter().position(|t| t.peer == rank && t.sends == sends && t.state != State::Done)
        };
        let (Some(send), Some(recv)) = (open(true), open(false)) else {
            assert_eq!(open(true), open(false), "a message to itself has two ends");
            return;
        };
        assert_eq!(batch[send].bytes, batch[recv].bytes, "a message to itself has one length");
        let (target, source) = (batch[recv].address, batch[send].address);
        // SAFETY: the caller's promise.
        unsafe { move_bytes(target, source, batch[send].bytes, false) };
        batch[send].state = State::Done;
        batch[recv].state = State::Done;
    }
}

/// Move everything that can move now; whether anything did.
unsafe fn sweep(
    batch: &mut [Transfer],
    links: &mut Links,
    lanes: &mut Lanes,
    watch: &dyn Watch,
) -> Result<bool> {
    lanes.fill([false; 2]);
    let mut moved = false;
    for transfer in batch.iter_mut().filter(|transfer| transfer.state != State::Done) {
        let lane = &mut lanes[transfer.peer][usize::from(transfer.sends)];
        if *lane {
            continue;
        }
        // SAFETY: the caller's promise.
        moved |= unsafe {
            match (transfer.sends, links.is_remote(transfer.peer)) {
                (true, false) => advance_send(transfer, links),
                (false, false) => advance_recv(transfer, links, watch)?,
                (_, true) => advance_remote(transfer, links, watch)?,
            }
        };
        *lane = transfer.state != State::Done;
    }
    Ok(moved)
}

unsafe fn advance_send(transfer: &mut Transfer, links: &mut Links) -> bool {
    let slot = links.geometry.slot_bytes;
    let peer = transfer.peer;
    let mut moved = false;
    if transfer.state == State::Lent {
        let finished = links.freed_all(peer);
        if finished {
            transfer.state = State::Done;
        }
        return finished;
    }
    while let State::Moving(done) = transfer.state {
        let lends = links.reach(peer) == Reach::Process && transfer.bytes > slot;
        let bytes = if lends { LOAN_BYTES } else { (transfer.bytes - done).min(slot) };
        let Some(payload) = links.try_reserve(peer, bytes) else { break };
        if lends {
            // SAFETY: the slot holds `LOAN_BYTES`.
            unsafe { payload.cast::<usize>().write_unaligned(transfer.address.addr()) };
            // The receiver of this process turns the number back into the pointer.
            let _ = transfer.address.expose_provenance();
        } else {
            // SAFETY: the slot and the buffer hold `bytes`.
            unsafe {
                let source = transfer.address.add(done);
                move_bytes(payload, source, bytes, links.streams(peer, bytes));
            }
        }
        links.post(peer, &transfer.stamp, bytes);
        moved = true;
        transfer.state = match (lends, done + bytes == transfer.bytes) {
            (true, _) => State::Lent,
            (false, true) => State::Done,
            (false, false) => State::Moving(done + bytes),
        };
    }
    moved
}

unsafe fn advance_recv(
    transfer: &mut Transfer,
    links: &mut Links,
    watch: &dyn Watch,
) -> Result<bool> {
    let slot = links.geometry.slot_bytes;
    let peer = transfer.peer;
    let mut moved = false;
    while let State::Moving(done) = transfer.state {
        let lent = links.reach(peer) == Reach::Process && transfer.bytes > slot;
        let bytes = if lent { LOAN_BYTES } else { (transfer.bytes - done).min(slot) };
        let Some(payload) = links.try_receive(peer, &transfer.stamp, bytes, watch)? else { break };
        if lent {
            links.visit(&[peer], watch)?;
        }
        // SAFETY: the stamp proves that the sender lends as many bytes as this rank expects; if it
        // gives up it waits for the visit to end.
        unsafe {
            if lent {
                let address = payload.cast::<usize>().read_unaligned();
                let source = std::ptr::with_exposed_provenance(address);
                move_bytes(transfer.address, source, transfer.bytes, false);
                links.end_visit();
            } else {
                move_bytes(transfer.address.add(done), payload, bytes, false);
            }
        }
        links.free(peer);
        moved = true;
        transfer.state = if lent || done + bytes == transfer.bytes {
            State::Done
        } else {
            State::Moving(done + bytes)
        };
    }
    Ok(moved)
}

/// Move a message to or from another machine: from and to the buffers themselves.
unsafe fn advance_remote(
    transfer: &mut Transfer,
    links: &mut Links,
    watch: &dyn Watch,
) -> Result<bool> {
    let Transfer { peer, stamp, .. } = *transfer;
    let mut moved = false;
    while let State::Moving(done) = transfer.state {
        let bytes = (transfer.bytes - done).min(links.longest_message());
        let address = transfer.address.wrapping_add(done);
        // SAFETY: the buffer holds these bytes until the batch is over, which ends with a flush.
        let went = unsafe {
            match transfer.sends {
                true => links.try_lend(peer, &stamp, address, bytes, watch)?,
                false => links.try_receive_into(peer, &stamp, address, bytes, watch)?,
            }
        };
        if !went {
            break;
        }
        moved = true;
        transfer.state = match done + bytes == transfer.bytes {
            true => State::Done,
            false => State::Moving(done + bytes),
        };
    }
    Ok(moved)
}
