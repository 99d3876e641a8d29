//! The parts of ring-perf that its parsers need, as modules of a target's own.
#![allow(dead_code, reason = "no target uses all of it")]

#[path = "../../programs/ring-perf/cli"]
pub mod cli {
    pub mod operation;
    pub mod option_table;
    pub mod options;
    pub mod sizes;
    pub mod validate;
}
#[path = "../../programs/ring-perf/measure"]
pub mod measure {
    pub mod expected_layout;
    pub mod gradient_trace;
}
