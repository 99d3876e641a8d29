//! Functions of communicators: made, configured, asked about, divided and ended.

pub mod config;
pub mod explain;
pub mod launched;
pub mod lifecycle;
pub mod query;

pub mod grouped_creation;
