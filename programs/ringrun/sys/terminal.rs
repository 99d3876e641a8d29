//! The terminal: texts and errors of the program.

use std::io::Write;

/// Print a text; a reader that has gone away ends the program in peace.
pub fn say(text: &str) {
    if writeln!(std::io::stdout(), "{}", text.trim_end()).is_err() {
        std::process::exit(0);
    }
}

/// Print an error.
pub fn complain(text: &str) {
    // In one piece: the ranks of a check share the standard error. Without one there is nobody to
    // tell.
    let _ = std::io::stderr().write_all(format!("ringrun: {text}\n").as_bytes());
}
