//! The command line: options, hosts, and which rank is placed where.

mod help;
pub(super) mod options;
mod values;
