//! NCCL's interface on host memory: every call with its values, and every misuse with its answer.
#![allow(unsafe_code)]
#![allow(non_upper_case_globals)]

mod calls;
mod creation;
mod groups;
mod misuse;
mod nonblocking;
mod ranks;
mod windows;
