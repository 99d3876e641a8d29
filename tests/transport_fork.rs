//! Exported memory across `fork`. The only test of its process: no thread holds a lock meanwhile.

use ringcomm::transport::exports::{self, Imports, Mailbox, MailboxSender};

#[test]
fn a_forked_child_that_frees_does_not_take_the_memory_from_its_parent() {
    let address = exports::allocate(4096).unwrap();
    // SAFETY: the memory was just allocated.
    unsafe { address.write(42) };
    let region = exports::find(address, 1).unwrap().region;
    let (mailbox, sender) = Mailbox::pair().unwrap();
    MailboxSender::new(sender).send(region).unwrap();
    let (number, bytes, descriptor) = mailbox.receive().unwrap().unwrap().region().unwrap();
    let mut imports = Imports::default();
    imports.import(number, descriptor, bytes).unwrap();
    // SAFETY: the child frees one region and leaves.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = i32::from(exports::release(address).is_err());
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
    exports::release(address).unwrap();
}
