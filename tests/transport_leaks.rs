//! Nothing stays behind: descriptors and mappings are counted around everything that makes any.
//!
//! The only test of its process, since the counts are the process's own.

use ringcomm::transport::pidfd::{Liveness, own_descriptor};
use ringcomm::transport::segment::Segment;
use ringcomm::transport::shm_export::{self, Mailbox, MailboxSender, ShmImports};

const PAGE: usize = 4096;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Shared mappings of memory files, and the size of everything mapped.
fn mappings() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = |line: &&str| line.contains("-s ") || line.contains("xs ");
    let files = maps.lines().filter(|line| line.contains("memfd:")).filter(shared).count();
    let bytes = maps.lines().map(|line| {
        let (low, rest) = line.split_once('-').unwrap();
        let high = rest.split(' ').next().unwrap();
        usize::from_str_radix(high, 16).unwrap() - usize::from_str_radix(low, 16).unwrap()
    });
    (files, bytes.sum())
}

fn round(buffer: *mut u8) {
    let mine = Segment::create(64 << 20).unwrap();
    let theirs = Segment::map(mine.descriptor().unwrap(), 64 << 20).unwrap();
    assert!(Segment::map(mine.descriptor().unwrap(), 1).is_err());
    let threads = Segment::anonymous(64 << 20).unwrap();
    let liveness = Liveness::new(vec![Some(own_descriptor().unwrap()), None]);
    assert!(liveness.dead().is_empty());

    let (mailbox, sender) = Mailbox::pair().unwrap();
    let sender = MailboxSender::new(sender);
    let allocated = shm_export::allocate(32 << 20).unwrap();
    let handle = shm_export::register(buffer, 4 * PAGE).unwrap();
    let mut imports = ShmImports::default();
    for address in [allocated, buffer] {
        let region = shm_export::find(address, 1).unwrap().region;
        sender.send(region).unwrap();
        // A second one stays in the mailbox with its descriptor.
        sender.send(region).unwrap();
        let (number, bytes, descriptor) = mailbox.receive().unwrap().unwrap().region().unwrap();
        imports.import(number, descriptor, bytes).unwrap();
    }
    shm_export::deregister(handle).unwrap();
    shm_export::release(allocated).unwrap();
    assert!(shm_export::release(allocated).is_err());
    assert!(shm_export::register(buffer.wrapping_add(1), PAGE).is_err());
    drop((mine, theirs, threads));
}

#[test]
fn nothing_stays_behind() {
    let layout = std::alloc::Layout::from_size_align(4 * PAGE, PAGE).unwrap();
    // SAFETY: the layout is not empty.
    let buffer = unsafe { std::alloc::alloc_zeroed(layout) };
    // The first round makes what the process keeps: a table, a thread's copy of it.
    round(buffer);
    let before = (descriptors(), mappings());
    for _ in 0..20 {
        round(buffer);
    }
    let after = (descriptors(), mappings());
    assert_eq!(before.0, after.0, "descriptors");
    assert_eq!((before.1.0, after.1.0), (0, 0), "mappings of shared memory");
    // The heap may grow by pages, a leaked mapping is 32 MiB at least.
    assert!(after.1.1 < before.1.1 + (16 << 20), "{before:?} {after:?}");
}
