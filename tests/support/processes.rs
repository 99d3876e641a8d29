//! Ranks as processes: the test binary runs itself again, once a rank.
//!
//! A child is started with the name of the running test and finds, in an environment variable, the
//! place of the call of `on_processes` that it is for; there it joins, runs the body and exits. So
//! a body captures nothing: all it knows is its communicator and a text. Nothing is forked from a
//! process with threads, and a child dies with the thread that started it.

use super::HARD_DEADLINE_S;
use ringcomm::bootstrap::UniqueId;
use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::communicator::Communicator;
use ringcomm::config::{Config, NetChoice, Protection};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SITE: &str = "RINGCOMM_TEST_SITE";
const RANK: &str = "RINGCOMM_TEST_RANK";
const NRANKS: &str = "RINGCOMM_TEST_NRANKS";
const ID: &str = "RINGCOMM_TEST_ID";
const ARGUMENT: &str = "RINGCOMM_TEST_ARGUMENT";
const CONFIG: &str = "RINGCOMM_TEST_CONFIG";
const HOST: &str = "RINGCOMM_TEST_HOST";

/// What a child's line must start with to be for the parent; libtest prints lines of its own.
const MARK: &str = "\u{1}";

/// Whether this process is a rank that a test started.
pub fn is_child() -> bool {
    std::env::var_os(SITE).is_some()
}

/// Run `body` in `nranks` processes and return what each returned, by rank; panics with what the
/// ranks said if one fails. A test calls this in one place only, though perhaps in a loop.
#[track_caller]
pub fn on_processes<F>(nranks: usize, config: &Config, argument: &str, body: F) -> Vec<String>
where
    F: Fn(&Communicator, &str) -> String,
{
    let mut ranks = Ranks::start(nranks, config, argument, body);
    let deadline = Instant::now() + Duration::from_secs(HARD_DEADLINE_S);
    let ends: Vec<End> = (0..nranks).map(|rank| ranks.end(rank, deadline)).collect();
    if ends.iter().any(|end| end.result.is_err()) {
        let mut text = String::from("not every rank succeeded:\n");
        for (rank, end) in ends.iter().enumerate() {
            let said = end.result.as_ref().map_or_else(|why| why.as_str(), |_| "succeeded");
            text += &format!("  rank {rank}: {said}\n");
        }
        panic!("{text}");
    }
    ends.into_iter().map(|end| end.result.unwrap_or_default()).collect()
}

/// How a rank ended, and when its last word came.
pub struct End {
    /// What the body returned, or why it did not.
    pub result: Result<String, String>,
    pub at: Instant,
    pub killed: bool,
}

/// Where a rank lives.
#[derive(Default)]
struct Place<'a> {
    /// What it is to take for its host; the machine where that is empty.
    host: String,
    namespace: Option<BorrowedFd<'a>>,
}

/// A body for ranks that several calls start, in network namespaces.
pub struct Crew {
    site: String,
    test: String,
}

impl Crew {
    /// In a child this runs the body and does not return.
    #[track_caller]
    pub fn new<F>(body: F) -> Crew
    where
        F: Fn(&Seat, &str) -> String,
    {
        assert_eq!(size_of::<F>(), 0, "a body that runs in another process captures nothing");
        let site = Location::caller().to_string();
        if is_child() {
            serve(&site, body);
        }
        Crew { site, test: test_name::<F>() }
    }

    /// Start a rank in each of these namespaces.
    pub fn start(
        &self,
        namespaces: &[BorrowedFd],
        id: &UniqueId,
        config: &Config,
        argument: &str,
    ) -> Ranks {
        let places: Vec<Place> = namespaces
            .iter()
            .map(|namespace| Place { host: String::new(), namespace: Some(*namespace) })
            .collect();
        Ranks::launch_as(&places, id, config, argument, &self.site, &self.test)
    }
}

/// Processes under way. Dropping it kills and reaps all of them.
pub struct Ranks {
    children: Vec<Child>,
    lines: Vec<Receiver<(Instant, String)>>,
    errors: Vec<Option<JoinHandle<String>>>,
    ended: Vec<bool>,
}

impl Ranks {
    /// Start the processes. In a child this joins, runs the body and does not return.
    #[track_caller]
    pub fn start<F>(nranks: usize, config: &Config, argument: &str, body: F) -> Ranks
    where
        F: Fn(&Communicator, &str) -> String,
    {
        assert_eq!(size_of::<F>(), 0, "a body that runs in another process captures nothing");
        let site = Location::caller().to_string();
        if is_child() {
            serve(&site, |seat, argument| seat.watched(|comm| body(comm, argument)));
        }
        Ranks::launch(nranks, config, argument, &site, &test_name::<F>())
    }

    /// As `start`, for a body that joins by itself.
    #[track_caller]
    pub fn start_apart<F>(nranks: usize, config: &Config, argument: &str, body: F) -> Ranks
    where
        F: Fn(&Seat, &str) -> String,
    {
        assert_eq!(size_of::<F>(), 0, "a body that runs in another process captures nothing");
        let site = Location::caller().to_string();
        if is_child() {
            serve(&site, body);
        }
        Ranks::launch(nranks, config, argument, &site, &test_name::<F>())
    }

    /// As `start_apart`, for ranks that live on these hosts and meet through sockets.
    #[track_caller]
    pub fn start_on_hosts<F>(hosts: &[usize], config: &Config, argument: &str, body: F) -> Ranks
    where
        F: Fn(&Seat, &str) -> String,
    {
        assert_eq!(size_of::<F>(), 0, "a body that runs in another process captures nothing");
        let site = Location::caller().to_string();
        if is_child() {
            serve(&site, body);
        }
        let id = root_threads::start(&Config { interfaces: Some("lo".into()), ..config.clone() });
        let id = id.expect("an id");
        let place = |host: &usize| Place { host: format!("host {host}"), namespace: None };
        let places: Vec<Place> = hosts.iter().map(place).collect();
        Ranks::launch_as(&places, &id, config, argument, &site, &test_name::<F>())
    }

    fn launch(nranks: usize, config: &Config, argument: &str, site: &str, test: &str) -> Ranks {
        let id = UniqueId::generate().expect("an id");
        let places: Vec<Place> = (0..nranks).map(|_| Place::default()).collect();
        Ranks::launch_as(&places, &id, config, argument, site, test)
    }

    fn launch_as(
        places: &[Place],
        id: &UniqueId,
        config: &Config,
        argument: &str,
        site: &str,
        test: &str,
    ) -> Ranks {
        let nranks = places.len();
        let hex: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut ranks =
            Ranks { children: vec![], lines: vec![], errors: vec![], ended: vec![false; nranks] };
        for (rank, place) in places.iter().enumerate() {
            let mut command = Command::new(std::env::current_exe().expect("this binary's path"));
            command
                .args(["--exact", test, "--nocapture", "--test-threads=1"])
                .env(SITE, site)
                .env(RANK, rank.to_string())
                .env(NRANKS, nranks.to_string())
                .env(ID, &hex)
                .env(ARGUMENT, argument)
                .env(CONFIG, write_config(config))
                .env(HOST, &place.host)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let parent = std::process::id();
            let namespace = place.namespace.map(|namespace| namespace.as_raw_fd());
            // SAFETY: these calls are async-signal-safe.
            unsafe {
                command.pre_exec(move || {
                    if let Some(namespace) = namespace
                        && libc::setns(namespace, libc::CLONE_NEWNET) != 0
                    {
                        return Err(std::io::Error::last_os_error());
                    }
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if libc::getppid() as u32 != parent {
                        libc::_exit(1);
                    }
                    Ok(())
                });
            }
            let mut child = command.spawn().expect("start a rank");
            let (lines, errors) = readers(&mut child);
            ranks.children.push(child);
            ranks.lines.push(lines);
            ranks.errors.push(Some(errors));
        }
        ranks
    }

    pub fn pid(&self, rank: usize) -> u32 {
        self.children[rank].id()
    }

    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// The rank as errors name it.
    pub fn who(&self, rank: usize) -> String {
        format!("rank {rank} (host {}, pid {})", ringcomm::host::name(), self.pid(rank))
    }

    pub fn signal(&self, rank: usize, signal: i32) {
        assert!(!self.ended[rank], "the process may be somebody else by now");
        // SAFETY: the child is not reaped, so its number is its own.
        unsafe { libc::kill(self.children[rank].id() as i32, signal) };
    }

    /// The next thing that the rank [`say`]s; panics if it ends or says nothing until then.
    pub fn hear(&mut self, rank: usize, deadline: Instant) -> (Instant, String) {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.lines[rank].recv_timeout(left) {
            Ok((at, line)) => match line.strip_prefix('>') {
                Some(said) => (at, unescape(said)),
                None => panic!("rank {rank} ended early: {}", unescape(&line[1..])),
            },
            Err(RecvTimeoutError::Timeout) => panic!("rank {rank} says nothing"),
            Err(RecvTimeoutError::Disconnected) => {
                let end = self.end(rank, deadline);
                panic!("rank {rank} ended: {:?}", end.result)
            }
        }
    }

    /// Wait for a rank's end, skipping what it says; kills it at the deadline.
    pub fn end(&mut self, rank: usize, deadline: Instant) -> End {
        let mut said = None;
        let mut late = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines[rank].recv_timeout(left) {
                Ok((at, line)) if line.starts_with('=') => said = Some((at, Ok(line))),
                Ok((at, line)) if line.starts_with('!') => said = Some((at, Err(line))),
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    late = true;
                    let _ = self.children[rank].kill();
                }
            }
        }
        let status = self.children[rank].wait().expect("reap a rank");
        self.ended[rank] = true;
        let errors = self.errors[rank]
            .take()
            .map_or(String::new(), |reader| reader.join().unwrap_or_default());
        let killed = status.signal() == Some(libc::SIGKILL) && !late;
        let (at, result) = match said {
            Some((at, Ok(line))) => (at, Ok(unescape(&line[1..]))),
            Some((at, Err(line))) => (at, Err(unescape(&line[1..]))),
            None if late => (Instant::now(), Err(format!("was stuck and killed; {errors}"))),
            None => (Instant::now(), Err(format!("{status}; {errors}"))),
        };
        End { result, at, killed }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for (child, ended) in self.children.iter_mut().zip(&self.ended) {
            if !ended {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Threads that take a child's lines as they come, and its errors.
fn readers(child: &mut Child) -> (Receiver<(Instant, String)>, JoinHandle<String>) {
    let (sender, lines) = mpsc::channel();
    let output = BufReader::new(child.stdout.take().expect("piped"));
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            // libtest may have begun the line.
            if let Some((_, line)) = line.split_once(MARK) {
                let _ = sender.send((Instant::now(), line.to_string()));
            }
        }
    });
    let mut errors = child.stderr.take().expect("piped");
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = errors.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    (lines, errors)
}

/// The test that a body was written in: `collectives::some_test::{{closure}}` without both ends.
fn test_name<F>() -> String {
    let name = std::any::type_name::<F>();
    let name = name.split_once("::").map_or(name, |(_, rest)| rest);
    name.split("::{{closure}}").next().unwrap_or(name).to_string()
}

/// Tell the parent something while the body runs.
pub fn say(text: &str) {
    print_line('>', text);
}

fn print_line(kind: char, text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{MARK}{kind}{}", escape(text));
    let _ = out.flush();
}

/// What a child was told: all it needs to join the others.
pub struct Seat {
    pub id: UniqueId,
    pub rank: usize,
    pub nranks: usize,
    pub config: Config,
}

impl Seat {
    pub fn join(&self) -> Communicator {
        Communicator::init_rank(self.nranks, &self.id, self.rank, &self.config)
            .unwrap_or_else(|error| panic!("init_rank: {error}"))
    }

    /// Join and run `body`; a rank that is stuck says where it is before its parent ends it.
    fn watched(&self, body: impl FnOnce(&Communicator) -> String) -> String {
        let communicator = &self.join();
        std::thread::scope(|scope| {
            let (done, finished) = mpsc::channel::<()>();
            scope.spawn(move || watch(communicator, finished));
            let result = body(communicator);
            drop(done);
            result
        })
    }
}

/// The life of a child.
fn serve(site: &str, body: impl Fn(&Seat, &str) -> String) -> ! {
    // Where only a parent may read a process's memory (Yama), its siblings here may.
    // SAFETY: two numbers are passed. Without Yama it does nothing.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    let variable = |name: &str| std::env::var(name).expect("set by the parent");
    assert_eq!(site, variable(SITE), "a test starts processes in one place only");
    let number = |name: &str| variable(name).parse::<usize>().expect("a number");
    let seat = Seat {
        id: read_id(&variable(ID)),
        rank: number(RANK),
        nranks: number(NRANKS),
        config: on_host(&variable(HOST), read_config(&variable(CONFIG))),
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&seat, &variable(ARGUMENT))));
    let code = match outcome {
        Ok(result) => {
            print_line('=', &result);
            0
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            print_line('!', &text.unwrap_or_else(|| "a panic without a text".into()));
            1
        }
    };
    // SAFETY: nothing that a destructor would do matters to anybody any more.
    unsafe { libc::_exit(code) }
}

fn watch(communicator: &Communicator, finished: mpsc::Receiver<()>) {
    let patience = Duration::from_secs(HARD_DEADLINE_S - 10);
    if let Err(RecvTimeoutError::Timeout) = finished.recv_timeout(patience) {
        print_line('!', &format!("stuck: {}", communicator.dump()));
        // SAFETY: as in `serve`.
        unsafe { libc::_exit(1) }
    }
}

fn read_id(hex: &str) -> UniqueId {
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex");
    UniqueId::from_bytes(&std::array::from_fn(byte)).expect("the parent's id")
}

fn write_config(config: &Config) -> String {
    format!(
        "{} {} {} {} {} {} {} {} {} {} {}",
        config.timeout_ms,
        config.buff_size.map_or("-".into(), |bytes| bytes.to_string()),
        u8::from(config.deterministic),
        config.algorithm.as_deref().unwrap_or("-"),
        config.spins.map_or("-".into(), |spins| spins.to_string()),
        config.tuning_file.as_deref().unwrap_or("-"),
        config.hosts.as_ref().map_or("-".into(), |hosts| {
            hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        }),
        config.nsocks,
        config.protection.name(),
        config.debug,
        config.net.name()
    )
}

fn read_config(text: &str) -> Config {
    let words: Vec<&str> = text.split(' ').collect();
    let set = |word: &str| (word != "-").then(|| word.to_string());
    Config {
        timeout_ms: words[0].parse().expect("milliseconds"),
        buff_size: set(words[1]).map(|bytes| bytes.parse().expect("bytes")),
        deterministic: words[2] == "1",
        algorithm: set(words[3]),
        spins: set(words[4]).map(|spins| spins.parse().expect("spins")),
        tuning_file: set(words[5]),
        hosts: set(words[6])
            .map(|hosts| hosts.split(',').map(|host| host.parse().expect("a host")).collect()),
        nsocks: words[7].parse().expect("sockets"),
        protection: match words[8] {
            "clear" => Protection::Clear,
            "checksum" => Protection::Checksum,
            _ => Protection::Encrypted,
        },
        debug: words[9].parse().expect("a level"),
        net: NetChoice::from_name(words[10]).expect("a network"),
        ..Config::default()
    }
}

/// The configuration of a rank that was told on which host it lives, if it was.
fn on_host(host: &str, config: Config) -> Config {
    if host.is_empty() {
        return config;
    }
    Config { host_id: Some(host.into()), interfaces: Some("lo".into()), spins: Some(4), ..config }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, character == '\\') {
            (_, true) => match characters.next() {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some(other) => out.push(other),
                None => {}
            },
            (other, false) => out.push(other),
        }
    }
    out
}
