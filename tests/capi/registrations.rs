//! Registrations: whose they are, and several threads at once.

use super::*;

#[test]
fn destroying_a_communicator_takes_its_registrations_back_and_ends_it() {
    in_processes(2, |seat, _| {
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mut pages = Pages::new(4);
        pages.numbers().fill(5.0);
        let before = descriptors();
        let comm = join(seat, 0);
        let (mut handle, mut again, mut child) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the pages outlive the registrations.
        unsafe {
            succeeds(ringCommSplit(comm, 0, 0, &mut child, null_mut()));
            succeeds(ringCommRegister(child, pages.at(0), pages.bytes, &mut handle));
            assert_eq!(access(pages.at(0)), "rw-s");
            succeeds(ringCommAbort(child));
            assert_eq!(access(pages.at(0)), "rw-p", "abort takes registrations back too");
            succeeds(ringCommRegister(comm, pages.at(0), pages.bytes, &mut handle));
            succeeds(ringCommRegister(comm, pages.at(0), pages.bytes, &mut again));
            succeeds(ringCommDeregister(comm, again));
            assert_eq!(ringCommDeregister(comm, again), ringInvalidArgument);
            assert_eq!(access(pages.at(0)), "rw-s");
        }
        destroy(comm);
        assert_eq!(access(pages.at(0)), "rw-p");
        assert!(pages.numbers().iter().all(|number| *number == 5.0));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("memfd:"), "the communicator is still there: {maps}");
        assert_eq!(descriptors(), before);
        String::new()
    });
}
