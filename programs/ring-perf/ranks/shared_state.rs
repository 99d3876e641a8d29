//! What the ranks of one run share besides the communicator: a barrier, the next decision, and
//! where each rank leaves its times and its first wrong element.
//!
//! It is one shared mapping, inherited by rank processes, and owes nothing to the library that is
//! measured: a broken collective cannot take the measurement with it. Only the ranks of a launched
//! job, which may be on several hosts, have a board each and tell each other through the library.
#![allow(unsafe_code)]

use super::job;
use ringcomm::error::{Error, Result};
use rustix::thread::{Timespec, futex};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Times that a rank keeps for one placement of one row: at 0.1 s and 10 us each, all of them.
pub const SAMPLES: usize = 8192;
/// Words of the first wrong element.
const FIRST: usize = 5;

#[repr(C)]
struct Header {
    /// Non-zero: a rank has failed, everyone leaves.
    abort: AtomicU32,
    arrived: AtomicU32,
    generation: AtomicU32,
    sleepers: AtomicU32,
    /// What rank 0 decided, by the parity of the block.
    decisions: [AtomicU64; 2],
    unique_id: [AtomicU64; 16],
}

#[repr(C)]
struct RankPage {
    wrong: AtomicU64,
    first: [AtomicU64; FIRST],
    /// What the rank is doing: the index of its cell plus one.
    doing: AtomicU64,
    samples: [[AtomicU64; SAMPLES]; 2],
}

/// Which of a rank's two lists of times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum List {
    /// Means over blocks, or single calls where a call is long enough to time.
    Typical = 0,
    /// Single calls with a clock read between any two.
    Single = 1,
}

pub struct Board {
    base: *mut u8,
    bytes: usize,
    nranks: usize,
    file: OwnedFd,
    /// Polls of the barrier before it sleeps.
    spins: u32,
    /// There are more ranks than cores: between two polls others get the core.
    shares_cores: bool,
    /// In a launched job: the way to the boards of the other ranks.
    job: Option<job::Rank>,
}

// SAFETY: the mapping holds atomics only and lives as long as the board.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

fn length(nranks: usize) -> usize {
    size_of::<Header>().next_multiple_of(64) + nranks * size_of::<RankPage>()
}

/// Why a measurement ended early.
#[derive(Debug)]
pub enum Broken {
    Library(Error),
    /// Another rank failed and has said so.
    Stopped,
}

impl From<Error> for Broken {
    fn from(error: Error) -> Broken {
        Broken::Library(error)
    }
}

impl Board {
    pub fn new(nranks: usize) -> Result<Board> {
        // Inherited by the rank processes, hence no MFD_CLOEXEC.
        let file = rustix::fs::memfd_create(c"ring-perf", rustix::fs::MemfdFlags::empty())
            .map_err(|error| Error::os("memfd_create", error))?;
        rustix::fs::ftruncate(&file, length(nranks) as u64)
            .map_err(|error| Error::os("sizing the board", error))?;
        Board::map(file, nranks)
    }

    /// The board of the parent process, in a child that inherited `fd`.
    pub fn inherit(fd: i32, nranks: usize) -> Result<Board> {
        // SAFETY: the parent passed the number of a descriptor that is ours alone.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        Board::map(file, nranks)
    }

    fn map(file: OwnedFd, nranks: usize) -> Result<Board> {
        let bytes = length(nranks);
        // SAFETY: a fresh shared mapping of a file of this length.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::system("mapping the board"));
        }
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        // 20,000 polls are a fraction of a millisecond, longer than the checks of two ranks differ.
        // Where ranks share a core, whoever polls keeps the others from arriving: a poll then gives
        // the core away, and 200 of them take as long. Who slept would start a block of calls late,
        // by more than its calls take.
        let shares_cores = nranks > cores;
        let spins = if shares_cores { 200 } else { 20_000 };
        Ok(Board { base: base.cast(), bytes, nranks, file, shares_cores, spins, job: None })
    }

    /// The board of one rank of a launched job.
    pub fn of_job(rank: job::Rank) -> Result<Board> {
        let mut board = Board::new(rank.0.nranks())?;
        board.job = Some(rank);
        Ok(board)
    }

    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    pub fn nranks(&self) -> usize {
        self.nranks
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header; all-zero bytes are a valid one.
        unsafe { &*self.base.cast::<Header>() }
    }

    fn page(&self, rank: usize) -> &RankPage {
        assert!(rank < self.nranks, "rank {rank} of {}", self.nranks);
        let at = size_of::<Header>().next_multiple_of(64) + rank * size_of::<RankPage>();
        // SAFETY: inside the mapping and aligned to 8; all-zero bytes are a valid page.
        unsafe { &*self.base.add(at).cast::<RankPage>() }
    }

    pub fn stop(&self) {
        // Release: pairs with the Acquire load in `stopped`.
        self.header().abort.store(1, Ordering::Release);
        self.wake();
    }

    pub fn stopped(&self) -> bool {
        // Acquire: pairs with the Release store in `stop`.
        self.header().abort.load(Ordering::Acquire) != 0
    }

    /// Wait until all ranks have come; what they wrote before is visible after.
    pub fn barrier(&self) -> std::result::Result<(), Broken> {
        if let Some(job) = &self.job {
            return Ok(job.barrier()?);
        }
        let header = self.header();
        // Acquire: pairs with the Release increment of the generation below.
        let generation = header.generation.load(Ordering::Acquire);
        // AcqRel: the last to arrive sees what all others wrote before they arrived.
        let before = header.arrived.fetch_add(1, Ordering::AcqRel);
        if before + 1 == self.nranks as u32 {
            // Relaxed: the increment of the generation below publishes it.
            header.arrived.store(0, Ordering::Relaxed);
            // SeqCst: pairs with the load in `sleep`; either the sleeper is counted here or it sees
            // the new generation and does not sleep.
            header.generation.fetch_add(1, Ordering::SeqCst);
            // SeqCst: pairs with the increment in `sleep`.
            if header.sleepers.load(Ordering::SeqCst) > 0 {
                self.wake();
            }
            return Ok(());
        }
        let mut polls = 0;
        // Acquire: pairs with the increment above, made by the last rank.
        while header.generation.load(Ordering::Acquire) == generation {
            if self.stopped() {
                return Err(Broken::Stopped);
            }
            polls += 1;
            if polls > self.spins {
                self.sleep(generation);
            } else if self.shares_cores {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// Two barriers: whoever slept in the first is awake in the second, so that all leave together.
    pub fn start_together(&self) -> std::result::Result<(), Broken> {
        match &self.job {
            None => self.barrier()?,
            Some(job) => self.hear_decision(job)?,
        }
        self.barrier()
    }

    fn sleep(&self, generation: u32) {
        let header = self.header();
        // SeqCst: pairs with the load of the last rank in `barrier`.
        header.sleepers.fetch_add(1, Ordering::SeqCst);
        // SeqCst: pairs with the increment of the generation in `barrier`.
        if header.generation.load(Ordering::SeqCst) == generation {
            // A tenth of a second: how soon a stopped run is noticed by a sleeper that is not
            // woken.
            let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let (word, shared) = (&header.generation, futex::Flags::empty());
            let _ = futex::wait(word, shared, generation, Some(&timeout));
        }
        // SeqCst: pairs with the load of the last rank in `barrier`.
        header.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake(&self) {
        let (word, shared) = (&self.header().generation, futex::Flags::empty());
        let _ = futex::wake(word, shared, i32::MAX as u32);
    }

    /// Rank 0 decides before a barrier, everyone reads after it.
    pub fn decide(&self, block: usize, decision: u64) {
        // Relaxed: the barrier publishes it. Two places take turns, and rank 0 is never two
        // barriers ahead of a reader.
        self.header().decisions[block % 2].store(decision, Ordering::Relaxed);
    }

    pub fn decision(&self, block: usize) -> u64 {
        // Relaxed: written before a barrier that this rank has passed.
        self.header().decisions[block % 2].load(Ordering::Relaxed)
    }

    /// Take rank 0's decisions over from its board.
    fn hear_decision(&self, job: &job::Rank) -> Result<()> {
        let decisions = &self.header().decisions;
        // Relaxed: the board of a launched job has one thread.
        let mut words = [0, 1].map(|block: usize| decisions[block].load(Ordering::Relaxed));
        job.broadcast(&mut words)?;
        for (decision, word) in decisions.iter().zip(words) {
            // Relaxed: as above.
            decision.store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Bring the first `kept` times of both lists, and what was wrong, from all ranks to every
    /// board: nothing to do where there is one board.
    pub fn share(&self, rank: usize, kept: [usize; 2]) -> Result<()> {
        let Some(job) = &self.job else { return Ok(()) };
        // Relaxed, all of them: the board of a launched job has one thread.
        let places = |rank: usize| {
            let page = self.page(rank);
            let [typical, single] = &page.samples;
            let times = typical.iter().take(kept[0]).chain(single.iter().take(kept[1]));
            [&page.wrong].into_iter().chain(&page.first).chain(times)
        };
        let mine: Vec<u64> = places(rank).map(|word| word.load(Ordering::Relaxed)).collect();
        let all = job.gather(&mine)?;
        for (other, words) in all.chunks(mine.len()).enumerate() {
            places(other).zip(words).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        }
        Ok(())
    }

    pub fn publish_id(&self, id: &[u8; 128]) {
        for (word, bytes) in self.header().unique_id.iter().zip(id.chunks_exact(8)) {
            // Relaxed: written before the processes that read it are started.
            word.store(u64::from_ne_bytes(bytes.try_into().expect("eight")), Ordering::Relaxed);
        }
    }

    pub fn unique_id(&self) -> [u8; 128] {
        let mut id = [0; 128];
        for (word, bytes) in self.header().unique_id.iter().zip(id.chunks_exact_mut(8)) {
            // Relaxed: see `publish_id`.
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        id
    }

    /// Leave a time in seconds; past the end of the list the oldest gives way.
    pub fn record(&self, rank: usize, list: List, index: usize, seconds: f64) {
        // Relaxed: a barrier lies between this and its reader.
        self.page(rank).samples[list as usize][index % SAMPLES]
            .store(seconds.to_bits(), Ordering::Relaxed);
    }

    pub fn sample(&self, rank: usize, list: List, index: usize) -> f64 {
        // Relaxed: written before a barrier that this rank has passed.
        f64::from_bits(self.page(rank).samples[list as usize][index].load(Ordering::Relaxed))
    }

    /// Leave how many elements were wrong, and the words that describe the first.
    pub fn report_wrong(&self, rank: usize, wrong: u64, first: [u64; FIRST]) {
        let page = self.page(rank);
        // Relaxed: a barrier lies between this and its reader.
        page.wrong.store(wrong, Ordering::Relaxed);
        for (word, value) in page.first.iter().zip(first) {
            // Relaxed: as above.
            word.store(value, Ordering::Relaxed);
        }
    }

    pub fn wrong(&self, rank: usize) -> (u64, [u64; FIRST]) {
        let page = self.page(rank);
        // Relaxed: written before a barrier that this rank has passed.
        let first = std::array::from_fn(|word| page.first[word].load(Ordering::Relaxed));
        // Relaxed: as above.
        (page.wrong.load(Ordering::Relaxed), first)
    }

    /// Note the cell that a rank works on, for the report of a crash.
    pub fn working_on(&self, rank: usize, cell: usize) {
        // Relaxed: a note for people, read while the rank may go on.
        self.page(rank).doing.store(cell as u64 + 1, Ordering::Relaxed);
    }

    pub fn cell_of(&self, rank: usize) -> Option<usize> {
        // Relaxed: as in `working_on`.
        (self.page(rank).doing.load(Ordering::Relaxed) as usize).checked_sub(1)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: our own mapping, not used after this.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_holds_everyone_back() {
        let board = Board::new(3).unwrap();
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let board = &board;
                scope.spawn(move || {
                    for round in 0..200 {
                        board.record(rank, List::Typical, 0, round as f64);
                        board.barrier().unwrap();
                        for other in 0..3 {
                            assert_eq!(board.sample(other, List::Typical, 0), round as f64);
                        }
                        board.start_together().unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_stopped_run_frees_the_waiting() {
        let board = Board::new(2).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| board.barrier().is_err());
            board.stop();
            assert!(waiting.join().unwrap());
        });
    }
}
