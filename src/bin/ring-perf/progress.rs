//! The progress bar: on a terminal's standard error, and nowhere else.

use std::io::{IsTerminal, Write};

pub struct Progress {
    total: usize,
    done: usize,
    shown: bool,
}

impl Progress {
    pub fn new(total: usize) -> Progress {
        let progress = Progress { total, done: 0, shown: std::io::stderr().is_terminal() };
        progress.draw("");
        progress
    }

    /// One more is done; `what` names it.
    pub fn step(&mut self, what: &str) {
        self.done += 1;
        self.draw(what);
    }

    fn draw(&self, what: &str) {
        if !self.shown {
            return;
        }
        // Thirty columns leave room for the row's name on any terminal.
        let full = 30 * self.done / self.total.max(1);
        let bar: String = (0..30).map(|column| if column < full { '#' } else { '.' }).collect();
        let text = format!("\r[{bar}] {}/{} {what}\x1b[K", self.done, self.total);
        // A terminal that went away needs no bar.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    /// Take the bar away before something else is printed.
    pub fn clear(&self) {
        if self.shown {
            // As above.
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }
}
