//! What the operating system gives that more than one room needs: sockets, sleeping on descriptors,
//! signals of threads, variables.

pub(crate) mod descriptors;
pub mod environment;
pub(crate) mod poll;
pub(crate) mod sockets;
pub mod tcp_liveness;
pub mod thread_signals;
