//! Communicators: made, divided, made smaller and larger.
#![allow(unsafe_code)]

mod grow;
mod meeting;
mod settings;

pub use grow::*;
pub use meeting::{pncclGetUniqueId, take_id};
pub use settings::Settings;

use crate::comm::{COMMS, Comm, REVOKED, answer, enter, refuse, refuse_by, spoil};
use crate::create::{Make, create};
use crate::environment::{self, log};
use crate::types::*;
use ringcomm::device::cuda::Driver;
use ringcomm::error::{Error, Result};
use ringcomm::ffi::boundary::caught;
use ringcomm::ffi::comm::grouped_creation;
use ringcomm::ffi::convert;
use ringcomm::ffi::object;
use ringcomm::{Communicator, Config, DeviceChoice};
use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommInitRank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe { init("ncclCommInitRank", comm, (nranks, rank), &commId, null()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe { init("ncclCommInitRankConfig", comm, (nranks, rank), &commId, config) }
}

/// Ranks meet by the first of the ids; the process that made another one frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommInitRankScalable(
    newcomm: *mut ncclComm_t,
    nranks: c_int,
    myrank: c_int,
    nId: c_int,
    commIds: *mut ncclUniqueId,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    const NAME: &str = "ncclCommInitRankScalable";
    if nId < 1 || nId > nranks || commIds.is_null() {
        let why = format!("{NAME}: {nId} ids at {commIds:p}; give one to {nranks} of them");
        return spoil(refuse(ncclInvalidArgument, why));
    }
    // SAFETY: the caller's promise: so many ids are there.
    unsafe {
        for at in 1..nId as usize {
            meeting::free(&commIds.add(at).read_unaligned());
        }
        init(NAME, newcomm, (nranks, myrank), &commIds.read_unaligned(), config)
    }
}

unsafe fn init(
    function: &'static str,
    comm: *mut ncclComm_t,
    (nranks, rank): (c_int, c_int),
    id: &ncclUniqueId,
    config: *const ncclConfig_t,
) -> ncclResult_t {
    begin(function, comm, None, || {
        let nranks = convert::number_of_ranks(nranks)?;
        let rank = convert::rank(rank, nranks, "rank")?;
        let id = take_id(id)?;
        // SAFETY: the caller's promise.
        let (settings, config) = unsafe { Settings::of_new(config) }?;
        let make: Make = Box::new(move |own| id.join(nranks, rank, &config, own).map(Some));
        create(function, (comm, true), settings, None, make)
    })
}

/// Ask for a communicator: nothing is written where it is refused but NULL. `parent` is what it is
/// made from, which remembers why.
fn begin(
    function: &'static str,
    out: *mut ncclComm_t,
    parent: Option<&Comm>,
    body: impl FnOnce() -> Result<ncclResult_t>,
) -> ncclResult_t {
    environment::begin();
    if out.is_null() {
        let why = format!("{function}: there is no place for the result");
        return spoil(refuse(ncclInvalidArgument, why));
    }
    caught(body).unwrap_or_else(|error| {
        // SAFETY: the caller's promise: there is room for a handle.
        unsafe { out.write_unaligned(null_mut()) };
        let code = refuse_by(&crate::comm::OfFunction::of_function(error, function));
        let text = crate::comm::last_text();
        if let Some(parent) = parent {
            parent.note(&text);
        }
        log::warn_alone(&text);
        spoil(code)
    })
}

/// As many as `ringCommInitAll` makes.
const MOST_RANKS_HERE: usize = 1024;

/// All ranks of a new communicator in this process, on the devices of the list, or the first ones.
/// On a machine without a GPU all of them are on the host, whatever the list says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommInitAll(
    comm: *mut ncclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> ncclResult_t {
    answer(|| {
        let nranks = convert::number_of_ranks(ndev)?;
        if comm.is_null() || nranks > MOST_RANKS_HERE {
            return Err(Error::argument(format!(
                "ncclCommInitAll: {nranks} ranks at {comm:p}; the limit in a process is \
                 {MOST_RANKS_HERE}"
            )));
        }
        let has_devices = Driver::get().and_then(Driver::devices).is_ok_and(|count| count > 0);
        let mut listed = Vec::new();
        if has_devices && !devlist.is_null() {
            convert::read_array(devlist, nranks, "devlist", &mut listed)?;
        }
        let devices = match (has_devices, devlist.is_null()) {
            (false, _) => None,
            (true, true) => Some((0..ndev).collect::<Vec<c_int>>()),
            (true, false) => Some(listed),
        };
        let seats: Vec<DeviceChoice> = (0..nranks)
            .map(|rank| match devices {
                None => DeviceChoice::Host,
                Some(ref list) => DeviceChoice::Device(list[rank]),
            })
            .collect();
        let config = Config::from_environment()?;
        let all = Communicator::init_all_on(&seats, &config)?;
        let all = all.into_iter().map(|one| (Some(one), config.debug)).collect();
        let made = grouped_creation::handles(all)?;
        for (rank, ring) in made.into_iter().enumerate() {
            let own = Comm::new(true, None);
            own.set_ring(ring);
            own.over(ncclSuccess);
            log::made("ncclCommInitAll", &own);
            let handle = COMMS.insert(Arc::clone(&own))?;
            own.handle.store(handle.addr(), Relaxed);
            // SAFETY: the caller's promise: there is room for `ndev` handles.
            unsafe { comm.add(rank).write_unaligned(handle.cast()) };
        }
        Ok(())
    })
}

/// What mends a communicator that has failed.
const SHRINK: &str = "ncclCommShrink";

/// What a communicator is made from: the library's, once nothing of this layer's keeps it busy.
fn parent_of(
    function: &'static str,
    comm: ncclComm_t,
) -> Result<(Arc<Communicator>, Arc<Comm>), ncclResult_t> {
    let inside = enter(function, comm)?;
    // Revoked is what it may be.
    if !inside.is(REVOKED) {
        inside.check(function)?;
    }
    let made = object::enter(inside.ring()).map_err(|error| inside.refuse_by(&error))?;
    if function != SHRINK
        && !inside.is(REVOKED)
        && let Some(error) = made.communicator.async_error()
    {
        return Err(inside.refuse_by(&error));
    }
    Ok((Arc::clone(&made.communicator), Arc::clone(&inside)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommSplit(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    const NAME: &str = "ncclCommSplit";
    let (from, parent) = match parent_of(NAME, comm) {
        Ok(parent) => parent,
        Err(code) => return spoil(code),
    };
    let asked = Arc::clone(&parent);
    begin(NAME, newcomm, Some(&asked), || {
        if color < 0 && color != NCCL_SPLIT_NOCOLOR {
            let why = format!("{color} is neither a color nor NCCL_SPLIT_NOCOLOR (-1)");
            return Err(Error::argument(why));
        }
        // SAFETY: the caller's promise.
        let settings = unsafe { Settings::of_child(config, parent.is_blocking()) }?;
        let is_revoked = parent.is(REVOKED);
        let (from, stream) = (from, Arc::clone(&parent));
        let source = Arc::clone(&from);
        let make: Make = Box::new(move |_| {
            stream.wait_for_calls();
            match is_revoked {
                // It takes no calls any more, but agrees on a successor, which is split instead.
                true => source.shrink(&[], None)?.split(color, key, None),
                false => source.split(color, key, None),
            }
        });
        create(NAME, (newcomm, color >= 0), settings, Some((from, parent)), make)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommShrink(
    comm: ncclComm_t,
    excludeRanksList: *mut c_int,
    excludeRanksCount: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
    shrinkFlags: c_int,
) -> ncclResult_t {
    const NAME: &str = SHRINK;
    let (from, parent) = match parent_of(NAME, comm) {
        Ok(parent) => parent,
        Err(code) => return spoil(code),
    };
    let asked = Arc::clone(&parent);
    begin(NAME, newcomm, Some(&asked), || {
        let count = usize::try_from(excludeRanksCount)
            .map_err(|_| Error::argument(format!("{excludeRanksCount} excluded ranks")))?;
        let mut listed = Vec::new();
        if count > 0 {
            convert::read_array(excludeRanksList, count, "excludeRanksList", &mut listed)?;
        }
        let excluded = listed
            .iter()
            .map(|rank| convert::rank(*rank, from.nranks(), "excluded rank"))
            .collect::<Result<Vec<_>>>()?;
        if excluded.contains(&from.rank()) {
            return Err(Error::argument("this rank is excluded; the excluded do not call"));
        }
        match shrinkFlags {
            NCCL_SHRINK_DEFAULT => {}
            NCCL_SHRINK_ABORT => from.abort(),
            other => return Err(Error::argument(format!("{other} is no flag of a shrink"))),
        }
        // SAFETY: the caller's promise.
        let settings = unsafe { Settings::of_child(config, parent.is_blocking()) }?;
        let source = Arc::clone(&from);
        let make: Make = Box::new(move |_| source.shrink(&excluded, None).map(Some));
        create(NAME, (newcomm, true), settings, Some((from, parent)), make)
    })
}
