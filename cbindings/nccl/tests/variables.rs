//! NCCL's variables, from the environment and from its files, each in a process of its own.
#![allow(unsafe_code)]
#![allow(non_upper_case_globals)]

#[path = "interface/ranks.rs"]
#[allow(dead_code)]
mod ranks;

use ranks::{Handle, config, new_id, ok, poll, rank_of};
use ringcomm::Config;
use ringcomm_nccl::collectives::*;
use ringcomm_nccl::init::*;
use ringcomm_nccl::lifecycle::*;
use ringcomm_nccl::types::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::ptr::null_mut;

/// Says which of the bodies below a process is to run.
const BODY: &str = "NCCL_TEST_BODY";

/// What the other processes run: a test, since this file is all that they have.
#[test]
fn body() {
    match std::env::var(BODY).as_deref() {
        Ok("calls") => calls(),
        Ok("settings") => settings(),
        Ok("blocking") => blocking(),
        Ok("address") => address(),
        Ok("alone") => alone(),
        _ => {}
    }
}

/// Two ranks, a right call, and a wrong one.
fn calls() {
    let id = new_id();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            scope.spawn(move || {
                let (mut comm, one, mut sum) = (null_mut(), 1i32, 0i32);
                // SAFETY: the places are locals.
                unsafe {
                    ok(pncclCommInitRank(&mut comm, 2, id, rank));
                    let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
                    ok(pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comm, null_mut()));
                    pncclAllReduce(send, recv, 1, 99, ncclSum, comm, null_mut());
                    ok(pncclCommDestroy(comm));
                }
            });
        }
    });
}

/// What the library makes of the variables.
fn settings() {
    new_id();
    let config = Config::from_environment().unwrap();
    let buffers = config.buff_size.map_or("none".to_string(), |bytes| bytes.to_string());
    println!("algorithm {:?} buffers {buffers} sockets {}", config.algorithm, config.nsocks);
    println!("interfaces {:?} host {:?}", config.interfaces, config.host_id);
    println!("net {}", config.net.name());
}

/// A rank that waits at an address for one that never comes, and gives up.
fn alone() {
    let rank: i32 = std::env::var("NCCL_TEST_RANK").unwrap().parse().unwrap();
    let (mut comm, mut asks) = (null_mut(), config(0));
    // SAFETY: the places are locals.
    unsafe {
        let begun = pncclCommInitRankConfig(&mut comm, 2, new_id(), rank, &mut asks);
        assert_eq!(begun, ncclInProgress);
        std::thread::sleep(std::time::Duration::from_millis(300));
        let begun = std::time::Instant::now();
        ok(pncclCommAbort(comm));
        assert!(begun.elapsed().as_secs() < 10);
        // And others meet there, not the one that is gone.
        std::thread::scope(|scope| {
            for rank in 0..2 {
                scope.spawn(move || {
                    let mut comm = null_mut();
                    ok(pncclCommInitRank(&mut comm, 2, new_id(), rank));
                    ok(pncclCommDestroy(comm));
                });
            }
        });
        assert!(begun.elapsed().as_secs() < 10);
    }
}

fn blocking() {
    let mut comm = null_mut();
    let mut asks_to_block = config(1);
    // SAFETY: the places are locals.
    unsafe {
        let begun = pncclCommInitRankConfig(&mut comm, 1, new_id(), 0, &mut asks_to_block);
        assert_eq!(begun, ncclInProgress);
        assert_eq!(poll(comm), ncclSuccess);
        ok(pncclCommDestroy(comm));
    }
}

/// A rank that was handed no id.
fn address() {
    let rank = std::env::var("NCCL_TEST_RANK").unwrap().parse().unwrap();
    let (mut comm, one, mut sum) = (Handle(null_mut()).0, 1i32, 0i32);
    // SAFETY: the places are locals.
    unsafe {
        ok(pncclCommInitRank(&mut comm, 2, new_id(), rank));
        assert_eq!(rank_of(comm), (rank, 2));
        let (send, recv) = ((&raw const one).cast(), (&raw mut sum).cast());
        ok(pncclAllReduce(send, recv, 1, ncclInt, ncclSum, comm, null_mut()));
        assert_eq!(sum, 2);
        ok(pncclCommDestroy(comm));
    }
}

/// A process that runs one of the bodies, with no variables of NCCL's but these.
fn process(body: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "body", "--nocapture"]);
    for (name, _) in std::env::vars() {
        if name.starts_with("NCCL_") || name.starts_with("RINGCOMM_") {
            command.env_remove(name);
        }
    }
    command.env(BODY, body).env("HOME", "/nonexistent").envs(variables.iter().copied());
    command
}

fn text(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn printed(body: &str, variables: &[(&str, &str)]) -> String {
    text(&process(body, variables).output().unwrap())
}

/// A folder of this test's own, which is gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("nccl-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `host:process:thread [-1] NCCL INFO ` or `WARN`, and what comes behind it.
fn told<'a>(line: &'a str, kind: &str) -> Option<&'a str> {
    let (head, text) = line.split_once(&format!(" [-1] NCCL {kind} "))?;
    let mut numbers = head.rsplitn(3, ':');
    let is_number = |part: Option<&str>| part.is_some_and(|part| part.parse::<u32>().is_ok());
    (is_number(numbers.next()) && is_number(numbers.next())).then_some(text)
}

#[test]
fn the_log_has_nccls_levels_and_lines() {
    const VERSION: &str = "NCCL version 2.32.3 (ringcomm ";
    assert!(!printed("calls", &[]).contains("NCCL"));
    let version = printed("calls", &[("NCCL_DEBUG", "VERSION")]);
    assert!(version.contains(VERSION) && !version.contains("NCCL WARN"), "{version}");
    let warnings = printed("calls", &[("NCCL_DEBUG", "warn")]);
    let warned = warnings.lines().filter_map(|line| told(line, "WARN"));
    let warned: Vec<&str> = warned.filter(|text| text.contains("99 is no data type")).collect();
    assert_eq!(warned.len(), 2, "{warnings}");
    assert!(!warnings.contains("NCCL INFO"), "{warnings}");
    let quiet = printed("calls", &[("NCCL_DEBUG", "INFO")]);
    let made = quiet.lines().filter_map(|line| told(line, "INFO"));
    assert_eq!(made.filter(|text| text.ends_with("Init COMPLETE")).count(), 2, "{quiet}");
    assert!(!quiet.contains("AllReduce: sendbuff"), "{quiet}");
    let all = printed("calls", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,COLL")]);
    let calls = all.lines().filter_map(|line| told(line, "INFO"));
    let calls = calls.filter(|text| text.starts_with("AllReduce: sendbuff"));
    assert_eq!(calls.count(), 4, "{all}");
}

#[test]
fn the_log_goes_to_the_file_that_is_named() {
    let folder = Folder::new("log");
    let named = folder.0.join("log.%h.%p").to_str().unwrap().to_string();
    let there = printed("calls", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", &named)]);
    assert!(!there.contains("NCCL INFO"), "{there}");
    let files: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap()).collect();
    assert_eq!(files.len(), 1);
    let name = files[0].file_name().into_string().unwrap();
    assert!(name.rsplit('.').next().unwrap().parse::<u32>().is_ok(), "{name}");
    let text = std::fs::read_to_string(files[0].path()).unwrap();
    assert!(text.contains("Init COMPLETE"), "{text}");
}

#[test]
fn variables_and_files_are_told_to_the_library() {
    let folder = Folder::new("files");
    folder.file(".nccl.conf", "# a comment\nNCCL_ALGO=Tree\nNCCL_BUFFSIZE=262144\n");
    let other = folder.file("other.conf", "NCCL_HOSTID=other\n");
    let home = folder.0.to_str().unwrap();
    let of_environment = [
        ("NCCL_ALGO", "NVLS,Ring"),
        ("NCCL_BUFFSIZE", "0x20000"),
        ("NCCL_NSOCKS_PERTHREAD", "2"),
        ("NCCL_SOCKET_NTHREADS", "3"),
        ("NCCL_SOCKET_IFNAME", "=lo"),
        ("NCCL_HOSTID", "mine"),
        ("NCCL_IB_HCA", "mlx5_0"),
    ];
    let said = printed("settings", &of_environment);
    assert!(said.contains("algorithm Some(\"ring\") buffers 131072 sockets 6"), "{said}");
    assert!(said.contains("interfaces Some(\"=lo\") host Some(\"mine\")"), "{said}");
    let of_file = printed("settings", &[("HOME", home)]);
    assert!(of_file.contains("algorithm Some(\"tree\") buffers 262144"), "{of_file}");
    let both = printed("settings", &[("HOME", home), ("NCCL_BUFFSIZE", "131072")]);
    assert!(both.contains("algorithm Some(\"tree\") buffers 131072"), "{both}");
    let named = printed("settings", &[("HOME", home), ("NCCL_CONF_FILE", &other)]);
    assert!(named.contains("algorithm None") && named.contains("host Some(\"other\")"), "{named}");
    let own = printed("settings", &[("NCCL_ALGO", "Tree"), ("RINGCOMM_ALGO", "chain")]);
    assert!(own.contains("algorithm Some(\"chain\")"), "{own}");
    for (theirs, ours) in [("Socket", "tcp"), ("IB", "auto"), ("AWS Libfabric", "plugin")] {
        let said = printed("settings", &[("NCCL_NET", theirs)]);
        assert!(said.contains(&format!("net {ours}")), "{said}");
    }
    assert!(Path::new(home).exists());
}

#[test]
fn a_variable_says_whether_communicators_block() {
    printed("blocking", &[("NCCL_COMM_BLOCKING", "0")]);
}

#[test]
fn who_waits_at_an_address_gives_up_at_once() {
    for rank in ["0", "1"] {
        let mut command = process("alone", &[("NCCL_COMM_ID", &free_place())]);
        command.env("NCCL_TEST_RANK", rank).env("RINGCOMM_TIMEOUT_MS", "20000");
        text(&command.output().unwrap());
    }
}

fn free_place() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn ranks_meet_at_the_address_that_all_have() {
    let place = free_place();
    for secret in [None, Some("sixteen letters and more")] {
        let begin = |rank: &str| {
            let mut command = process("address", &[("NCCL_COMM_ID", &place)]);
            command.env("NCCL_TEST_RANK", rank).envs(secret.map(|text| ("RINGCOMM_SECRET", text)));
            command.env("RINGCOMM_TIMEOUT_MS", "60000").output().unwrap()
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| text(&begin("1")));
            text(&begin("0"));
            other.join().unwrap();
        });
    }
}
