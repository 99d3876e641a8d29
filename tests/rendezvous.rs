//! Processes that meet as users and launchers have them meet: through variables, URLs and files.
//!
//! The test binary starts itself once a rank, with the variables of one launcher and nothing else.
#![allow(non_snake_case)] // C names are spelled as a C program spells them.

#[path = "support/skips.rs"]
mod skips;

use ringcomm::bootstrap::rendezvous::{LaunchFacts, detect};
use ringcomm::ffi::calls::collective::ringAllReduce;
use ringcomm::ffi::comm::launched::{ringCommInitUrl, ringLauncherInfo};
use ringcomm::ffi::comm::lifecycle::ringCommDestroy;
use ringcomm::ffi::comm::query::{ringCommCount, ringCommUserRank, ringGetLastError};
use ringcomm::ffi::types::ringResult_t::{ringInvalidArgument, ringSuccess};
use ringcomm::ffi::types::*;
use rustix::net;
use std::ffi::{CStr, CString, c_char, c_int};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

/// How many communicators the rank makes; set in the ranks that a test starts.
const TIMES: &str = "RINGCOMM_TEST_TIMES";
/// The URL that it gives; NULL where it is not set.
const URL: &str = "RINGCOMM_TEST_URL";
/// What the outcome's line begins with; libtest prints lines of its own.
const MARK: &str = "outcome: ";

fn last_error() -> String {
    // SAFETY: a C string that lives until this thread asks again.
    unsafe { CStr::from_ptr(ringGetLastError(null_mut())) }.to_string_lossy().into_owned()
}

/// Join by the environment, sum up all ranks' numbers, leave. "rank/nranks:sum", or the error.
fn join_and_sum(url: Option<&str>) -> Result<String, String> {
    let url = url.map(|url| CString::new(url).unwrap());
    let url = url.as_ref().map_or(null(), |url| url.as_ptr());
    let (mut comm, mut rank, mut nranks, mut sum) = (null_mut(), -1, -1, 0i64);
    let ok = |result| if result == ringSuccess { Ok(()) } else { Err(last_error()) };
    // SAFETY: all pointers are to locals; one element each.
    unsafe {
        ok(ringCommInitUrl(&mut comm, url, -1, -1, null()))?;
        ok(ringCommUserRank(comm, &mut rank))?;
        ok(ringCommCount(comm, &mut nranks))?;
        let mine = i64::from(rank) + 1;
        let (kind, op) = (ringDataType_t::ringInt64 as i32, ringRedOp_t::ringSum as i32);
        let (send, recv) = ((&raw const mine).cast(), (&raw mut sum).cast());
        let (kind, op) = (RawDataType(kind), RawRedOp(op));
        ok(ringAllReduce(send, recv, 1, kind, op, comm, null_mut()))?;
        ok(ringCommDestroy(comm))?;
    }
    Ok(format!("{rank}/{nranks}:{sum}"))
}

/// The life of a rank; in a run of the whole suite there is nothing to do here.
#[test]
fn a_rank() {
    let Ok(times) = std::env::var(TIMES) else { return };
    let url = std::env::var(URL).ok();
    let outcome = (0..times.parse().unwrap())
        .map(|_| join_and_sum(url.as_deref()))
        .collect::<Result<Vec<_>, _>>();
    println!("{MARK}{}", outcome.map_or_else(|error| error, |all| all.join(" ")));
}

type Variables<'a> = &'a [(&'a str, String)];

/// Start a rank with these variables and no others, in a session of its own, as launchers do.
fn start(variables: Variables) -> Child {
    Command::new("setsid")
        .arg(std::env::current_exe().unwrap())
        .args(["a_rank", "--exact", "--nocapture", "--test-threads=1"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        // Loaded machines have been seen to stop a process for seconds.
        .env("RINGCOMM_TIMEOUT_MS", "60000")
        .env(TIMES, "1")
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

fn outcome(rank: Child) -> String {
    both(rank).0
}

/// The outcome, and what was printed to standard error.
fn both(rank: Child) -> (String, String) {
    let output = rank.wait_with_output().unwrap();
    let [output, errors] =
        [output.stdout, output.stderr].map(|all| String::from_utf8(all).unwrap());
    let line = output.lines().find_map(|line| Some(line.split_once(MARK)?.1));
    let line = line.unwrap_or_else(|| panic!("no outcome in {output:?} {errors:?}"));
    (line.to_string(), errors)
}

/// `nranks` ranks whose variables are those that `of` gives for each, plus `all`.
#[track_caller]
fn meet(nranks: usize, all: Variables, of: impl Fn(usize) -> Vec<(&'static str, String)>) {
    let ranks: Vec<Child> = (0..nranks)
        .map(|rank| start(&of(rank).into_iter().chain(all.to_vec()).collect::<Vec<_>>()))
        .collect();
    let times = all.iter().find(|(name, _)| *name == TIMES).map_or(1, |(_, n)| n.parse().unwrap());
    for (rank, child) in ranks.into_iter().enumerate() {
        let once = format!("{rank}/{nranks}:{}", nranks * (nranks + 1) / 2);
        assert_eq!(outcome(child), vec![once; times].join(" "), "rank {rank}");
    }
}

fn set(name: &'static str, value: impl ToString) -> (&'static str, String) {
    (name, value.to_string())
}

/// A job's name that no other test has, nor another run of this one.
fn job(test: &str) -> (&'static str, String) {
    set("RINGCOMM_JOB", format!("{test} {}", std::process::id()))
}

fn by_hand(nranks: usize) -> impl Fn(usize) -> Vec<(&'static str, String)> {
    move |rank| {
        vec![
            set("RANK", rank),
            set("WORLD_SIZE", nranks),
            set("MASTER_ADDR", "127.0.0.1"),
            set("MASTER_PORT", 29400),
        ]
    }
}

/// A path of this test's own, in a folder that is there.
fn path(test: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()))
}

#[test]
fn ranks_started_by_hand_meet() {
    meet(3, &[job("hand")], by_hand(3));
    meet(2, &[job("env"), set(URL, "env://")], by_hand(2));
}

#[test]
fn one_environment_makes_several_communicators() {
    meet(2, &[job("several"), set(TIMES, 4)], by_hand(2));
    let url = format!("file://{}", path("several").display());
    meet(2, &[job("several files"), set(URL, url), set(TIMES, 4)], by_hand(2));
    assert!(!path("several").exists());
}

#[test]
fn a_url_is_enough() {
    let url = |rank: usize| format!("tcp://localhost:29401?rank={rank}&world_size=3");
    meet(3, &[job("tcp")], |rank| vec![set(URL, url(rank))]);
}

#[test]
fn every_launchers_variables_bring_ranks_of_a_machine_together() {
    type Names = [&'static str; 4];
    let families: [(Names, &'static str); 4] = [
        (["RINGCOMM_RANK", "RINGCOMM_NRANKS", "RINGCOMM_LOCAL_RANK", "RINGCOMM_LOCAL_SIZE"], "X"),
        (["HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"], "X"),
        (
            [
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
            "PMIX_NAMESPACE",
        ),
        // Without a job's name: who started the ranks tells.
        (["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"], "X"),
    ];
    for (names, job) in families {
        meet(2, &[set(job, format!("{names:?} {}", std::process::id()))], |rank| {
            let values = [rank, 2, rank, 2];
            names.into_iter().zip(values).map(|(name, value)| set(name, value)).collect()
        });
    }
    meet(2, &[set("SLURM_JOB_ID", std::process::id())], |rank| {
        vec![
            set("SLURM_PROCID", rank),
            set("SLURM_NPROCS", 2),
            set("SLURM_STEP_ID", 0),
            set("SLURM_NODEID", 0),
            set("SLURM_STEP_NODELIST", "anywhere"),
            set("SLURM_STEP_TASKS_PER_NODE", 2),
        ]
    });
}

/// Two agents of torchrun, of which one has replaced another after a restart.
#[test]
fn ranks_of_agents_that_count_restarts_otherwise_meet() {
    let rank = |rank: usize| {
        let (agent, local) = (rank / 2, rank % 2);
        let own = [set("LOCAL_RANK", local), set("LOCAL_WORLD_SIZE", 2), set("GROUP_RANK", agent)];
        let count = set("TORCHELASTIC_RESTART_COUNT", 1 - agent);
        [by_hand(4)(rank), own.to_vec(), vec![count]].concat()
    };
    let run = set("TORCHELASTIC_RUN_ID", format!("agents {}", std::process::id()));
    meet(4, &[run.clone(), set("RINGCOMM_TIMEOUT_MS", 30_000)], rank);
    let url = format!("file://{}", path("agents").display());
    meet(4, &[run, set("RINGCOMM_TIMEOUT_MS", 30_000), set(URL, url)], rank);
}

#[test]
fn jobs_with_one_address_and_different_names_do_not_mix() {
    let jobs: Vec<(String, Vec<Child>)> = (0..3)
        .map(|number| {
            let name = job(&format!("apart {number}"));
            let rank = |rank| {
                let own = [by_hand(2)(rank), vec![name.clone()]].concat();
                start(&own)
            };
            (name.1.clone(), vec![rank(0), rank(1)])
        })
        .collect();
    for (name, ranks) in jobs {
        for (rank, child) in ranks.into_iter().enumerate() {
            assert_eq!(outcome(child), format!("{rank}/2:3"), "{name}");
        }
    }
}

#[test]
fn ranks_meet_through_a_file_whoever_comes_first() {
    let path = path("file");
    let all = [job("file"), set(URL, format!("file://{}", path.display()))];
    let late: Vec<Child> =
        [2, 1].into_iter().map(|rank| start(&[by_hand(3)(rank), all.to_vec()].concat())).collect();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!path.exists());
    let zero = start(&[by_hand(3)(0), all.to_vec()].concat());
    assert_eq!(outcome(zero), "0/3:6");
    let outcomes: Vec<String> = late.into_iter().map(outcome).collect();
    assert_eq!(outcomes, ["2/3:6", "1/3:6"]);
    assert!(!path.exists(), "the file goes when all have met");
}

#[test]
fn the_file_of_a_crashed_job_sends_nobody_anywhere() {
    let path = path("stale");
    let all = [job("stale"), set(URL, format!("file://{}", path.display()))];
    let rank = |rank| start(&[by_hand(2)(rank), all.to_vec()].concat());
    let mut crashed = rank(0);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < deadline, "rank 0 wrote no file");
        std::thread::sleep(Duration::from_millis(1));
    }
    crashed.kill().unwrap();
    crashed.wait().unwrap();
    assert!(path.exists(), "a killed process leaves its file");
    // Alone with it, a rank says what it saw.
    let mut short = all.to_vec();
    short.push(set("RINGCOMM_TIMEOUT_MS", 200));
    let text = outcome(start(&[by_hand(2)(1), short].concat()));
    assert!(text.contains("stale") && text.contains(&crashed.id().to_string()), "{text}");
    assert!(text.contains(&path.display().to_string()), "{text}");
    // The job's next start goes on past it.
    let one = rank(1);
    std::thread::sleep(Duration::from_millis(50));
    let zero = rank(0);
    assert_eq!((outcome(zero), outcome(one)), ("0/2:3".into(), "1/2:3".into()));
    assert!(!path.exists());
}

#[test]
fn other_secrets_are_other_jobs_and_who_waits_says_where() {
    let with = |rank, secret: &str| {
        let more = [job("secrets"), set("RINGCOMM_SECRET", secret)];
        start(&[by_hand(2)(rank), more.to_vec(), vec![set("RINGCOMM_TIMEOUT_MS", 300)]].concat())
    };
    let ranks = [with(0, "a secret of one kind"), with(1, "a secret of another kind")];
    for (rank, child) in ranks.into_iter().enumerate() {
        let text = outcome(child);
        assert!(text.contains(&format!("missing of 2 ranks: [{}]", 1 - rank)), "{text}");
        assert!(text.contains(&format!("RANK={rank} WORLD_SIZE=2")), "{text}");
        assert!(text.contains("127.0.0.1") && !text.contains("kind"), "{text}");
    }
}

#[test]
fn a_secret_opens_addresses_that_are_not_loopback() {
    // An address of this machine, if it has one that others could reach.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    let Ok(own) = own.map(|address| address.ip()) else {
        let test = a_secret_opens_addresses_that_are_not_loopback;
        return skips::skip(test, "no address beside loopback");
    };
    let url = |port: u16| set(URL, format!("tcp://{own}:{port}"));
    let text = outcome(start(&[by_hand(2)(0), vec![job("open"), url(29402)]].concat()));
    assert!(text.contains("RINGCOMM_SECRET") && text.contains(&own.to_string()), "{text}");
    let secret = set("RINGCOMM_SECRET", "some secret of the test");
    meet(2, &[job("open"), url(29402), secret], by_hand(2));
    let file = path("secret");
    std::fs::write(&file, "another secret of the test\n").unwrap();
    let secret = set("RINGCOMM_SECRET_FILE", file.display());
    let rank = |rank| start(&[by_hand(2)(rank), vec![url(29403), secret.clone()]].concat());
    let text = outcome(rank(0));
    assert!(text.contains("chmod 0600"), "{text}");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    meet(2, &[job("open file"), url(29403), secret.clone()], by_hand(2));
    std::fs::remove_file(&file).unwrap();
}

/// The variables of a rank that meets the other one over the network, though both are here.
fn apart(port: u16) -> Vec<(&'static str, String)> {
    let secret = set("RINGCOMM_SECRET", "a secret of ranks that are apart");
    vec![
        job("port"),
        set(URL, format!("tcp://127.0.0.1:{port}")),
        secret,
        set("RINGCOMM_HOSTID", "x"),
    ]
}

#[test]
fn rank_0_waits_for_a_port_that_somebody_has() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let all = apart(taken.local_addr().unwrap().port());
    let ranks = [0, 1].map(|rank| start(&[by_hand(2)(rank), all.clone()].concat()));
    // Long enough for rank 0 to have tried, on any machine that is not very busy.
    std::thread::sleep(Duration::from_millis(500));
    drop(taken);
    for (rank, child) in ranks.into_iter().enumerate() {
        assert_eq!(outcome(child), format!("{rank}/2:3"));
    }
}

#[test]
fn a_port_that_stays_taken_is_told_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let all = [apart(taken.local_addr().unwrap().port()), vec![set("RINGCOMM_TIMEOUT_MS", 300)]];
    let text = outcome(start(&[by_hand(2)(0), all.concat()].concat()));
    assert!(
        text.contains("another program has the port") && text.contains("RINGCOMM_ADDRESS"),
        "{text}"
    );
}

/// A rank that finds nobody where rank 0 would listen knows of no other that is missing.
#[test]
fn rank_0_is_missing_where_nobody_listens() {
    // Bound, so that nobody else gets the port: who connects is refused.
    let silent = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
    net::bind(&silent, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let port = SocketAddr::try_from(net::getsockname(&silent).unwrap()).unwrap().port();
    let all = [apart(port), vec![set("RINGCOMM_TIMEOUT_MS", 300)]].concat();
    let text = outcome(start(&[by_hand(3)(1), all].concat()));
    assert!(text.contains("had not met (rank 1 of 3 ("), "{text}");
    assert!(text.contains("missing of 3 ranks: [0]; rank 1 tried"), "{text}");
}

#[test]
fn failures_without_a_communicator_are_printed_at_every_level_that_is_named() {
    for (level, is_printed) in [("NONE", false), ("WARN", true), ("TRACE", true), ("1", true)] {
        let (text, printed) = both(start(&[set("RINGCOMM_DEBUG", level)]));
        assert_eq!(printed.contains(&text), is_printed, "{level}: {text} {printed}");
    }
}

#[test]
fn without_any_variable_the_text_says_what_to_do() {
    let text = outcome(start(&[]));
    assert!(text.contains("no launcher's variables are set"), "{text}");
    assert!(text.contains("ringrun") && text.contains("RINGCOMM_RANK"), "{text}");
    let text = outcome(start(&[set("RANK", 0)]));
    assert!(text.contains("RANK/WORLD_SIZE is incomplete: WORLD_SIZE is not set"), "{text}");
}

#[test]
fn arguments_of_the_c_functions_are_checked() {
    let mut comm = null_mut();
    let refused = |result, what: &str| {
        assert_eq!(result, ringInvalidArgument);
        assert!(last_error().contains(what), "{}", last_error());
    };
    let url = c"tcp://127.0.0.1:29404".as_ptr();
    // SAFETY: NULL is checked; else a local and C strings.
    unsafe {
        refused(ringCommInitUrl(null_mut(), url, 1, 0, null()), "comm is NULL");
        refused(ringCommInitUrl(&mut comm, url, 1, -2, null()), "rank is -2");
        refused(ringCommInitUrl(&mut comm, url, -2, 0, null()), "nranks is -2");
        refused(ringCommInitUrl(&mut comm, url, 0, 0, null()), "rank 0 of 0");
        refused(ringCommInitUrl(&mut comm, url, 2, 2, null()), "rank 2 of 2");
        refused(ringCommInitUrl(&mut comm, c"tcp://".as_ptr(), 1, 0, null()), "port is missing");
        assert!(comm.is_null(), "written on success only");
        assert_eq!(ringCommInitUrl(&mut comm, url, 1, 0, null()), ringSuccess, "{}", last_error());
        assert_eq!(ringCommDestroy(comm), ringSuccess);
    }
}

/// `ringLauncherInfo` reads this process's own variables, which other tests' threads read too: so
/// it runs in a process of its own.
#[test]
fn launcher_info_says_what_was_found() {
    const INSIDE: &str = "RINGCOMM_TEST_INFO";
    if std::env::var(INSIDE).is_err() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["launcher_info_says_what_was_found", "--exact", "--test-threads=1"])
            .env_clear()
            .env(INSIDE, "1")
            .envs([("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")])
            .envs([("MASTER_ADDR", "head"), ("MASTER_PORT", "29500")])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let (mut rank, mut nranks, mut local) = (-7, -7, -7);
    let mut text: [c_char; 12] = [1; 12];
    // SAFETY: all pointers are to locals, or NULL.
    unsafe {
        let (numbers, size) = ((&raw mut rank, &raw mut nranks, &raw mut local), text.len());
        let result = ringLauncherInfo(numbers.0, numbers.1, numbers.2, text.as_mut_ptr(), size);
        assert_eq!(result, ringSuccess, "{}", last_error());
        let none: *mut c_int = null_mut();
        assert_eq!(ringLauncherInfo(none, none, none, null_mut(), 0), ringSuccess);
    }
    assert_eq!((rank, nranks, local), (1, 4, 1));
    assert_eq!(text.map(|c| c as u8), *b"rank 1 of 4\0");
    let found: LaunchFacts = detect(|name| std::env::var(name).ok(), None, None, None).unwrap();
    assert!(found.found.contains("head (MASTER_ADDR), port 29501"), "{}", found.found);
}
