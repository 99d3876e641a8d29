//! Memory of other processes' devices that a rank which launches has opened.
//!
//! What is offered no more is closed when a call finds that nothing uses it: its rank's last launch
//! is through, and so is all that its stream was given. For a driver that closes memory waits for
//! every stream of the process, and one of them may wait for what its thread does next. Where much
//! is offered no more, that is waited for.
//!
//! A driver may refuse to open memory where its owner had other memory before, which is still open
//! in this process, by whichever communicator ("already mapped"). Then all that nothing uses is
//! closed, of all communicators; what is still offered is opened again when a call names it.

use super::exports::BufferRef;
use super::peer_values::PeerValues;
use crate::communicator::memory::peer_regions::Parcel;
use crate::device::cuda::{
    Address, DeferredFree, Device, Event, HandleType, Imported, IpcMemHandle,
};
use crate::error::{Error, Result};
use crate::executor::control_block::device;
use crate::executor::links::DevicePages;
use crate::fork::ForkSafeMutex;
use crate::sync::Mutex;
use std::sync::{Arc, Weak};

/// What ranks of this process have open, each what its calls named.
static ALL: ForkSafeMutex<Vec<Weak<Mutex<Holding>>>> = ForkSafeMutex::new(Vec::new());

/// Bytes that nobody offers any more, which stay open while a stream has something to do.
const MOST_STALE_BYTES: usize = 256 << 20;

/// A peer's memory, under the number that it has there.
struct Open {
    peer: usize,
    number: u64,
    /// The turn that named it last.
    used: u64,
    memory: DeferredFree<Imported>,
}

struct Holding {
    open: Vec<Open>,
    /// The rank's launches so far.
    turn: u64,
    /// The last one may use what it has named before `last` stands for it.
    is_busy: bool,
    /// The end of the last launch.
    last: Arc<Event>,
}

impl Holding {
    /// Take out what nothing uses.
    fn idle(&mut self) -> Vec<Open> {
        if self.last.has_passed() != Ok(true) {
            return Vec::new();
        }
        let (turn, is_busy) = (self.turn, self.is_busy);
        self.open.extract_if(.., |open| !is_busy || open.used != turn).collect()
    }
}

/// What a rank has opened of its peers' memory.
pub struct IpcImports {
    holding: Arc<Mutex<Holding>>,
}

impl IpcImports {
    /// Of a rank whose last launch is through when `last` has passed.
    pub fn new(last: &Arc<Event>) -> IpcImports {
        let holding = Holding { open: Vec::new(), turn: 0, is_busy: false, last: last.clone() };
        let holding = Arc::new(Mutex::new(holding));
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&holding));
        IpcImports { holding }
    }

    /// What is found from here on is in use.
    pub fn begin(&self) {
        let mut holding = self.holding.lock();
        holding.turn += 1;
        holding.is_busy = true;
    }

    /// Only until `last` has passed, which was recorded.
    pub fn end(&self) {
        self.holding.lock().is_busy = false;
    }

    /// The address here of a part of another process's memory, of which `bytes` bytes are used;
    /// `None` where it was not opened yet.
    pub fn find(&self, peer: usize, part: BufferRef, bytes: usize) -> Option<Result<Address>> {
        let mut holding = self.holding.lock();
        let turn = holding.turn;
        let is_it = |open: &&mut Open| (open.peer, open.number) == (peer, part.number);
        let open = holding.open.iter_mut().find(is_it)?;
        open.used = turn;
        Some(open.memory.address(part.offset, bytes))
    }

    /// Close what nobody offers any more, if the stream of the call that begins is idle, or if it
    /// is much.
    pub fn close_stale(
        &self,
        pages: &DevicePages,
        is_idle: impl FnOnce() -> Result<bool>,
    ) -> Result<()> {
        let mut holding = self.holding.lock();
        let is_stale = |open: &Open| !pages.of(open.peer).offers(open.number);
        let bytes = |open: &Open| open.memory.bytes();
        let stale_bytes: usize = holding.open.iter().filter(|open| is_stale(open)).map(bytes).sum();
        if stale_bytes == 0 || !holding.last.has_passed()? {
            return Ok(());
        }
        if stale_bytes < MOST_STALE_BYTES && !is_idle()? {
            return Ok(());
        }
        let stale: Vec<Open> = holding.open.extract_if(.., |open| is_stale(open)).collect();
        drop(holding);
        // A driver may wait for others' launches, which must not wait for the lock.
        drop(stale);
        Ok(())
    }

    /// Open what `peer` offers; or why the driver does not open it. The context is current.
    pub fn open(
        &self,
        device: &Arc<Device>,
        pages: &DevicePages,
        (peer, number): (usize, u64),
        talk: &mut PeerValues,
    ) -> Result<Result<()>> {
        let shared = offered(pages, peer, number)?;
        let memory = if shared.pieces == 0 {
            let (handle, bytes) = (IpcMemHandle(shared.handle), shared.bytes as usize);
            let opened = DeferredFree::new_or_none(|| imported(device, handle, bytes))?;
            let Some(memory) = opened else { return Ok(Err(still_open(peer))) };
            memory
        } else {
            let parcel = talk.memory.take(peer, number, shared.pieces as usize);
            let carrier = HandleType::of(shared.handle[0]);
            let is_whole = |parcel: &Parcel| {
                let sum = |sum: usize, piece: &(usize, _)| sum.checked_add(piece.0);
                parcel.iter().try_fold(0, sum) == Some(shared.bytes as usize)
            };
            let (Some(parcel), Some(carrier)) = (parcel.filter(is_whole), carrier) else {
                return Err(Error::usage(format!(
                    "rank {peer} named memory (number {number}) whose pieces it has not sent"
                )));
            };
            DeferredFree::new(|| Imported::of_pieces(device, &parcel, carrier))?
        };
        let mut holding = self.holding.lock();
        let used = holding.turn;
        holding.open.push(Open { peer, number, used, memory });
        Ok(Ok(()))
    }

    /// All of it, which is then no more of this.
    pub fn take(&self) -> impl Drop {
        std::mem::take(&mut self.holding.lock().open)
    }
}

/// Open another process's memory of so many bytes, for which all may be closed that nothing uses;
/// `None` where the driver opens it not even then. The context is current.
pub fn imported(
    device: &Arc<Device>,
    handle: IpcMemHandle,
    bytes: usize,
) -> Result<Option<Imported>> {
    let imported = Imported::new(device, handle, bytes)?;
    if imported.is_some() {
        return Ok(imported);
    }
    let all: Vec<Arc<Mutex<Holding>>> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    let idle: Vec<Vec<Open>> = all.iter().map(|one| one.lock().idle()).collect();
    drop(idle);
    Imported::new(device, handle, bytes)
}

/// Why memory was not opened.
pub fn still_open(peer: usize) -> Error {
    Error::Cuda(format!(
        "the driver does not open rank {peer}'s memory: this process still has open what was there \
         before (CUDA_ERROR_ALREADY_MAPPED)"
    ))
}

/// What `peer` offers under a number that it has named.
pub fn offered(pages: &DevicePages, peer: usize, number: u64) -> Result<device::ExportInfo> {
    pages.of(peer).offered(number).ok_or_else(|| {
        Error::usage(format!("rank {peer} named memory (number {number}) that it does not offer"))
    })
}
