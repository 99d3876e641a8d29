//! The protocol between the launcher and its agents: frames and messages.

pub(super) mod frame;
pub(super) mod messages;
