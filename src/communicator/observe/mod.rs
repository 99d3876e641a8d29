//! Observability: flight recorder, status server and timeline.

pub mod flight_recorder;

pub(super) mod status_server;
pub(super) mod timeline;
