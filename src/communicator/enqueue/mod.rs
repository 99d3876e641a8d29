//! Calls that do not run where they are made: in a group, or on a host stream.
//!
//! One door for every call of the C API: [`collective`] and [`message`] put it into the thread's
//! open group, else hand it to its stream, else run it.
#![allow(unsafe_code)]

pub mod group;
pub mod host_stream;
mod staged_async;

pub(super) mod single_thread_group;

use super::call::NextRank;
use super::failure::LastError;
use super::gpu::EnqueuedCall;
use super::{Call, Communicator, Message, Order, OrderedMessage, VectorCounts};
use crate::device::cuda::PER_THREAD_STREAM;
use crate::error::{Error, Result};
use crate::sync::with_local;
use group::{Group, GroupAction, GroupCall, GroupMember, StreamJob};
use host_stream::JobStream;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The streams of the C API.
pub type HostStream = JobStream<StreamJob<Communicator>>;

/// A call that outlives the caller's frame: its layout is its own, its buffers are promised.
pub struct OwnedCall {
    call: Call<'static>,
    vector: Option<VectorCounts>,
    /// Its stream waits until this is dropped.
    _given: Option<EnqueuedCall>,
}

// SAFETY: whoever made it promised that the buffers stay valid until it has run, on any thread.
unsafe impl Send for OwnedCall {}

// SAFETY: as for `OwnedCall`: a message that leaves its thread comes from `message` below.
unsafe impl Send for OrderedMessage {}

impl OwnedCall {
    /// # Safety
    /// The buffers of `call` stay valid, for the extents its collective defines, until it has run.
    pub unsafe fn new(call: &Call) -> OwnedCall {
        let vector = call.vector.cloned();
        let call = Call { vector: None, meanwhile: None, ..*call };
        OwnedCall { call, vector, _given: None }
    }

    /// The host's part of a call that its stream has.
    ///
    /// # Safety
    /// As for `new`.
    pub(super) unsafe fn given(call: &Call, given: EnqueuedCall) -> OwnedCall {
        // SAFETY: the caller's promise.
        OwnedCall { _given: Some(given), ..unsafe { OwnedCall::new(call) } }
    }

    fn call(&self) -> Call<'_> {
        Call { vector: self.vector.as_ref(), ..self.call.clone() }
    }
}

/// The host's part of messages that their stream has, in host memory.
pub struct GivenMessages {
    pub(super) messages: Vec<Message>,
    /// Their stream waits until this is dropped.
    pub(super) given: EnqueuedCall,
}

// SAFETY: the memory is pinned, and this thread's until the stream is told that it is through.
unsafe impl Send for GivenMessages {}

/// What runs later and by itself.
pub enum Deferred {
    Collective(OwnedCall),
    Messages(GivenMessages),
}

impl GroupMember for Communicator {
    type Call = Deferred;
    type Message = OrderedMessage;

    fn run(&self, call: &Deferred) -> Result<()> {
        // SAFETY: promised when the call was made owned; messages lie in pinned memory.
        unsafe {
            match call {
                Deferred::Collective(call) => Communicator::call(self, &call.call()),
                Deferred::Messages(given) => self.exchange_given(given),
            }
        }
    }

    fn barrier(&self, call: &Deferred) -> Option<(usize, usize)> {
        match call {
            Deferred::Collective(call) => self.meets(&call.call()),
            Deferred::Messages(_) => None,
        }
    }

    fn run_first(&self, call: &Deferred, meanwhile: NextRank) -> Result<()> {
        let Deferred::Collective(call) = call else {
            return GroupMember::run(self, call);
        };
        let call = Call { meanwhile: Some(meanwhile), ..call.call() };
        // SAFETY: promised when the call was made owned.
        unsafe { Communicator::call(self, &call) }
    }

    fn give_call(self: &Arc<Communicator>, call: &Deferred) -> Result<bool> {
        match call {
            // SAFETY: promised when the call was made owned.
            Deferred::Collective(call) => unsafe { Communicator::try_enqueue(self, &call.call()) },
            Deferred::Messages(_) => Ok(false),
        }
    }

    fn try_enqueue(self: &Arc<Communicator>, messages: &[OrderedMessage]) -> Result<bool> {
        // SAFETY: promised to `message`, the only maker of deferred messages.
        unsafe { self.try_enqueue_messages(messages) }
    }

    fn exchange(&self, messages: &[OrderedMessage]) -> Result<()> {
        // SAFETY: promised to `message`, the only maker of deferred messages.
        unsafe { Communicator::post(self, messages) }
    }

    fn worker(&self) -> Result<Arc<HostStream>> {
        if let Some(worker) = self.worker.get() {
            return Ok(Arc::clone(worker));
        }
        let fresh = JobStream::new()?;
        Ok(Arc::clone(self.worker.get_or_init(|| fresh)))
    }

    fn notes(&self) -> &LastError {
        &self.last_error
    }

    fn kept(&self) -> Option<Arc<()>> {
        Some(Arc::clone(&self.kept))
    }

    fn broken(&self) -> Option<Error> {
        self.check().err().filter(|_| self.is_broken())
    }
}

thread_local! {
    static GROUP: RefCell<Group<Communicator>> = RefCell::new(Group::default());
}

/// Collect this thread's calls from here to the matching [`end`]. A thread that is ending has no
/// group, which [`is_open`] says.
pub fn start() {
    with_local(&GROUP, |group| group.borrow_mut().start());
}

/// At the outermost level: run what was collected, or return the first error of a bad call.
pub fn end() -> Result<()> {
    with_local(&GROUP, group::end)
}

/// Leave the group as [`end`] does, without running it: what its collectives would take by the cost
/// model, in microseconds. Messages count nothing; an inner group's are counted by the outermost.
pub fn simulate() -> Result<f64> {
    let left = with_local(&GROUP, |group| group.borrow_mut().leave());
    let Some(batch) = left? else { return Ok(0.0) };
    batch.longest(|communicator, call| match call {
        Deferred::Collective(call) => Ok(communicator.explain(&call.call())?.predicted_us),
        Deferred::Messages(_) => Ok(0.0),
    })
}

/// Whether a group is open on this thread.
pub fn is_open() -> bool {
    with_local(&GROUP, |group| group.borrow().is_open())
}

/// Wait until no call of a group or a stream holds the communicator but the caller's handle.
///
/// Ends by itself: every call does, at its deadline at the latest, and so does the patience with a
/// group that another thread has not ended. A broken communicator is only waited for while a call
/// of its own runs: those that a stream holds back, perhaps for another communicator's sake, will
/// fail before they touch a buffer.
pub fn quiesce(communicator: &Arc<Communicator>) -> Result<()> {
    // A deferred call takes microseconds to milliseconds; nobody is in a hurry to destroy.
    const PAUSE: Duration = Duration::from_micros(50);
    let mut kept_since = None;
    while Arc::strong_count(communicator) > 1 {
        if communicator.is_broken() {
            communicator.settle();
            break;
        }
        if Arc::strong_count(&communicator.kept) == 1 {
            kept_since = None;
        } else if kept_since.get_or_insert_with(Instant::now).elapsed() > communicator.timeout() {
            return Err(Error::usage(format!(
                "calls of this communicator have waited {} ms for another thread's ringGroupEnd; \
                 end that group first",
                communicator.timeout().as_millis()
            )));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Note that a call was refused; if a group is open, it fails as a whole. Gives the error back.
#[cold]
pub fn refuse(error: Error) -> Error {
    // A thread that is ending has lost its group; a refusal must not panic there.
    let _ = GROUP.try_with(|group| group.borrow_mut().fail(error.clone()));
    error
}

/// Make a collective call.
///
/// # Safety
/// The buffers of `call` stay valid until it has run: until this returns, or the group's [`end`],
/// or where a stream is given, of the host or in the call's order, until it is synchronized.
#[inline]
pub unsafe fn collective(
    communicator: &Arc<Communicator>,
    call: &Call,
    stream: Option<&Arc<HostStream>>,
) -> Result<()> {
    if stream.is_none() && !is_open() {
        // SAFETY: the caller's promise.
        return unsafe {
            match communicator.try_enqueue(call)? {
                true => Ok(()),
                false => communicator.call(call),
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe { postpone(communicator, call, stream) }
}

/// Keep a collective call for its stream, or for the end of the group.
///
/// # Safety
/// As for [`collective`].
unsafe fn postpone(
    communicator: &Arc<Communicator>,
    call: &Call,
    stream: Option<&Arc<HostStream>>,
) -> Result<()> {
    let rank = communicator.rank();
    let extents = call.extents(rank, communicator.nranks()).map_err(refuse)?;
    extents.check(call, rank).map_err(refuse)?;
    // SAFETY: the caller's promise.
    let owned = unsafe { OwnedCall::new(call) };
    later(communicator, stream, GroupAction::Collective(Deferred::Collective(owned)))
}

/// Make a point-to-point call.
///
/// # Safety
/// As for [`collective`].
pub unsafe fn message(
    communicator: &Arc<Communicator>,
    posted: OrderedMessage,
    stream: Option<&Arc<HostStream>>,
) -> Result<()> {
    if stream.is_none() && !is_open() {
        // SAFETY: the caller's promise.
        return unsafe {
            match communicator.device() {
                None => communicator.exchange(&[posted.message]),
                Some(_) if communicator.try_enqueue_messages(&[posted])? => Ok(()),
                Some(_) => communicator.post(&[posted]),
            }
        };
    }
    posted.message.check(communicator.nranks()).map_err(refuse)?;
    later(communicator, stream, GroupAction::Message(posted))
}

fn later(
    communicator: &Arc<Communicator>,
    stream: Option<&Arc<HostStream>>,
    action: GroupAction<Communicator>,
) -> Result<()> {
    let communicator = Arc::clone(communicator);
    let order = match &action {
        GroupAction::Collective(Deferred::Collective(owned)) => owned.call.order,
        // Their stream has them.
        GroupAction::Collective(Deferred::Messages(_)) => Order::default(),
        GroupAction::Message(posted) => posted.order,
    };
    let is_tied = order.stream.addr() == PER_THREAD_STREAM && communicator.device().is_some();
    with_local(&GROUP, |group| match (stream, group.borrow_mut()) {
        (Some(stream), group) if !group.is_open() => {
            stream.submit(StreamJob::one(communicator, action))
        }
        (_, mut group) => {
            group.defer(GroupCall { communicator, stream: stream.cloned(), action, is_tied })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::plan::Collective;
    use crate::types::DataType;

    fn ranks(nranks: usize) -> Vec<Arc<Communicator>> {
        let config = Config { timeout_ms: 20_000, ..Config::default() };
        let all = Communicator::init_all(nranks, &config).unwrap();
        all.into_iter().map(Arc::new).collect()
    }

    fn sum(input: &[f32], output: &mut [f32]) -> Call<'static> {
        let mut call = Call::new(Collective::AllReduce, DataType::Float32);
        (call.send, call.recv) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        call.count = input.len();
        call
    }

    #[test]
    fn one_thread_runs_all_ranks_in_a_group() {
        let all = ranks(3);
        let inputs: Vec<Vec<f32>> = (0..3).map(|rank| vec![rank as f32 + 1.0; 1000]).collect();
        let mut outputs = vec![vec![0f32; 1000]; 3];
        for _ in 0..5 {
            outputs.iter_mut().for_each(|output| output.fill(0.0));
            start();
            for rank in 0..3 {
                let call = sum(&inputs[rank], &mut outputs[rank]);
                // SAFETY: the buffers live until `end` below.
                unsafe { collective(&all[rank], &call, None) }.unwrap();
            }
            assert_eq!(outputs[0][0], 0.0);
            end().unwrap();
            assert!(outputs.iter().flatten().all(|value| *value == 6.0));
        }
    }

    #[test]
    fn ranks_overlap_on_their_streams_and_on_a_shared_one() {
        let all = ranks(2);
        let streams: [Arc<HostStream>; 2] = [JobStream::new().unwrap(), JobStream::new().unwrap()];
        let inputs = [vec![1f32; 100], vec![2f32; 100]];
        for shared in [false, true] {
            let mut outputs = vec![vec![0f32; 100]; 2];
            start();
            for rank in 0..2 {
                let stream = &streams[if shared { 0 } else { rank }];
                let call = sum(&inputs[rank], &mut outputs[rank]);
                // SAFETY: the buffers live until the streams are synchronized below.
                unsafe { collective(&all[rank], &call, Some(stream)) }.unwrap();
            }
            end().unwrap();
            streams.iter().for_each(|stream| stream.synchronize().unwrap());
            assert!(outputs.iter().flatten().all(|value| *value == 3.0));
        }
    }

    #[test]
    fn a_bad_call_fails_the_group_and_not_the_communicator() {
        let all = ranks(1);
        let (input, mut output) = (vec![1f32; 4], vec![0f32; 4]);
        start();
        let mut bad = sum(&input, &mut output);
        bad.root = 7;
        // SAFETY: refused before a buffer is touched.
        assert!(unsafe { collective(&all[0], &bad, None) }.is_err());
        assert!(end().unwrap_err().to_string().contains("root 7"));
        // SAFETY: it runs at once.
        unsafe { collective(&all[0], &sum(&input, &mut output), None) }.unwrap();
        assert_eq!(output, input);
    }
}
