//! NCCL's network plugins as an engine: libraries that drive a vendor's network, such as EFA's,
//! found at run time by the names that NCCL finds them by.

pub mod abi;
mod calls;
mod channel;
pub mod engine;
mod lane;
pub mod library;
