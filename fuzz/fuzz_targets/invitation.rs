//! Any announcement of buffers resolves exactly where all that is used of them lies in shared
//! memory, and that can be read and written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::communicator::fuzz_hooks::Importer;
use ringcomm::executor::direct::program::Used;
use ringcomm::executor::direct::run::{BufferAddresses, BufferLocation};
use ringcomm::transport::segment::Segment;
use ringcomm::transport::shm_export;
use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};

mod support;
use support::{Input, send, touch};

const PAGE: usize = 4096;

/// Regions of another process: their numbers and bytes.
const IMPORTED: [(u64, usize); 2] = [(5, PAGE), (7, 3 * PAGE)];

/// Bytes of the region of this process.
const OWN: usize = 2 * PAGE;

struct Machine {
    importer: Importer,
    _sender: OwnedFd,
    own: u64,
}

fn machine() -> Machine {
    let (mut importer, sender) = Importer::new().unwrap();
    for (number, bytes) in IMPORTED {
        let descriptor = Segment::create(bytes + PAGE).unwrap().descriptor().unwrap();
        let words: Vec<u8> = [number, bytes as u64].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert!(send(&sender, &words, &[descriptor.as_raw_fd()]));
    }
    let own = shm_export::allocate(OWN).unwrap();
    let own = shm_export::find(own, OWN).unwrap().region;
    // Looking for what is not there takes everything out of the mailbox.
    assert!(importer.resolve(&BufferAddresses::default(), &Used::default()).is_none());
    let missing = BufferAddresses { input_region: 1, ..BufferAddresses::default() };
    assert!(importer.resolve(&missing, &Used::default()).is_none());
    Machine { importer, _sender: sender, own }
}

thread_local! {
    static MACHINE: RefCell<Machine> = RefCell::new(machine());
}

/// Whether a range of a region is there. `own` is the number of this process's own.
fn is_there(own: u64, region: u64, offset: u64, bytes: usize) -> bool {
    let holds = |all: usize| {
        usize::try_from(offset).is_ok_and(|at| at.checked_add(bytes).is_some_and(|end| end <= all))
    };
    match region {
        BufferLocation::PRIVATE | BufferLocation::SAME_PROCESS => false,
        BufferLocation::UNUSED => bytes == 0,
        region if region == own => holds(OWN),
        region => IMPORTED.iter().any(|(number, all)| *number == region && holds(*all)),
    }
}

fuzz_target!(|data: &[u8]| {
    MACHINE.with_borrow_mut(|machine| {
        let mut input = Input(data);
        // The own region's number is another in every run.
        let region = |number: u64| if number == 1 { machine.own } else { number };
        let mut next = || input.long();
        while let Some(words) = (0..6).map(|_| next()).collect::<Option<Vec<u64>>>() {
            let invitation = BufferAddresses {
                input_region: region(words[0]),
                input_offset: words[1],
                output_region: region(words[2]),
                output_offset: words[3],
                ..BufferAddresses::default()
            };
            let used = Used { input: words[4] as usize, output: words[5] as usize };
            let (own, it) = (machine.own, &invitation);
            let expected = is_there(own, it.input_region, it.input_offset, used.input)
                && is_there(own, it.output_region, it.output_offset, used.output);
            let base = machine.importer.resolve(&invitation, &used);
            assert_eq!(base.is_some(), expected, "{invitation:?} {used:?}");
            if let Some(base) = base {
                // SAFETY: none but what is tested; a fault is a finding.
                unsafe {
                    touch(base.input.cast_mut(), used.input);
                    touch(base.output, used.output);
                }
            }
        }
    });
});
