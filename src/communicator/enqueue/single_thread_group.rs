//! One call of all ranks, which one thread makes.
//!
//! Ranks that only have to meet need no threads of their own: the first comes, and before it waits
//! for the others the same thread lets the second come, and so on. When the last has come nobody
//! waits any more, and all return, the last first. What a rank does after the barrier must not
//! wait for another rank, which may be below it on the stack. A call of which only the barrier
//! shows that it would is left by all, as if it had been refused, and the lists are played by
//! threads.

use super::group::{GroupMember, List};
use crate::communicator::call::NextRank;
use crate::error::{Error, Result};
use std::cell::{Cell, RefCell};

/// The most ranks of a row: each keeps some kilobytes of the stack until the last has come.
const MOST: usize = 64;

/// The calls of one number in all lists of a group that are no stream's.
pub(super) struct SingleThreadCall<'a, E: GroupMember> {
    lists: &'a [List<E>],
    nth: usize,
    /// The list that is played next.
    next: Cell<usize>,
    /// By position in the group, as every other failure of it.
    failure: RefCell<Option<(usize, Error)>>,
    is_apart: Cell<bool>,
}

impl<'a, E: GroupMember> SingleThreadCall<'a, E> {
    /// Number `nth`, if all ranks of its barrier are in it, and nobody else.
    pub fn of(lists: &'a [List<E>], nth: usize) -> Option<SingleThreadCall<'a, E>> {
        let mut place = None;
        let mut count = 0;
        for list in lists.iter().filter(|list| !list.program.is_empty()) {
            let call = list.program.only_calls()?.get(nth)?;
            let barrier = list.communicator.barrier(call)?;
            if *place.get_or_insert(barrier) != barrier {
                return None;
            }
            count += 1;
        }
        let (_, nranks) = place?;
        let (failure, is_apart) = (RefCell::new(None), Cell::new(false));
        let row = SingleThreadCall { lists, nth, next: Cell::new(0), failure, is_apart };
        (count == nranks && nranks <= MOST).then_some(row)
    }

    /// Make all calls; the error of the first that failed.
    pub fn play(&self) -> Result<()> {
        self.come();
        self.failure.take().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// All have left the barrier again, for several threads.
    pub fn is_apart(&self) -> bool {
        self.is_apart.get()
    }

    /// Make the calls that nobody has made yet.
    fn come(&self) {
        while let Some(list) = self.lists.get(self.next.get()) {
            let position = self.next.replace(self.next.get() + 1);
            let Some(call) = list.program.only_calls().and_then(|calls| calls.get(self.nth)) else {
                continue;
            };
            let meanwhile = NextRank { come: &|| self.come(), is_apart: &self.is_apart };
            if let Err(error) = list.communicator.run_first(call, meanwhile) {
                let mut failure = self.failure.borrow_mut();
                if failure.as_ref().is_none_or(|(first, _)| position < *first) {
                    *failure = Some((position, error));
                }
            }
        }
    }
}
