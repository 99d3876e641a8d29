//! ring-perf: the bandwidth and latency benchmark.

fn main() {}
