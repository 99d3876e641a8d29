//! Options of nccl-tests that ring-perf takes where they ask for what it does anyway, so that a
//! command line of nccl-tests runs. Any other value is answered with what there is instead.

use clap::Arg;

/// Letter, name, the values between bars that change nothing, and why there are no others.
const FIXED: [(char, &str, &str, &str); 13] = [
    ('z', "blocking", "0|1|2|3", "no effect: host calls return when done"),
    ('I', "per_iter_timing", "0|1", "no effect: min and p99 are always shown"),
    ('G', "cudagraph", "0", "-g replays a graph for every row; host calls have none"),
    ('C', "report_cputime", "0", "with -g --json has the host's part of a call as eager_us"),
    ('y', "stream_null", "0", "host calls have no stream, with -g every rank has its own"),
    ('N', "run_cycles", "1", "the table is measured once; repeat the command, and --compare"),
    ('K', "per_iter_skip", "0", "-w leaves out the first iterations"),
    ('S', "report_timestamps", "0", "rows have no time of day"),
    ('M', "memory", "0", "ARCHITECTURE.md, \"Memory\", says what a communicator takes"),
    ('u', "unalign", "0", "buffers begin at a cache line or a page, no other alignment"),
    ('D', "device_implementation", "0", "kernels cannot be exchanged, --algo forces an algorithm"),
    ('V', "device_cta_count", "16", "it goes with another -D than 0, which there is not"),
    ('x', "cta_policy", "0", "there is one policy, the library's own"),
];

pub fn arguments() -> impl Iterator<Item = Arg> {
    FIXED.iter().map(|(short, long, values, why)| {
        let only = move |text: &str| match values.split('|').any(|value| value == text) {
            true => Ok(()),
            false => Err(format!("{why}: use {values}")),
        };
        Arg::new(*long).short(*short).long(*long).value_name(*values).value_parser(only).help(*why)
    })
}
