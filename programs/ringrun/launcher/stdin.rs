//! The launcher's standard input on its way to rank 0.
//!
//! The agent acknowledges what its rank has taken, and no more than a window is under way. So a
//! rank that does not read never holds up the signals that come behind.

use crate::protocol::messages::ToAgent;
use crate::sys::poll::{self, Chunk, Watch};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// Bytes under way: a few pipes full, so that neither end waits for the other all the time.
const WINDOW_BYTES: usize = 256 << 10;

pub struct Input {
    file: File,
    /// It has not ended.
    open: bool,
    /// Rank 0 is there to read it.
    wanted: bool,
    /// So many bytes may yet be sent.
    credit: usize,
}

impl Input {
    pub fn new() -> io::Result<Input> {
        let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Input { file, open: true, wanted: false, credit: 0 })
    }

    /// Rank 0 is being started, with nothing on the way to it.
    pub fn begin(&mut self) {
        self.wanted = true;
        self.credit = WINDOW_BYTES;
    }

    /// Rank 0 is gone.
    pub fn end(&mut self) {
        self.wanted = false;
    }

    pub fn taken(&mut self, bytes: usize) {
        self.credit = (self.credit + bytes).min(WINDOW_BYTES);
    }

    fn is_due(&self) -> bool {
        self.open && self.wanted && self.credit > 0
    }

    /// A background job that reads its terminal is stopped by it; it waits for its turn instead.
    pub fn is_in_background(&self) -> bool {
        self.is_due() && poll::is_background_terminal(&self.file)
    }

    pub fn watch(&self, watch: &mut Watch) -> Option<usize> {
        (self.is_due() && !self.is_in_background()).then(|| watch.reading(&self.file))
    }

    /// Read what is there.
    pub fn read(&mut self) -> Option<ToAgent> {
        // What one read takes: a pipe's whole capacity.
        let mut buffer = [0; 64 << 10];
        let most = buffer.len().min(self.credit);
        match poll::read(&mut self.file, &mut buffer[..most]) {
            Chunk::Bytes(count) => {
                self.credit -= count;
                Some(ToAgent::Input(buffer[..count].to_vec()))
            }
            Chunk::NotYet => None,
            Chunk::End => {
                self.open = false;
                Some(ToAgent::InputEnd)
            }
        }
    }
}
