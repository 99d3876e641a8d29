//! Executors: the only place where plans, connections and devices meet.
//!
//! [`bind`] turns a plan and a call's layout into steps with offsets; [`host`] interprets them
//! through slots; [`direct`] binds and [`meeting`] runs the plans whose messages can be loads and
//! stores in the peers' own buffers; [`windows`] runs them where these are copies; [`remote`]
//! serves peers on other machines; [`exchange`] matches point-to-point messages at run time,
//! those of memory that the processor does not reach through [`bays`];
//! [`cuda`] cuts a collective into work for devices that address all ranks' memory, and [`flags`]
//! runs it in kernels that wait for each other. All on the host count how far they are in a
//! [`progress::Progress`].

pub mod announcement;
pub mod bays;
pub mod bind;
pub mod control;
pub mod cuda;
pub mod device_page;
pub mod direct;
pub mod exchange;
pub mod flags;
pub mod host;
pub mod layout;
pub mod links;
pub mod meeting;
pub mod processes;
pub mod windows;

mod progress;
mod remote;
