//! Executors: the only place where plans, connections and devices meet.
//!
//! [`compile_plan`] turns a plan and a call's layout into steps with offsets; [`host`] interprets
//! them through slots, sums of hosts by [`balanced_reduction`]; [`direct::program`] binds and
//! [`direct::run`] runs the plans whose messages can be loads and stores in the peers' own buffers;
//! [`shm_two_shot`] runs them where these are copies; `links::remote` serves peers on other
//! machines; [`send_recv`] matches point-to-point messages at run time, lent as [`zero_copy`] says,
//! those of memory that the processor does not reach through [`bounced_send_recv`];
//! [`device_work`] cuts a collective into work for devices that address all ranks' memory, and
//! [`device_p2p`] runs it in kernels that wait for each other.
//! All on the host count how far they are in a [`progress_watch::ProgressWatch`].

pub mod bounced_send_recv;
pub mod chunk_layout;
pub mod compile_plan;
pub mod control_block;
pub mod device_p2p;
pub mod device_work;
pub mod direct;
pub mod host;
pub mod links;
pub mod send_recv;
pub mod shm_two_shot;
pub mod zero_copy;

mod balanced_reduction;
mod progress_watch;
