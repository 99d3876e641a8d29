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

use cli::options::{Options, Parsed};
use cli::outcome::{Failure, Status, complain, say};
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
    let status = match cli::options::parse(&arguments) {
        Ok(Parsed::Help) => {
            say(cli::option_table::help().trim_end());
            Status::Fine
        }
        Ok(Parsed::Version) => {
            say(&format!("ring-perf {}", env!("CARGO_PKG_VERSION")));
            Status::Fine
        }
        Ok(Parsed::Run(options)) => {
            // A job that cannot be joined says so when it is.
            let launched =
                ranks::job::found(&options).map(|job| job.map_or(usize::MAX, |job| job.nranks));
            match options.has_its_root(launched) {
                Ok(()) => begin(&options),
                Err(text) => {
                    complain(&text);
                    Status::BadOption
                }
            }
        }
        Err(text) => {
            complain(&text);
            Status::BadOption
        }
    };
    ExitCode::from(status as u8)
}
