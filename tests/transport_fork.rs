//! Exported memory across `fork`. The only test of its process: no thread holds a lock meanwhile.

use ringcomm::transport::segment::Segment;
use ringcomm::transport::shm_export::{self, Mailbox, MailboxSender, ShmImports};
use std::io::{Read, Write};

#[test]
fn neither_a_child_nor_its_parent_takes_memory_from_the_other() {
    a_child_that_frees_does_not_take_the_memory_from_its_parent();
    a_child_keeps_what_its_parent_deregisters();
    pages_without_children_are_zeros_once_they_are_dropped();
}

const BYTES: usize = 8192;

/// Private memory of the user's, all sevens. It stays mapped.
fn sevens() -> *mut u8 {
    let memory = std::mem::ManuallyDrop::new(Segment::anonymous(BYTES).unwrap());
    // SAFETY: the mapping is that long.
    unsafe { memory.address().write_bytes(7, BYTES) };
    memory.address()
}

fn content<'a>(address: *mut u8) -> &'a [u8] {
    // SAFETY: from `sevens`; nobody writes meanwhile.
    unsafe { std::slice::from_raw_parts(address, BYTES) }
}

fn a_child_keeps_what_its_parent_deregisters() {
    let address = sevens();
    let handle = shm_export::register(address, BYTES).unwrap();
    let (mut child_waits, mut parent_goes_on) = std::io::pipe().unwrap();
    // SAFETY: the child waits, looks at the memory, and leaves.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(parent_goes_on);
        let _ = child_waits.read(&mut [0]);
        let kept = content(address).iter().all(|byte| *byte == 7);
        // SAFETY: leaves without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!kept)) };
    }
    shm_export::deregister(handle).unwrap();
    assert!(content(address).iter().all(|byte| *byte == 7));
    // It is private: the child does not see this.
    // SAFETY: inside the memory.
    unsafe { address.write(1) };
    parent_goes_on.write_all(&[0]).unwrap();
    let mut status = -1;
    // SAFETY: the child above.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "the child lost what its parent gave up");
}

/// As an allocator drops them that counts on that.
fn pages_without_children_are_zeros_once_they_are_dropped() {
    let address = sevens();
    let handle = shm_export::register(address, BYTES).unwrap();
    shm_export::deregister(handle).unwrap();
    assert!(content(address).iter().all(|byte| *byte == 7));
    // SAFETY: the memory is the test's.
    assert_eq!(unsafe { libc::madvise(address.cast(), BYTES, libc::MADV_DONTNEED) }, 0);
    assert!(content(address).iter().all(|byte| *byte == 0));
}

fn a_child_that_frees_does_not_take_the_memory_from_its_parent() {
    let address = shm_export::allocate(4096).unwrap();
    // SAFETY: the memory was just allocated.
    unsafe { address.write(42) };
    let region = shm_export::find(address, 1).unwrap().region;
    let (mailbox, sender) = Mailbox::pair().unwrap();
    MailboxSender::new(sender).send(region).unwrap();
    let (number, bytes, descriptor) = mailbox.receive().unwrap().unwrap().region().unwrap();
    let mut imports = ShmImports::default();
    imports.import(number, descriptor, bytes).unwrap();
    // SAFETY: the child frees one region and leaves.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = i32::from(shm_export::release(address).is_err());
        // SAFETY: leaves without running anything of the parent's.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: the child above; both mappings are still there.
    unsafe {
        libc::waitpid(pid, &mut status, 0);
        assert_eq!(status, 0);
        assert_eq!(address.read(), 42);
        assert_eq!(imports.resolve(region, 0, 1).unwrap().read(), 42);
    }
    shm_export::release(address).unwrap();
}
