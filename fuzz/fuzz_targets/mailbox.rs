//! Peers post anything into a mailbox, with descriptors of any kind: what resolves afterwards lies
//! in a region that was announced truly, and can be read and written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringcomm::communicator::fuzz_hooks::Importer;
use ringcomm::executor::direct::program::Used;
use ringcomm::executor::direct::run::BufferAddresses;
use ringcomm::transport::segment::Segment;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

mod support;
use support::{Input, send, touch};

const PAGE: usize = 4096;

/// Pages of the regions that are shared as they should be; one more holds the owner's mark.
const REGIONS: [usize; 2] = [1, 3];

/// Descriptors that a peer may send: the regions', and what is none.
fn descriptors() -> [OwnedFd; 4] {
    let region = |pages: usize| {
        let segment = Segment::create((pages + 1) * PAGE).unwrap();
        segment.descriptor().unwrap()
    };
    // SAFETY: a fresh descriptor of our own.
    let open = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"open".as_ptr(), 0)) };
    File::from(open.try_clone().unwrap()).set_len(2 * PAGE as u64).unwrap();
    [region(REGIONS[0]), region(REGIONS[1]), open, File::open("/dev/null").unwrap().into()]
}

thread_local! {
    static DESCRIPTORS: [OwnedFd; 4] = descriptors();
}

/// Messages of one input: as many as a mailbox surely holds.
const MOST_MESSAGES: usize = 16;

fn post(input: &mut Input, head: u8, sender: &OwnedFd, announced: &mut HashMap<u64, usize>) {
    // In the low bits how many descriptors, then which is the first.
    let (count, first) = (usize::from(head & 3), usize::from(head >> 2 & 3));
    let length = usize::from(input.byte().unwrap_or(0) % 33);
    let bytes = input.some(length);
    let fds: Vec<RawFd> = DESCRIPTORS
        .with(|all| (0..count).map(|index| all[(first + index) % all.len()].as_raw_fd()).collect());
    let sent = send(sender, bytes, &fds);
    assert!(sent, "a mailbox has room, and descriptors are not leaked");
    if let (Ok(words), 1, Some(pages)) =
        (<[u8; 16]>::try_from(bytes), count, REGIONS.get(first).copied())
    {
        let words = u128::from_le_bytes(words);
        let (region, claim) = (words as u64, (words >> 64) as u64);
        if claim == (pages * PAGE) as u64 {
            let most = announced.entry(region).or_default();
            *most = (*most).max(claim as usize);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let (mut importer, sender) = Importer::new().unwrap();
    let mut announced = HashMap::new();
    let mut messages = 0;
    let mut input = Input(data);
    while let Some(head) = input.byte() {
        if head & 0x80 == 0 {
            messages += 1;
            if messages > MOST_MESSAGES {
                return;
            }
            post(&mut input, head, &sender, &mut announced);
            continue;
        }
        let mut next = || input.long();
        let Some(words) = (0..6).map(|_| next()).collect::<Option<Vec<u64>>>() else { return };
        let invitation = BufferAddresses {
            input_region: words[0],
            input_offset: words[1],
            output_region: words[2],
            output_offset: words[3],
            ..BufferAddresses::default()
        };
        let used = Used { input: words[4] as usize, output: words[5] as usize };
        let Some(base) = importer.resolve(&invitation, &used) else { continue };
        let whole = |region: u64, offset: u64, bytes: usize| {
            announced.get(&region).is_some_and(|most| {
                (offset as usize).checked_add(bytes).is_some_and(|end| end <= *most)
            })
        };
        if used.input > 0 {
            assert!(whole(invitation.input_region, invitation.input_offset, used.input));
        }
        if used.output > 0 {
            assert!(whole(invitation.output_region, invitation.output_offset, used.output));
        }
        // SAFETY: none but what is tested; a fault is a finding.
        unsafe {
            touch(base.input.cast_mut(), used.input);
            touch(base.output, used.output);
        }
    }
});
