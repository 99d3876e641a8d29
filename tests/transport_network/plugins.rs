//! NCCL's network plugins keep the contract of transports, too; and a plugin that fails harms
//! nobody but its own connections. The plugin of the tests aborts where a rule of the interface is
//! broken.

use super::conformance::{Network, Patience, Transfer, content, keeps_the_contract};
use super::conformance::{messages, stamp, transfer};
use super::engines::{Beside, MakeEngine, moves_to_and_fro, open_lanes, with_engines};
use super::fixture_plugin::{ABIS, FixturePlugin};
use super::tcp::{Tcp, ends, pair};
use proptest::prelude::*;
use ringcomm::config::{NetChoice, Protection};
use ringcomm::transport::engine::NetEngine;
use ringcomm::transport::engine::choice::candidate_of;
use ringcomm::transport::engine::plugin::engine::PluginEngine;
use ringcomm::transport::network::Endpoint;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

const LONG: Patience = Patience::LONG;

fn maker(plugin: &FixturePlugin) -> MakeEngine {
    let path = plugin.path();
    Box::new(move |nranks| {
        let engine = PluginEngine::new(Some(&path), nranks).unwrap_or_else(|why| panic!("{why}"));
        Some(Box::new(engine))
    })
}

fn beside(plugin: &FixturePlugin, sockets: Tcp) -> Beside {
    Beside { sockets, name: format!("{plugin:?}"), make: maker(plugin) }
}

fn ranks(plugin: &FixturePlugin, protection: Protection) -> [Box<dyn Endpoint>; 2] {
    Network::ranks(&beside(plugin, Tcp(protection, 1)))
}

/// Of a version, over one device and over two.
fn keeps_it(abi: u32) {
    for protection in Protection::ALL {
        for devices in [1, 2] {
            let plugin = FixturePlugin { devices, ..FixturePlugin::new(abi) };
            keeps_the_contract(&beside(&plugin, Tcp(protection, 1)), LONG);
        }
    }
}

#[test]
fn version_6_keeps_the_contract_of_transports() {
    keeps_it(6);
}

#[test]
fn version_8_keeps_the_contract_of_transports() {
    keeps_it(8);
}

#[test]
fn version_11_keeps_the_contract_of_transports() {
    keeps_it(11);
}

#[test]
fn version_12_keeps_the_contract_of_transports() {
    keeps_it(12);
}

#[test]
fn more_devices_than_rails_and_more_sockets_than_one_keep_the_contract() {
    let plugin = FixturePlugin { devices: 6, ..FixturePlugin::new(12) };
    keeps_the_contract(&beside(&plugin, Tcp(Protection::Checksum, 3)), LONG);
}

#[test]
fn a_plugin_with_moods_keeps_the_contract() {
    for (abi, faults) in [(8, "null=3,null_mr"), (12, "null=2"), (11, "late=2,log"), (6, "null=3")]
    {
        let plugin = FixturePlugin { devices: 2, ..FixturePlugin::with_faults(abi, faults) };
        keeps_the_contract(&beside(&plugin, Tcp(Protection::Checksum, 1)), LONG);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_message_arrives_once_in_order_unchanged_over_a_plugin(
        messages in messages(1024),
        sockets in 1usize..4,
        devices in 1u32..4,
        abi in prop::sample::select(ABIS.to_vec()),
        protection in prop::sample::select(Protection::ALL.to_vec()),
    ) {
        let plugin = FixturePlugin { devices, ..FixturePlugin::new(abi) };
        transfer(LONG, &mut Network::ranks(&beside(&plugin, Tcp(protection, sockets))), &messages);
    }
}

#[test]
fn ends_that_are_told_late_or_in_another_order_change_nothing() {
    let messages: Vec<Transfer> =
        (0..60).map(|i| ([3, 1000, 64, 0][i % 4], i % 3 == 0, false)).collect();
    for (abi, faults) in [(12, "reorder"), (8, "reorder"), (6, "late=2"), (12, "full_null")] {
        for devices in [1, 2] {
            let plugin = FixturePlugin { devices, ..FixturePlugin::with_faults(abi, faults) };
            transfer(LONG, &mut ranks(&plugin, Protection::Checksum), &messages);
        }
    }
}

fn send(endpoint: &mut dyn Endpoint, peer: usize, number: u64, bytes: &[u8]) -> bool {
    // SAFETY: what goes over an engine is copied.
    let sent =
        unsafe { endpoint.connection(peer).send_from(&stamp(number), bytes.as_ptr(), bytes.len()) };
    endpoint.posted(peer);
    sent
}

/// Read the next message, or why there will be none.
fn read_or_fail(endpoint: &mut dyn Endpoint, peer: usize) -> Option<Result<Vec<u8>, String>> {
    let connection = endpoint.connection(peer);
    if let Some((message, _)) = connection.peek() {
        // SAFETY: the message is not freed yet.
        let got = unsafe { std::slice::from_raw_parts(message.payload, message.length) }.to_vec();
        connection.free();
        return Some(Ok(got));
    }
    endpoint.failure(peer).map(|why| Err(why.to_string()))
}

/// Send messages from rank 0 until rank 1 fails; what it got before, and why it failed.
fn send_until_it_fails(
    [sender, receiver]: &mut [Box<dyn Endpoint>; 2],
    length: usize,
) -> (usize, String) {
    let mut sent = 0;
    let mut received = 0;
    LONG.until(|| {
        sent += u64::from(send(&mut **sender, 1, sent, &content(sent, length)));
        sender.flush();
        match read_or_fail(&mut **receiver, 0)? {
            Ok(got) => {
                assert!(got == content(received as u64, length), "message {received} is wrong");
                received += 1;
                None
            }
            Err(why) => Some((received, why)),
        }
    })
}

#[test]
fn damage_on_the_way_is_found() {
    for protection in [Protection::Checksum, Protection::Encrypted] {
        for abi in [6, 12] {
            // Messages are counted from its first start on.
            let copy = protection.name();
            let plugin = FixturePlugin { copy, ..FixturePlugin::with_faults(abi, "corrupt=2") };
            let mut ranks = ranks(&plugin, protection);
            let (received, why) = send_until_it_fails(&mut ranks, 500);
            assert!(received <= 1, "{received}");
            let told = ["damaged", "sealed"].iter().any(|word| why.contains(word));
            assert!(told, "{protection:?}, version {abi}: {why}");
        }
    }
}

#[test]
fn a_peer_that_goes_is_told_with_the_plugins_name_or_the_sockets_end() {
    for faults in ["", "dead_silent"] {
        let plugin = FixturePlugin::with_faults(12, faults);
        let [mut first, second] = ranks(&plugin, Protection::Checksum);
        drop(second);
        let mut number = 0;
        let why = LONG.until(|| {
            number += u64::from(send(&mut *first, 1, number, &[1; 300]));
            first.flush();
            read_or_fail(&mut *first, 1).map(|outcome| outcome.expect_err("nobody sends"))
        });
        let told = ["fixture", "closed", "reset"].iter().any(|word| why.contains(word));
        assert!(told, "{why}");
    }
}

/// How long it takes to let go of both ranks.
fn time_to_drop(ranks: [Box<dyn Endpoint>; 2]) -> Duration {
    let started = Instant::now();
    drop(ranks);
    started.elapsed()
}

#[test]
fn a_plugin_that_never_comes_to_an_end_holds_up_nobody() {
    let plugin = FixturePlugin::with_faults(12, "never=6");
    let mut ranks = ranks(&plugin, Protection::Checksum);
    let started = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while started.elapsed() < Duration::from_secs(1) {
        let called = Instant::now();
        sent += u64::from(send(&mut *ranks[0], 1, sent, &content(sent, 100)));
        ranks[0].flush();
        if let Some(Ok(got)) = read_or_fail(&mut *ranks[1], 0) {
            assert!(got == content(received, 100));
            received += 1;
        }
        assert!(called.elapsed() < Duration::from_secs(1), "a call waits");
    }
    assert!(received < 6 && sent < 20, "{received} of {sent} have come");
    assert!(time_to_drop(ranks) < Duration::from_secs(10));
}

/// The addresses that memory was registered at.
fn registered(trace: &str) -> Vec<usize> {
    let words = trace.lines().filter_map(|line| line.split_once(" reg ")).map(|(_, rest)| rest);
    let addresses = words.map(|rest| rest.split(' ').next().unwrap().trim_start_matches("0x"));
    addresses.map(|text| usize::from_str_radix(text, 16).unwrap()).collect()
}

fn is_mapped(address: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    maps.lines().any(|line| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        (number(start)..number(end)).contains(&address)
    })
}

#[test]
fn a_plugin_that_hangs_in_closing_costs_seconds_and_keeps_its_memory() {
    for abi in [8, 12] {
        let copy = "mapped";
        let plugin = FixturePlugin { copy, ..FixturePlugin::with_faults(abi, "hang_close") };
        plugin.take_trace();
        let mut ranks = ranks(&plugin, Protection::Checksum);
        transfer(LONG, &mut ranks, &[(500, false, false); 20]);
        assert!(time_to_drop(ranks) < Duration::from_secs(20));
        let trace = plugin.take_trace();
        let registered = registered(&trace);
        assert_eq!(registered.len(), 4, "{trace}");
        assert!(registered.iter().all(|address| is_mapped(*address)));
        assert!(!trace.contains("finalize"), "{trace}");
    }
}

#[test]
fn everything_is_closed_in_the_end() {
    for abi in ABIS {
        let copy = "closed";
        let plugin = FixturePlugin { copy, devices: 3, ..FixturePlugin::new(abi) };
        plugin.take_trace();
        let mut ranks = ranks(&plugin, Protection::Checksum);
        transfer(LONG, &mut ranks, &[(500, false, false); 20]);
        drop(ranks);
        let count = |trace: &str, word: &str| trace.matches(word).count();
        let (contexts, mut trace) = (if abi >= 11 { 2 } else { 0 }, String::new());
        // Another thread may be the last that has the engine.
        LONG.until(|| {
            trace += &plugin.take_trace();
            (count(&trace, " finalize ") == contexts).then_some(())
        });
        for (made, ended) in [
            (" listen ", " close closeListen"),
            (" accept ", " close closeRecv"),
            (" connect ", " close closeSend"),
            (" reg ", " dereg "),
        ] {
            assert_eq!(count(&trace, made), count(&trace, ended), "{trace}");
        }
        assert_eq!(count(&trace, " listen "), 6);
        assert_eq!(count(&trace, " reg "), 12);
        assert_eq!(count(&trace, " init "), if abi >= 11 { 2 } else { 1 });
    }
}

/// Why a plugin cannot be used.
fn refused(plugin: &FixturePlugin) -> String {
    match PluginEngine::new(Some(&plugin.path()), 2) {
        Ok(_) => panic!("it was taken"),
        Err(why) => why.to_string(),
    }
}

#[test]
fn a_plugin_that_cannot_be_used_is_told_with_its_file() {
    let is_neuron = true;
    for (plugin, words) in [
        (FixturePlugin::with_faults(12, "fail_init"), "ncclSystemError"),
        (FixturePlugin::with_faults(6, "fail_init"), "ncclSystemError"),
        (FixturePlugin::with_faults(11, "no_devices"), "no device"),
        (FixturePlugin::with_faults(8, "no_devices"), "no device"),
        (FixturePlugin { is_neuron, ..FixturePlugin::new(6) }, "176 bytes and not 136"),
    ] {
        // A second time as well.
        for _ in 0..2 {
            let why = refused(&plugin);
            assert!(why.contains(&plugin.path()) && why.contains(words), "{why}");
            assert!(why.contains("RINGCOMM_NET=plugin:NAME"), "{why}");
        }
    }
}

#[test]
fn of_several_plugins_the_first_that_can_be_used_is() {
    let bad = FixturePlugin::with_faults(12, "fail_init").path();
    let good = FixturePlugin::new(12).path();
    let engine = PluginEngine::new(Some(&format!("{bad},no-such-plugin,{good}")), 2).unwrap();
    let info = engine.info();
    assert_eq!(info.name, "plugin fixture v12 (libnccl-net-fixture.so)");
    assert_eq!((&*info.devices, info.speed), ("fixture0", 100_000));
}

#[test]
fn a_plugin_of_short_messages_is_told_so() {
    let plugin = FixturePlugin { most_bytes: 1000, ..FixturePlugin::new(12) };
    let mut ranks: [_; 2] = with_engines(Tcp(Protection::Clear, 1).endpoints(), &maker(&plugin));
    let why = LONG.until(|| {
        send(&mut *ranks[0], 1, 0, &[1; 100]);
        ranks[1].connection(0).flush();
        read_or_fail(&mut *ranks[0], 1).map(|outcome| outcome.expect_err("nobody sends"))
    });
    assert!(why.contains("1000 bytes at most"), "{why}");
}

/// What a process that a test has started of itself is to do.
const TASK: &str = "RINGCOMM_TEST_TASK";

/// Start this program again, for one test with a task and these variables; whether it goes well.
fn again(test: &str, task: &str, variables: &[(&str, &str)]) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("plugins::{test}"), "--nocapture"]).env(TASK, task);
    for variable in ["NCCL_NET", "NCCL_NET_PLUGIN", "LD_LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    command.envs(variables.iter().copied());
    command.status().expect("this program").success()
}

/// What is found by the variables of this process: the plugin's file, or what is told.
fn found() -> String {
    match candidate_of(&NetChoice::Plugin(None), 2) {
        Ok(found) => found.expect("it is asked for").info.name,
        Err(why) => why.to_string(),
    }
}

#[test]
fn plugins_are_found_as_nccl_finds_them() {
    let test = "plugins_are_found_as_nccl_finds_them";
    let path = FixturePlugin::new(12).path();
    let folder = path.rsplit_once('/').expect("in a folder").0;
    let expected = "plugin fixture v12 (libnccl-net-fixture.so)";
    let by_path = [("NCCL_NET_PLUGIN", &*path)];
    let other = [("NCCL_NET_PLUGIN", &*path), ("NCCL_NET", "Socket")];
    let Ok(task) = std::env::var(TASK) else {
        let by_name = [("NCCL_NET_PLUGIN", "x,fixture"), ("LD_LIBRARY_PATH", folder)];
        let named = [("NCCL_NET_PLUGIN", &*path), ("NCCL_NET", "FIXTURE")];
        for variables in [&by_path[..], &by_name, &named] {
            assert!(again(test, expected, variables), "{variables:?}");
            assert!(again(test, "auto", variables), "{variables:?}");
        }
        assert!(again(test, "NCCL_NET=Socket asks for another", &other));
        assert!(again(test, "NCCL_NET_PLUGIN=NONE asks for none", &[("NCCL_NET_PLUGIN", "NONE")]));
        assert!(again(test, "libnccl-net.so: cannot open", &[]));
        for variables in [&other[..], &[("NCCL_NET_PLUGIN", "none")], &[]] {
            assert!(again(test, "tcp", variables), "{variables:?}");
        }
        return;
    };
    let auto = || candidate_of(&NetChoice::Auto, 2).expect("TCP is always there");
    match &*task {
        "auto" => assert_eq!(auto().expect("it is named").info.name, expected),
        // On a machine of fast devices UCX may be there.
        "tcp" => assert!(auto().is_none_or(|one| !one.info.name.contains("plugin"))),
        _ => assert!(found().contains(&task), "{}", found()),
    }
}

#[test]
fn a_peer_that_goes_ends_no_process_by_a_signal() {
    let test = "a_peer_that_goes_ends_no_process_by_a_signal";
    if std::env::var(TASK).is_err() {
        return assert!(again(test, "signal", &[]));
    }
    // SAFETY: the action that a process of C begins with.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    a_peer_that_goes_is_told_with_the_plugins_name_or_the_sockets_end();
}

/// The ports that a plugin listens on.
fn ports(trace: &str) -> Vec<u16> {
    let ports = trace.lines().filter(|line| line.contains(" listen "));
    ports.filter_map(|line| line.rsplit_once("port=")?.1.trim().parse().ok()).collect()
}

#[test]
fn a_stranger_at_the_listening_port_changes_nothing() {
    let plugin = FixturePlugin { copy: "strangers", ..FixturePlugin::new(12) };
    plugin.take_trace();
    let mut ranks: [_; 2] =
        with_engines(Tcp(Protection::Encrypted, 1).endpoints(), &maker(&plugin));
    // They listen from here on.
    ranks[0].connection(1);
    ranks[1].connection(0);
    let strangers = ports(&plugin.take_trace()).into_iter().map(|port| {
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stranger.write_all(&[0x5A; 1000]).unwrap();
        stranger
    });
    let strangers: Vec<TcpStream> = strangers.collect();
    assert_eq!(strangers.len(), 2);
    open_lanes(&mut ranks);
    transfer(LONG, &mut ranks, &[(500, false, false); 50]);
    assert_eq!(plugin.take_trace().matches(" stranger ").count(), 2);
}

/// A connection through two middlemen, of whom the one towards the second end flips a bit of byte
/// `at`.
pub fn through(at: usize) -> (TcpStream, TcpStream) {
    let ((first, near), (far, second)) = (pair(), pair());
    let pass = |mut from: TcpStream, mut to: TcpStream, at: Option<usize>| {
        std::thread::spawn(move || {
            let (mut passed, mut bytes) = (0, [0; 4096]);
            while let Ok(got @ 1..) = from.read(&mut bytes) {
                if let Some(at) = at.filter(|at| (passed..passed + got).contains(at)) {
                    bytes[at - passed] ^= 0x10;
                }
                passed += got;
                if to.write_all(&bytes[..got]).is_err() {
                    return;
                }
            }
        });
    };
    pass(near.try_clone().unwrap(), far.try_clone().unwrap(), Some(at));
    pass(far, near, None);
    (first, second)
}

/// A byte of the random part of the first end's token, which it says first of all.
pub const OF_TOKEN: usize = 12;

#[test]
fn what_comes_without_the_token_is_refused() {
    for abi in [6, 12] {
        let plugin = FixturePlugin::new(abi);
        let sockets = ends(vec![through(OF_TOKEN)], Protection::Clear);
        let mut ranks = with_engines(sockets, &maker(&plugin));
        open_lanes(&mut ranks);
        // Rank 1 knows rank 0 by the wrong token, and so speaks to it as a stranger.
        ranks.reverse();
        let [sender, receiver] = &mut ranks;
        let why = LONG.until(|| {
            send(&mut **sender, 0, 0, &[1; 100]);
            sender.flush();
            read_or_fail(&mut **receiver, 1).map(|outcome| outcome.expect_err("it was taken"))
        });
        assert!(why.contains("the peer did not send"), "{why}");
    }
}

#[test]
fn messages_move_between_sockets_and_a_plugin() {
    // It says late that a message is sent, when all of them have come already.
    moves_to_and_fro(maker(&FixturePlugin::with_faults(12, "late=10")));
}
