//! Calls on streams that are being captured, where no graph can have them.

use crate::device::cuda::Capture;
use crate::error::{Error, Result};

/// Refuse a call on a stream that is being captured; `why` says why it cannot be.
pub fn refuse_capture(capture: Capture, why: &str) -> Result<()> {
    match capture {
        Capture::No => Ok(()),
        Capture::Yes(_) => Err(Error::argument(format!(
            "the stream is being captured, but this call cannot be part of a graph: {why}"
        ))),
        Capture::Broken => Err(Error::argument(
            "the stream's capture has failed before this call; end it and see its error",
        )),
    }
}
