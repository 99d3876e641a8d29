//! The outcome: what the program says, its exit status, and why there is no report.

use std::io::Write;

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

/// Why there is no report.
pub enum Failure {
    /// The command line asks for something that cannot be: status 2.
    Option(String),
    /// Something broke on the way: status 1.
    Run(String),
}

impl From<ringcomm::error::Error> for Failure {
    fn from(error: ringcomm::error::Error) -> Failure {
        Failure::Run(error.to_string())
    }
}
