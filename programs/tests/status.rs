//! What onlookers see: the status of running jobs, traces, timelines, the check of all pairs.
//!
//! The ranks of a job are this test binary again, started by ringrun with the name of the test and
//! told by a variable what to do.

#[path = "../../tests/support/mod.rs"]
mod support;

use ringcomm::bootstrap::rendezvous::detect;
use ringcomm::communicator::Communicator;
use ringcomm::config::Config;
use ringcomm::plan::Collective;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::missing;
use support::scratch::{Scratch, run};

/// A loaded machine starts processes slowly; what takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const BODY: &str = "RINGCOMM_TEST_BODY";

/// A folder of this test's own, gone with it: the runtime directory of what it starts.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ringst-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn ringrun(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringrun"));
        command.args(arguments).env("XDG_RUNTIME_DIR", &self.0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A job of this binary's test `name`, whose ranks find the variable set.
    fn job(&self, options: &[&str], name: &str) -> Job {
        let mut command = self.ringrun(options);
        let body = format!("{BODY}={name}");
        command.args(["-x", &body, "--no-prefix"]).arg(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
        Job(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn entries(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn status(&self, arguments: &[&str]) -> Output {
        let all = [&["--status"], arguments].concat();
        self.ringrun(&all).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether Python, which is not ours, can read it.
#[track_caller]
fn assert_json(json: &str) {
    let mut python = Command::new("python3");
    python.args(["-m", "json.tool"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut python = python.spawn().unwrap();
    python.stdin.take().unwrap().write_all(json.as_bytes()).unwrap();
    assert!(python.wait().unwrap().success(), "{json}");
}

fn join() -> Communicator {
    let found = detect(|name| std::env::var(name).ok(), None, None, None).unwrap();
    Communicator::init_found(&found, &Config::from_environment().unwrap()).unwrap()
}

/// Whether this process is a rank of `name`'s job.
fn is_rank_of(name: &str) -> bool {
    std::env::var(BODY).is_ok_and(|body| body == name)
}

fn all_reduce(comm: &Communicator, count: usize) {
    let mut scratch = Scratch::new(comm.nranks());
    let call = scratch.call(Collective::AllReduce, count);
    run(comm, &call).unwrap();
}

/// Two communicators in a row, five calls on the second, and one more without rank 1.
fn hang() {
    all_reduce(&join(), 8);
    let comm = join();
    for _ in 0..5 {
        all_reduce(&comm, 1000);
    }
    if comm.rank() == 1 {
        std::thread::sleep(Duration::from_secs(1000));
    }
    all_reduce(&comm, 1000);
}

/// Rows of the table that wait for rank 1 in the last call.
fn waiting(table: &str) -> usize {
    let waits = |line: &&str| {
        let fields: Vec<&str> = line.split("  ").map(str::trim).filter(|f| !f.is_empty()).collect();
        fields.contains(&"waiting")
            && fields.contains(&"rank 1")
            && fields.last().is_some_and(|call| call.starts_with("AllReduce(count=1000, "))
    };
    table.lines().filter(waits).count()
}

#[test]
fn a_hung_job_says_who_waits_for_whom() {
    if is_rank_of("a_hung_job_says_who_waits_for_whom") {
        return hang();
    }
    let folder = Folder::new("hung");
    let job = folder.job(&["-np", "3"], "a_hung_job_says_who_waits_for_whom");
    let table = wait_until("two ranks wait for rank 1", || {
        let answer = folder.status(&[]);
        // Two also wait where rank 1 is late inside a call.
        let table = text(&answer.stdout);
        let idle = table.lines().find(|line| line.starts_with("1 "))?;
        let is_hung = idle.contains("between calls") && waiting(&table) == 2;
        is_hung.then_some(table)
    });
    let idle = table.lines().find(|line| line.starts_with("1 ")).expect("rank 1");
    assert!(idle.contains("AllReduce"), "{table}");

    // Nobody else may look.
    let own = folder.entries().pop().expect("the job's folder");
    assert_eq!(own.metadata().unwrap().mode() & 0o777, 0o700);
    let sockets: Vec<PathBuf> =
        std::fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().path()).collect();
    let sockets: Vec<&PathBuf> =
        sockets.iter().filter(|path| path.to_str().unwrap().contains("/rank.")).collect();
    assert_eq!(sockets.len(), 3);
    for socket in &sockets {
        assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o600);
    }

    // By the pid of ringrun and of a rank, as a table and as JSON.
    let rank = sockets[0].extension().unwrap().to_str().unwrap().to_string();
    for pid in [job.0.id().to_string(), rank] {
        assert!(waiting(&text(&folder.status(&[&pid]).stdout)) > 0, "{pid}");
    }
    let json = text(&folder.status(&["--json"]).stdout);
    assert_json(&json);
    assert!(json.contains("waiting for rank 1") && json.contains("\"silent\":[]"), "{json}");
    let path = folder.0.join("trace.json");
    assert!(folder.status(&["--trace", path.to_str().unwrap()]).status.success());
    let trace = std::fs::read_to_string(&path).unwrap();
    assert_json(&trace);
    for rank in 0..3 {
        assert!(trace.contains(&format!("\"name\":\"rank {rank} (")), "{trace}");
    }
    assert_eq!(trace.matches("\"complete\":true").count(), 15, "{trace}");
    let hangs = trace.split_once("\"complete\":false,\"steps_done\":").expect(&trace).1;
    assert!(hangs.contains("\"waiting_for\":1"), "{trace}");

    // One that asks for nonsense, or for nothing, does no harm.
    let silent = UnixStream::connect(sockets[0]).unwrap();
    let mut odd = UnixStream::connect(sockets[0]).unwrap();
    odd.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(odd).read_line(&mut line).unwrap();
    assert!(line.contains("ask for dump"), "{line}");
    drop(silent);

    drop(job);
    wait_until("the folder is gone", || (!own.exists()).then_some(()));
    let answer = folder.status(&[]);
    assert_eq!(answer.status.code(), Some(1));
    assert!(text(&answer.stderr).contains("no job of yours"), "{}", text(&answer.stderr));
    let answer = folder.status(&["nosuch"]);
    assert!(text(&answer.stderr).contains("no job nosuch of yours"), "{}", text(&answer.stderr));
}

#[test]
fn a_stopped_rank_is_named() {
    if is_rank_of("a_stopped_rank_is_named") {
        return hang();
    }
    let folder = Folder::new("stopped");
    let _job = folder.job(&["-np", "2"], "a_stopped_rank_is_named");
    let table = wait_until("a rank waits", || {
        Some(text(&folder.status(&[]).stdout)).filter(|table| waiting(table) == 1)
    });
    let line = table.lines().find(|line| line.starts_with("1 ")).unwrap();
    let pid: u32 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    // SAFETY: the call touches no memory.
    unsafe { libc::kill(pid as i32, libc::SIGSTOP) };
    let table = text(&folder.status(&[]).stdout);
    assert!(table.contains(&format!("pid {pid}: no answer")) && waiting(&table) == 1, "{table}");
    // SAFETY: as above.
    unsafe { libc::kill(pid as i32, libc::SIGCONT) };
}

#[test]
fn what_a_killed_agent_left_over_is_removed() {
    let folder = Folder::new("left");
    let make = |job: &str, mode: u32| {
        let user = folder.0.metadata().unwrap().uid();
        let path = folder.0.join(format!("ringrun-{user}-{job}-1"));
        std::fs::DirBuilder::new().mode(mode).create(&path).unwrap();
        std::fs::write(path.join("lock"), "").unwrap();
        path
    };
    let (left, open, held) = (make("left", 0o700), make("open", 0o755), make("held", 0o700));
    let lock = std::fs::File::open(held.join("lock")).unwrap();
    lock.lock().unwrap();
    assert!(folder.ringrun(&["-np", "1", "true"]).status().unwrap().success());
    assert!(!left.exists() && held.exists(), "left {}", left.exists());
    // What others could write to is not touched.
    assert!(open.exists());
    assert_eq!(folder.entries().len(), 2, "{:?}", folder.entries());
}

/// The threads of this process by that name, which a thread gives itself after it has started.
fn status_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    names.filter(|name| name.as_ref().is_ok_and(|name| name == "ringcomm-status\n")).count()
}

#[test]
fn a_process_serves_its_socket_from_its_first_communicator_to_its_last() {
    let name = "a_process_serves_its_socket_from_its_first_communicator_to_its_last";
    let config = Config::default();
    if !is_rank_of(name) {
        let ranks = Communicator::init_all(2, &config).unwrap();
        assert_eq!(status_threads(), 0, "nobody asked for it");
        drop(ranks);
        let folder = Folder::new("ends");
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(BODY, name);
        child.env("RINGCOMM_STATUS_DIR", &folder.0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(folder.entries().is_empty());
        return;
    }
    let folder = PathBuf::from(std::env::var("RINGCOMM_STATUS_DIR").unwrap());
    let socket = folder.join(format!("rank.{}", std::process::id()));
    for _ in 0..2 {
        let mut ranks = Communicator::init_all(3, &config).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while status_threads() == 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(status_threads(), 1);
        let rows = ask(&socket, "table");
        assert_eq!(rows.lines().count(), 3, "{rows}");
        assert_json(&ask(&socket, "dump"));
        assert_json(&ask(&socket, "trace"));
        ranks.truncate(1);
        assert_eq!(ask(&socket, "table").lines().count(), 1);
        drop(ranks);
        assert!(!socket.exists());
        // A thread that has been joined is listed a moment longer.
        while status_threads() != 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(status_threads(), 0);
    }
}

fn ask(socket: &Path, question: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(format!("{question}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    answer
}

#[test]
fn a_timeline_is_whole_wherever_the_process_dies() {
    if is_rank_of("a_timeline_is_whole_wherever_the_process_dies") {
        return hang();
    }
    let folder = Folder::new("timeline");
    for variable in ["RINGCOMM_TIMELINE", "HOROVOD_TIMELINE"] {
        let path = folder.0.join(variable);
        let given = format!("{variable}={}", path.display());
        let options = ["-np", "2", "-x", &given];
        let job = folder.job(&options, "a_timeline_is_whole_wherever_the_process_dies");
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        // One call on the first communicator, six on the second, the last of which has no end.
        let begun = |text: &String| text.matches("\"ph\":\"B\"").count() == 7;
        wait_until("the last call has begun", || Some(read(&path)).filter(begun));
        drop(job);
        let text = read(&path);
        assert_json(&text);
        assert_eq!(text.matches("\"ph\":\"E\"").count(), 6, "{text}");
        assert_eq!(text.matches("\"name\":\"thread_name\"").count(), 2, "{text}");
        let other = read(&path.with_file_name(format!("{variable}.1")));
        assert_json(&other);
        assert_eq!(other.matches("\"ph\":\"B\"").count(), 6, "{other}");
    }
}

#[test]
fn no_process_writes_to_the_timeline_of_another() {
    const NAME: &str = "no_process_writes_to_the_timeline_of_another";
    if is_rank_of(NAME) {
        // What DataParallel makes in every process of a job.
        let ranks = Communicator::init_all(2, &Config::default()).unwrap();
        return drop(ranks);
    }
    let folder = Folder::new("timelines");
    let path = folder.0.join("file");
    let process = |variables: &[(&str, &str)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([NAME, "--exact", "--nocapture", "--test-threads=1"]).env_clear();
        command.env(BODY, NAME).env("RINGCOMM_TIMELINE", &path).envs(variables.iter().copied());
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        assert!(child.wait_with_output().unwrap().status.success());
        pid
    };
    let here = |name: &str| {
        let path = path.with_file_name(name);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(&path);
        text.matches("\"name\":\"thread_name\"").count() == 2
    };
    for second in [
        [("RINGCOMM_RANK", "1"), ("RINGCOMM_NRANKS", "2")],
        [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")],
        [("PMI_RANK", "1"), ("PMI_SIZE", "2")],
    ] {
        process(&second);
        assert!(here("file.1") && !here("file"), "{second:?}");
    }
    process(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")]);
    assert!(here("file"));
    process(&[]);
    assert!(here("file"));
    // Another process without a launcher writes to it.
    let held = std::fs::File::create(&path).unwrap();
    held.lock().unwrap();
    let pid = process(&[]);
    assert!(here(&format!("file.{pid}")) && !here("file"));
}

#[test]
fn a_check_measures_every_pair() {
    let folder = Folder::new("check");
    let output = folder.ringrun(&["--check", "-np", "4"]).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    let rows: Vec<Vec<&str>> = said
        .lines()
        .filter(|line| line.starts_with("rank "))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 8, "{said}");
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(row.len(), 6, "{said}");
        for (column, cell) in row[2..].iter().enumerate() {
            match at % 4 == column {
                true => assert_eq!(*cell, "-", "{said}"),
                false => assert!(cell.parse::<f64>().unwrap() > 0.0, "{said}"),
            }
        }
    }
    assert!(folder.entries().is_empty());
}

/// The process of rank 2 of a check that `launcher` runs.
fn rank_2_of_a_check(folder: &Path) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let mut pids =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let folder = format!("XDG_RUNTIME_DIR={}", folder.display());
    pids.find(|pid| {
        let words = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let has =
            |all: Vec<u8>, word: &str| all.split(|byte| *byte == 0).any(|w| w == word.as_bytes());
        has(words("cmdline"), "--check-rank")
            && has(words("environ"), "RINGCOMM_RANK=2")
            && has(words("environ"), &folder)
    })
}

#[test]
fn a_check_names_the_pair_that_cannot_talk() {
    let folder = Folder::new("apart");
    let options = ["--check", "-np", "3", "--kill-grace", "0.2"];
    // On a busy machine a check may be over before its rank is seen and stopped.
    let checked = |_| {
        let mut command = folder.ringrun(&options);
        let mut child = command.env("RINGCOMM_TIMEOUT_MS", "2000").spawn().unwrap();
        let pid = wait_until("rank 2 is there, or gone", || {
            let is_over = child.try_wait().unwrap().is_some();
            rank_2_of_a_check(&folder.0).map(Some).or(is_over.then_some(None))
        });
        if let Some(pid) = pid {
            // SAFETY: the call touches no memory.
            unsafe { libc::kill(pid as i32, libc::SIGSTOP) };
        }
        let output = child.wait_with_output().unwrap();
        (!output.status.success()).then_some(output)
    };
    let output = (0..10).find_map(checked).expect("a check whose rank 2 stops");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    // It was stopped while it measured, or before it had joined; if the others had met by then.
    let misses_it = || {
        let lists = missing(&said);
        // Whoever says it is not missing.
        let may_be = |list: &Vec<usize>| list.len() < 3 && list.iter().all(|rank| *rank < 3);
        lists.iter().all(may_be) && lists.iter().any(|list| list.contains(&2))
    };
    // Or whom it waits for.
    let is_named = ["rank 2 (", "waiting for rank 2"].iter().any(|name| said.contains(name));
    assert!(is_named || misses_it(), "{said}");
}

#[test]
fn ranks_of_one_machine_that_name_their_hosts_are_on_several() {
    let name = "ranks_of_one_machine_that_name_their_hosts_are_on_several";
    if is_rank_of(name) {
        let found = detect(|name| std::env::var(name).ok(), None, None, None).unwrap();
        let host_id = Some(format!("host of {}", found.rank));
        let config = Config { host_id, ..Config::from_environment().unwrap() };
        let comm = Communicator::init_found(&found, &config).unwrap();
        all_reduce(&comm, 1000);
        let mut scratch = Scratch::new(comm.nranks());
        let explained = comm.explain(&scratch.call(Collective::AllReduce, 1000)).unwrap();
        return assert_eq!(explained.transport, "net/tcp");
    }
    let folder = Folder::new("named");
    let mut job = folder.job(&["-np", "2"], name);
    assert!(job.0.wait().unwrap().success());
}

#[test]
fn two_communicators_in_a_row_meet_on_several_hosts() {
    let name = "two_communicators_in_a_row_meet_on_several_hosts";
    if is_rank_of(name) {
        let (first, second) = (join(), join());
        all_reduce(&second, 1000);
        all_reduce(&first, 1000);
        let mut scratch = Scratch::new(second.nranks());
        let explained = second.explain(&scratch.call(Collective::AllReduce, 1000)).unwrap();
        // Rank 2 is the only one of its host.
        let wanted = if second.rank() == 2 { "net/tcp" } else { "shm and net/tcp" };
        assert_eq!(explained.transport, wanted, "rank {}", second.rank());
        return;
    }
    let folder = Folder::new("hosts");
    // This machine, which counts as another host under each name.
    let shell = folder.0.join("shell");
    let script = "#!/bin/sh\nexport RINGCOMM_HOSTID=$1\nshift\nexec \"$@\"\n";
    std::fs::write(&shell, script).unwrap();
    std::fs::set_permissions(&shell, Permissions::from_mode(0o700)).unwrap();
    let hosts = ["-np", "3", "-H", "a:2,b:1", "--master-addr", "127.0.0.1"];
    let reached = ["--ssh-command", shell.to_str().unwrap(), "-x", "RINGCOMM_SOCKET_IFNAME=lo"];
    let mut job = folder.job(&[&hosts[..], &reached].concat(), name);
    assert!(job.0.wait().unwrap().success());
    let check = folder.ringrun(&[&["--check"], &hosts[..], &reached].concat()).output().unwrap();
    assert!(check.status.success(), "{}", text(&check.stderr));
    assert!(text(&check.stdout).contains("3 ranks, every pair talks"), "{}", text(&check.stdout));
}
