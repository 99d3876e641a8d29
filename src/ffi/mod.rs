//! The C API: check, convert, call, convert back. No logic lives here.
//!
//! Whoever knows NCCL knows this API: `s/nccl/ring/`. [`convert`] owns every cast from C to Rust,
//! [`boundary`] owns the way back (result codes, error texts, panics), [`handle`] turns what a C
//! program holds into what the library holds, and [`calls::dispatch`] decides whether a call runs
//! now, joins a group or waits on a stream. The other files hold the functions; their comments are
//! the documentation in `include/ringcomm.h`.
#![allow(non_snake_case)] // C names are spelled as a C program spells them.

pub mod types;

pub mod boundary;
pub mod convert;
pub mod handle;
pub mod object;
mod reductions;

pub mod calls;
pub mod comm;
pub mod memory;
