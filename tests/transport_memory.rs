//! Exported memory: allocated, registered, sent to a peer, used there and given up.

use ringcomm::transport::segment::Segment;
use ringcomm::transport::shm_export::{self, Mailbox, MailboxSender, ShmImports};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

const PAGE: usize = 4096;

/// Page-aligned private memory, all `fill`. It stays mapped until the process ends.
fn pages(count: usize, fill: u8) -> *mut u8 {
    let memory = std::mem::ManuallyDrop::new(Segment::anonymous(count * PAGE).unwrap());
    bytes_at(memory.address(), count * PAGE).fill(fill);
    memory.address()
}

fn bytes_at<'a>(address: *mut u8, bytes: usize) -> &'a mut [u8] {
    // SAFETY: callers name memory that is mapped and theirs alone.
    unsafe { std::slice::from_raw_parts_mut(address, bytes) }
}

/// What a peer gets that is sent the region of `address`: its mappings and the number.
fn imported(address: *mut u8) -> (ShmImports, u64) {
    let region = shm_export::find(address, 1).unwrap().region;
    let (mailbox, sender) = Mailbox::pair().unwrap();
    MailboxSender::new(sender).send(region).unwrap();
    let mut imports = ShmImports::default();
    let (number, bytes, descriptor) = mailbox.receive().unwrap().unwrap().region().unwrap();
    assert_eq!(number, region);
    imports.import(number, descriptor, bytes).unwrap();
    (imports, region)
}

#[test]
fn allocated_memory_is_found_by_every_range_inside_it_and_no_other() {
    let address = shm_export::allocate(3 * PAGE - 5).unwrap();
    let whole = shm_export::find(address, 3 * PAGE).unwrap();
    assert_eq!(whole.offset, 0);
    let inner = shm_export::find(address.wrapping_add(100), 3 * PAGE - 100).unwrap();
    assert_eq!((inner.region, inner.offset), (whole.region, 100));
    assert_eq!(shm_export::find(address, 3 * PAGE + 1), None);
    assert_eq!(shm_export::find(address.wrapping_sub(1), 2), None);
    assert_eq!(shm_export::find(address.wrapping_add(PAGE), usize::MAX), None);
    assert_eq!(
        shm_export::address(whole.region, 100, 3 * PAGE - 100),
        Some(address.wrapping_add(100))
    );
    assert_eq!(shm_export::address(whole.region, 100, 3 * PAGE - 99), None);
    assert_eq!(shm_export::address(whole.region, usize::MAX, 2), None);
    shm_export::release(address).unwrap();
    assert_eq!(shm_export::find(address, 1), None);
    assert_eq!(shm_export::address(whole.region, 0, 1), None);
}

#[test]
fn another_thread_sees_the_table_change() {
    // An address to look up, or one of these; the other thread answers with `FOUND` or `ABSENT`.
    const FOUND: usize = 1;
    const ABSENT: usize = 2;
    const STOP: usize = 3;
    let cell = AtomicUsize::new(FOUND);
    // Other tests may get the address once it is free: the region's number is its own.
    let region = AtomicU64::new(0);
    let ask = |address: *mut u8| {
        // Release and Acquire: pair with those of the other thread.
        cell.store(address.expose_provenance(), Release);
        loop {
            match cell.load(Acquire) {
                FOUND => return true,
                ABSENT => return false,
                _ => std::thread::yield_now(),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                match cell.load(Acquire) {
                    STOP => return,
                    FOUND | ABSENT => std::thread::yield_now(),
                    address => {
                        let pointer = std::ptr::with_exposed_provenance(address);
                        let own = region.load(Acquire);
                        let found = shm_export::find(pointer, 1).is_some_and(|at| at.region == own);
                        cell.store(if found { FOUND } else { ABSENT }, Release);
                    }
                }
            }
        });
        let answers: Vec<bool> = (0..3)
            .flat_map(|_| {
                let address = shm_export::allocate(1).unwrap();
                region.store(shm_export::find(address, 1).unwrap().region, Release);
                let before = ask(address);
                shm_export::release(address).unwrap();
                [before, ask(address)]
            })
            .collect();
        cell.store(STOP, Release);
        assert_eq!(answers, [true, false, true, false, true, false]);
    });
}

#[test]
fn only_what_was_allocated_is_released_and_once() {
    let address = shm_export::allocate(2 * PAGE).unwrap();
    for wrong in [std::ptr::null_mut(), address.wrapping_add(PAGE), pages(1, 0)] {
        let text = shm_export::release(wrong).unwrap_err().to_string();
        assert!(text.contains("was not returned by ringMemAlloc"), "{text}");
    }
    shm_export::release(address).unwrap();
    assert!(shm_export::release(address).is_err());
    assert!(
        shm_export::allocate(usize::MAX).is_err()
            && shm_export::allocate(isize::MAX as usize).is_err()
    );
}

#[test]
fn a_registered_range_keeps_address_and_content_there_and_back() {
    let address = pages(4, 7);
    let middle = address.wrapping_add(PAGE);
    let handle = shm_export::register(middle, 2 * PAGE).unwrap();
    assert!(bytes_at(address, 4 * PAGE).iter().all(|byte| *byte == 7));
    assert!(shm_export::find(middle, 2 * PAGE).is_some() && shm_export::find(address, 1).is_none());
    let (imports, region) = imported(middle);
    bytes_at(middle, 1)[0] = 9;
    let theirs = imports.resolve(region, 0, 4).unwrap();
    assert_eq!(bytes_at(theirs, 2)[..2], [9, 7]);
    bytes_at(theirs, 2)[1] = 11;
    assert!(shm_export::release(middle).unwrap_err().to_string().contains("deregister"));
    shm_export::deregister(handle).unwrap();
    assert_eq!(bytes_at(middle, 3)[..3], [9, 11, 7]);
    assert_eq!(shm_export::find(middle, 1), None);
    // Private again: what one side writes the other does not see.
    bytes_at(middle, 1)[0] = 1;
    assert_ne!(bytes_at(theirs, 1)[0], 1);
    assert!(shm_export::deregister(handle).unwrap_err().to_string().contains("handle"));
}

#[test]
fn registrations_of_known_memory_are_counted() {
    let address = pages(2, 3);
    let outer = shm_export::register(address, 2 * PAGE).unwrap();
    // Inside a region nothing moves, so nothing need be aligned.
    let inner = shm_export::register(address.wrapping_add(10), 100).unwrap();
    shm_export::deregister(outer).unwrap();
    assert!(shm_export::find(address, 2 * PAGE).is_some());
    shm_export::deregister(inner).unwrap();
    assert!(shm_export::find(address, 1).is_none());
    let allocated = shm_export::allocate(PAGE).unwrap();
    let handle = shm_export::register(allocated, 10).unwrap();
    shm_export::deregister(handle).unwrap();
    assert!(shm_export::find(allocated, PAGE).is_some());
    let late = shm_export::register(allocated, 10).unwrap();
    shm_export::release(allocated).unwrap();
    shm_export::deregister(late).unwrap();
}

#[test]
fn ranges_that_cannot_be_moved_are_refused_with_advice() {
    let address = pages(3, 5);
    let refused = |address: *mut u8, bytes: usize, why: &str| {
        let text = shm_export::register(address, bytes).unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
    };
    refused(std::ptr::null_mut(), PAGE, "NULL");
    refused(address, 0, "empty");
    refused(address, usize::MAX, "wraps");
    refused(address.wrapping_add(8), PAGE, "ringMemAlloc");
    refused(address, PAGE + 8, "whole pages");
    // The first page overlaps a registration; shared memory is not private; nothing is mapped at 64
    // KiB.
    let handle = shm_export::register(address, PAGE).unwrap();
    refused(address, 2 * PAGE, "overlap");
    shm_export::deregister(handle).unwrap();
    let shared = Segment::create(PAGE).unwrap();
    refused(shared.address(), PAGE, "not private");
    refused(std::ptr::without_provenance_mut(16 * PAGE), PAGE, "not private");
    assert!(bytes_at(address, 3 * PAGE).iter().all(|byte| *byte == 5));
}

#[test]
fn a_peers_mapping_is_bounds_checked_and_outlives_the_owners() {
    let address = shm_export::allocate(2 * PAGE).unwrap();
    let (mut imports, region) = imported(address);
    let theirs = imports.resolve(region, 2 * PAGE - 1, 1).unwrap();
    // A start inside is not enough: the last byte counts, and sums must not wrap.
    let outside = [
        (2 * PAGE - 1, 2),
        (0, 2 * PAGE + 1),
        (2 * PAGE, 1),
        (2 * PAGE + 1, 0),
        (1, usize::MAX),
        (usize::MAX, 0),
        (usize::MAX, 2),
    ];
    for (offset, bytes) in outside {
        assert_eq!(imports.resolve(region, offset, bytes), None, "{bytes} at {offset}");
    }
    assert_eq!(imports.resolve(region ^ 2, 0, 1), None);
    bytes_at(theirs, 1)[0] = 1;
    assert_eq!(bytes_at(address, 2 * PAGE)[2 * PAGE - 1], 1);
    shm_export::release(address).unwrap();
    // The memory is given back although it is mapped; reading it is harmless.
    assert_eq!(bytes_at(theirs, 1)[0], 0);
    let next = shm_export::allocate(PAGE).unwrap();
    let number = shm_export::find(next, 1).unwrap().region;
    let (mailbox, sender) = Mailbox::pair().unwrap();
    let sender = MailboxSender::new(sender);
    sender.send(number).unwrap();
    sender.send(number).unwrap();
    for _ in 0..2 {
        let (number, bytes, descriptor) = mailbox.receive().unwrap().unwrap().region().unwrap();
        imports.import(number, descriptor, bytes).unwrap();
    }
    // An import unmaps nothing, since a call may be using it.
    assert!(imports.resolve(region, 0, 1).is_some());
    assert_eq!(bytes_at(theirs, 1)[0], 0);
    imports.forget_withdrawn();
    assert_eq!(imports.resolve(region, 0, 1), None);
    assert!(imports.resolve(number, 0, 1).is_some());
    assert!(sender.send(region).is_err(), "a region that is gone");
    shm_export::release(next).unwrap();
}

#[test]
fn a_region_of_another_size_than_announced_is_refused() {
    let address = shm_export::allocate(2 * PAGE).unwrap();
    let region = shm_export::find(address, 1).unwrap().region;
    let (mailbox, sender) = Mailbox::pair().unwrap();
    let sender = MailboxSender::new(sender);
    for claim in [0, 1, PAGE, 2 * PAGE - 1, 3 * PAGE, usize::MAX] {
        sender.send(region).unwrap();
        let (number, _, descriptor) = mailbox.receive().unwrap().unwrap().region().unwrap();
        assert!(ShmImports::default().import(number, descriptor, claim).is_err(), "{claim}");
    }
    shm_export::release(address).unwrap();
}

#[test]
fn a_mailbox_never_blocks() {
    let (mailbox, sender) = Mailbox::pair().unwrap();
    assert!(mailbox.receive().unwrap().is_none());
    let copy = MailboxSender::new(sender.try_clone().unwrap());
    let sender = MailboxSender::new(sender);
    let address = shm_export::allocate(PAGE).unwrap();
    let region = shm_export::find(address, 1).unwrap().region;
    let mut sent = 0;
    while sender.send(region).is_ok() {
        sent += 1;
    }
    assert!(sent >= 16, "only {sent} messages fit");
    for _ in 0..sent {
        assert_eq!(mailbox.receive().unwrap().unwrap().region().unwrap().0, region);
    }
    copy.send(region).unwrap();
    assert!(mailbox.receive().unwrap().is_some());
    drop((sender, copy));
    assert!(mailbox.receive().unwrap().is_none());
    let (mailbox, sender) = Mailbox::pair().unwrap();
    drop(mailbox);
    assert!(MailboxSender::new(sender).send(region).is_err());
    shm_export::release(address).unwrap();
}
