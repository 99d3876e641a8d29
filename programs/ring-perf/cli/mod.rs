//! The command line: options, their table, and which of them go together.

pub(super) mod mode;
mod nccl_tests;
pub(super) mod operation;
pub(super) mod options;
pub(super) mod outcome;
pub(super) mod sizes;
mod validate;
pub(super) mod values;
