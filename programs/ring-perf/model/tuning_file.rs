//! `--save-tuning`: the constants of the cost model in a file that `--tuning` reads.
//!
//! Every constant comes from communicators that measured it as they were made, so that a tuning
//! file says nothing else than an ordinary start on a quiet machine would. Those of the wire
//! between hosts are not in it: no wire was there, and who has one measures it.

use crate::cli::outcome::Failure;
use crate::report::machine::{allowed_cores, bind};
use ringcomm::algorithm::select::{Costs, Profile};
use ringcomm::communicator::Communicator;
use ringcomm::config::Config;
use ringcomm::error::{Error, Result};

/// Communicators that are asked; their median counts. A neighbour's slice of a core may spoil a
/// few of nine, and nine are made in a few milliseconds.
const ASKED: usize = 9;

/// Two ranks, which is the least that has a message and a turn.
const RANKS: usize = 2;

/// What new communicators of this thread's cores measured.
fn asked() -> Result<Vec<Costs>> {
    let config = Config::default();
    (0..ASKED).map(|_| Ok(Communicator::init_all(RANKS, &config)?[0].costs())).collect()
}

fn median(all: &[Costs], pick: fn(&Costs) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(pick).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The constants of this machine.
fn measure() -> Result<Costs> {
    let cores = allowed_cores();
    let apart = asked()?;
    // Ranks start on the cores of the thread that makes them: here both on one.
    let shared = std::thread::scope(|scope| {
        let bound = || {
            cores.first().into_iter().for_each(|core| bind(*core));
            asked()
        };
        let ended = scope.spawn(bound).join();
        ended.unwrap_or_else(|_| Err(Error::Internal("the measurement panicked".into())))
    })?;
    Ok(Costs {
        alpha_us: median(&apart, |costs| costs.alpha_us),
        message_us: median(&apart, |costs| costs.message_us),
        copy_us_per_byte: median(&apart, |costs| costs.copy_us_per_byte),
        reduce_us_per_byte: median(&apart, |costs| costs.reduce_us_per_byte),
        switch_us: median(&shared, |costs| costs.switch_us),
        ..apart[0].clone()
    })
}

/// Measure and write; gives the text that was written.
pub fn save(path: &str) -> std::result::Result<String, Failure> {
    let text = Profile { costs: measure()?, knows_wire: false }.to_text();
    std::fs::write(path, &text)
        .map_err(|error| Failure::Run(format!("--save-tuning {path}: {error}")))?;
    Ok(text)
}
