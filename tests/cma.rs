//! Calls between processes for which the kernel copies what others have: the right bytes in every
//! form, from any memory, slots where one rank may not read, and named errors when a rank dies.

mod support;

use ringcomm::communicator::{Call, Communicator, Message};
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use ringcomm::transport::cma::is_lendable;
use ringcomm::types::DataType;
use std::time::{Duration, Instant};
use support::delays::{asked, judge};
use support::exchange::batch;
use support::holdings::Holdings;
use support::pace::Pace;
use support::processes::{Ranks, say};
use support::samples::{COPYING, counts, long_cases, v_cases};
use support::scratch::{ROOM, Scratch, run};
use support::{Case, Memory, Prepared, Random, by_cma, on_processes, small_slots};

/// Bytes of a slot.
const SLOT: usize = 1024;

/// What goes through slots at all goes through short ones.
fn short_slots(nranks: usize) -> Config {
    Config { tuning_file: by_cma(nranks).tuning_file, ..small_slots(nranks, SLOT) }
}

/// How an all-gather of so many floats of each rank runs.
fn transport(comm: &Communicator) -> &'static str {
    let (send, recv) =
        (std::ptr::without_provenance(1 << 20), std::ptr::without_provenance_mut(1 << 40));
    let call =
        Call { send, recv, count: ROOM, ..Call::new(Collective::AllGather, DataType::Float32) };
    comm.explain(&call).unwrap().transport
}

fn assert_by_kernel(comm: &Communicator) {
    let transport = transport(comm);
    assert!(transport.ends_with("cma"), "{transport}");
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn copying_collectives_are_right_for_every_type_count_and_root() {
    for nranks in [2, 3, 5] {
        on_processes(nranks, &short_slots(nranks), "", |comm, _| {
            let nranks = comm.nranks();
            assert_by_kernel(comm);
            let mut cases = long_cases(nranks);
            for collective in COPYING {
                for data_type in [DataType::Uint8, DataType::Bfloat16, DataType::Float64] {
                    for count in counts(collective, nranks, data_type) {
                        for root in 0..if collective.has_root() { nranks } else { 1 } {
                            let seed = cases.len() as u64;
                            let case = Case::new(collective, nranks, count, data_type);
                            let in_place = seed.is_multiple_of(2);
                            cases.push(Case { root, in_place, seed, ..case });
                        }
                    }
                }
            }
            cases.extend(v_cases(nranks, 1, &mut Random(5)));
            // Ranks with memory that others reach, among others without.
            let memory = |rank: usize, seed: u64| match (rank as u64 + seed) % 3 {
                0 => Memory::Exported,
                _ => Memory::Ordinary,
            };
            for (number, case) in cases.into_iter().enumerate() {
                let memory = memory(comm.rank(), number as u64);
                Prepared::of(case, comm.rank()).within(memory).run(comm);
            }
            String::new()
        });
    }
}

#[test]
fn batches_of_messages_arrive_whole() {
    for nranks in [2, 4] {
        on_processes(nranks, &short_slots(nranks), "", |comm, _| {
            let mut plan = Random(11);
            let mut order = Random(comm.rank() as u64);
            for _ in 0..60 {
                let batch = batch(comm.nranks(), &mut plan);
                support::exchange::run(comm, &batch, &mut order);
            }
            String::new()
        });
    }
}

/// Of ranks that are threads, some share a process and some do not.
#[test]
fn threads_of_several_processes_read_each_other() {
    let mut ranks = Ranks::start_apart(2, &short_slots(4), "", |seat, _| {
        let work = |rank: usize| {
            let comm = Communicator::init_rank(4, &seat.id, rank, &seat.config).unwrap();
            assert_by_kernel(&comm);
            for seed in 0..20 {
                let collective = COPYING[seed as usize % COPYING.len()];
                let case = Case::new(collective, 4, 5000, DataType::Bfloat16);
                Prepared::of(Case { seed, in_place: seed % 2 == 0, ..case }, rank).run(&comm);
            }
        };
        std::thread::scope(|scope| {
            (0..2).for_each(|thread| drop(scope.spawn(move || work(2 * seat.rank + thread))));
        });
        String::new()
    });
    (0..2).for_each(|rank| drop(ranks.end(rank, soon()).result.unwrap()));
}

/// A message that is alone leaves as soon as it has a slot: both ranks send before they receive.
#[test]
fn a_short_message_by_itself_does_not_wait_for_its_receiver() {
    let config = Config { timeout_ms: 20_000, ..by_cma(2) };
    on_processes(2, &config, "", |comm, _| {
        let (peer, count) = (1 - comm.rank(), 64 << 10);
        let (sent, mut got) = (vec![comm.rank() as u8; count], vec![9u8; count]);
        let data_type = DataType::Uint8;
        let send = Message::Send { buffer: sent.as_ptr(), count, data_type, peer };
        let recv = Message::Recv { buffer: got.as_mut_ptr(), count, data_type, peer };
        // SAFETY: both buffers have that many bytes.
        unsafe {
            comm.exchange(&[send]).unwrap();
            comm.exchange(&[recv]).unwrap();
        }
        assert_eq!(got, vec![peer as u8; count]);
        String::new()
    });
}

/// Exchange one buffer's content with the other rank, through that buffer.
fn swap(comm: &Communicator) {
    let peer = 1 - comm.rank();
    for (round, count) in [100, 4 << 10, 32 << 10, 60 << 10].into_iter().enumerate() {
        for _ in 0..20 {
            let mut swapped = vec![(round * 2 + comm.rank()) as u8; count];
            let (data_type, buffer) = (DataType::Uint8, swapped.as_mut_ptr());
            let send = Message::Send { buffer, count, data_type, peer };
            let recv = Message::Recv { buffer, count, data_type, peer };
            // SAFETY: the buffer has that many bytes.
            unsafe { comm.exchange(&[send, recv]).unwrap() };
            assert!(swapped == vec![(round * 2 + peer) as u8; count], "{count} bytes");
        }
    }
}

/// The same, behind another message to the same rank, for which the second one has to wait.
fn swap_behind_another(comm: &Communicator) {
    let (peer, data_type) = (1 - comm.rank(), DataType::Uint8);
    for count in [100, 4 << 10, 32 << 10, 60 << 10] {
        for round in 0..20u8 {
            let first = vec![round; count];
            let mut got = vec![255; count];
            let mut swapped = vec![100 + comm.rank() as u8; count];
            let buffer = swapped.as_mut_ptr();
            let messages = [
                Message::Send { buffer: first.as_ptr(), count, data_type, peer },
                Message::Send { buffer, count, data_type, peer },
                // The peer's first message lands where this rank's second one leaves from.
                Message::Recv { buffer, count, data_type, peer },
                Message::Recv { buffer: got.as_mut_ptr(), count, data_type, peer },
            ];
            // SAFETY: the buffers have that many bytes.
            unsafe { comm.exchange(&messages).unwrap() };
            assert!(swapped == first, "{count} bytes");
            assert!(got == vec![100 + peer as u8; count], "{count} bytes");
        }
    }
}

/// What a slot holds has left its buffer when what the same group receives lands there.
#[test]
fn ranks_that_swap_a_buffer_get_each_others() {
    fn work(comm: &Communicator) {
        swap(comm);
        swap_behind_another(comm);
    }
    on_processes(2, &by_cma(2), "", |comm, _| {
        work(comm);
        String::new()
    });
    support::on_threads(2, &by_cma(2), work);
}

/// As a process is that has changed its user: whoever is not root cannot read it any more.
#[test]
fn a_rank_that_lets_nobody_look_into_it_lends_nothing() {
    on_processes(3, &short_slots(3), "", |comm, _| {
        assert_by_kernel(comm);
        let bytes = [1u8; 100];
        assert!(is_lendable(bytes.as_ptr(), bytes.len()));
        if comm.rank() == 1 {
            // SAFETY: two numbers are passed.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
            // Of other bytes, as what was found holds for a moment.
            assert!(!is_lendable(bytes.as_ptr(), bytes.len() - 1));
        }
        for case in long_cases(3) {
            Prepared::of(case, comm.rank()).run(comm);
        }
        support::exchange::run(comm, &batch(3, &mut Random(3)), &mut Random(1));
        String::new()
    });
}

/// From now on this process may not read others' memory, as under a container's rules.
fn forbid_reading() {
    let load = |offset: u32| libc::sock_filter {
        code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: offset,
    };
    let end = |value: u32| libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: value,
    };
    let is_reading = libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: libc::SYS_process_vm_readv as u32,
    };
    let mut rules = [
        load(0),
        is_reading,
        end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: rules.len() as u16, filter: rules.as_mut_ptr() };
    // SAFETY: the program is whole, and the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let all_threads = libc::SECCOMP_FILTER_FLAG_TSYNC;
        let set = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(libc::syscall(libc::SYS_seccomp, set, all_threads, &raw const program), 0);
    }
}

#[test]
fn where_one_rank_may_not_read_all_go_through_slots() {
    for reader in [0, 2] {
        let argument = reader.to_string();
        let mut ranks = Ranks::start_apart(3, &short_slots(3), &argument, |seat, reader| {
            if seat.rank == reader.parse::<usize>().unwrap() {
                forbid_reading();
            }
            let comm = seat.join();
            assert_eq!(transport(&comm), "shm/direct or shm/slots");
            for case in long_cases(3) {
                Prepared::of(case, seat.rank).run(&comm);
            }
            support::exchange::run(&comm, &batch(3, &mut Random(3)), &mut Random(1));
            String::new()
        });
        (0..3).for_each(|rank| drop(ranks.end(rank, soon()).result.unwrap()));
    }
}

#[test]
fn memory_that_the_kernel_does_not_read_is_not_lent() {
    let bytes = [1u8; 100];
    assert!(is_lendable(bytes.as_ptr(), bytes.len()) && is_lendable(bytes.as_ptr(), 1));
    assert!(!is_lendable(bytes.as_ptr(), 0));
    // The kernel's own page of the time, which is mapped as a device's memory is.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let page = maps.lines().find(|line| line.ends_with("[vvar]")).expect("a page of the time");
    let start = usize::from_str_radix(page.split('-').next().unwrap(), 16).unwrap();
    let start = std::ptr::with_exposed_provenance(start);
    assert!(!is_lendable(start, 16) && !is_lendable(start, 16));
    // What is found of memory holds for a moment, and not for what is there later.
    // SAFETY: a page of anonymous memory, which nobody else uses.
    unsafe {
        let (flags, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ);
        let page = libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0);
        assert!(page != libc::MAP_FAILED && is_lendable(page.cast(), 4096));
        assert_eq!(libc::mprotect(page, 4096, libc::PROT_NONE), 0);
        std::thread::sleep(Duration::from_millis(1));
        assert!(!is_lendable(page.cast(), 4096));
        libc::munmap(page, 4096);
    }
}

/// As pinned memory of a GPU's driver would be: the page that the kernel maps for the time.
#[test]
fn what_the_kernel_does_not_read_goes_through_slots() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains("[vvar]"), "there is such a page");
    on_processes(2, &short_slots(2), "", |comm, _| {
        assert_by_kernel(comm);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let page = maps.lines().find(|line| line.ends_with("[vvar]")).unwrap();
        let start = usize::from_str_radix(page.split('-').next().unwrap(), 16).unwrap();
        let source: *const u8 = std::ptr::with_exposed_provenance(start);
        let (peer, data_type, count) = (1 - comm.rank(), DataType::Uint8, 2048);
        let mut got = vec![0u8; 2 * count];
        let call = Call {
            send: source,
            recv: got.as_mut_ptr(),
            count,
            ..Call::new(Collective::AllGather, data_type)
        };
        let batch = [
            Message::Send { buffer: source, count, data_type, peer },
            Message::Recv { buffer: got.as_mut_ptr(), count, data_type, peer },
        ];
        // SAFETY: the page can be read, and the buffer holds both blocks.
        unsafe {
            comm.run(&call).unwrap();
            comm.exchange(&batch).unwrap();
        }
        String::new()
    });
}

#[test]
fn a_rank_that_may_not_read_any_more_says_whose_memory_and_why() {
    let mut ranks = Ranks::start_apart(3, &short_slots(3), "", |seat, _| {
        let comm = seat.join();
        assert_by_kernel(&comm);
        if seat.rank == 1 {
            forbid_reading();
        }
        let mut scratch = Scratch::new(3);
        // Who sends finds out by itself, and all go through slots.
        run(&comm, &scratch.call(Collective::AllGather, ROOM)).unwrap();
        let call = scratch.call(Collective::Broadcast, ROOM);
        // Who only receives does not. The third rank may be through with the first call by then.
        let error = std::iter::repeat_with(|| run(&comm, &call)).find_map(Result::err);
        error.unwrap().to_string()
    });
    for rank in 0..3 {
        let text = ranks.end(rank, soon()).result.unwrap();
        let named = text.contains("rank 1 cannot reach the memory of rank")
            && text.contains("process_vm_readv");
        assert!(named, "rank {rank}: {text}");
        assert!(rank == 1 || text.contains("rank 1 "), "rank {rank}: {text}");
    }
}

/// Ranks that gather and send until a call fails; its error.
fn gather_until_a_call_fails(comm: &Communicator) -> String {
    let mut scratch = Scratch::new(comm.nranks());
    let call = scratch.call(Collective::AllGather, ROOM);
    assert_by_kernel(comm);
    run(comm, &call).unwrap();
    say("ready");
    loop {
        if let Err(error) = run(comm, &call) {
            return error.to_string();
        }
    }
}

#[test]
fn survivors_of_kills_name_the_rank_and_hold_nothing() {
    let (mut random, mut delays) = (Random(7), Vec::new());
    // So few that only the longest delay is held to what is promised.
    for round in 0..asked().unwrap_or(30) {
        let nranks = 2 + round % 4;
        let mut ranks = Ranks::start_apart(nranks, &short_slots(nranks), "", |seat, _| {
            let before = Holdings::now();
            let comm = seat.join();
            let error = gather_until_a_call_fails(&comm);
            say(&error);
            drop(comm);
            assert_eq!(Holdings::back_to(&before), before, "nothing is left behind");
            error
        });
        (0..nranks).for_each(|rank| assert_eq!(ranks.hear(rank, soon()).1, "ready"));
        std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
        let victim = random.below(nranks);
        let (pace, killed) = (Pace::beside(ranks.pids()), Instant::now());
        ranks.signal(victim, libc::SIGKILL);
        let dead = ranks.who(victim) + " died";
        for rank in (0..nranks).filter(|rank| *rank != victim) {
            let (at, text) = ranks.hear(rank, soon());
            assert!(text.contains(&dead) && text.contains("AllGather(count=20000"), "{text}");
            delays.push(pace.timed(killed, at));
        }
        for rank in (0..nranks).filter(|rank| *rank != victim) {
            ranks.end(rank, soon()).result.unwrap();
        }
    }
    judge("copies by the kernel", &mut delays);
}
