//! The rendezvous between threads and processes, with every kind of guest it must survive.

#[path = "support/files.rs"]
mod files;

use ringcomm::bootstrap::{
    Contribution, Member, UniqueId, exchange, process_token, rendezvous_name,
};
use ringcomm::error::{Error, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

fn soon(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

/// Long enough for any machine; nothing here comes near it unless it hangs.
fn patient() -> Instant {
    soon(30_000)
}

fn contribution(rank: usize) -> Contribution {
    let payload = format!("payload of rank {rank}").into_bytes();
    Contribution { payload, process: process_token().unwrap(), fds: Vec::new() }
}

fn check(members: &[Member], nranks: usize) {
    assert_eq!(members.len(), nranks);
    for (rank, member) in members.iter().enumerate() {
        assert_eq!(member.payload, format!("payload of rank {rank}").into_bytes());
    }
}

/// Every `(rank, nranks)` as a thread, all with one id.
fn threads(ranks: &[(usize, usize)], deadline: Instant) -> Vec<Result<Vec<Member>>> {
    threads_paced(ranks, deadline, |_| ())
}

/// As `threads`, the others once the first is there: it is not too late for a meeting that fails.
fn threads_in_turn(ranks: &[(usize, usize)], deadline: Instant) -> Vec<Result<Vec<Member>>> {
    threads_paced(ranks, deadline, |id| drop(stranger(id)))
}

fn threads_paced(
    ranks: &[(usize, usize)],
    deadline: Instant,
    pause: impl Fn(&UniqueId),
) -> Vec<Result<Vec<Member>>> {
    let id = &UniqueId::generate().unwrap();
    thread::scope(|scope| {
        let mut handles = Vec::new();
        for &(rank, nranks) in ranks {
            handles.push(
                scope.spawn(move || exchange(id, rank, nranks, contribution(rank), deadline)),
            );
            if handles.len() == 1 {
                pause(id);
            }
        }
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

#[test]
fn threads_meet() {
    for nranks in (1..=16).chain([64]) {
        let ranks: Vec<_> = (0..nranks).map(|rank| (rank, nranks)).collect();
        for result in threads(&ranks, patient()) {
            check(&result.unwrap(), nranks);
        }
    }
}

/// A forked child and the text that it leaves behind.
struct Child {
    pid: i32,
    text: File,
}

impl Child {
    /// Run `work` in a child; it reports through a pipe and never returns into the test.
    fn start(work: impl FnOnce() -> String) -> Child {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for the two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        // SAFETY: both are new and nobody else's.
        let [read, mut write] = ends.map(|fd| unsafe { File::from_raw_fd(fd) });
        // SAFETY: the child allocates and makes threads, which glibc permits after fork, and leaves
        // through `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let text = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let _ = write.write_all(text.unwrap_or_else(|_| "panicked".into()).as_bytes());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        Child { pid, text: read }
    }

    /// A rank that reports "ok" or its error.
    fn rank(id: &UniqueId, rank: usize, nranks: usize, ms: u64) -> Child {
        Child::start(|| match exchange(id, rank, nranks, contribution(rank), soon(ms)) {
            Ok(members) => {
                check(&members, nranks);
                "ok".into()
            }
            Err(error) => error.to_string(),
        })
    }

    fn kill(&self) {
        // SAFETY: the child is ours and not yet waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }

    fn finish(mut self) -> String {
        let mut text = String::new();
        self.text.read_to_string(&mut text).unwrap();
        // SAFETY: NULL is permitted for the status.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        text
    }
}

#[test]
fn processes_meet() {
    for nranks in [2, 3, 5, 16] {
        let id = UniqueId::generate().unwrap();
        let children: Vec<_> =
            (0..nranks).map(|rank| Child::rank(&id, rank, nranks, 30_000)).collect();
        for child in children {
            assert_eq!(child.finish(), "ok");
        }
    }
}

/// An anonymous file that holds `text`.
fn memfd(text: &str) -> OwnedFd {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: new and nobody else's.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(text.as_bytes()).unwrap();
    file.into()
}

/// Join with `fds` descriptors and check everybody's: (rank, process index) of all in `places`.
fn with_descriptors(id: &UniqueId, rank: usize, places: &[usize], deadline: Instant) {
    let count = |rank: usize| rank % 5;
    let mut mine = contribution(rank);
    mine.fds = (0..count(rank)).map(|index| memfd(&format!("{rank}.{index}"))).collect();
    let members = exchange(id, rank, places.len(), mine, deadline).unwrap();
    check(&members, places.len());
    for (peer, member) in members.into_iter().enumerate() {
        let same = places[peer] == places[rank];
        assert_eq!(same, member.process == process_token().unwrap());
        assert_eq!(same, member.pid == std::process::id(), "rank {peer} seen from {rank}");
        let expected = if same && peer != rank { 0 } else { count(peer) };
        assert_eq!(member.fds.len(), expected, "of rank {peer} at rank {rank}");
        for (index, fd) in member.fds.into_iter().enumerate() {
            // SAFETY: F_GETFD only reads the flags.
            let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
            assert_eq!(flags, libc::FD_CLOEXEC);
            // The offset is shared by everybody who holds the file, so read at a position.
            let file = File::from(fd);
            let mut text = [0; 16];
            let got = std::os::unix::fs::FileExt::read_at(&file, &mut text, 0).unwrap();
            assert_eq!(text[..got], *format!("{peer}.{index}").as_bytes());
        }
    }
}

#[test]
fn descriptors_reach_the_ranks_of_other_processes_only() {
    let id = &UniqueId::generate().unwrap();
    // Three processes with three, one and four ranks, interleaved.
    let places = [0, 1, 0, 2, 2, 0, 2, 2];
    let children: Vec<_> = (0..3)
        .map(|place| {
            Child::start(|| {
                thread::scope(|scope| {
                    for rank in (0..places.len()).filter(|rank| places[*rank] == place) {
                        scope.spawn(move || with_descriptors(id, rank, &places, patient()));
                    }
                });
                "ok".into()
            })
        })
        .collect();
    for child in children {
        assert_eq!(child.finish(), "ok");
    }
}

/// Everybody learns everybody's token, so a token alone must make nobody a thread of a process.
#[test]
fn a_token_of_another_process_makes_no_rank_of_it() {
    let id = &UniqueId::generate().unwrap();
    let claimed = process_token().unwrap();
    let claim = |rank: usize| {
        let mut mine = contribution(rank);
        (mine.process, mine.fds) = (claimed, vec![memfd("of its own")]);
        let members = exchange(id, rank, 3, mine, patient()).unwrap();
        let shared = |member: &Member| member.shares_process(&members[rank]);
        let shared: Vec<bool> = members.iter().map(shared).collect();
        let descriptors: Vec<usize> = members.iter().map(|member| member.fds.len()).collect();
        format!("{shared:?} {descriptors:?}")
    };
    // Whichever of the three coordinates.
    let forger = Child::start(|| claim(2));
    thread::scope(|scope| {
        let threads = [0, 1].map(|rank| scope.spawn(move || claim(rank)));
        let [first, second] = threads.map(|thread| thread.join().unwrap());
        assert_eq!(first, "[true, true, false] [1, 0, 1]");
        assert_eq!(second, "[true, true, false] [0, 1, 1]");
    });
    assert_eq!(forger.finish(), "[false, false, true] [1, 1, 1]");
}

/// Whichever of the three coordinates.
#[test]
fn a_rank_without_descriptors_is_named_with_host_and_process() {
    let rank = |id: &UniqueId, rank: usize, poor: bool| {
        let mut mine = contribution(rank);
        mine.fds = (0..4).map(|index| memfd(&format!("{rank}.{index}"))).collect();
        if poor {
            // Room for the meeting's sockets.
            files::open_few_more(3);
        }
        exchange(id, rank, 3, mine, soon(3_000)).unwrap_err().to_string()
    };
    let tried = |_| {
        let id = UniqueId::generate().unwrap();
        let children = [0, 1, 2].map(|number| Child::start(|| rank(&id, number, number == 1)));
        let poor = children[1].pid;
        let texts = children.map(Child::finish);
        // On a busy machine a rank may come when the others have met and failed.
        let is_late = texts.iter().any(|text| text.contains("missing: "));
        (!is_late).then_some((poor, texts))
    };
    let (poor, texts) = (0..10).find_map(tried).expect("three that meet");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let named = format!("rank 1 (host {}, pid {poor}) failed and rank", host.trim());
    for (number, text) in texts.into_iter().enumerate() {
        assert!(text.contains("descriptors"), "rank {number}: {text}");
        assert!(number == 1 || text.starts_with(&named), "rank {number}: {text}");
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn nothing_is_left_open() {
    // In a child of its own: the other tests open and close at the same time.
    let child = Child::start(|| {
        threads(&[(0, 2), (1, 2)], patient());
        let before = open_descriptors();
        for ranks in [vec![(0, 3), (1, 3), (2, 3)], vec![(0, 3), (2, 3)], vec![(0, 2), (0, 2)]] {
            threads(&ranks, soon(100));
        }
        format!("{}", open_descriptors() as i64 - before as i64)
    });
    assert_eq!(child.finish(), "0");
}

fn errors(results: Vec<Result<Vec<Member>>>) -> Vec<String> {
    results.into_iter().map(|result| result.unwrap_err().to_string()).collect()
}

#[test]
fn a_rank_that_comes_twice_is_named_to_all() {
    for error in errors(threads_in_turn(&[(0, 3), (1, 3), (1, 3)], patient())) {
        assert!(error.contains("rank 1 came twice"), "{error}");
    }
    for error in errors(threads_in_turn(&[(0, 3), (0, 3)], patient())) {
        assert!(error.contains("rank 0 came twice"), "{error}");
    }
}

#[test]
fn different_numbers_of_ranks_are_named_to_all() {
    for error in errors(threads_in_turn(&[(0, 3), (1, 4)], patient())) {
        assert!(error.contains("was started with"), "{error}");
        assert!(error.contains("4") && error.contains("3"), "{error}");
    }
}

#[test]
fn a_rank_out_of_range_is_refused() {
    let errors = errors(threads(&[(3, 3)], patient()));
    assert!(errors[0].contains("rank 3 of 3"), "{errors:?}");
}

#[test]
fn missing_ranks_are_listed_on_every_rank_that_came() {
    for result in threads(&[(4, 5), (0, 5), (2, 5)], soon(3_000)) {
        let Err(Error::Missing { nranks, missing, .. }) = result else { panic!("{result:?}") };
        assert_eq!((nranks, missing), (5, vec![1, 3]));
    }
    // The shortest deadline counts, wherever it is.
    let id = &UniqueId::generate().unwrap();
    thread::scope(|scope| {
        let long = scope.spawn(move || exchange(id, 0, 3, contribution(0), patient()));
        let short = scope.spawn(move || exchange(id, 1, 3, contribution(1), soon(3_000)));
        for result in [long.join().unwrap(), short.join().unwrap()] {
            let Err(Error::Missing { missing, .. }) = result else { panic!("{result:?}") };
            assert_eq!(missing, vec![2]);
        }
    });
}

#[test]
fn another_secret_leads_elsewhere() {
    let ids = [UniqueId::generate().unwrap(), UniqueId::generate().unwrap()];
    thread::scope(|scope| {
        for (rank, id) in ids.iter().enumerate() {
            scope.spawn(move || {
                let result = exchange(id, rank, 2, contribution(rank), soon(300));
                let Err(Error::Missing { missing, .. }) = result else { panic!("{result:?}") };
                assert_eq!(missing, vec![1 - rank]);
            });
        }
    });
}

fn address(id: &UniqueId) -> SocketAddr {
    SocketAddr::from_abstract_name(rendezvous_name(id)).unwrap()
}

/// Connect as a stranger would, as soon as there is a coordinator.
fn stranger(id: &UniqueId) -> UnixStream {
    loop {
        match UnixStream::connect_addr(&address(id)) {
            Ok(stream) => return stream,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Start rank 0, let strangers at it, then the other ranks: the job goes on.
fn with_strangers(nranks: usize, strangers: impl FnOnce(&UniqueId) -> Vec<UnixStream>) {
    let id = &UniqueId::generate().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(move || exchange(id, 0, nranks, contribution(0), patient()));
        let _kept_open = strangers(id);
        let others: Vec<_> = (1..nranks)
            .map(|rank| {
                scope.spawn(move || exchange(id, rank, nranks, contribution(rank), patient()))
            })
            .collect();
        for rank in [first].into_iter().chain(others) {
            check(&rank.join().unwrap().unwrap(), nranks);
        }
    });
}

#[test]
fn silent_connections_do_not_keep_the_ranks_out() {
    files::open_many();
    with_strangers(4, |id| (0..1000).map(|_| stranger(id)).collect());
}

#[test]
fn garbage_is_refused_and_the_job_goes_on() {
    with_strangers(3, |id| {
        let hello = |rank: u32| {
            let nonce = [7; 32];
            ringcomm::bootstrap::local::wire::LocalHello { rank, nranks: 3, remaining_ms: 1, nonce }
                .encode()
        };
        let mut guests: Vec<UnixStream> = Vec::new();
        let requests: [Vec<u8>; 5] = [
            b"GET /metrics HTTP/1.1\r\n\r\n".repeat(4),
            vec![0xff; 100_000],
            // A good hello, and then a proof that cannot be one with an enormous frame behind it.
            [&hello(1)[..], &[0xff; 4096]].concat(),
            // Half a hello, and nothing more.
            hello(1)[..20].to_vec(),
            // The right hello of a rank that is still to come.
            hello(2).to_vec(),
        ];
        for request in requests {
            let mut stream = stranger(id);
            // The coordinator may hang up before it has all been written.
            let _ = stream.write_all(&request);
            guests.push(stream);
        }
        // What is proved wrong is hung up on; nothing but a challenge ever came back.
        for guest in &mut guests[..3] {
            let mut answer = Vec::new();
            let _ = guest.read_to_end(&mut answer);
            assert!(
                answer.len() <= ringcomm::bootstrap::local::wire::CHALLENGE,
                "{}",
                answer.len()
            );
        }
        guests
    });
}

#[test]
fn a_false_coordinator_learns_nothing_and_is_waited_out() {
    let id = &UniqueId::generate().unwrap();
    let squatter = UnixListener::bind_addr(&address(id)).unwrap();
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| scope.spawn(move || exchange(id, rank, 2, contribution(rank), patient())))
            .collect();
        for answer in [vec![0; 500], b"ringchal".repeat(20), Vec::new()] {
            let (mut stream, _) = squatter.accept().unwrap();
            let _ = stream.write_all(&answer);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            assert!(
                heard.len() <= ringcomm::bootstrap::local::wire::HELLO,
                "a rank said more than hello"
            );
        }
        drop(squatter);
        for rank in ranks {
            check(&rank.join().unwrap().unwrap(), 2);
        }
    });
}

/// Sockets of this id that the kernel knows: the listener and what it accepted.
fn sockets(id: &UniqueId) -> usize {
    let name = String::from_utf8(rendezvous_name(id)).unwrap();
    let list = std::fs::read_to_string("/proc/net/unix").unwrap();
    list.lines().filter(|line| line.ends_with(&name)).count()
}

/// Start the ranks one by one, so that the first coordinates, out of more that never come.
fn gathered(id: &UniqueId, ranks: usize) -> Vec<Child> {
    let mut children = Vec::new();
    for rank in 0..ranks {
        children.push(Child::rank(id, rank, ranks + 1, 5_000));
        while sockets(id) < rank + 1 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    // The last one is accepted; it proves itself in less than a millisecond on an idle machine.
    thread::sleep(Duration::from_millis(500));
    children
}

/// A rank as errors name it.
fn who(rank: usize, pid: i32) -> String {
    format!("rank {rank} (host {}, pid {pid})", ringcomm::host::name())
}

#[test]
fn the_death_of_any_rank_while_gathering_is_named() {
    for victim in 0..3 {
        let id = &UniqueId::generate().unwrap();
        let children = gathered(id, 3);
        children[victim].kill();
        let pid = children[victim].pid;
        for (rank, child) in children.into_iter().enumerate() {
            let text = child.finish();
            let named = text.contains(&format!("{} died", who(victim, pid)));
            assert!(rank == victim || named, "rank {rank}, victim {victim}: {text}");
        }
        assert_eq!(sockets(id), 0, "the name outlived its processes");
    }
}

#[test]
fn a_kill_at_any_moment_ends_in_success_or_a_name() {
    for round in 0..40u64 {
        let id = &UniqueId::generate().unwrap();
        let children: Vec<_> = (0..4).map(|rank| Child::rank(id, rank, 4, 400)).collect();
        let victim = (round % 4) as usize;
        // From before the first connection to after the last.
        thread::sleep(Duration::from_micros(round * 60));
        children[victim].kill();
        let pid = children[victim].pid;
        for (rank, child) in children.into_iter().enumerate() {
            let text = child.finish();
            // Whoever had not met the coordinator when all failed finds nobody later on.
            let named =
                text.contains(&format!("{} died", who(victim, pid))) || text.contains("missing: [");
            assert!(rank == victim || text == "ok" || named, "{round}, rank {rank}: {text:?}");
        }
        assert_eq!(sockets(id), 0);
    }
}
