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
        // A terminal that went away needs no bar.
        let _ = std::io::stderr().write_all(self.line(what).as_bytes());
    }

    /// What takes the place of the line that the terminal shows.
    fn line(&self, what: &str) -> String {
        // Thirty columns leave room for the row's name on any terminal.
        let full = 30 * self.done / self.total.max(1);
        let bar: String = (0..30).map(|column| if column < full { '#' } else { '.' }).collect();
        format!("\r[{bar}] {}/{} {what}\x1b[K", self.done, self.total)
    }

    /// Take the bar away before something else is printed.
    pub fn clear(&self) {
        if self.shown {
            // As above.
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows_from_nothing_to_full() {
        let mut progress = Progress { total: 4, done: 0, shown: false };
        let mut bars = Vec::new();
        for done in 0..=4 {
            let line = progress.line("a row");
            let rest = line.strip_prefix("\r[").expect("from the line's first column");
            let (bar, words) = rest.split_once(']').expect("the bar's end");
            // The rest of a longer line before it is erased.
            assert_eq!(words, format!(" {done}/4 a row\x1b[K"));
            assert_eq!(bar.len(), 30);
            bars.push(bar.trim_end_matches('.').to_string());
            progress.step("a row");
        }
        assert_eq!(bars, [0, 7, 15, 22, 30].map(|full| "#".repeat(full)));
        let nothing = Progress { total: 0, done: 0, shown: false };
        assert!(nothing.line("").contains("] 0/0 "));
    }
}
