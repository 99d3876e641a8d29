//! How a time is taken.
//!
//! Calls run in blocks. Before a block all ranks meet at the board's barrier; after it every result
//! of the block is checked, so every timed call is checked and no check runs inside a measured
//! time. A call that takes long enough is timed by itself. Short ones are timed by the block (its
//! mean), because two clock reads would be a good part of an 8-byte call; every fourth of their
//! blocks reads the clock between calls instead, less the clock's own time: without those single
//! times there would be no tail. So an asked number of short calls is cut into four blocks at
//! least. A time is the longest of the ranks' (`-a` chooses another), and half of it where a
//! message goes there and back. The median is taken over the
//! means, or over the calls that are long; the least and the 99th percentile over all times.

pub(super) mod arena;
pub(super) mod buffers;
pub(super) mod expected_layout;
pub(super) mod gradient_trace;
pub(super) mod oracle;
mod pattern;
pub(super) mod statistics;
pub(super) mod time_budget;

use crate::cli::options::{Average, Options};
use crate::ranks::shared_state::{Board, Broken, List, SAMPLES};
use buffers::Stage;
use ringcomm::error::Error;
use statistics::Times;
use std::time::Instant;
use time_budget::Budget;

/// Calls longer than this, in seconds, are timed one by one: a hundred times what a small call
/// takes, so that reading the clock and a start that is not quite together are below the noise.
const SINGLE: f64 = 20e-6;
/// Blocks of short calls per block of single times.
const TAIL_EVERY: usize = 4;

/// What the next block is, as rank 0 decides it for all.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Block {
    Stop,
    WarmUp(usize),
    /// One time for so many iterations.
    Whole(usize),
    /// A time for each; whether they are typical ones or only for the tail.
    Single(usize),
    Tail(usize),
}

impl Block {
    fn encode(self) -> u64 {
        let (kind, iterations) = match self {
            Block::Stop => (0, 0),
            Block::WarmUp(iterations) => (1, iterations),
            Block::Whole(iterations) => (2, iterations),
            Block::Single(iterations) => (3, iterations),
            Block::Tail(iterations) => (4, iterations),
        };
        kind | (iterations as u64) << 8
    }

    fn decode(word: u64) -> Block {
        let iterations = (word >> 8) as usize;
        match word & 255 {
            1 => Block::WarmUp(iterations),
            2 => Block::Whole(iterations),
            3 => Block::Single(iterations),
            4 => Block::Tail(iterations),
            _ => Block::Stop,
        }
    }

    fn iterations(self) -> usize {
        match self {
            Block::Stop => 0,
            Block::WarmUp(iterations)
            | Block::Whole(iterations)
            | Block::Single(iterations)
            | Block::Tail(iterations) => iterations,
        }
    }
}

/// Rank 0's plan for a placement: warm up, find out how long a call takes, then measure until the
/// budget or the asked number of iterations is used up.
struct Director<'a> {
    options: &'a Options,
    budget: Budget,
    /// Iterations that fit one block.
    block: usize,
    begun: Instant,
    warmed: usize,
    timed_since: Option<Instant>,
    blocks: usize,
    done: usize,
    /// Seconds of one iteration in the fastest block of the warm-up, or without one of those that
    /// are timed, by this rank's clock.
    estimate: f64,
    kept: [usize; 2],
}

impl Director<'_> {
    fn new(options: &Options, budget: Budget, block: usize) -> Director<'_> {
        Director {
            options,
            budget,
            block,
            begun: Instant::now(),
            warmed: 0,
            timed_since: None,
            blocks: 0,
            done: 0,
            estimate: 0.0,
            kept: [0; 2],
        }
    }

    fn next(&mut self) -> Block {
        let budget = self.budget.time;
        let most = self.longest_block();
        // An asked number is met; the default gives way where five calls would eat the budget.
        let (warmup, exact) = match self.options.warmup {
            Some(asked) => (asked, true),
            // The first block is cold and says little of how long a call takes.
            None if self.estimate < SINGLE => (5 * self.block, false),
            None => ((2 * self.block).max(5), false),
        };
        let tired = !exact && self.warmed > most && self.begun.elapsed() > budget / 3;
        if self.timed_since.is_none() && self.warmed < warmup && !tired {
            return Block::WarmUp(most.min(warmup - self.warmed));
        }
        let since = *self.timed_since.get_or_insert_with(Instant::now);
        let left = match self.options.iterations {
            Some(asked) => asked - self.done,
            None if self.done < self.budget.least => self.budget.least - self.done,
            None if since.elapsed() > budget => 0,
            None if self.kept.iter().any(|kept| kept + self.block > SAMPLES) => 0,
            None => usize::MAX,
        };
        let single = self.estimate >= SINGLE;
        let part = self.options.iterations.filter(|_| !single);
        let part = part.map_or(usize::MAX, |asked| (asked / TAIL_EVERY).max(1));
        let iterations = most.min(part).min(left);
        if iterations == 0 {
            return Block::Stop;
        }
        self.blocks += 1;
        // The last of an asked number, too, as what is left may be less than a block.
        let ends = iterations == left && self.blocks > TAIL_EVERY;
        if single {
            Block::Single(iterations)
        } else if self.blocks.is_multiple_of(TAIL_EVERY) || ends {
            Block::Tail(iterations)
        } else {
            Block::Whole(iterations)
        }
    }

    /// Iterations of the next block: as many as have buffers, but little of a tight budget.
    fn longest_block(&self) -> usize {
        if !self.budget.is_tight() {
            return self.block;
        }
        // Unknown at first: one call tells.
        let fitting = self.budget.time.as_secs_f64() / (4.0 * self.estimate);
        if self.warmed == 0 { 1 } else { (fitting as usize).clamp(1, self.block) }
    }

    fn ran(&mut self, block: Block, seconds: f64) {
        let iterations = block.iterations();
        let warms = matches!(block, Block::WarmUp(_));
        // Without a warm-up what is timed has to tell how long a call takes.
        if warms || self.warmed == 0 && block != Block::Stop {
            let pace = seconds / iterations as f64;
            let is_first = self.warmed + self.done == 0;
            self.estimate = if is_first { pace } else { pace.min(self.estimate) };
        }
        match block {
            Block::WarmUp(_) => self.warmed += iterations,
            Block::Whole(_) => self.kept[List::Typical as usize] += 1,
            Block::Single(_) => self.kept[List::Typical as usize] += iterations,
            Block::Tail(_) => self.kept[List::Single as usize] += iterations,
            Block::Stop => {}
        }
        if !warms {
            self.done += iterations;
        }
    }
}

/// A rank's means of taking times.
pub struct Clock<'a> {
    pub board: &'a Board,
    pub rank: usize,
    pub options: &'a Options,
    /// Seconds that one reading takes.
    cost: f64,
    /// Call numbers at which to corrupt a result on this rank, and the byte.
    pub fault: Option<(usize, usize)>,
    /// Calls made on this rank before the current placement.
    pub calls_before: usize,
    stamps: Vec<Instant>,
}

impl<'a> Clock<'a> {
    pub fn new(board: &'a Board, rank: usize, options: &'a Options) -> Clock<'a> {
        let difference = |_| {
            let begin = Instant::now();
            begin.elapsed().as_secs_f64()
        };
        // The least of many: what the clock costs when nothing interferes.
        let cost = (0..1000).map(difference).fold(f64::INFINITY, f64::min);
        let (fault, stamps) = (None, Vec::with_capacity(64));
        Clock { board, rank, options, cost, fault, calls_before: 0, stamps }
    }

    /// Measure one placement. All ranks call this together; the times are complete on rank 0.
    pub fn measure(&mut self, stage: &mut Stage, budget: Budget) -> Result<Times, Broken> {
        let aggregate = self.options.aggregate;
        let mut director = Director::new(self.options, budget, stage.turns() / aggregate);
        let mut kept = [0; 2];
        let mut iteration = 0;
        for number in 0.. {
            stage.refill();
            if self.rank == 0 {
                self.board.decide(number, director.next().encode());
            }
            self.board.start_together()?;
            let block = Block::decode(self.board.decision(number));
            if block == Block::Stop {
                break;
            }
            let seconds = self.run(stage, block, &mut kept)?;
            self.after(stage, block, iteration)?;
            if !matches!(block, Block::WarmUp(_)) {
                iteration += block.iterations() * aggregate;
            }
            director.ran(block, seconds);
        }
        self.calls_before += stage.calls;
        if self.options.check {
            stage.check_inputs(iteration as u64);
        }
        self.board.share(self.rank, kept.map(|kept| kept.min(SAMPLES)))?;
        Ok(self.collect(kept, director.done, stage.ways()))
    }

    /// Run a block and leave its times on the board.
    fn run(
        &mut self,
        stage: &mut Stage,
        block: Block,
        kept: &mut [usize; 2],
    ) -> Result<f64, Error> {
        let calls = block.iterations() * self.options.aggregate;
        match block {
            Block::Single(_) | Block::Tail(_) => {
                let list = if let Block::Tail(_) = block { List::Single } else { List::Typical };
                self.stamps.clear();
                self.stamps.push(Instant::now());
                for _ in 0..block.iterations() {
                    stage.iterate(self.options.aggregate)?;
                    self.stamps.push(Instant::now());
                }
                for pair in self.stamps.windows(2) {
                    let seconds = ((pair[1] - pair[0]).as_secs_f64() - self.cost).max(0.0);
                    let time = seconds / self.options.aggregate as f64;
                    self.board.record(self.rank, list, kept[list as usize], time);
                    kept[list as usize] += 1;
                }
                Ok((*self.stamps.last().expect("pushed") - self.stamps[0]).as_secs_f64())
            }
            _ => {
                let begin = Instant::now();
                for _ in 0..block.iterations() {
                    stage.iterate(self.options.aggregate)?;
                }
                let seconds = begin.elapsed().as_secs_f64();
                if let Block::Whole(_) = block {
                    let time = (seconds - self.cost).max(0.0) / calls as f64;
                    self.board.record(self.rank, List::Typical, kept[0], time);
                    kept[0] += 1;
                }
                Ok(seconds)
            }
        }
    }

    /// Check what the block left, when nobody is in a call any more.
    fn after(&mut self, stage: &mut Stage, block: Block, iteration: usize) -> Result<(), Broken> {
        if !self.options.check {
            return Ok(());
        }
        self.board.barrier()?;
        let calls = block.iterations() * self.options.aggregate;
        if let Some((call, byte)) = self.fault {
            let first = self.calls_before + stage.calls - calls;
            if (first..first + calls).contains(&call) {
                stage.corrupt(call - self.calls_before, byte);
            }
        }
        stage.check(calls, iteration);
        Ok(())
    }

    /// Combine the ranks' times; only rank 0's are used.
    fn collect(&self, kept: [usize; 2], iterations: usize, ways: usize) -> Times {
        let ranks = 0..self.board.nranks();
        let combine = |list: List, index: usize| {
            let times = ranks.clone().map(|rank| self.board.sample(rank, list, index));
            match self.options.average {
                Average::RankZero => self.board.sample(0, list, index),
                Average::Mean => times.sum::<f64>() / self.board.nranks() as f64,
                Average::Least => times.fold(f64::INFINITY, f64::min),
                Average::Most => times.fold(0.0, f64::max),
            }
        };
        let times = |list: List| {
            let kept = kept[list as usize].min(SAMPLES);
            (0..kept).map(move |index| combine(list, index) / ways as f64)
        };
        Times::new(times(List::Typical).collect(), times(List::Single), iterations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_goes_there_and_back_has_half_of_the_time() {
        let (board, options) = (Board::new(2).unwrap(), Options::default());
        for (rank, time) in [(0, 4.0), (1, 6.0)] {
            board.record(rank, List::Typical, 0, time);
            board.record(rank, List::Single, 0, 2.0 * time);
        }
        let clock = Clock::new(&board, 0, &options);
        for (ways, median, longest) in [(1, 6.0, 12.0), (2, 3.0, 6.0)] {
            let times = clock.collect([1, 1], 2, ways);
            assert_eq!((times.median(), times.p99()), (median, longest));
        }
    }

    #[test]
    fn an_asked_number_of_iterations_is_exact() {
        for (asked, block) in [(1, 63), (7, 3), (200, 63)] {
            let options =
                Options { iterations: Some(asked), warmup: Some(2), ..Options::default() };
            let mut director = Director::new(&options, Budget::whole(options.budget()), block);
            loop {
                let block = director.next();
                assert_eq!(Block::decode(block.encode()), block);
                if block == Block::Stop {
                    break;
                }
                director.ran(block, 1e-6);
            }
            assert_eq!((director.done, director.warmed), (asked, 2));
        }
    }

    /// The blocks of so many asked iterations after so many to warm up, where a block has room for
    /// 63 and a call takes this long.
    fn timed(asked: usize, warmup: usize, pace: f64) -> Vec<Block> {
        let (iterations, warmup) = (Some(asked), Some(warmup));
        let options = Options { iterations, warmup, ..Options::default() };
        let mut director = Director::new(&options, Budget::whole(options.budget()), 63);
        let mut blocks = Vec::new();
        loop {
            let block = director.next();
            if block == Block::Stop {
                return blocks;
            }
            director.ran(block, pace * block.iterations() as f64);
            blocks.extend(Some(block).filter(|block| !matches!(block, Block::WarmUp(_))));
        }
    }

    #[test]
    fn an_asked_number_of_short_calls_has_means_and_a_tail() {
        for warmup in [0, 5] {
            use Block::{Tail, Whole};
            assert_eq!(timed(1, warmup, 1e-6), [Whole(1)]);
            assert_eq!(timed(4, warmup, 1e-6), [Whole(1), Whole(1), Whole(1), Tail(1)]);
            assert_eq!(timed(20, warmup, 1e-6), [Whole(5), Whole(5), Whole(5), Tail(5)]);
            let rest = [Whole(5), Whole(5), Whole(5), Tail(5), Tail(2)];
            assert_eq!(timed(22, warmup, 1e-6), rest);
            let many = timed(1000, warmup, 1e-6);
            assert_eq!((many[0], many.len(), many[15]), (Whole(63), 16, Tail(55)));
        }
    }

    #[test]
    fn long_calls_are_timed_one_by_one_with_or_without_a_warm_up() {
        assert_eq!(timed(20, 5, 1e-3), [Block::Single(20)]);
        assert_eq!(timed(20, 0, 1e-3), [Block::Whole(5), Block::Single(15)]);
    }

    #[test]
    fn a_tight_budget_makes_do_with_one_iteration() {
        let options = Options::default();
        let budget = Budget { time: std::time::Duration::ZERO, least: 1 };
        let mut director = Director::new(&options, budget, 63);
        loop {
            let block = director.next();
            if block == Block::Stop {
                break;
            }
            assert_eq!(block.iterations(), 1);
            director.ran(block, 1.0);
        }
        assert!(
            director.done == 1 && director.warmed <= 2,
            "{} {}",
            director.done,
            director.warmed
        );
    }

    #[test]
    fn a_cold_first_block_does_not_decide_how_short_calls_are_timed() {
        let options = Options { budget_ms: 1_000_000, ..Options::default() };
        let first = |paces: [f64; 2]| {
            let mut director = Director::new(&options, Budget::whole(options.budget()), 63);
            let mut paces = paces.into_iter().chain(std::iter::repeat(paces[1]));
            loop {
                let block = director.next();
                if !matches!(block, Block::WarmUp(_)) {
                    return block;
                }
                director.ran(block, 63.0 * paces.next().expect("they repeat"));
            }
        };
        assert!(matches!(first([1e-6, 1e-6]), Block::Whole(_)));
        assert!(matches!(first([1e-3, 1e-6]), Block::Whole(_)));
        assert!(matches!(first([1e-3, 1e-3]), Block::Single(_)));
    }
}
