//! `libnccl.so.2` made of ringcomm: NCCL's own interface, function by function.
//!
//! Each `pncclX` here converts its arguments and calls the library; [`twins`] adds `ncclX`. What
//! the library has not is small and here: communicators that are made while their caller goes on
//! ([`create`], [`comm`]), NCCL's variables ([`environment`]), and answers for what needs kernels
//! compiled against NCCL's headers ([`unsupported`]). `docs/nccl.md` is the table of all functions.
// C names are spelled as a C program spells them.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
// The header of each function is NCCL's, and so is what a caller promises there.
#![allow(clippy::missing_safety_doc)]

pub mod collectives;
pub mod collectives_config;
mod comm;
mod create;
pub mod environment;
pub mod group;
pub mod init;
pub mod lifecycle;
pub mod memory;
pub mod query;
mod texts;
pub mod twins;
pub mod types;
pub mod unsupported;
