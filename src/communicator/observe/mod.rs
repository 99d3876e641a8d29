//! Observability: flight recorder, status server and timeline.

pub mod flight_dump;

pub(super) mod status_server;
pub(super) mod timeline;
