//! What needs kernels compiled against NCCL's headers, or its switches: each says so.
#![allow(unsafe_code)]

use crate::comm::{COMMS, last_text, refuse};
use crate::environment::log;
use crate::types::*;
use ringcomm::ffi::object;
use std::ffi::{c_int, c_void};

fn unsupported(function: &str) -> ncclResult_t {
    let why = format!(
        "{function}: ringcomm has nothing for kernels compiled against NCCL's headers (device \
         communicators, multicast and peer pointers); ncclCommQueryProperties says so, too"
    );
    let code = refuse(ncclInvalidUsage, why);
    log::warn_alone(&last_text());
    code
}

/// As [`unsupported`], which the communicator remembers, too.
fn unsupported_on(function: &str, comm: ncclComm_t) -> ncclResult_t {
    let code = unsupported(function);
    if let Some(inside) = COMMS.enter(comm.cast()) {
        inside.note(&last_text());
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclDevCommCreate(
    comm: ncclComm_t,
    _reqs: *const c_void,
    _outDevComm: *mut c_void,
) -> ncclResult_t {
    unsupported_on("ncclDevCommCreate", comm)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclDevCommDestroy(
    comm: ncclComm_t,
    _devComm: *const c_void,
) -> ncclResult_t {
    unsupported_on("ncclDevCommDestroy", comm)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetLsaMultimemDevicePointer(
    _window: ncclWindow_t,
    _offset: usize,
    _outPtr: *mut *mut c_void,
) -> ncclResult_t {
    unsupported("ncclGetLsaMultimemDevicePointer")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetMultimemDevicePointer(
    _window: ncclWindow_t,
    _offset: usize,
    _multimem: ncclMultimemHandle_t,
    _outPtr: *mut *mut c_void,
) -> ncclResult_t {
    unsupported("ncclGetMultimemDevicePointer")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetLsaDevicePointer(
    _window: ncclWindow_t,
    _offset: usize,
    _lsaRank: c_int,
    _outPtr: *mut *mut c_void,
) -> ncclResult_t {
    unsupported("ncclGetLsaDevicePointer")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetPeerDevicePointer(
    _window: ncclWindow_t,
    _offset: usize,
    _peer: c_int,
    _outPtr: *mut *mut c_void,
) -> ncclResult_t {
    unsupported("ncclGetPeerDevicePointer")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetMultimemDeviceLeInfo(
    _window: ncclWindow_t,
    _offset: usize,
    _leId: *mut c_void,
    _leOffset: *mut usize,
) -> ncclResult_t {
    unsupported("ncclGetMultimemDeviceLeInfo")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetCftDeviceLeInfo(
    _window: ncclWindow_t,
    _offset: usize,
    _peerCft: c_int,
    _cftTeam: ncclTeam_t,
    _leId: *mut c_void,
    _leOffset: *mut usize,
) -> ncclResult_t {
    unsupported("ncclGetCftDeviceLeInfo")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetPeerDeviceLeInfo(
    _window: ncclWindow_t,
    _offset: usize,
    _peerWorld: c_int,
    _leId: *mut c_void,
    _leOffset: *mut usize,
) -> ncclResult_t {
    unsupported("ncclGetPeerDeviceLeInfo")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclLsaBarrierCreateRequirement(
    _team: ncclTeam_t,
    _nBarriers: c_int,
    _outHandle: *mut c_void,
    _outReq: *mut c_void,
) -> ncclResult_t {
    unsupported("ncclLsaBarrierCreateRequirement")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGinBarrierCreateRequirement(
    comm: ncclComm_t,
    _team: ncclTeam_t,
    _nBarriers: c_int,
    _outHandle: *mut c_void,
    _outReq: *mut c_void,
) -> ncclResult_t {
    unsupported_on("ncclGinBarrierCreateRequirement", comm)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGinOutboxCreateRequirement(
    _nBlocks: c_int,
    _size_log2: c_int,
    _outHandle: *mut c_void,
    _outReq: *mut c_void,
) -> ncclResult_t {
    unsupported("ncclGinOutboxCreateRequirement")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGinInboxA2ACreateRequirement(
    _peers: ncclTeam_t,
    _nBlocks: c_int,
    _size_log2: c_int,
    _outHandle: *mut c_void,
    _outReq: *mut c_void,
) -> ncclResult_t {
    unsupported("ncclGinInboxA2ACreateRequirement")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclLLA2ACreateRequirement(
    _nBlocks: c_int,
    _nSlots: c_int,
    _outHandle: *mut c_void,
    _outReq: *mut c_void,
) -> ncclResult_t {
    unsupported("ncclLLA2ACreateRequirement")
}

/// No slots: there is nothing to have them.
#[unsafe(no_mangle)]
pub extern "C" fn pncclLLA2ACalcSlots(_maxElts: c_int, _maxEltSize: c_int) -> c_int {
    0
}

/// A team of the communicator's ranks; of no rank where there is no communicator.
fn team(comm: ncclComm_t, of: impl FnOnce(c_int, c_int) -> ncclTeam_t) -> ncclTeam_t {
    let made = COMMS.enter(comm.cast()).and_then(|inside| object::enter(inside.ring()).ok());
    let none = ncclTeam_t { nRanks: 0, rank: 0, stride: 0 };
    made.map_or(none, |made| {
        of(made.communicator.nranks() as c_int, made.communicator.rank() as c_int)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn pncclTeamWorld(comm: ncclComm_t) -> ncclTeam_t {
    team(comm, |nRanks, rank| ncclTeam_t { nRanks, rank, stride: 1 })
}

/// Ranks whose memory a kernel reaches: this one alone.
#[unsafe(no_mangle)]
pub extern "C" fn pncclTeamLsa(comm: ncclComm_t) -> ncclTeam_t {
    team(comm, |_, _| ncclTeam_t { nRanks: 1, rank: 0, stride: 1 })
}

/// The ranks of one place in each such team: all.
#[unsafe(no_mangle)]
pub extern "C" fn pncclTeamRail(comm: ncclComm_t) -> ncclTeam_t {
    pncclTeamWorld(comm)
}

#[unsafe(no_mangle)]
pub extern "C" fn pncclTeamCft(comm: ncclComm_t, _mode: ncclCftTeamMode_t) -> ncclTeam_t {
    pncclTeamLsa(comm)
}

#[unsafe(no_mangle)]
pub extern "C" fn pncclTeamCftMultimem(comm: ncclComm_t) -> ncclTeam_t {
    pncclTeamLsa(comm)
}

/// The communicator's rank of a rank of the team.
#[unsafe(no_mangle)]
pub extern "C" fn pncclTeamRankToWorld(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int {
    let world = pncclTeamWorld(comm);
    world.rank.wrapping_add(rank.wrapping_sub(team.rank).wrapping_mul(team.stride))
}

#[unsafe(no_mangle)]
pub extern "C" fn pncclTeamRankToLsa(comm: ncclComm_t, team: ncclTeam_t, rank: c_int) -> c_int {
    pncclTeamRankToWorld(comm, team, rank).wrapping_sub(pncclTeamWorld(comm).rank)
}
