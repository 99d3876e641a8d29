//! Communicators: made, divided, ended.
#![allow(unsafe_code)]

use super::{config, grouped_creation};
use crate::bootstrap::allgather::root_threads;
use crate::communicator::enqueue::{self, refuse};
use crate::communicator::{self, Communicator};
use crate::config::{Config, DeviceChoice};
use crate::error::{Error, Result};
use crate::ffi::boundary::{failed, run, run_call, run_on};
use crate::ffi::convert;
use crate::ffi::object::{self, COMMUNICATORS, Comm};
use crate::ffi::types::*;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// Make the id that leads the ranks of one new communicator together.
///
/// Call it on one rank, and hand the 128 bytes to the others by any means: a file, a pipe, MPI. It
/// carries a secret: whoever has it can join. One id serves one communicator. On a machine with a
/// network the ranks may be on any host: a thread of the calling process introduces them to each
/// other, so the process has to live until all have joined; the thread and its sockets stay that
/// long, at most the deadline from when the first one came. Ids that nobody has used share one
/// thread, and hold sockets until `ringFreeUniqueId`. `RINGCOMM_SOCKET_IFNAME`,
/// `RINGCOMM_SOCKET_FAMILY` and `RINGCOMM_PORT_RANGE` say where it listens, and it does nowhere
/// else.
///
/// Errors: `ringInvalidArgument` for NULL; `ringSystemError` where no socket or no randomness is
/// to be had.
///
/// # Safety
/// `uniqueId` has room for a `ringUniqueId`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringGetUniqueId(uniqueId: *mut ringUniqueId) -> ringResult_t {
    run(|| {
        let out = convert::out(uniqueId, "uniqueId")?;
        let id = communicator::init::new_id(&Config::from_environment()?)?;
        out.set(convert::unique_id_to_c(&id));
        Ok(())
    })
}

/// As `ringGetUniqueId`, for a new communicator of some ranks of `comm`: the `nranks` numbers at
/// `ranks`, each once. Where they share a host they meet without the network, which takes a
/// fraction of the time, and the id holds no sockets.
///
/// One of them calls it, and hands the id to the others. `*uniqueId` is written on success. Errors:
/// `ringInvalidArgument` for NULL, a rank out of range, no rank; else as `ringGetUniqueId`.
///
/// # Safety
/// `ranks` has `nranks` numbers; `uniqueId` has room for a `ringUniqueId`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommGetUniqueId(
    comm: ringComm_t,
    ranks: *const c_int,
    nranks: c_int,
    uniqueId: *mut ringUniqueId,
) -> ringResult_t {
    run_on(comm, |comm| {
        let out = convert::out(uniqueId, "uniqueId")?;
        let (mut listed, count) = (Vec::new(), convert::number_of_ranks(nranks)?);
        convert::read_array(ranks, count, "ranks", &mut listed)?;
        let all = comm.communicator.nranks();
        let ranks: Vec<usize> =
            listed.iter().map(|rank| convert::rank(*rank, all, "rank")).collect::<Result<_>>()?;
        out.set(convert::unique_id_to_c(&comm.communicator.new_id_of(&ranks)?));
        Ok(())
    })
}

/// Give up what this process holds for an id that `ringGetUniqueId` gave and nobody will use: its
/// sockets. Ranks that try it from then on are refused. Nothing happens for an id that has been
/// used, that is free already, or that another process gave.
///
/// Errors: `ringInvalidArgument` for an id that is none.
#[unsafe(no_mangle)]
pub extern "C" fn ringFreeUniqueId(uniqueId: ringUniqueId) -> ringResult_t {
    run(|| {
        root_threads::free(&convert::unique_id(&uniqueId)?);
        Ok(())
    })
}

/// Join `nranks` ranks as rank `rank`; returns when all have come. As `ringCommInitRankConfig`
/// with a NULL `config`.
///
/// # Safety
/// `comm` has room for a `ringComm_t`, in a group until `ringGroupEnd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommInitRank(
    comm: *mut ringComm_t,
    nranks: c_int,
    commId: ringUniqueId,
    rank: c_int,
) -> ringResult_t {
    run(|| init_rank(comm, nranks, commId, rank, std::ptr::null()).map_err(refuse))
}

/// Join `nranks` ranks as rank `rank`, with settings; returns when all have come.
///
/// Every rank gives the same `nranks`, `commId` and settings, and a rank of its own from 0 to
/// `nranks - 1`. `config` may be NULL. In a group (`ringGroupStart`) the call returns at once and
/// `ringGroupEnd` makes all communicators that were asked for together, so that one thread can
/// be several ranks.
///
/// `*comm` is written on success. Errors: `ringInvalidArgument` for NULL, a rank out of range, an
/// id that is none, a setting out of bounds; `ringTimeout` where not all ranks came in time (the
/// text names those missing); `ringInvalidUsage` where ranks disagree.
///
/// # Safety
/// `comm` has room for a `ringComm_t`, in a group until `ringGroupEnd`; `config` is NULL or points
/// to an initialized `ringConfig_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommInitRankConfig(
    comm: *mut ringComm_t,
    nranks: c_int,
    commId: ringUniqueId,
    rank: c_int,
    config: *mut ringConfig_t,
) -> ringResult_t {
    run(|| init_rank(comm, nranks, commId, rank, config).map_err(refuse))
}

/// How long calls may take to end once they are aborted: some milliseconds, or a long copy.
const ENDING: Duration = Duration::from_secs(30);

fn init_rank(
    comm: *mut ringComm_t,
    nranks: c_int,
    id: ringUniqueId,
    rank: c_int,
    config: *const ringConfig_t,
) -> Result<()> {
    let out = convert::out(comm, "comm")?;
    let nranks = convert::number_of_ranks(nranks)?;
    let rank = convert::rank(rank, nranks, "rank")?;
    let id = convert::unique_id(&id)?;
    let mut config = config::resolve(config)?;
    communicator::gpu::pin_current_device(&mut config);
    grouped_creation::create(out, config.debug, None, move || {
        Communicator::init_rank(nranks, &id, rank, &config).map(Some)
    })
}

/// Ranks that `ringCommInitAll` makes: more than the largest machines have cores, and at the usual
/// 4 MiB of slots a rank still 4 GiB of memory at most.
const MOST_RANKS_HERE: usize = 1024;

/// Make a communicator whose ranks are all in this process, and hand out every rank's end.
///
/// `comm` is an array of `ndev` places; rank i's end is written to `comm[i]`, all of them on
/// success and none else. `devlist` is NULL, which puts all ranks on the CPU, or names the device
/// of each rank: a CUDA device's number, or -1 for the CPU. A device may have any number of ranks.
/// The ends are usually given to a thread each; one thread that makes the calls of several ranks
/// makes them in a group.
///
/// Errors: `ringInvalidArgument` for NULL, `ndev` below 1 or above 1024, a device that is not
/// there; `ringSystemError` where there is not a thread for each rank to start on.
///
/// # Safety
/// `comm` has room for `ndev` handles; `devlist` is NULL or has `ndev` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommInitAll(
    comm: *mut ringComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> ringResult_t {
    run(|| {
        let nranks = convert::number_of_ranks(ndev)?;
        if nranks > MOST_RANKS_HERE {
            return Err(Error::argument(format!(
                "{nranks} ranks in one process; the limit is {MOST_RANKS_HERE}"
            )));
        }
        let outs = convert::out_array(comm, nranks, "comm")?;
        let seats = seats(devlist, nranks)?;
        let config = config::resolve(std::ptr::null())?;
        let made = Communicator::init_all_on(&seats, &config)?;
        let made = made.into_iter().map(|one| (Some(one), config.debug)).collect();
        for (out, handle) in outs.into_iter().zip(grouped_creation::handles(made)?) {
            out.set(handle);
        }
        Ok(())
    })
}

/// Where a device list puts every rank.
fn seats(devlist: *const c_int, nranks: usize) -> Result<Vec<DeviceChoice>> {
    if devlist.is_null() {
        return Ok(vec![DeviceChoice::Host; nranks]);
    }
    let mut devices = Vec::new();
    convert::read_array(devlist, nranks, "devlist", &mut devices)?;
    let seat = |device: c_int| match device {
        -1 => Ok(DeviceChoice::Host),
        0.. => Ok(DeviceChoice::Device(device)),
        _ => Err(Error::argument(format!(
            "there is no device {device}; -1 is the CPU, and a NULL devlist is all CPU"
        ))),
    };
    devices.into_iter().map(seat).collect()
}

/// Divide a communicator: the ranks that give the same `color` form a new one, ordered by `key`
/// and, where keys are equal, by their old rank.
///
/// Every rank of `comm` calls it. A rank that gives `RING_SPLIT_NOCOLOR` joins none and gets NULL.
/// `config` NULL: the settings of `comm`. `comm` stays usable. In a group the call returns at once
/// and `ringGroupEnd` does it.
///
/// `*newcomm` is written on success. Errors: `ringInvalidArgument` for NULL, another negative
/// color, or other interfaces than those of `comm` between hosts; and those of a collective.
///
/// # Safety
/// `newcomm` has room for a `ringComm_t`, in a group until `ringGroupEnd`; `config` is NULL or
/// points to an initialized `ringConfig_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommSplit(
    comm: ringComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ringComm_t,
    config: *mut ringConfig_t,
) -> ringResult_t {
    run_call(comm, |comm| {
        let out = convert::out(newcomm, "newcomm")?;
        if color < 0 && color != RING_SPLIT_NOCOLOR {
            return Err(Error::argument(format!("{color} is neither a color nor NOCOLOR (-1)")));
        }
        let config = config::resolve_or_parent(config)?;
        let parent = Arc::clone(&comm.communicator);
        let debug = config.as_ref().map_or(comm.debug, |config| config.debug);
        grouped_creation::create(out, debug, Some(&comm.communicator), move || {
            parent.split(color, key, config.as_ref())
        })
    })
}

/// Make a communicator of the ranks that are left, in their old order.
///
/// An `excludeRanksCount` of 0 leaves out the dead and those who destroyed `comm`: the survivors
/// agree on which ranks those are, also where more die meanwhile. A rank that lives and does not
/// call is waited for. Up to 4,096 ranks find the dead like this; in a larger communicator they
/// have to be listed, and 0 is refused with `ringInvalidUsage`.
///
/// Else exactly the ranks in `excludeRanksList` are left out: those that stay call it with the same
/// list; those excluded need not take part and may be dead.
///
/// Where a network comes apart, the ranks on either side find those on the other dead, and both may
/// shrink and go on alone. Compare `ringCommCount` of `*newcomm` with what the job can go on with,
/// more than half of its ranks for one, before it writes a checkpoint or anything else that counts.
///
/// `shrinkFlags` is `RING_SHRINK_DEFAULT`, or `RING_SHRINK_ABORT` to abort first what is running on
/// `comm`, as after a failure. `config` NULL: the settings of `comm`. In a group the call returns
/// at once and `ringGroupEnd` does it.
///
/// `*newcomm` is written on success. Errors: `ringInvalidArgument` for NULL, a rank out of range,
/// this rank in the list, unknown flags, other interfaces than those of `comm` between hosts;
/// `ringTimeout` where a rank that should stay did not come; `ringRemoteError` where it gave up, or
/// died though the list keeps it.
///
/// # Safety
/// `excludeRanksList` has `excludeRanksCount` numbers; `newcomm` has room for a `ringComm_t`, in a
/// group until `ringGroupEnd`; `config` is NULL or points to an initialized `ringConfig_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommShrink(
    comm: ringComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ringComm_t,
    config: *mut ringConfig_t,
    shrinkFlags: c_int,
) -> ringResult_t {
    run_call(comm, |comm| {
        let out = convert::out(newcomm, "newcomm")?;
        let count = usize::try_from(excludeRanksCount).map_err(|_| {
            Error::argument(format!(
                "excludeRanksCount is {excludeRanksCount}; pass 0 for an empty list"
            ))
        })?;
        let mut raw = Vec::new();
        convert::read_array(excludeRanksList, count, "excludeRanksList", &mut raw)?;
        let nranks = comm.communicator.nranks();
        let excluded = raw
            .into_iter()
            .map(|rank| convert::rank(rank, nranks, "excluded rank"))
            .collect::<Result<Vec<_>>>()?;
        if excluded.contains(&comm.communicator.rank()) {
            return Err(Error::argument(
                "this rank is in the list of excluded ranks; the excluded do not call",
            ));
        }
        match shrinkFlags {
            RING_SHRINK_DEFAULT => {}
            RING_SHRINK_ABORT => comm.communicator.abort(),
            other => {
                return Err(Error::argument(format!(
                    "{other} is no flag of a shrink; pass RING_SHRINK_DEFAULT or RING_SHRINK_ABORT"
                )));
            }
        }
        let config = config::resolve_or_parent(config)?;
        let parent = Arc::clone(&comm.communicator);
        let debug = config.as_ref().map_or(comm.debug, |config| config.debug);
        grouped_creation::create(out, debug, Some(&comm.communicator), move || {
            parent.shrink(&excluded, config.as_ref()).map(Some)
        })
    })
}

/// Wait for every call that was started on this rank, then say goodbye to the other ranks. Between
/// hosts it waits until the machines of the others have all that this rank sent.
///
/// Ranks whose last calls differ, as in their roots, are told here, where the calls themselves
/// ended well: it waits up to a second for ranks of the machine that have not come to this rank's
/// last call.
///
/// Calls that wait on a host stream are done first. The handle stays valid for questions and for
/// `ringCommDestroy`; new calls are refused. A second time it does nothing.
///
/// Errors: `ringInvalidUsage` in a group that holds calls of the communicator, and where that of
/// another thread has not ended by the deadline, or last calls differ; the error that broke the
/// communicator.
///
/// # Safety
/// Safe for any argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommFinalize(comm: ringComm_t) -> ringResult_t {
    run_on(comm, |comm| {
        releasable(&comm.communicator)?;
        finalize(comm)
    })
}

/// Refuse to wait for calls that this thread itself keeps back in its open group.
fn releasable(communicator: &Arc<Communicator>) -> Result<()> {
    if enqueue::is_open() && Arc::strong_count(communicator) > 1 {
        return Err(Error::usage(
            "calls of this communicator may still be waiting for this thread's ringGroupEnd; end \
             the group first",
        ));
    }
    Ok(())
}

/// Wait for what was started, then say goodbye; a second time there is nothing to do.
fn finalize(comm: &Comm) -> Result<()> {
    communicator::enqueue::quiesce(&comm.communicator)?;
    let mut finalized = comm.finalized.lock();
    if !*finalized {
        comm.communicator.finalize()?;
        *finalized = true;
    }
    Ok(())
}

/// End this rank's part in a communicator and give its memory back.
///
/// New calls are refused from here on; those running, on other threads, and those that wait on a
/// host stream are done first. Finalizes, unless that was done or the communicator or a peer has
/// failed: only the call that runs is done then, and those that a stream still holds fail when
/// their turn comes, without touching a buffer. The handle is gone afterwards, also where
/// finalizing fails: its error is returned then, `ringAborted` where another thread called
/// `ringCommAbort` meanwhile. Calls in a group that another thread has not ended by the deadline
/// fail there. In every case this rank's buffers are the program's again.
///
/// Errors: `ringInvalidArgument` for NULL, garbage, and a handle that was destroyed;
/// `ringInvalidUsage` in a group that holds calls of the communicator, which stays as it was.
///
/// # Safety
/// Safe for any argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommDestroy(comm: ringComm_t) -> ringResult_t {
    run(|| {
        // The value stays where it is until the waiting is over, so that abort can end it.
        let none = || object::not_a("communicator", comm.cast());
        releasable(&object::enter(comm)?.communicator)?;
        let closing = COMMUNICATORS.bar(comm.cast()).ok_or_else(none)?;
        closing.drain();
        let finalized = match closing.communicator.async_error() {
            None => finalize(&closing),
            Some(_) => Ok(()),
        };
        // Waits for the call that runs: a failed communicator was not waited for above.
        drop(closing.take());
        finalized
    })
}

/// Make every call that runs on this rank of the communicator return `ringAborted` soon, tell the
/// other ranks, and destroy the handle.
///
/// Returns when the calls that ran have ended, also those of a group or a host stream. From any
/// thread, also while another one is in `ringCommDestroy` for the same handle. From a signal
/// handler that has interrupted a call that waits for other ranks it returns at once: that call
/// returns `ringAborted`, and the handle is there until it is aborted or destroyed from elsewhere.
///
/// Errors: `ringInvalidArgument` for NULL, garbage, and a handle that was destroyed.
///
/// # Safety
/// Safe for any argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommAbort(comm: ringComm_t) -> ringResult_t {
    run(|| {
        let inside = COMMUNICATORS
            .enter_alive(comm.cast())
            .ok_or_else(|| object::not_a("communicator", comm.cast()))?;
        inside.communicator.check_process()?;
        if inside.communicator.abort_interrupted() {
            return Ok(());
        }
        inside.communicator.abort();
        // Where another thread is in `ringCommDestroy`, the running call ends here too.
        inside.communicator.settle();
        drop(inside);
        // Where another thread is destroying it already, that one gives the memory back.
        // A handler that interrupted a call of which this does not know is not to wait for it.
        let closing = COMMUNICATORS.bar(comm.cast());
        drop(closing.and_then(|closing| closing.take_within(ENDING)));
        Ok(())
    })
}

/// The error that broke the communicator on this rank, `ringSuccess` if none has.
///
/// `*asyncError` is written on success. The text is that of `ringGetLastError(comm)`. Does not
/// wait.
///
/// # Safety
/// `asyncError` has room for a `ringResult_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringCommGetAsyncError(
    comm: ringComm_t,
    asyncError: *mut ringResult_t,
) -> ringResult_t {
    run_on(comm, |comm| {
        let out = convert::out(asyncError, "asyncError")?;
        out.set(match comm.communicator.async_error() {
            Some(error) => failed(&error, Some(comm)),
            None => ringResult_t::ringSuccess,
        });
        Ok(())
    })
}
