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
        let shared = maps.lines().find(|line| line.contains("-s ") && line.contains("memfd:"));
        assert_eq!(shared, None, "the communicator is still there: {maps}");
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

/// Write 1, 2, 3, ... to a word of every page until `stop`; what the words must be then.
fn counts_up(pages: &[AtomicU64], stop: &AtomicBool) -> u64 {
    let mut last = 0;
    while !stop.load(SeqCst) {
        last += 1;
        pages.iter().step_by(PAGE / 8).for_each(|word| word.store(last, SeqCst));
    }
    last
}

#[test]
fn nothing_that_others_write_is_lost_while_memory_becomes_private_again() {
    const PAGES: usize = 500;
    let pages = Pages::new(PAGES);
    // SAFETY: allocated, aligned, initialized, and only used through this.
    let words: &[AtomicU64] =
        unsafe { std::slice::from_raw_parts(pages.at(0).cast(), PAGES * PAGE / 8) };
    for round in 0..60 {
        let comm = init_all(1)[0];
        let mut handle = null_mut();
        // SAFETY: the pages outlive the registration, and nobody writes to them yet.
        succeeds(unsafe { ringCommRegister(comm.comm(), pages.at(0), pages.bytes, &mut handle) });
        let stop = AtomicBool::new(false);
        let last = std::thread::scope(|scope| {
            let writer = scope.spawn(|| counts_up(words, &stop));
            while words[0].load(SeqCst) < 3 {
                std::thread::yield_now();
            }
            // SAFETY: safe for any argument.
            let ended = unsafe {
                match round % 3 {
                    0 => ringCommDeregister(comm.comm(), handle),
                    1 => ringCommAbort(comm.comm()),
                    _ => ringCommDestroy(comm.comm()),
                }
            };
            stop.store(true, SeqCst);
            succeeds(ended);
            writer.join().unwrap()
        });
        assert_eq!(access(pages.at(0)), "rw-p");
        assert_eq!(access(pages.at(PAGES - 1)), "rw-p");
        let lost = words.iter().step_by(PAGE / 8).position(|word| word.load(SeqCst) != last);
        assert_eq!(lost, None, "round {round}: what was written to this page is gone");
        if round % 3 == 0 {
            destroy(comm.comm());
        }
        words.iter().for_each(|word| word.store(0, SeqCst));
    }
}
