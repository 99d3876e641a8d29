//! The command line: options, hosts, and which rank is placed where.

pub(super) mod option_table;
pub(super) mod options;
