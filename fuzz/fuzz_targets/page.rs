//! Ranks' pages may hold anything, and so may one's own, which peers can write: whoever reads them
//! for an error or a dump gets a text, and the dump is JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::communicator::call::rank_state::state_of;
use ringcomm::communicator::fuzz_hooks::wait_check;
use ringcomm::communicator::observe::flight_dump::FlightDump;
use ringcomm::executor::control_block::ControlBlock;
use ringcomm::executor::links::{Links, Pages, Reach, SegmentMap};
use ringcomm::transport::fifo::FifoShape;
use ringcomm::transport::segment::Segment;
use ringcomm::transport::wait::SpinPolicy;
use std::sync::Arc;
use std::time::Duration;

mod support;
use support::{Input, patch};

const NRANKS: usize = 2;

fn pages() -> (Vec<Arc<Segment>>, Pages) {
    let map = SegmentMap::new(NRANKS, FifoShape { depth: 2, slot_bytes: 64 });
    let segments: Vec<_> =
        (0..NRANKS).map(|_| Arc::new(Segment::anonymous(map.bytes()).unwrap())).collect();
    let patience = SpinPolicy::new(NRANKS, NRANKS, None);
    let links = Links::new(0, map, segments.clone(), &[Reach::Machine; NRANKS], patience);
    let pages = links.pages();
    (segments, pages)
}

thread_local! {
    static PAGES: (Vec<Arc<Segment>>, Pages) = pages();
}

fuzz_target!(|data: &[u8]| {
    PAGES.with(|(segments, pages)| {
        for segment in segments {
            // SAFETY: the page lies at the start of its segment, and no one looks at it now.
            unsafe { segment.address().write_bytes(0, size_of::<ControlBlock>()) };
        }
        let mut input = Input(data);
        let (Some(sequence), Some(waited)) = (input.long(), input.long()) else { return };
        while let Some(first) = input.0.first() {
            let page = segments[usize::from(first >> 7)].address();
            // SAFETY: as above.
            if unsafe { patch(&mut input, page, size_of::<ControlBlock>()) }.is_none() {
                break;
            }
        }
        for rank in 0..NRANKS {
            assert!(!state_of(pages.of(rank), rank).is_empty());
        }
        let text = FlightDump { pages: pages.clone(), number: 1 }.dump(None);
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
        // A rank's own sequence numbers begin at 0: the last ones are out of reach.
        let sequence = sequence & u64::MAX >> 1;
        if let Err(error) = wait_check(pages, sequence, Duration::from_micros(waited)) {
            assert!(!error.to_string().is_empty());
        }
    });
});
