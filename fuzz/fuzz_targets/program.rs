//! The parts of ring-perf that its parsers need, as modules of a target's own.
#![allow(dead_code, reason = "no target uses all of it")]

#[path = "../../programs/ring-perf/cli"]
pub mod cli {
    pub mod nccl_tests;
    pub mod operation;
    pub mod options;
    pub mod sizes;
    pub mod validate;
    pub mod values;
}
#[path = "../../programs/ring-perf/measure"]
pub mod measure {
    pub mod expected_layout;
    pub mod gradient_trace;
}
