use super::*;
use crate::bootstrap::tcp::NetworkConfig;
use crate::bootstrap::tcp::connect::Dial;
use crate::bootstrap::tcp::hello::ROOT;
use crate::bootstrap::tcp::stream_traits::{ByteStream, is_not_yet};
use crate::config::Config;
use std::thread;

/// Longer than any test takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Come to the root for another purpose than to meet.
fn call(id: &UniqueId, purpose: Purpose, rank: u32) -> Proved {
    let greeting = Hello { purpose, rank, to: ROOT, nranks: 2, detail: 0, note: 0 };
    let mut dial = Dial::new(id, &id.addresses(), greeting, Instant::now() + LONG);
    loop {
        match dial.advance().expect("the root is there") {
            Some(proved) => return proved,
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Wait until the other end hangs up.
fn assert_hung_up_on(mut caller: Proved) {
    let until = Instant::now() + LONG;
    loop {
        match caller.stream.receive(&mut [0]) {
            Ok(0) => return,
            Err(error) if is_not_yet(&error) => {
                assert!(Instant::now() < until, "the root holds the connection");
                thread::sleep(Duration::from_millis(1));
            }
            other => panic!("the root said something to whoever is no rank: {other:?}"),
        }
    }
}

/// What such a caller gets a connection for is in its hands: none of a hundred is held.
fn ask(id: &UniqueId) {
    let callers: Vec<Proved> = (0..100).map(|_| call(id, Purpose::Control, ANYONE)).collect();
    callers.into_iter().for_each(assert_hung_up_on);
    assert_hung_up_on(call(id, Purpose::Data, 2));
}

#[test]
fn a_thread_that_waits_for_ranks_hangs_up_on_who_only_asks_for_it() {
    ask(&root_threads::start(&Config::default()).unwrap());
}

/// The threads of this process with this name.
fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|found| found.trim() == name).count()
}

/// Ids that nobody uses have one thread together; those that are freed hold nothing.
#[test]
fn unused_ids_share_a_thread_and_can_be_freed() {
    let config = Config { interfaces: Some("lo".into()), ..Config::default() };
    let ids: Vec<UniqueId> = (0..40).map(|_| root_threads::start(&config).unwrap()).collect();
    assert!(threads_named("ring-ids") <= 1);
    ask(&ids[0]);
    ids[1..].iter().for_each(root_threads::free);
    let begun = Instant::now();
    for id in &ids[1..] {
        // The kernel refuses once the listening thread has woken and let go.
        let address = id.addresses()[0];
        while std::net::TcpStream::connect(address).is_ok() {
            assert!(begun.elapsed() < LONG, "{address} is still listened at");
            thread::yield_now();
        }
    }
    // Nothing happens for one that is free, or has been used.
    ids.iter().for_each(root_threads::free);
}

#[test]
fn a_rank_that_waits_for_others_hangs_up_on_who_is_no_rank_and_keeps_the_rest() {
    let network = NetworkConfig { interfaces: Some("=lo".into()), ..NetworkConfig::default() };
    let secret = UniqueId::generate().unwrap();
    let mut first = AuthListener::open(&secret, &network).unwrap().of_root();
    let id = &secret.moved_to(first.addresses());
    thread::scope(|scope| {
        let root = scope.spawn(|| meet(id, 0, 2, vec![0], &mut first, Instant::now() + LONG));
        ask(id);
        let _early = call(id, Purpose::Data, 1);
        let mut listener = AuthListener::open(id, &network).unwrap();
        meet(id, 1, 2, vec![1], &mut listener, Instant::now() + LONG).unwrap();
        root.join().unwrap().unwrap();
    });
    let kept: Vec<u32> = first.advance().iter().map(|proved| proved.greeting.rank).collect();
    assert_eq!(kept, [1]);
}

/// A root that is late with its verdict is no fault of the system's: the deadline has come.
#[test]
fn who_hears_nothing_of_the_root_by_its_deadline_ends_with_a_timeout() {
    use super::{client::AllgatherClient, message::PeerId};
    let (begin, root) = (Instant::now(), [std::net::SocketAddr::from(([127, 0, 0, 1], 9))]);
    let deadline = begin + Duration::from_millis(200);
    let me = PeerId { rank: 0, pid: 1 };
    let mut client = AllgatherClient::new(me, 2, b"mine", &[], &root, begin, deadline);
    client.tick(deadline);
    let unmet = client.outcome().expect("it has given up").as_ref().expect_err("nobody came");
    assert_eq!(unmet.cause, crate::bootstrap::Blame::Late);
    let text = unmet.error.to_string();
    assert!(matches!(unmet.error, Error::NotMet { waited_ms: 200, .. }), "{text}");
    assert!(text.contains("the root at [127.0.0.1:9]"), "{text}");
}
