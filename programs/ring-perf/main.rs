//! ring-perf: the bandwidth and latency benchmark, which checks every result that it times.
//!
//! The program makes its own ranks, as threads or as processes, or is one rank of a launched job;
//! every rank has the same list of cells to measure. `measure` says how a time is taken, `pattern`
//! what is sent, `expected_layout` how much of the memory's bandwidth a row is held against.

#![deny(unsafe_code)]

mod cli;
mod gpu;
mod measure;
mod model;
mod ranks;
mod report;
mod run;

use cli::options::Options;
use cli::outcome::{Failure, Status, complain};
use std::process::ExitCode;

fn begin(options: &Options) -> Status {
    match run::everything(options, gpu::run) {
        Ok(status) => status,
        Err(Failure::Option(text)) => {
            complain(&text);
            Status::BadOption
        }
        Err(Failure::Run(text)) => {
            complain(&text);
            Status::Wrong
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match cli::options::parse(&arguments) {
        Ok(options) => options,
        Err(answer) => {
            // The help and the version come so, too; a reader that has gone away needs none.
            let _ = answer.print();
            return ExitCode::from(answer.exit_code() as u8);
        }
    };
    // A job that cannot be joined says so when it is.
    let launched = ranks::job::found(&options).map(|job| job.map_or(usize::MAX, |job| job.nranks));
    let status = match options.has_its_root(launched) {
        Ok(()) => begin(&options),
        Err(text) => {
            complain(&text);
            Status::BadOption
        }
    };
    ExitCode::from(status as u8)
}
