//! A communicator with more ranks than the one that it is made from.
#![allow(unsafe_code)]

use super::meeting::{Meeting, free, of_ring, take_id};
use super::{Settings, begin, init, parent_of};
use crate::comm::{Comm, ask, refuse, spoil};
use crate::create::{Make, create};
use crate::types::*;
use ringcomm::communicator::init::new_id;
use ringcomm::error::{Error, Result};
use ringcomm::ffi::convert;
use ringcomm::{Communicator, Config};
use std::ffi::c_int;
use std::sync::Arc;

/// An id by which this communicator grows, on one of its ranks. It is there once at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommGetUniqueId(
    comm: ncclComm_t,
    uniqueId: *mut ncclUniqueId,
) -> ncclResult_t {
    ask("ncclCommGetUniqueId", comm, |own, _| {
        let out = convert::out(uniqueId, "uniqueId")?;
        let mut grows_by = own.grows_by.lock();
        if grows_by.is_some() {
            return Err(Error::usage(
                "ncclCommGetUniqueId: the last id has not been used; grow by it first",
            ));
        }
        let id = of_ring(&convert::unique_id_to_c(&new_id(&Config::from_environment()?)?));
        *grows_by = Some(id);
        out.set(id);
        Ok(())
    })
}

/// Ranks keep their numbers; a new one has no communicator, the id, and the number it was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommGrow(
    comm: ncclComm_t,
    nRanks: c_int,
    uniqueId: *const ncclUniqueId,
    rank: c_int,
    newcomm: *mut ncclComm_t,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    const NAME: &str = "ncclCommGrow";
    // SAFETY: the caller's promise: NULL, or an id.
    let id = (!uniqueId.is_null()).then(|| unsafe { uniqueId.read_unaligned() });
    if comm.is_null() {
        let Some(id) = id else {
            let why = format!("{NAME}: a new rank needs the id; uniqueId is NULL");
            return spoil(refuse(ncclInvalidArgument, why));
        };
        // SAFETY: the caller's promise.
        return unsafe { init(NAME, newcomm, (nRanks, rank), &id, config) };
    }
    let (from, parent) = match parent_of(NAME, comm) {
        Ok(parent) => parent,
        Err(code) => return spoil(code),
    };
    let asked = Arc::clone(&parent);
    begin(NAME, newcomm, Some(&asked), || {
        let nranks = convert::number_of_ranks(nRanks)?;
        if nranks <= from.nranks() {
            let now = from.nranks();
            return Err(Error::argument(format!("{nranks} ranks are not more than {now}")));
        }
        if rank != -1 {
            return Err(Error::argument(format!("rank {rank} of a rank that has one; give -1")));
        }
        // SAFETY: the caller's promise.
        let settings = unsafe { Settings::of_child(config, parent.is_blocking()) }?;
        let (source, before) = (Arc::clone(&from), Arc::clone(&parent));
        let make: Make = Box::new(move |own| grow(&source, &before, nranks, id, own).map(Some));
        create(NAME, (newcomm, true), settings, Some((from, parent)), make)
    })
}

fn grow(
    from: &Communicator,
    before: &Comm,
    nranks: usize,
    id: Option<ncclUniqueId>,
    own: &Comm,
) -> Result<Communicator> {
    before.wait_for_calls();
    let grown =
        agree(from, id).and_then(|meeting| meeting.join(nranks, from.rank(), from.config(), own));
    // It is used, or of no use any more.
    if let Some(used) = before.grows_by.lock().take() {
        free(&used);
    }
    grown
}

/// The one id that one of the ranks has.
fn agree(from: &Communicator, id: Option<ncclUniqueId>) -> Result<Meeting> {
    let mine = id.map_or([0; NCCL_UNIQUE_ID_BYTES], |id| id.internal.map(|byte| byte as u8));
    let mut all = vec![0u8; NCCL_UNIQUE_ID_BYTES * from.nranks()];
    from.all_gather(&mine, &mut all)?;
    let mut given =
        all.chunks(NCCL_UNIQUE_ID_BYTES).filter(|one| one.iter().any(|byte| *byte != 0));
    let (Some(one), None) = (given.next(), given.next()) else {
        return Err(Error::usage(
            "ncclCommGrow: one rank gives the id of its ncclCommGetUniqueId, and the others NULL",
        ));
    };
    let mut internal = [0; NCCL_UNIQUE_ID_BYTES];
    internal.iter_mut().zip(one).for_each(|(to, from)| *to = *from as std::ffi::c_char);
    take_id(&ncclUniqueId { internal })
}
