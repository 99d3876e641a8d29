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
use std::io::Write;
use std::process::ExitCode;

/// What the exit status says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Status {
    Fine = 0,
    Wrong = 1,
    BadOption = 2,
    Slower = 3,
}

/// Print a line; a reader that has gone away ends the program in peace.
pub fn say(text: &str) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// Print a line beside an output that is for values alone.
pub fn say_beside(text: &str) {
    // As for an error.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Print an error.
pub fn complain(text: &str) {
    // Without a standard error there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "ring-perf: {text}");
}

fn begin(options: &Options) -> Status {
    match run::everything(options) {
        Ok(status) => status,
        Err(run::Failure::Option(text)) => {
            complain(&text);
            Status::BadOption
        }
        Err(run::Failure::Run(text)) => {
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
