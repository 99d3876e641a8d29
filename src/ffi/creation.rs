//! How communicators come into being: one at a time, or together at the end of a group.
//!
//! Making a communicator waits for its other ranks. A thread that makes several of them, or splits
//! several, therefore does so in a group: what is asked for there is kept, and at the group's end
//! all of it happens at the same time, each on a thread of its own.

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::ffi::convert::Out;
use crate::ffi::enqueue;
use crate::ffi::object::{COMMUNICATORS, Comm};
use crate::ffi::types::ringComm_t;
use std::cell::RefCell;

type Make = Box<dyn FnOnce() -> Result<Option<Communicator>> + Send>;

/// A communicator that was asked for in a group.
struct Pending {
    make: Make,
    debug: u32,
    out: Out<ringComm_t>,
}

thread_local! {
    static PENDING: RefCell<Vec<Pending>> = const { RefCell::new(Vec::new()) };
}

/// Make a communicator, now or at the end of the open group, and write its handle to `out`; NULL
/// where this rank takes no part.
pub fn create(
    out: Out<ringComm_t>,
    debug: u32,
    make: impl FnOnce() -> Result<Option<Communicator>> + Send + 'static,
) -> Result<()> {
    if enqueue::in_group() {
        let pending = Pending { make: Box::new(make), debug, out };
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
    drop(PENDING.take());
}

/// Make what the group asked for. All succeed, or none is handed out and the first error says why.
pub fn finish_group() -> Result<()> {
    let pending = PENDING.take();
    if pending.is_empty() {
        return Ok(());
    }
    let (outs, makes): (Vec<_>, Vec<_>) =
        pending.into_iter().map(|one| (one.out, (one.make, one.debug))).unzip();
    let made = std::thread::scope(|scope| {
        let threads: Vec<_> = makes
            .into_iter()
            .map(|(make, debug)| scope.spawn(move || make().map(|one| (one, debug))))
            .collect();
        let died = |_| Err(Error::Internal("a thread that made a communicator panicked".into()));
        // All are joined before the first error leaves: the scope would wait for them anyway.
        let all: Vec<_> = threads.into_iter().map(|t| t.join().unwrap_or_else(died)).collect();
        all.into_iter().collect::<Result<Vec<_>>>()
    })?;
    for (out, handle) in outs.into_iter().zip(handles(made)?) {
        out.set(handle);
    }
    Ok(())
}
