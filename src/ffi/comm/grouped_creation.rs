//! How communicators come into being: one at a time, or together at the end of a group.
//!
//! Making a communicator waits for its other ranks. A thread that makes several of them, or splits
//! several, therefore does so in a group: what is asked for there is kept, and at the group's end
//! all of it happens at the same time, each on a thread of its own. What is made from the same
//! parent happens in the order of the calls, on one thread: it uses the parent's own operations,
//! whose order must be the same on all ranks.

use crate::communicator::enqueue::group::GroupMember;
use crate::communicator::init::spawn_all;
use crate::communicator::{Communicator, enqueue};
use crate::error::Result;
use crate::ffi::boundary::caught;
use crate::ffi::convert::Out;
use crate::ffi::object::{COMMUNICATORS, Comm};
use crate::ffi::types::ringComm_t;
use std::cell::RefCell;
use std::sync::Arc;

type Make = Box<dyn FnOnce() -> Result<Option<Communicator>> + Send>;

/// A communicator that was asked for in a group.
struct Pending {
    make: Make,
    /// The communicator it is made from.
    parent: Option<Arc<Communicator>>,
    /// That one waits for this group's end.
    _kept: Option<Arc<()>>,
    debug: u32,
    out: Out<ringComm_t>,
}

thread_local! {
    static PENDING: RefCell<Vec<Pending>> = const { RefCell::new(Vec::new()) };
}

/// Make a communicator, now or at the end of the open group, and write its handle to `out`; NULL
/// where this rank takes no part. `parent` is the communicator it is made from, if there is one.
pub fn create(
    out: Out<ringComm_t>,
    debug: u32,
    parent: Option<&Arc<Communicator>>,
    make: impl FnOnce() -> Result<Option<Communicator>> + Send + 'static,
) -> Result<()> {
    if enqueue::is_open() {
        let (parent, _kept) = (parent.cloned(), parent.and_then(|parent| parent.kept()));
        let pending = Pending { make: Box::new(make), parent, _kept, debug, out };
        PENDING.with_borrow_mut(|all| all.push(pending));
        return Ok(());
    }
    out.set(handle(make()?, debug)?);
    Ok(())
}

fn handle(communicator: Option<Communicator>, debug: u32) -> Result<ringComm_t> {
    let Some(communicator) = communicator else { return Ok(std::ptr::null_mut()) };
    Ok(COMMUNICATORS.insert(Comm::new(communicator, debug))?.cast())
}

/// Handles for all communicators, or for none.
pub fn handles(made: Vec<(Option<Communicator>, u32)>) -> Result<Vec<ringComm_t>> {
    let mut handles: Vec<ringComm_t> = Vec::with_capacity(made.len());
    for (communicator, debug) in made {
        match handle(communicator, debug) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                for made in handles {
                    COMMUNICATORS.close(made.cast());
                }
                return Err(error);
            }
        }
    }
    Ok(handles)
}

/// Drop what the group asked for: the group has failed.
pub fn forget_group() {
    // A thread that is ending has no group.
    let _ = PENDING.try_with(RefCell::take);
}

/// What one thread makes, one after the other: places in the group, and how to fill them.
struct Chain {
    parent: Option<Arc<Communicator>>,
    makes: Vec<(usize, Make)>,
}

type Made = (usize, Result<Option<Communicator>>);

impl Chain {
    fn run(self) -> Vec<Made> {
        self.makes.into_iter().map(|(place, make)| (place, caught(make))).collect()
    }
}

/// Chains of one parent each, in the order of the calls.
fn chains(makes: impl Iterator<Item = (Option<Arc<Communicator>>, Make)>) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    for (place, (parent, make)) in makes.enumerate() {
        let same = |chain: &&mut Chain| match (&chain.parent, &parent) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        match chains.iter_mut().find(same) {
            Some(chain) => chain.makes.push((place, make)),
            None => chains.push(Chain { parent, makes: vec![(place, make)] }),
        }
    }
    chains
}

/// Make what the group asked for. All succeed, or none is handed out and the first error says why.
pub fn finish_group() -> Result<()> {
    let pending = PENDING.try_with(RefCell::take).unwrap_or_default();
    if pending.is_empty() {
        return Ok(());
    }
    let (places, makes): (Vec<_>, Vec<_>) =
        pending.into_iter().map(|one| ((one.out, one.debug), (one.parent, one.make))).unzip();
    let chains = chains(makes.into_iter());
    let parents: Vec<_> = chains.iter().filter_map(|chain| chain.parent.clone()).collect();
    let finished = make_all(places, chains);
    finished.inspect_err(|error| parents.iter().for_each(|parent| parent.note(error)))
}

/// Fill the `places` of a group with what its chains make.
fn make_all(places: Vec<(Out<ringComm_t>, u32)>, chains: Vec<Chain>) -> Result<()> {
    let made = spawn_all::all_or_none(chains.into_iter().map(|chain| move || chain.run()))?;
    let mut made: Vec<Made> =
        made.into_iter().flat_map(|chain| chain.expect("panics are caught")).collect();
    made.sort_unstable_by_key(|(place, _)| *place);
    let made = made.into_iter().map(|(_, made)| made).collect::<Result<Vec<_>>>()?;
    let (outs, debug): (Vec<_>, Vec<_>) = places.into_iter().unzip();
    for (out, handle) in outs.into_iter().zip(handles(made.into_iter().zip(debug).collect())?) {
        out.set(handle);
    }
    Ok(())
}
