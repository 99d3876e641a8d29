//! A rank's page that its peers can read: its doorbell, whether it failed, and what it is doing.
//!
//! It lies at the start of the rank's segment, in memory that survives the rank, so a peer that
//! waits can say what the other was doing even after it died. Its owner is the only writer; every
//! field is an atomic word, so a reader never races, at worst it sees two operations mixed in a
//! record that is just being written, which only ever ends up in an error text.

pub mod device;
pub mod shrink_board;

use crate::error::cut;
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*, fence};
use crate::transport::cma::ReadProbe;
use crate::transport::wait::Doorbell;
use shrink_board::Board;
use std::iter::repeat;
use std::time::{Duration, Instant};

/// Operations that the flight record remembers: 64 KiB, a few milliseconds of the smallest calls
/// and a few minutes of a training step's.
pub const RECORDS: usize = 1024;

/// Point-to-point batches that the flight record remembers; memory that is not used costs none.
pub const BATCHES: usize = RECORDS;

/// Bytes of a failure text that peers can read; longer ones are cut.
pub const TEXT_BYTES: usize = 1000;

/// Bytes of a host name that peers can read: as long as Linux lets one be.
pub const HOST_BYTES: usize = 64;

/// What a rank has to say about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Life {
    Working = 0,
    Failed = 1,
    /// Finalized: its process may end without being missed.
    Left = 2,
}

/// One operation in the flight record: fixed words, so that recording is a few plain stores.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Record {
    /// The operation's sequence number plus one; 0 while the record has never been used.
    pub sequence: AtomicU64,
    pub fingerprint: AtomicU64,
    pub count: AtomicU64,
    /// Collective, type, operation and algorithm, a byte each, and the root above them.
    pub what: AtomicU64,
    /// Clock ticks; `ended` is 0 while it runs.
    pub started: AtomicU64,
    pub ended: AtomicU64,
    /// The peer being waited for plus one, 0 for none; written only once a wait becomes long.
    waiting_for: AtomicU32,
    /// Milliseconds of that wait so far: seven weeks of them.
    waited_ms: AtomicU32,
    /// How far it had come at its last long wait: steps done, and all of them; 0 of 0 where no wait
    /// was long.
    done: AtomicU32,
    steps: AtomicU32,
}

/// A record as it travels to another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OperationRecord {
    pub sequence: u64,
    pub fingerprint: u64,
    pub count: u64,
    pub what: u64,
    pub waiting_for: Option<u32>,
    pub waited_ms: u64,
}

impl Record {
    /// What there is to tell others of it.
    pub fn seen(&self) -> OperationRecord {
        OperationRecord {
            sequence: self.sequence.load(Relaxed).saturating_sub(1),
            fingerprint: self.fingerprint.load(Relaxed),
            count: self.count.load(Relaxed),
            what: self.what.load(Relaxed),
            waiting_for: self.waiting_for.load(Relaxed).checked_sub(1),
            waited_ms: u64::from(self.waited_ms.load(Relaxed)),
        }
    }

    /// The peer being waited for, once that takes long.
    pub fn waiting_for(&self) -> Option<usize> {
        self.waiting_for.load(Relaxed).checked_sub(1).map(|peer| peer as usize)
    }

    pub fn waited_ms(&self) -> u64 {
        u64::from(self.waited_ms.load(Relaxed))
    }

    /// Steps done and all of them, as of the last long wait.
    pub fn progress(&self) -> Option<(u32, u32)> {
        let steps = self.steps.load(Relaxed);
        (steps > 0).then(|| (self.done.load(Relaxed), steps))
    }

    /// Note a long wait; gives the milliseconds that were noted before.
    pub fn wait(&self, peer: usize, waited_ms: u64) -> u64 {
        self.waiting_for.store(peer as u32 + 1, Relaxed);
        let waited_ms = u32::try_from(waited_ms).unwrap_or(u32::MAX);
        u64::from(self.waited_ms.swap(waited_ms, Relaxed))
    }

    /// Note how far the operation has come; in larger steps where they are too many.
    pub fn come(&self, done: usize, steps: usize) {
        let bits = usize::BITS - steps.leading_zeros();
        let narrow = |count: usize| (count >> bits.saturating_sub(u32::BITS)) as u32;
        self.done.store(narrow(done), Relaxed);
        self.steps.store(narrow(steps), Relaxed);
    }

    fn reflect(&self, seen: &OperationRecord, now: u64) {
        let is_new = self.sequence.load(Relaxed) != seen.sequence + 1;
        if is_new {
            self.begin(seen.sequence, seen.fingerprint, seen.what, seen.count, now);
        }
        self.waiting_for.store(seen.waiting_for.map_or(0, |peer| peer.saturating_add(1)), Relaxed);
        self.waited_ms.store(u32::try_from(seen.waited_ms).unwrap_or(u32::MAX), Relaxed);
    }

    #[inline]
    fn begin(&self, sequence: u64, fingerprint: u64, what: u64, count: u64, now: u64) {
        // Without it the build only times the check (see `fifo::Message::matches`).
        if !cfg!(ringcomm_unchecked) {
            self.fingerprint.store(fingerprint, Relaxed);
        }
        self.count.store(count, Relaxed);
        self.what.store(what, Relaxed);
        self.started.store(now, Relaxed);
        self.ended.store(0, Relaxed);
        self.waiting_for.store(0, Relaxed);
        self.waited_ms.store(0, Relaxed);
        self.steps.store(0, Relaxed);
        // Release: pairs with the Acquire in `is_of`.
        self.sequence.store(sequence + 1, Release);
    }
}

/// Whether the record is that of an operation. Its number may be what a peer says that it is.
#[inline]
fn is_of(record: &Record, sequence: u64) -> bool {
    // Acquire: pairs with the Release in `Record::begin`.
    sequence.checked_add(1) == Some(record.sequence.load(Acquire))
}

/// The value of `life` while a failure is being written; a reader takes it for work.
const FAILING: u32 = 3;

/// How long another thread may take to write a failure: it takes a microsecond, or some turns of
/// the scheduler.
const WRITING: Duration = Duration::from_secs(1);

/// The values of `gone`; 0 where the owner is there.
const DEAD: u32 = 1;
const UNREACHED: u32 = 2;

/// The page. Zeroed memory is a valid one.
#[repr(C, align(128))]
pub struct ControlBlock {
    pub bell: Doorbell,
    life: AtomicU32,
    /// 1 while this rank reads or writes its peers' buffers.
    visiting: AtomicU32,
    pub pid: AtomicU32,
    /// Where its process lets peers on the machine try to read, and what stands there.
    sample: [AtomicU64; 2],
    /// In a copy of a page from another machine: whether its owner has died ([`DEAD`]) or could
    /// never be reached ([`UNREACHED`], which the text and the culprit explain).
    gone: AtomicU32,
    host: [AtomicU8; HOST_BYTES],
    /// What it announces in a shrink.
    pub board: Board,
    /// Operations completed: all of this rank's messages of operation `completed - 1` are posted.
    completed: AtomicU64,
    /// The rank that caused the failure, plus one.
    culprit: AtomicU32,
    text_bytes: AtomicU32,
    text: [AtomicU8; TEXT_BYTES],
    records: [Record; RECORDS],
    /// Point-to-point batches, numbered by themselves: not all ranks take part in one.
    batches: [Record; BATCHES],
    /// The running batch's number plus one; 0 for none.
    open_batch: AtomicU64,
}

impl ControlBlock {
    pub fn life(&self) -> Life {
        // Acquire: pairs with the Release in `fail`, so that the text is whole.
        match self.life.load(Acquire) {
            0 | FAILING => Life::Working,
            2 => Life::Left,
            _ => Life::Failed,
        }
    }

    /// Publish a failure. The first one stays, also where two threads come at once; it is there to
    /// be seen when either returns.
    pub fn fail(&self, culprit: usize, text: &str) {
        let (from, to) = (Life::Working as u32, FAILING);
        // Acquire: pairs with the Release below. The winner alone writes the text.
        if self.life.compare_exchange(from, to, Acquire, Acquire).is_ok() {
            self.write_failure(culprit, text);
        }
        let started = Instant::now();
        while self.life.load(Acquire) == FAILING {
            std::thread::yield_now();
            if started.elapsed() > WRITING {
                // Nobody writes: a peer has put the word there.
                self.write_failure(culprit, text);
            }
        }
        // Pairs with the fence in `begin_remote_access`.
        fence(SeqCst);
    }

    fn write_failure(&self, culprit: usize, text: &str) {
        self.write_text(culprit, text);
        // Release: pairs with the Acquire in `life`.
        self.life.store(Life::Failed as u32, Release);
    }

    fn write_text(&self, culprit: usize, text: &str) {
        let text = cut(text, TEXT_BYTES).as_bytes();
        for (cell, byte) in self.text.iter().zip(text) {
            cell.store(*byte, Relaxed);
        }
        self.text_bytes.store(text.len() as u32, Relaxed);
        self.culprit.store(culprit as u32 + 1, Relaxed);
    }

    /// Begin to use peers' buffers. The caller then asks whether their owners still work.
    ///
    /// An owner that fails publishes it, then waits for its visitors; a visitor announces itself,
    /// then looks at the owner. The two full fences make sure that one of them sees the other.
    #[inline]
    pub fn begin_remote_access(&self) {
        self.visiting.store(1, Relaxed);
        // Pairs with the fence in `fail`.
        fence(SeqCst);
    }

    #[inline]
    pub fn end_remote_access(&self) {
        // Release: pairs with the Acquire in `is_visiting`, so that the last access is over.
        self.visiting.store(0, Release);
    }

    pub fn is_visiting(&self) -> bool {
        self.visiting.load(Acquire) != 0
    }

    /// Say that the owner of this copy of a page has died.
    pub fn mark_gone(&self) {
        // Release: pairs with the Acquire in `is_gone`, so that its last words are seen first.
        self.gone.store(DEAD, Release);
    }

    /// Say that the owner of this copy of a page was not there when rank `by` went to be connected
    /// with it, and why that is said. A failure that it told before is worth more.
    pub fn mark_unreached(&self, by: usize, why: &str) {
        if self.life() == Life::Failed {
            return self.mark_gone();
        }
        self.write_text(by, why);
        // Release: pairs with the Acquire in `unreached`, so that the text is whole.
        self.gone.store(UNREACHED, Release);
    }

    /// Who went to the owner in vain, and what became of that.
    pub fn unreached(&self) -> Option<(usize, String)> {
        // A failure that came later has taken the text's place.
        if self.gone.load(Acquire) != UNREACHED || self.life() == Life::Failed {
            return None;
        }
        let (by, why) = self.failure();
        Some((by?, why))
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Acquire) != 0
    }

    /// Say who the owner is, before anybody reads the page.
    pub fn introduce(&self, pid: u32, host: &str) {
        self.pid.store(pid, Relaxed);
        for (cell, byte) in self.host.iter().zip(host.bytes().chain(repeat(0))) {
            cell.store(byte, Relaxed);
        }
    }

    /// Say where peers may try to read the owner's memory, before anybody reads the page.
    pub fn offer(&self, sample: ReadProbe) {
        self.sample[0].store(sample.address, Relaxed);
        self.sample[1].store(sample.word, Relaxed);
    }

    /// Where the owner's memory may be tried.
    pub fn sample(&self) -> ReadProbe {
        let [address, word] = [0, 1].map(|at| self.sample[at].load(Relaxed));
        ReadProbe { address, word }
    }

    /// The name of the owner's host; empty if it never came so far as to say it.
    pub fn host(&self) -> String {
        let bytes = self.host.iter().map(|cell| cell.load(Relaxed));
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn leave(&self) {
        // Release: pairs with the Acquire in `life`; a failure is not overwritten.
        let _ =
            self.life.compare_exchange(Life::Working as u32, Life::Left as u32, Release, Relaxed);
    }

    /// The culprit and the text of a failed rank.
    pub fn failure(&self) -> (Option<usize>, String) {
        let bytes = (self.text_bytes.load(Relaxed) as usize).min(TEXT_BYTES);
        let text: Vec<u8> = self.text[..bytes].iter().map(|cell| cell.load(Relaxed)).collect();
        let culprit = (self.culprit.load(Relaxed) as usize).checked_sub(1);
        (culprit, String::from_utf8_lossy(&text).into_owned())
    }

    /// The record of operation `sequence`, if it is not overwritten yet.
    pub fn record(&self, sequence: u64) -> Option<&Record> {
        let record = &self.records[sequence as usize % RECORDS];
        is_of(record, sequence).then_some(record)
    }

    /// The record of point-to-point batch `sequence`, if it is not overwritten yet.
    pub fn batch(&self, sequence: u64) -> Option<&Record> {
        let record = &self.batches[sequence as usize % BATCHES];
        is_of(record, sequence).then_some(record)
    }

    /// Note that operation `sequence` begins.
    #[inline]
    pub fn begin(&self, sequence: u64, fingerprint: u64, what: u64, count: u64, now: u64) {
        self.records[sequence as usize % RECORDS].begin(sequence, fingerprint, what, count, now);
    }

    /// Note that point-to-point batch `sequence` begins.
    pub fn begin_batch(&self, sequence: u64, what: u64, messages: u64, now: u64) {
        self.batches[sequence as usize % BATCHES].begin(sequence, 0, what, messages, now);
        self.open_batch.store(sequence + 1, Relaxed);
    }

    /// The record of the running point-to-point batch, if there is one.
    pub fn open_batch(&self) -> Option<&Record> {
        self.batch(self.open_batch.load(Relaxed).checked_sub(1)?)
    }

    /// The point-to-point batches that are remembered, in no order.
    pub fn batches(&self) -> impl Iterator<Item = &Record> {
        // Acquire: pairs with the Release in `Record::begin`.
        self.batches.iter().filter(|record| record.sequence.load(Acquire) > 0)
    }

    /// Forget the batches so far: the next is number 0 again.
    pub fn forget_batches(&self) {
        self.batches().for_each(|record| record.sequence.store(0, Relaxed));
    }

    /// Note that point-to-point batch `sequence` is complete.
    pub fn end_batch(&self, sequence: u64, now: u64) {
        let record = &self.batches[sequence as usize % BATCHES];
        record.ended.store(now, Relaxed);
        record.waiting_for.store(0, Relaxed);
        self.open_batch.store(0, Relaxed);
    }

    /// Write into the copy of a page what its owner, on another machine, was last seen at.
    pub fn reflect(
        &self,
        completed: u64,
        calls: &[OperationRecord],
        batch: Option<&OperationRecord>,
        now: u64,
    ) {
        for seen in calls {
            self.records[seen.sequence as usize % RECORDS].reflect(seen, now);
        }
        if let Some(seen) = batch {
            self.batches[seen.sequence as usize % BATCHES].reflect(seen, now);
        }
        self.open_batch.store(batch.map_or(0, |seen| seen.sequence + 1), Relaxed);
        // Release: pairs with the Acquire in `completed`.
        self.completed.store(completed, Release);
    }

    /// Note that operation `sequence` is complete.
    #[inline]
    pub fn end(&self, sequence: u64, now: u64) {
        let record = &self.records[sequence as usize % RECORDS];
        record.ended.store(now, Relaxed);
        record.waiting_for.store(0, Relaxed);
        // Release: pairs with the Acquire in `completed`.
        self.completed.store(sequence + 1, Release);
    }

    pub fn completed(&self) -> u64 {
        // Acquire: pairs with the Release in `end`.
        self.completed.load(Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::transport::segment::Segment;
    use std::sync::Barrier;

    #[allow(unsafe_code)]
    fn page(segment: &Segment) -> &ControlBlock {
        // SAFETY: zeroed memory is a page, and the segment holds one.
        unsafe { &*segment.address().cast::<ControlBlock>() }
    }

    #[test]
    fn a_text_that_has_no_room_ends_in_no_other_rank() {
        let segment = Segment::anonymous(size_of::<ControlBlock>()).unwrap();
        let text = "x".repeat(TEXT_BYTES - "rank 1".len());
        page(&segment).fail(3, &(text.clone() + "rank 12"));
        assert_eq!(page(&segment).failure(), (Some(3), text + "rank "));
    }

    #[test]
    fn of_failures_at_once_one_is_seen_whole() {
        let texts = ["a".repeat(TEXT_BYTES), "b".repeat(TEXT_BYTES)];
        for _ in 0..500 {
            let segment = Segment::anonymous(size_of::<ControlBlock>()).unwrap();
            let page = page(&segment);
            let barrier = Barrier::new(3);
            std::thread::scope(|scope| {
                for (culprit, text) in texts.iter().enumerate() {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        page.fail(culprit, text);
                        assert_eq!(page.life(), Life::Failed);
                    });
                }
                barrier.wait();
                while page.life() != Life::Failed {
                    std::hint::spin_loop();
                }
                let (culprit, text) = page.failure();
                assert!(text == texts[culprit.unwrap()], "{culprit:?}: {text}");
            });
            let (culprit, text) = page.failure();
            assert!(text == texts[culprit.unwrap()], "{culprit:?}: {text}");
        }
    }
}
