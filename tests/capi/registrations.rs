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

#[test]
fn overlapping_ranges_registered_at_once_are_never_mapped_over_each_other() {
    let comm = init_all(1)[0];
    let mut pages = Pages::new(600);
    for (i, number) in pages.numbers().iter_mut().enumerate() {
        *number = i as f32;
    }
    let starts = [pages.at(0).addr(), pages.at(200).addr()];
    for round in 0..50 {
        let barrier = Barrier::new(2);
        let register = |start: usize| {
            let mut handle = null_mut();
            let range = std::ptr::with_exposed_provenance_mut(start);
            barrier.wait();
            // SAFETY: the pages outlive the registration.
            let result = unsafe { ringCommRegister(comm.comm(), range, 400 * PAGE, &mut handle) };
            (result == ringSuccess).then_some(handle.addr())
        };
        let handles: Vec<_> = std::thread::scope(|scope| {
            let threads = starts.map(|start| scope.spawn(move || register(start)));
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(handles.len(), 1, "round {round}: one comes first, the other is refused");
        for handle in handles {
            let handle = std::ptr::without_provenance_mut(handle);
            // SAFETY: nobody uses the pages.
            succeeds(unsafe { ringCommDeregister(comm.comm(), handle) });
        }
    }
    assert!(pages.numbers().iter().enumerate().all(|(i, number)| *number == i as f32));
    destroy(comm.comm());
}
