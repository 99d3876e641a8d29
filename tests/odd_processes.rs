//! Ranks in processes that do more than call: they write over shared pages, close their standard
//! files, live under a filter of system calls or a limit of sizes, become another program, abort in
//! a signal handler, or have a thread cancelled. Nobody hangs, crashes or gets wrong results.

mod support;

use ringcomm::communicator::{Call, Communicator};
use ringcomm::config::Config;
use ringcomm::executor::control_block::ControlBlock;
use ringcomm::ffi::calls::collective::ringAllReduce;
use ringcomm::ffi::comm::lifecycle::{ringCommAbort, ringCommDestroy, ringCommInitAll};
use ringcomm::ffi::types::ringResult_t::*;
use ringcomm::ffi::types::{RawDataType, RawRedOp, ringComm_t, ringDataType_t, ringRedOp_t};
use ringcomm::plan::Collective;
use ringcomm::types::DataType;
use std::ffi::c_void;
use std::mem::offset_of;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::processes::{Ranks, say};
use support::skips::skip;
use support::{Case, Prepared, Random, by_cma, config, small_slots};

const SUM: RawRedOp = RawRedOp(ringRedOp_t::ringSum as i32);
const FLOAT: RawDataType = RawDataType(ringDataType_t::ringFloat32 as i32);

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Where the pages of the communicator's ranks are mapped in this process.
fn pages() -> Vec<*mut u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours =
        maps.lines().filter(|line| line.contains("rw-s") && line.contains("memfd:ringcomm "));
    let start = |line: &str| usize::from_str_radix(line.split('-').next()?, 16).ok();
    ours.filter_map(start).map(std::ptr::with_exposed_provenance_mut).collect()
}

/// A word of a page. `life` lies two words before the process's number.
fn word(page: *mut u8, before_pid: usize) -> &'static AtomicU32 {
    // SAFETY: a page is mapped as long as its communicator is there, and all words are atomics.
    unsafe {
        &*page.wrapping_add(offset_of!(ControlBlock, pid) - 4 * before_pid).cast::<AtomicU32>()
    }
}

/// An all-gather whose result is checked.
fn gather(comm: &Communicator, nranks: usize) {
    let case = Case::new(Collective::AllGather, nranks, 5000, DataType::Float32);
    Prepared::of(case, comm.rank()).run(comm);
}

fn barrier(comm: &Communicator) -> Result<(), String> {
    let call = Call::new(Collective::Barrier, DataType::Uint8);
    // SAFETY: a barrier has no buffers.
    unsafe { comm.run(&call) }.map_err(|error| error.to_string())
}

/// Whose memory the kernel reads is the kernel's word: this process, none, or the first process of
/// the machine, as a peer might say.
#[test]
fn what_a_peer_writes_for_its_number_is_no_address() {
    let config = Config { tuning_file: by_cma(2).tuning_file, ..small_slots(2, 1024) };
    let mut ranks = Ranks::start(2, &config, "", |comm, _| {
        gather(comm, 2);
        for number in [0, 1, u32::MAX] {
            if comm.rank() == 1 {
                let mine = |page: &*mut u8| word(*page, 0).load(SeqCst) != 7;
                pages()
                    .into_iter()
                    .filter(mine)
                    .for_each(|page| word(page, 0).store(number, SeqCst));
            }
            barrier(comm).unwrap();
            gather(comm, 2);
        }
        String::new()
    });
    (0..2).for_each(|rank| drop(ranks.end(rank, soon()).result.unwrap()));
}

/// A rank whose page says that it is about to fail comes back at its deadline all the same.
#[test]
fn a_word_that_a_peer_writes_holds_nobody() {
    let config = Config { timeout_ms: 1000, ..config() };
    let mut ranks = Ranks::start(2, &config, "", |comm, _| {
        barrier(comm).unwrap();
        if comm.rank() == 1 {
            pages().into_iter().for_each(|page| word(page, 2).store(3, SeqCst));
            std::thread::sleep(Duration::from_secs(4));
            return String::new();
        }
        let started = Instant::now();
        assert!(barrier(comm).is_err());
        assert!(started.elapsed() < Duration::from_secs(20));
        String::new()
    });
    (0..2).for_each(|rank| drop(ranks.end(rank, soon()).result.unwrap()));
}

/// Write random words over the pages of all ranks until the process ends.
fn vandalize(seed: u64) -> ! {
    let mut random = Random(seed);
    let pages = pages();
    loop {
        let page = random.pick(&pages);
        let at = random.below(size_of::<ControlBlock>() / 4) * 4;
        // SAFETY: a page is mapped as long as its communicator is there, and all words are atomics.
        let word = unsafe { &*page.wrapping_add(at).cast::<AtomicU32>() };
        let value = match random.below(4) {
            0 => random.next() as u32,
            1 => u32::MAX,
            2 => word.load(SeqCst) ^ 1 << random.below(32),
            _ => random.below(5) as u32,
        };
        word.store(value, SeqCst);
        if random.chance(64) {
            std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
        }
    }
}

/// A rank that writes whatever it likes over all pages makes calls fail, and nothing worse: no
/// panic, no wait past the deadline, no wrong result. `RINGCOMM_ROUNDS` makes it long.
#[test]
fn a_rank_that_writes_over_all_pages_breaks_calls_and_nothing_else() {
    let rounds = std::env::var("RINGCOMM_ROUNDS").map_or(4, |text| text.parse().expect("a number"));
    let config = Config { timeout_ms: 1500, ..config() };
    for round in 0..rounds {
        let mut ranks = Ranks::start_apart(3, &config, &round.to_string(), |seat, round| {
            let comm = seat.join();
            gather(&comm, 3);
            if seat.rank == 2 {
                vandalize(0x5eed + round.parse::<u64>().unwrap());
            }
            let started = Instant::now();
            for seed in 0..2000 {
                let case = Case::new(Collective::AllReduce, 3, 700, DataType::Float32);
                let prepared = Prepared::of(Case { seed, ..case }, seat.rank);
                match prepared.try_run(&comm) {
                    Ok(()) => {}
                    Err(text) if text.contains("wanted 0x") => panic!("{text}"),
                    Err(_) => break,
                }
            }
            let _ = (comm.async_error(), comm.shrink(&[2], None).map(drop));
            drop(comm);
            assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
            String::new()
        });
        for rank in 0..2 {
            let end = ranks.end(rank, soon()).result;
            assert!(end.is_ok(), "round {round}, rank {rank}: {end:?}");
        }
        ranks.signal(2, libc::SIGKILL);
    }
}

/// Let a system call fail with EPERM in this thread and those that it starts.
fn deny(call: libc::c_long) {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0x0005_0000 | libc::EPERM as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0x7fff_0000),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program outlives the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

/// Rank 1 dies, as `how` says, while the others wait for it; they are told who, soon.
fn all_but_one_are_told(mut ranks: Ranks) {
    let deadline = soon();
    (0..3).for_each(|rank| assert_eq!(ranks.hear(rank, deadline).1, "ready"));
    let dead = ranks.who(1) + " died";
    for rank in [0, 2] {
        let (_, text) = ranks.hear(rank, deadline);
        assert!(text.contains(&dead), "rank {rank}: {text}");
    }
}

#[test]
fn where_processes_cannot_be_watched_a_death_is_seen_all_the_same() {
    let ranks = Ranks::start_apart(3, &config(), "", |seat, _| {
        deny(libc::SYS_pidfd_open);
        let comm = seat.join();
        gather(&comm, 3);
        say("ready");
        if seat.rank == 1 {
            // SAFETY: no memory is involved.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        say(&barrier(&comm).unwrap_err());
        String::new()
    });
    all_but_one_are_told(ranks);
}

/// A container's filter may refuse event counters, which ranks of one machine can do without.
#[test]
fn where_event_counters_are_refused_ranks_of_a_machine_meet_all_the_same() {
    let mut ranks = Ranks::start_apart(3, &config(), "", |seat, _| {
        deny(libc::SYS_eventfd2);
        gather(&seat.join(), 3);
        String::new()
    });
    (0..3).for_each(|rank| assert_eq!(ranks.end(rank, soon()).result.as_deref(), Ok("")));
}

#[test]
fn a_rank_that_becomes_another_program_is_missed_at_once() {
    let ranks = Ranks::start(3, &config(), "", |comm, _| {
        gather(comm, 3);
        say("ready");
        if comm.rank() == 1 {
            panic!("{}", std::process::Command::new("sleep").arg("30").exec());
        }
        say(&barrier(comm).unwrap_err());
        String::new()
    });
    all_but_one_are_told(ranks);
}

#[test]
fn no_descriptor_of_the_library_is_a_standard_one() {
    let mut ranks = Ranks::start_apart(2, &config(), "", |seat, _| {
        // Standard output is the way to the parent.
        for number in [0, 2] {
            // SAFETY: nothing here uses them.
            unsafe { libc::close(number) };
        }
        let comm = seat.join();
        gather(&comm, 2);
        let is_open = |number: &i32| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok();
        assert_eq!([0, 2].iter().filter(|number| is_open(number)).count(), 0);
        String::new()
    });
    (0..2).for_each(|rank| drop(ranks.end(rank, soon()).result.unwrap()));
}

#[test]
fn a_limit_of_sizes_is_an_error_and_no_signal() {
    let mut ranks = Ranks::start_apart(2, &config(), "", |seat, _| {
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
        // SAFETY: the limit is live.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let made = Communicator::init_rank(seat.nranks, &seat.id, seat.rank, &seat.config);
        made.err().expect("there is no room").to_string()
    });
    for rank in 0..2 {
        let text = ranks.end(rank, soon()).result.unwrap();
        assert!(text.contains("ulimit -f"), "rank {rank}: {text}");
    }
}

/// Two ranks of one process.
fn pair() -> [ringComm_t; 2] {
    let mut comms = [null_mut(); 2];
    // SAFETY: there is room for two, and no list of devices.
    assert_eq!(unsafe { ringCommInitAll(comms.as_mut_ptr(), 2, null()) }, ringSuccess);
    comms
}

/// A call that waits for the other rank.
fn wait_alone(comm: ringComm_t) -> i32 {
    let (send, mut receive) = (1f32, 0f32);
    let (from, to) = ((&raw const send).cast::<c_void>(), (&raw mut receive).cast::<c_void>());
    // SAFETY: one float each.
    unsafe { ringAllReduce(from, to, 1, FLOAT, SUM, comm, null_mut()) as i32 }
}

static ABORTED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

extern "C" fn abort_it(_signal: libc::c_int) {
    // SAFETY: safe for any argument.
    unsafe { ringCommAbort(ABORTED.load(SeqCst).cast()) };
}

#[test]
fn abort_in_a_signal_handler_ends_the_call_that_it_interrupts() {
    let mut ranks = Ranks::start_apart(1, &config(), "", |_, _| {
        let comms = pair();
        ABORTED.store(comms[0].cast(), SeqCst);
        // SAFETY: the handler only aborts, which is what is tested.
        let caller = unsafe {
            libc::signal(libc::SIGUSR1, abort_it as extern "C" fn(libc::c_int) as usize);
            libc::pthread_self()
        };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(500));
                // SAFETY: the thread lives until this one is joined.
                unsafe { libc::pthread_kill(caller, libc::SIGUSR1) };
            });
            assert_eq!(wait_alone(comms[0]), ringAborted as i32);
        });
        // The handle is there until it is given back.
        for comm in comms {
            // SAFETY: safe for any argument.
            assert_eq!(unsafe { ringCommAbort(comm) }, ringSuccess);
        }
        String::new()
    });
    ranks.end(0, soon()).result.unwrap();
}

extern "C-unwind" fn call_alone(comm: *mut c_void) -> *mut c_void {
    wait_alone(comm.cast());
    // SAFETY: what it ends is this thread, which owns nothing.
    unsafe { pthread_testcancel() };
    null_mut()
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// PTHREAD_CANCELED.
const CANCELED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);

#[test]
fn a_thread_that_is_cancelled_in_a_call_ends_after_it() {
    let mut ranks = Ranks::start_apart(1, &Config::default(), "", |_, _| {
        // SAFETY: a rank's process has no other thread yet.
        unsafe { std::env::set_var("RINGCOMM_TIMEOUT_MS", "1500") };
        let comms = pair();
        let mut thread = 0;
        // SAFETY: the thread is joined before its argument goes.
        unsafe {
            let argument = comms[0].cast();
            // Cancelling unwinds through it, as through any function of C.
            let entry: extern "C" fn(*mut c_void) -> *mut c_void =
                std::mem::transmute(call_alone as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
            assert_eq!(libc::pthread_create(&mut thread, null(), entry, argument), 0);
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(pthread_cancel(thread), 0);
            let mut end = null_mut();
            assert_eq!(libc::pthread_join(thread, &mut end), 0);
            assert_eq!(end, CANCELED, "it is cancelled where the program lets it");
        }
        for comm in comms {
            // SAFETY: safe for any argument.
            unsafe { ringCommDestroy(comm) };
        }
        String::new()
    });
    ranks.end(0, soon()).result.unwrap();
}

/// A program with more rights than whoever starts it is not steered by that user's variables.
#[test]
fn variables_of_a_caller_with_fewer_rights_do_not_count() {
    const INSIDE: &str = "RINGCOMM_TEST_INSIDE";
    const TEST: &str = "variables_of_a_caller_with_fewer_rights_do_not_count";
    if std::env::var_os(INSIDE).is_some() {
        let found = Config::from_environment().map(|config| config.timeout_ms);
        println!("{INSIDE}: {}", found.map_or("refused".into(), |found| found.to_string()));
        return;
    }
    if !rustix::process::geteuid().is_root() {
        let why = "only root makes a program that others run with its rights";
        return skip(variables_of_a_caller_with_fewer_rights_do_not_count, why);
    }
    let folder = std::env::temp_dir().join(format!("ringcomm-rights-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let program = folder.join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let finds = |mode| {
        std::fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
        let mut command = std::process::Command::new(&program);
        command.args([TEST, "--exact", "--nocapture"]).env(INSIDE, "1");
        command.env("RINGCOMM_TIMEOUT_MS", "7000").uid(65534).gid(65534).current_dir("/");
        let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let (_, found) = printed.split_once(&format!("{INSIDE}: ")).expect(&printed);
        found.lines().next().unwrap().to_string()
    };
    assert_eq!(finds(0o755), "7000");
    assert_eq!(finds(0o4755), Config::default().timeout_ms.to_string());
    std::fs::remove_dir_all(folder).unwrap();
}
