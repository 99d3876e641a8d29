//! Watchdog: why a wait ends before its peer has answered.

mod last_calls;
mod self_deadlock;
pub(super) mod wait_check;
