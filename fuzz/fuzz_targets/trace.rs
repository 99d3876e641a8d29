//! A trace of any content is refused with its line, or all its elements are in its buckets once.
#![no_main]

use libfuzzer_sys::fuzz_target;

mod program;
use program::cli;
use program::measure::gradient_trace;

fuzz_target!(|data: &[u8]| {
    let Some((sizes, text)) = data.split_first_chunk::<4>() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(gradients) = gradient_trace::parse(text) else { return };
    let [first, rest] = [[sizes[0], sizes[1]], [sizes[2], sizes[3]]]
        .map(|bytes| usize::from(u16::from_le_bytes(bytes)));
    for step in gradient_trace::bucket(&gradients, first, rest) {
        let mut next = 0;
        for bucket in &step.buckets {
            assert_eq!(bucket.offset, next);
            next += bucket.count;
        }
        let same = gradients.iter().filter(|gradient| gradient.data_type == step.data_type);
        assert_eq!(next, same.map(|gradient| gradient.count).sum::<usize>());
    }
});
