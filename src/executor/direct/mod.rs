//! Zero-copy execution: ranks read each other's buffers where they are.

pub mod processes;
pub mod program;
pub mod run;
