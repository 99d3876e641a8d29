//! Windows, and what ranks do to each other's: put, signal, wait.
//!
//! A call here is done when it returns: host memory has no stream to be behind. Signals are
//! counters of the communicator, a word for each rank and number.
#![allow(unsafe_code)]

use super::shared;
use crate::comm::{Comm, ask, spoil};
use crate::group::{self, Phase};
use crate::types::*;
use ringcomm::Communicator;
use ringcomm::communicator::one_sided::PeerWindows;
use ringcomm::error::{Error, Result};
use ringcomm::ffi::convert;
use ringcomm::ffi::handle::{HandleKind, HandleTable};
use ringcomm::ffi::object;
use ringcomm::ffi::types::RawDataType;
use ringcomm::sync::Mutex;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// Signals that each rank has on each other.
const SIGNALS: usize = 64;

/// A window that a program has.
struct Registered {
    window: PeerWindows,
    /// Whose it is.
    number: u32,
    /// The registration of memory that was not shared before.
    key: Option<u64>,
}

static WINDOWS: HandleTable<Registered> = HandleTable::new(HandleKind::NcclWindow);

/// The counters of a communicator's signals.
pub struct Signals {
    window: PeerWindows,
    /// How many of each have been waited for.
    taken: Mutex<Vec<u64>>,
}

impl Signals {
    fn new(communicator: &Communicator) -> Result<Signals> {
        let words = communicator.nranks() * SIGNALS;
        let memory = shared(words * size_of::<u64>())?;
        let window = communicator.window(memory.cast(), words * size_of::<u64>())?;
        Ok(Signals { window, taken: Mutex::new(vec![0; words]) })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.window.close();
        // SAFETY: allocated by `new`. A peer that maps it keeps its own mapping.
        unsafe { ringcomm::ffi::memory::ringMemFree(self.window.address.cast()) };
    }
}

/// A handle that goes to the thread that uses it.
#[derive(Clone, Copy)]
struct Own(ncclComm_t);

// SAFETY: a handle is a number.
unsafe impl Send for Own {}

/// A place that a program keeps until the call, or its group, is over.
struct Place(*mut ncclWindow_t);

// SAFETY: nobody else writes there until the group's end.
unsafe impl Send for Place {}

/// All ranks call it; ranks of one thread do so in a group. A buffer that no other rank could reach
/// is registered first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommWindowRegister(
    comm: ncclComm_t,
    buff: *mut c_void,
    size: usize,
    win: *mut ncclWindow_t,
    winFlags: c_int,
) -> ncclResult_t {
    let checked = ask(REGISTER, comm, |own, _| {
        let flags = NCCL_WIN_COLL_SYMMETRIC
            | NCCL_WIN_STRICT_ORDERING
            | NCCL_WIN_GIN_ONLY
            | NCCL_WIN_CFT_COUNTED;
        if winFlags & !flags != 0 {
            return Err(Error::argument(format!("{winFlags:#x} has flags that no window has")));
        }
        if (buff.is_null() && size > 0) || win.is_null() {
            return Err(Error::argument("buff or win is NULL"));
        }
        own.check(REGISTER).map_err(|_| refused(own))
    });
    if checked != ncclSuccess {
        return spoil(checked);
    }
    let (own, buffer, place) = (Own(comm), buff.expose_provenance(), Place(win));
    group::together(comm, Phase::Windows, move || {
        let comm = { own }.0;
        let buffer = std::ptr::with_exposed_provenance_mut(buffer);
        ask(REGISTER, comm, |own, ring| {
            let made = register(own, ring, buffer, size)?;
            // SAFETY: the caller's promise: there is room until the call or its group is over.
            unsafe { { place }.0.write_unaligned(made) };
            Ok(())
        })
    })
}

const REGISTER: &str = "ncclCommWindowRegister";

/// Make this rank's window, with those of the others. NULL for a device's memory, which calls reach
/// as it is, and to which nobody puts.
fn register(own: &Comm, ring: &object::Comm, buffer: *mut u8, size: usize) -> Result<ncclWindow_t> {
    own.wait_for_calls();
    let communicator = &ring.communicator;
    if communicator.check_on_host(buffer, "buff").is_err() {
        return Ok(null_mut());
    }
    let key = match size {
        0 => None,
        _ => communicator.register(buffer, size).ok(),
    };
    if own.signals.get().is_none() {
        let _ = own.signals.set(Signals::new(communicator)?);
    }
    let window = communicator.window(buffer, size)?;
    let registered = Registered { window, number: communicator.number(), key };
    let handle = WINDOWS.insert(registered)?;
    own.windows.lock().push(handle.addr());
    Ok(handle.cast())
}

/// The communicator is at its end: its windows are, too.
pub fn close_all(own: &Comm) {
    for window in std::mem::take(&mut *own.windows.lock()) {
        drop(WINDOWS.close(std::ptr::without_provenance_mut(window)));
    }
}

/// Why a communicator takes no calls, as it was kept.
fn refused(own: &Comm) -> Error {
    Error::usage(own.last_text().to_string_lossy())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommWindowDeregister(
    comm: ncclComm_t,
    win: ncclWindow_t,
) -> ncclResult_t {
    if win.is_null() {
        return ncclSuccess;
    }
    ask("ncclCommWindowDeregister", comm, |own, ring| {
        of(win, ring)?;
        let mut registered = WINDOWS.close(win.cast()).ok_or_else(|| none(win))?;
        own.windows.lock().retain(|window| *window != win.addr());
        registered.window.close();
        registered.key.map_or(Ok(()), |key| ring.communicator.deregister(key))
    })
}

fn none(win: ncclWindow_t) -> Error {
    Error::argument(format!("{win:p} is no window of this communicator, or is one no more"))
}

/// Enter a window of this communicator.
fn of(
    win: ncclWindow_t,
    ring: &object::Comm,
) -> Result<ringcomm::ffi::handle::InsideCall<Registered>> {
    let inside = WINDOWS.enter(win.cast());
    inside.filter(|found| found.number == ring.communicator.number()).ok_or_else(|| none(win))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclWinGetUserPtr(
    comm: ncclComm_t,
    win: ncclWindow_t,
    outUserPtr: *mut *mut c_void,
) -> ncclResult_t {
    ask("ncclWinGetUserPtr", comm, |_, ring| {
        let out = convert::out(outUserPtr, "outUserPtr")?;
        out.set(of(win, ring)?.window.address.cast());
        Ok(())
    })
}

/// The word of a signal from rank `from`.
fn word(sigIdx: c_int, ctx: c_int, from: usize) -> Result<usize> {
    if ctx != 0 {
        return Err(Error::argument(format!("context {ctx}; there is context 0")));
    }
    match usize::try_from(sigIdx) {
        Ok(index) if index < SIGNALS => Ok(from * SIGNALS + index),
        _ => Err(Error::argument(format!("signal {sigIdx}; there are 0 to {}", SIGNALS - 1))),
    }
}

fn signals(own: &Comm) -> Result<&Signals> {
    own.signals.get().ok_or_else(|| {
        Error::usage("a communicator has signals once all ranks have called ncclCommWindowRegister")
    })
}

/// Whether a call may be made.
fn ready(function: &str, own: &Arc<Comm>, flags: c_uint) -> Result<()> {
    if flags != 0 {
        return Err(Error::argument(format!("flags {flags:#x}; give 0")));
    }
    own.check(function).map_err(|_| refused(own))
}

/// A put, with its signal, or a signal alone.
struct Put {
    source: usize,
    bytes: usize,
    peer: usize,
    window: usize,
    at: usize,
    word: usize,
}

impl Put {
    fn run(&self, own: &Comm, ring: &object::Comm) -> Result<()> {
        own.wait_for_calls();
        let communicator = &ring.communicator;
        if self.window != 0 {
            let window = std::ptr::with_exposed_provenance_mut(self.window);
            let source = std::ptr::with_exposed_provenance(self.source);
            let registered = of(window, ring)?;
            // SAFETY: the caller's promise.
            unsafe {
                communicator.put(&registered.window, self.peer, self.at, source, self.bytes)?;
            }
        }
        communicator.signal(&signals(own)?.window, self.peer, self.word)
    }
}

/// Check a call and do it, now or at the group's end.
fn enqueue<T: Send + 'static>(
    name: &'static str,
    comm: ncclComm_t,
    phase: Phase,
    check: impl FnOnce(&Arc<Comm>, &object::Comm) -> Result<T>,
    run: impl FnOnce(T, &Comm, &object::Comm) -> Result<()> + Send + 'static,
) -> ncclResult_t {
    let mut checked = None;
    let code = ask(name, comm, |own, ring| {
        checked = Some(check(own, ring)?);
        Ok(())
    });
    let Some(checked) = checked else { return spoil(code) };
    let own = Own(comm);
    group::together(comm, phase, move || ask(name, { own }.0, |own, ring| run(checked, own, ring)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclPutSignal(
    localbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    peerWin: ncclWindow_t,
    peerWinOffset: usize,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    _stream: cudaStream_t,
) -> ncclResult_t {
    const NAME: &str = "ncclPutSignal";
    let check = |own: &Arc<Comm>, ring: &object::Comm| {
        ready(NAME, own, flags)?;
        let communicator = &ring.communicator;
        let peer = convert::rank(peer, communicator.nranks(), "peer")?;
        let bytes = convert::bytes(count, convert::data_type(RawDataType(datatype))?)?;
        if localbuff.is_null() && bytes > 0 {
            return Err(Error::argument("localbuff is NULL"));
        }
        communicator.check_on_host(localbuff.cast(), "localbuff")?;
        signals(own)?;
        drop(of(peerWin, ring)?);
        let word = word(sigIdx, ctx, communicator.rank())?;
        let (source, window) = (localbuff.expose_provenance(), peerWin.expose_provenance());
        Ok(Put { source, bytes, peer, window, at: peerWinOffset, word })
    };
    enqueue(NAME, comm, Phase::Puts, check, |put, own, ring| put.run(own, ring))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclSignal(
    peer: c_int,
    sigIdx: c_int,
    ctx: c_int,
    flags: c_uint,
    comm: ncclComm_t,
    _stream: cudaStream_t,
) -> ncclResult_t {
    const NAME: &str = "ncclSignal";
    let check = |own: &Arc<Comm>, ring: &object::Comm| {
        ready(NAME, own, flags)?;
        let peer = convert::rank(peer, ring.communicator.nranks(), "peer")?;
        signals(own)?;
        let word = word(sigIdx, ctx, ring.communicator.rank())?;
        Ok(Put { source: 0, bytes: 0, peer, window: 0, at: 0, word })
    };
    enqueue(NAME, comm, Phase::Puts, check, |put, own, ring| put.run(own, ring))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclWaitSignal(
    nDesc: c_int,
    signalDescs: *mut ncclWaitSignalDesc_t,
    comm: ncclComm_t,
    _stream: cudaStream_t,
) -> ncclResult_t {
    const NAME: &str = "ncclWaitSignal";
    let check = |own: &Arc<Comm>, ring: &object::Comm| {
        ready(NAME, own, 0)?;
        let count = usize::try_from(nDesc)
            .map_err(|_| Error::argument(format!("{nDesc} descriptors of signals")))?;
        let mut descriptors = Vec::new();
        if count > 0 {
            convert::read_array(signalDescs, count, "signalDescs", &mut descriptors)?;
        }
        signals(own)?;
        let wanted = |one: &ncclWaitSignalDesc_t| {
            let peer = convert::rank(one.peer, ring.communicator.nranks(), "peer")?;
            let more = u64::try_from(one.opCnt)
                .map_err(|_| Error::argument(format!("{} signals to wait for", one.opCnt)))?;
            Ok((peer, word(one.sigIdx, one.ctx, peer)?, more))
        };
        descriptors.iter().map(wanted).collect::<Result<Vec<_>>>()
    };
    enqueue(NAME, comm, Phase::Waits, check, |wanted, own, ring| {
        own.wait_for_calls();
        let signals = signals(own)?;
        for (peer, word, more) in wanted {
            let count = signals.taken.lock()[word] + more;
            ring.communicator.await_signal(&signals.window, peer, word, count)?;
            signals.taken.lock()[word] = count;
        }
        Ok(())
    })
}
