//! Subcommands that start no job: `--check` of the hosts, `--status` of a job.

pub(super) mod check;
pub(super) mod check_pairs;
pub(super) mod status;
