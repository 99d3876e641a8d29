//! The parts of ring-perf that its parsers need, as modules of a target's own.
#![allow(dead_code, reason = "no target uses all of it")]

#[path = "../../src/bin/ring-perf/consistent.rs"]
pub mod consistent;
#[path = "../../src/bin/ring-perf/layout.rs"]
pub mod layout;
#[path = "../../src/bin/ring-perf/operation.rs"]
pub mod operation;
#[path = "../../src/bin/ring-perf/option_table.rs"]
pub mod option_table;
#[path = "../../src/bin/ring-perf/options.rs"]
pub mod options;
#[path = "../../src/bin/ring-perf/sizes.rs"]
pub mod sizes;
