//! A group: calls that are collected between `start` and the outermost `end` and then start
//! together.
//!
//! What a group makes of its entries: one list per communicator, which runs its collectives in the
//! order of the calls and then all its sends and receives as one batch, so that no order among them
//! can deadlock, wherever they stood between the collectives. Lists of different communicators run
//! at the same time, each on a thread of its own, since one may have to wait for another. A list
//! whose calls name a stream is handed to that stream.
//!
//! Where all ranks of a call are in the group and only meet, one thread plays them all
//! ([`super::single_thread_group`]): no other thread has to be woken.

use super::host_stream::{JobStream, StreamTask};
use super::single_thread_group::SingleThreadCall;
use crate::communicator::call::NextRank;
pub use crate::communicator::failure::LastError;
use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex};
use std::sync::Arc;

/// What runs the entries of a group: a communicator.
pub trait GroupMember: Send + Sync + 'static {
    /// A collective that owns all it needs but its buffers.
    type Call: Send + 'static;
    type Message: Send + Copy + 'static;

    fn run(&self, call: &Self::Call) -> Result<()>;
    /// Where a call's ranks only meet, so that one thread may bring them all: which place that is,
    /// and how many come there.
    fn barrier(&self, _call: &Self::Call) -> Option<(usize, usize)> {
        None
    }
    /// As `run`, for a call that has a barrier: before it waits there it does something else.
    fn run_first(&self, call: &Self::Call, _meanwhile: NextRank) -> Result<()> {
        self.run(call)
    }
    /// Run sends and receives together.
    fn exchange(&self, messages: &[Self::Message]) -> Result<()>;
    /// Give a call to its stream, which does it later; whether that can be.
    fn give_call(self: &Arc<Self>, _call: &Self::Call) -> Result<bool>
    where
        Self: Sized,
    {
        Ok(false)
    }
    /// Give sends and receives to their stream, which does them later; whether that can be.
    fn try_enqueue(self: &Arc<Self>, _messages: &[Self::Message]) -> Result<bool>
    where
        Self: Sized,
    {
        Ok(false)
    }
    /// The executor's own thread, made when first asked for and kept.
    fn worker(&self) -> Result<Arc<JobStream<StreamJob<Self>>>>
    where
        Self: Sized;
    /// Where to write why a group or a call on a stream has failed.
    fn notes(&self) -> &LastError;
    /// Held by every group that keeps calls of it and has not ended.
    fn kept(&self) -> Option<Arc<()>> {
        None
    }
    /// Why it runs nothing any more, if that is so.
    fn broken(&self) -> Option<Error> {
        None
    }
}

/// What one call asks for.
pub enum GroupAction<E: GroupMember> {
    Collective(E::Call),
    Message(E::Message),
}

/// One call of a group.
pub struct GroupCall<E: GroupMember> {
    pub communicator: Arc<E>,
    /// Where to run it; `None` is the caller, who waits in `end`.
    pub stream: Option<Arc<JobStream<StreamJob<E>>>>,
    pub action: GroupAction<E>,
    /// Whether it names what is another thing on another thread: the thread's own device stream.
    pub is_tied: bool,
}

/// What one communicator has to do: the collectives in order, then the messages together.
pub(super) struct Program<E: GroupMember> {
    collectives: Vec<E::Call>,
    messages: Vec<E::Message>,
}

impl<E: GroupMember> Program<E> {
    fn new() -> Program<E> {
        Program { collectives: Vec::new(), messages: Vec::new() }
    }

    fn push(&mut self, action: GroupAction<E>) {
        match action {
            GroupAction::Collective(call) => self.collectives.push(call),
            GroupAction::Message(message) => self.messages.push(message),
        }
    }

    pub(in crate::communicator) fn is_empty(&self) -> bool {
        self.collectives.is_empty() && self.messages.is_empty()
    }

    /// The calls, if that is all there is.
    pub(super) fn only_calls(&self) -> Option<&[E::Call]> {
        self.messages.is_empty().then_some(&self.collectives)
    }

    /// `is_all`: there is nothing else in the group, so that its calls are as they would be one by
    /// one. Two communicators' may have to wait for each other, which they could not on one device
    /// stream that waits for either.
    fn play(&self, communicator: &Arc<E>, is_all: bool) -> Result<()> {
        for call in &self.collectives {
            if !(is_all && communicator.give_call(call)?) {
                communicator.run(call)?;
            }
        }
        match self.messages.is_empty() || (is_all && communicator.try_enqueue(&self.messages)?) {
            true => Ok(()),
            false => communicator.exchange(&self.messages),
        }
    }
}

/// A job for a stream.
pub struct StreamJob<E: GroupMember>(JobKind<E>);

enum JobKind<E: GroupMember> {
    /// A call outside of any group: no list, and so no allocation.
    One(Arc<E>, GroupAction<E>),
    List(Arc<E>, Program<E>, ListTicket<E>),
    /// Lists of several communicators that were given the same stream: they may have to wait for
    /// each other, so they run as a group of their own.
    Group(GroupBatch<E>),
}

impl<E: GroupMember> StreamJob<E> {
    /// One call, for a stream.
    pub fn one(communicator: Arc<E>, action: GroupAction<E>) -> StreamJob<E> {
        StreamJob(JobKind::One(communicator, action))
    }
}

impl<E: GroupMember> StreamTask for StreamJob<E> {
    fn run(self) -> Result<()> {
        match self.0 {
            JobKind::One(communicator, action) => {
                let result = match action {
                    GroupAction::Collective(call) => communicator.run(&call),
                    GroupAction::Message(message) => communicator.exchange(&[message]),
                };
                noted(result, std::slice::from_ref(communicator.notes()))
            }
            JobKind::List(communicator, program, ticket) => {
                let result = program.play(&communicator, false);
                let result = noted(result, std::slice::from_ref(communicator.notes()));
                // The communicator's last handle must not outlive the wait of its user.
                drop(communicator);
                ticket.report(result, program)
            }
            JobKind::Group(mut batch) => batch.run(),
        }
    }

    fn given_up(&self) -> Option<Error> {
        match &self.0 {
            JobKind::One(communicator, _) | JobKind::List(communicator, ..) => {
                communicator.broken()
            }
            JobKind::Group(batch) => batch.lists.iter().find_map(|list| list.communicator.broken()),
        }
    }
}

/// The result, after its error, if it is one, was written to all of `notes`.
fn noted(result: Result<()>, notes: &[LastError]) -> Result<()> {
    result.inspect_err(|error| notes.iter().for_each(|note| *note.lock() = Some(error.clone())))
}

/// The place of a list in its group. Dropped without a report (a panic, a stream that would not
/// take the job), it reports that.
struct ListTicket<E: GroupMember> {
    latch: Arc<Latch<E>>,
    /// Its place in the group if the group waits for it; else the stream keeps the result.
    waited: Option<usize>,
}

/// Where the lists of a thread's groups come from and go to.
struct Latch<E: GroupMember> {
    state: Mutex<RunningGroup<E>>,
    done: Condvar,
}

struct RunningGroup<E: GroupMember> {
    /// Lists that the group waits for.
    left: usize,
    /// By position in the group, so that it does not depend on who fails first.
    failure: Option<(usize, Error)>,
    /// Emptied lists, to be filled again.
    spare: Vec<Program<E>>,
}

impl<E: GroupMember> ListTicket<E> {
    /// Give the list back, and the result to whoever waits for it; the rest is the stream's.
    fn report(mut self, result: Result<()>, program: Program<E>) -> Result<()> {
        self.latch.give_back(program);
        match self.waited.take() {
            Some(position) => {
                self.latch.finish(position, result);
                Ok(())
            }
            None => result,
        }
    }
}

impl<E: GroupMember> Drop for ListTicket<E> {
    fn drop(&mut self) {
        if let Some(position) = self.waited.take() {
            let error = Error::Internal("a call of a group ended without a result".into());
            self.latch.finish(position, Err(error));
        }
    }
}

impl<E: GroupMember> Latch<E> {
    fn new() -> Arc<Latch<E>> {
        let state = RunningGroup { left: 0, failure: None, spare: Vec::new() };
        Arc::new(Latch { state: Mutex::new(state), done: Condvar::new() })
    }

    fn ticket(self: &Arc<Self>, waited: Option<usize>) -> ListTicket<E> {
        self.state.lock().left += usize::from(waited.is_some());
        ListTicket { latch: Arc::clone(self), waited }
    }

    fn give_back(&self, mut program: Program<E>) {
        program.collectives.clear();
        program.messages.clear();
        self.state.lock().spare.push(program);
    }

    fn finish(&self, position: usize, result: Result<()>) {
        let mut state = self.state.lock();
        if let Err(error) = result
            && state.failure.as_ref().is_none_or(|(first, _)| position < *first)
        {
            state.failure = Some((position, error));
        }
        state.left -= 1;
        self.done.notify_all();
    }

    /// Wait for every list; the error of the first that failed, in the order of the group.
    fn wait(&self) -> Result<()> {
        let mut state = self.state.lock();
        while state.left > 0 {
            self.done.wait(&mut state);
        }
        state.failure.take().map_or(Ok(()), |(_, error)| Err(error))
    }
}

/// What one communicator has to do in a group.
pub(super) struct List<E: GroupMember> {
    pub communicator: Arc<E>,
    stream: Option<Arc<JobStream<StreamJob<E>>>>,
    /// Empty where its stream has it.
    pub program: Program<E>,
    /// What [`GroupMember::kept`] gave, until the group's end.
    kept: Option<Arc<()>>,
}

/// The group of one thread: how deep it is nested, and what it has collected.
pub struct Group<E: GroupMember> {
    depth: usize,
    lists: Vec<List<E>>,
    /// Those of the lists' communicators.
    notes: Vec<LastError>,
    failure: Option<Error>,
    latch: Arc<Latch<E>>,
}

impl<E: GroupMember> Default for Group<E> {
    fn default() -> Group<E> {
        let (lists, notes) = (Vec::new(), Vec::new());
        Group { depth: 0, lists, notes, failure: None, latch: Latch::new() }
    }
}

impl<E: GroupMember> Group<E> {
    pub fn is_open(&self) -> bool {
        self.depth > 0
    }

    pub fn start(&mut self) {
        self.depth += 1;
    }

    /// Whether a communicator's calls that are waited for run on this thread: the first one's do.
    fn runs_here(&self, communicator: &Arc<E>) -> bool {
        let mut waited = self.lists.iter().filter(|list| list.stream.is_none());
        waited.next().is_none_or(|list| Arc::ptr_eq(&list.communicator, communicator))
    }

    /// Keep a call for the end of the group.
    pub fn defer(&mut self, entry: GroupCall<E>) -> Result<()> {
        let GroupCall { communicator, stream, action, is_tied } = entry;
        if !self.is_open() {
            return Err(Error::usage("a call was deferred outside of a group"));
        }
        if is_tied && !self.runs_here(&communicator) {
            let error = Error::argument(
                "the per-thread default stream is another one on every thread, and of a group of \
                 several communicators only the first one's calls run on this thread; give the \
                 others a stream of your own",
            );
            self.fail(error.clone());
            return Err(error);
        }
        let same = |list: &&mut List<E>| Arc::ptr_eq(&list.communicator, &communicator);
        if let Some(list) = self.lists.iter_mut().find(same) {
            if list.stream.as_ref().map(Arc::as_ptr) != stream.as_ref().map(Arc::as_ptr) {
                let error = Error::usage(
                    "one communicator was given two streams in one group; its calls run in one \
                     order, so give all of them the same stream",
                );
                self.fail(error.clone());
                return Err(error);
            }
            list.program.push(action);
            return Ok(());
        }
        let mut program = self.latch.state.lock().spare.pop().unwrap_or_else(Program::new);
        program.push(action);
        self.notes.push(Arc::clone(communicator.notes()));
        let kept = communicator.kept();
        self.lists.push(List { communicator, stream, program, kept });
        Ok(())
    }

    /// Note that a call of the group was wrong: the outermost `end` returns the first such error
    /// and nothing of the group runs.
    pub fn fail(&mut self, error: Error) {
        if self.is_open() {
            self.failure.get_or_insert(error);
        }
    }

    /// Leave one level. At the outermost: what there is to run.
    pub fn leave(&mut self) -> Result<Option<GroupBatch<E>>> {
        if self.depth == 0 {
            return Err(Error::usage("the end of a group that was never started"));
        }
        self.depth -= 1;
        if self.depth > 0 {
            return Ok(None);
        }
        let mut lists = std::mem::take(&mut self.lists);
        lists.iter_mut().for_each(|list| list.kept = None);
        let notes = std::mem::take(&mut self.notes);
        match self.failure.take() {
            Some(error) => noted(Err(error), &notes).map(|()| None),
            None => Ok(Some(GroupBatch { lists, notes, latch: Arc::clone(&self.latch) })),
        }
    }

    /// Take back the memory of a batch that has run.
    fn recycle(&mut self, batch: GroupBatch<E>) {
        let GroupBatch { lists, mut notes, .. } = batch;
        notes.clear();
        if self.lists.capacity() < lists.capacity() && self.lists.is_empty() {
            (self.lists, self.notes) = (lists, notes);
        }
    }
}

/// A complete group, taken out of its thread's state so that what it runs may use groups again.
pub struct GroupBatch<E: GroupMember> {
    lists: Vec<List<E>>,
    notes: Vec<LastError>,
    latch: Arc<Latch<E>>,
}

impl<E: GroupMember> GroupBatch<E> {
    /// What the group's collectives take where those of a communicator follow each other and
    /// communicators run at the same time; `of` is what one takes.
    pub fn longest(&self, of: impl Fn(&E, &E::Call) -> Result<f64>) -> Result<f64> {
        let list = |list: &List<E>| {
            let calls = list.program.collectives.iter();
            calls.map(|call| of(&list.communicator, call)).sum::<Result<f64>>()
        };
        self.lists.iter().map(list).try_fold(0.0, |longest, own| Ok(own?.max(longest)))
    }

    /// Start everything, wait for what has no stream, and return the first error, which all
    /// communicators of the group get to know.
    pub fn run(&mut self) -> Result<()> {
        let result = self.run_lists();
        noted(result, &self.notes)
    }

    fn run_lists(&mut self) -> Result<()> {
        let mut result = Ok(());
        let mut mine = None;
        let is_all = self.lists.len() == 1;
        for position in 0..self.lists.len() {
            let Some(stream) = self.lists[position].stream.take() else { continue };
            result = result.and(self.submit(&stream, position));
        }
        result = result.and(self.run_rows());
        for (position, list) in self.lists.drain(..).enumerate() {
            let List { communicator, program, .. } = list;
            if program.is_empty() {
                // Its stream has it.
            } else if mine.is_none() {
                // The first list that is waited for runs on this thread, which is free for it.
                mine = Some((self.latch.ticket(Some(position)), communicator, program));
            } else {
                let ticket = self.latch.ticket(Some(position));
                let work = StreamJob(JobKind::List(Arc::clone(&communicator), program, ticket));
                let worker = communicator.worker();
                result = result.and(worker.and_then(|worker| worker.submit(work)));
            }
        }
        if let Some((ticket, communicator, program)) = mine {
            let played = program.play(&communicator, is_all);
            ticket.report(played, program)?;
        }
        let waited = self.latch.wait();
        result.and(waited)
    }

    /// Play all that one thread can: what is left in the lists is for several.
    fn run_rows(&mut self) -> Result<()> {
        let mut nth = 0;
        let mut played = Ok(());
        while let Some(row) = SingleThreadCall::of(&self.lists, nth) {
            played = row.play();
            if row.is_apart() {
                played = Ok(());
                break;
            }
            nth += 1;
            if played.is_err() {
                break;
            }
        }
        let is_over = played.is_err();
        for list in self.lists.iter_mut().filter(|list| !list.program.is_empty()) {
            // What would follow a row that has failed does not run.
            let done = if is_over { list.program.collectives.len() } else { nth };
            list.program.collectives.drain(..done);
            if list.program.is_empty() {
                let program = std::mem::replace(&mut list.program, Program::new());
                self.latch.give_back(program);
            }
        }
        played
    }

    /// Hand the list at `position` to its stream, together with those after it that have the same.
    fn submit(&mut self, stream: &Arc<JobStream<StreamJob<E>>>, position: usize) -> Result<()> {
        let take = |list: &mut List<E>| std::mem::replace(&mut list.program, Program::new());
        let same =
            |list: &List<E>| list.stream.as_ref().is_some_and(|own| Arc::ptr_eq(own, stream));
        let first = &mut self.lists[position];
        let (communicator, program) = (Arc::clone(&first.communicator), take(first));
        if !self.lists.iter().any(same) {
            let ticket = self.latch.ticket(None);
            return stream.submit(StreamJob(JobKind::List(communicator, program, ticket)));
        }
        let mut notes = vec![Arc::clone(communicator.notes())];
        let mut lists = vec![List { communicator, stream: None, program, kept: None }];
        for list in self.lists.iter_mut().filter(|list| same(list)) {
            list.stream = None;
            let communicator = Arc::clone(&list.communicator);
            notes.push(Arc::clone(communicator.notes()));
            lists.push(List { communicator, stream: None, program: take(list), kept: None });
        }
        stream.submit(StreamJob(JobKind::Group(GroupBatch { lists, notes, latch: Latch::new() })))
    }
}

/// Leave one level of a group that lives in `state`, and run it if that was the outermost one. The
/// state is not borrowed while it runs.
pub fn end<E: GroupMember>(state: &std::cell::RefCell<Group<E>>) -> Result<()> {
    let batch = state.borrow_mut().leave()?;
    let Some(mut batch) = batch else { return Ok(()) };
    let result = batch.run();
    state.borrow_mut().recycle(batch);
    result
}
