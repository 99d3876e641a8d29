//! The command line: options, their table, and which of them go together.

pub(super) mod mode;
pub(super) mod operation;
pub(super) mod option_table;
pub(super) mod options;
pub(super) mod outcome;
pub(super) mod sizes;
mod validate;
