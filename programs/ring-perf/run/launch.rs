//! Bringing the ranks to life: as threads of this process, as processes that are this program
//! again, or as the one rank of a launched job that this process is.
//!
//! A rank process inherits two descriptors, the board and the report pipe; the unique id is on the
//! board, so that no argument list and no environment carries a secret. The parent reads the report
//! while another thread waits for the children: one that dies stops the run, and is named.
#![allow(unsafe_code)]

use super::threads::{self, SharedSink};
use super::worker;
use crate::cli::mode::{Mode, config};
use crate::cli::options::{Child, Options};
use crate::measure::expected_layout::Cell;
use crate::ranks::job;
use crate::ranks::shared_state::Board;
use crate::report::machine::{allowed_cores, bind};
use crate::report::row::Told;
use ringcomm::bootstrap::UniqueId;
use ringcomm::bootstrap::allgather::root_threads;
use ringcomm::bootstrap::rendezvous::LaunchFacts;
use ringcomm::communicator::Communicator;
use ringcomm::error::{Error, Result};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A new id: of a meeting place of this process where the ranks are on several hosts.
fn new_id(options: &Options) -> Result<UniqueId> {
    match options.tcp {
        true => root_threads::start(&config(options)?),
        false => UniqueId::generate(),
    }
}

/// Bind the calling thread to a core, where every rank can have its own.
pub fn pin(options: &Options, rank: usize, nranks: usize) {
    let cores = allowed_cores();
    if !cores.is_empty() && options.pin.unwrap_or(nranks <= cores.len()) {
        bind(cores[rank % cores.len()]);
    }
}

/// Run all ranks of a mode; `receive` gets their reports as they come.
pub fn run(
    options: &Options,
    cells: &[Cell],
    mode: Mode,
    receive: &mut dyn FnMut(Told),
) -> Result<()> {
    let board = Board::new(mode.nranks())?;
    if mode.procs.is_some() || options.parallel_init || options.tcp {
        board.publish_id(new_id(options)?.as_bytes());
    }
    match mode.procs {
        None => {
            let ranks = |sink: SharedSink| threads::run(options, cells, mode, 0, &board, sink);
            threads::received(ranks, receive)
        }
        Some(procs) => run_processes(options, cells, procs, &board, receive),
    }
}

/// Be the rank of a launched job that was found. Rank 0's `receive` gets the rows, the others' what
/// failed on them.
pub fn run_job(
    options: &Options,
    found: &LaunchFacts,
    cells: &[Cell],
    receive: &mut dyn FnMut(Told),
) -> Result<()> {
    let rank = found.rank;
    let communicator = Communicator::init_found(found, &config(options)?)?;
    if options.pin == Some(true) {
        pin(options, found.local_rank.unwrap_or(rank), found.nranks);
    }
    let communicator = Arc::new(communicator);
    let board = Board::of_job(job::Rank(Arc::clone(&communicator)))?;
    let receive = std::cell::RefCell::new(receive);
    let sink = |value| (receive.borrow_mut())(value);
    worker::run(options, cells, (rank, "launched"), &board, &communicator, &sink);
    Ok(())
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let ends = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| Error::os("pipe2", error))?;
    // The children inherit the end they write to.
    rustix::io::fcntl_setfd(&ends.1, rustix::io::FdFlags::empty())
        .map_err(|error| Error::os("fcntl", error))?;
    Ok(ends)
}

/// A child that was started, until it is reaped.
struct Process {
    index: usize,
    child: std::process::Child,
}

fn spawn(options: &Options, index: usize, board: &Board, report: &OwnedFd) -> Result<Process> {
    let hidden = format!("{index}:{}:{}", board.descriptor(), report.as_raw_fd());
    let parent = std::process::id();
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ring-perf").args(&options.arguments);
    command.args(["--procs", &format!("{}", options.procs.unwrap_or(2))]);
    command.args(["--rank-process", &hidden]);
    if let Some(left) = options.time_left {
        command.args(["--time-left", &left.as_millis().to_string()]);
    }
    // SAFETY: prctl and getppid are async-signal-safe and touch no memory.
    unsafe {
        command.pre_exec(move || {
            // A rank whose parent is gone has nobody to report to. The parent may have gone before
            // the request was made, hence the second look.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != parent {
                return Err(std::io::Error::other("the parent is gone"));
            }
            Ok(())
        })
    };
    let child = command.spawn().map_err(|error| Error::System {
        what: format!("starting rank process {index}"),
        errno: error.raw_os_error().unwrap_or(0),
    })?;
    Ok(Process { index, child })
}

fn run_processes(
    options: &Options,
    cells: &[Cell],
    procs: usize,
    board: &Board,
    receive: &mut dyn FnMut(Told),
) -> Result<()> {
    let (reading, writing) = pipe()?;
    let mut processes = Vec::new();
    for index in 0..procs {
        match spawn(options, index, board, &writing) {
            Ok(process) => processes.push(process),
            Err(error) => {
                board.stop();
                processes.into_iter().for_each(end);
                return Err(error);
            }
        }
    }
    drop(writing);
    std::thread::scope(|scope| {
        let reaper = scope.spawn(|| reap(processes, cells, board, options));
        for line in BufReader::new(File::from(reading)).lines().map_while(std::io::Result::ok) {
            let told = serde_json::from_str(&line);
            receive(told.unwrap_or_else(|error| Told::Failed(error.to_string())));
        }
        for crash in reaper.join().expect("the reaper does not panic") {
            receive(Told::Failed(crash));
        }
    });
    Ok(())
}

fn end(mut process: Process) {
    // It may have ended by itself: both calls then have nothing to do.
    let _ = process.child.kill();
    let _ = process.child.wait();
}

/// Wait for every child; describe those that did not end well.
fn reap(
    mut processes: Vec<Process>,
    cells: &[Cell],
    board: &Board,
    options: &Options,
) -> Vec<String> {
    // After a failure the others get this long to notice, report and leave: the library's own
    // promise is a quarter of a second, a loaded machine may take more.
    const GRACE: Duration = Duration::from_secs(5);
    let (mut crashes, mut failed_at) = (Vec::new(), None);
    while !processes.is_empty() {
        let mut running = Vec::new();
        for mut process in processes {
            match process.child.try_wait() {
                Ok(None) => running.push(process),
                Ok(Some(status)) if status.success() => {}
                Ok(Some(status)) => {
                    let threads = options.threads.unwrap_or(1);
                    let rank = process.index * threads;
                    let ranks = match threads {
                        1 => format!("rank {rank}"),
                        _ => format!("ranks {rank} to {}", rank + threads - 1),
                    };
                    let place = board.cell_of(rank).and_then(|cell| cells.get(cell));
                    let place = place.map_or("at start-up".into(), |cell| {
                        format!("in {}", worker::describe(cell))
                    });
                    let how = match status.signal() {
                        Some(signal) => format!("was killed by signal {signal}"),
                        None => format!("ended with status {}", status.code().unwrap_or(-1)),
                    };
                    let pid = process.child.id();
                    crashes.push(format!("{ranks} (pid {pid}) {how} {place}"));
                    board.stop();
                }
                Err(error) => crashes.push(format!("waiting for a rank process: {error}")),
            }
        }
        processes = running;
        if board.stopped() && failed_at.get_or_insert_with(Instant::now).elapsed() > GRACE {
            for process in processes.drain(..) {
                crashes.push(format!("pid {} did not leave and was killed", process.child.id()));
                end(process);
            }
        }
        // Ranks run for seconds; a crash is reported soon enough, and the poll costs nothing.
        std::thread::sleep(Duration::from_millis(10));
    }
    crashes
}

/// The life of a rank process.
pub fn be_child(options: &Options, child: Child, cells: &[Cell], mode: Mode) -> Result<()> {
    let board = Board::inherit(child.board, mode.nranks())?;
    // SAFETY: the parent passed the number of a descriptor that is ours alone.
    let report = Mutex::new(unsafe { File::from_raw_fd(child.report) });
    let sink = |told| {
        let line = serde_json::to_string(&told).expect("what ranks tell is JSON") + "\n";
        // One write of less than PIPE_BUF: lines of several ranks do not mix. A parent that is gone
        // cannot be told so.
        let _ = report.lock().expect("no rank panics").write_all(line.as_bytes());
    };
    threads::run(options, cells, mode, child.process, &board, &sink)
}
