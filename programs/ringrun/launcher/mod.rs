//! The launcher: what stays over all starts of a job, and how often it is started.

mod agent_connection;
pub(super) mod discovery;
mod failure_text;
mod job_run;
pub(super) mod job_setup;
mod output;
mod policy;
mod ssh;
mod stdin;

use crate::agent::children;
use crate::agent::environment::ELASTIC;
use crate::agent::output_lines::Prefix;
use crate::cli::options::{Options, Tagging};
use crate::sys::poll::Watch;
use crate::sys::signals::Signals;
use job_setup::Setup;
use output::OutputWriter;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use stdin::Input;

/// What the launcher passes on, and what it waits for.
const SIGNALS: [i32; 7] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
    libc::SIGCHLD,
];

pub struct Launcher {
    pub options: Options,
    pub setup: Setup,
    /// The job's random name, which its restarts keep.
    pub name: String,
    pub signals: Signals,
    pub writer: OutputWriter,
    pub input: Input,
    pub prefix: Prefix,
    /// The folder in which newcomers of an elastic job wait, and whether it is the job's own.
    pub elastic: Option<String>,
    own_elastic: bool,
    /// Standard output for ranks here to write to themselves.
    pub raw_output: Option<OwnedFd>,
}

impl Launcher {
    fn new(options: Options, setup: Setup) -> io::Result<Launcher> {
        children::adopt_orphans();
        // Before the writer's thread is made, which otherwise would get them.
        let signals = Signals::take(&SIGNALS)?;
        let writer = OutputWriter::start(options.output_folder.as_deref(), setup.nranks())?;
        let single = setup.nranks() == 1 && setup.stations[0].remote.is_none();
        let tag = match options.tagging {
            Tagging::Automatic => !single,
            Tagging::Always => true,
            Tagging::Never => false,
        };
        let raw = !tag && !options.timestamp && options.output_folder.is_none();
        let raw_output = match raw {
            true => Some(io::stdout().as_fd().try_clone_to_owned()?),
            false => None,
        };
        let prefix = Prefix { tag, timestamp: options.timestamp };
        let name = children::random_hex::<8>()?;
        let given = std::env::var(ELASTIC).ok().filter(|folder| !folder.is_empty());
        let own_elastic = options.is_elastic() && given.is_none();
        let elastic = match (options.is_elastic(), given) {
            (true, None) => Some(meeting_folder(&name, &setup)?),
            (true, Some(given)) => {
                clear(&given)?;
                Some(given)
            }
            (false, _) => None,
        };
        Ok(Launcher {
            options,
            setup,
            name,
            signals,
            writer,
            input: Input::new()?,
            prefix,
            elastic,
            own_elastic,
            raw_output,
        })
    }

    /// The number under which an agent here inherits the standard output.
    pub fn raw_number(&self) -> Option<u32> {
        self.raw_output.as_ref().map(|fd| fd.as_raw_fd() as u32)
    }

    pub fn has_remote(&self) -> bool {
        self.setup.stations.iter().any(|station| station.remote.is_some())
    }

    /// Wait until everything is written, or somebody has had enough.
    fn finish(&mut self) {
        while !self.writer.is_idle() {
            let mut watch = Watch::default();
            let signals = watch.reading(&self.signals);
            watch.reading(&self.writer.wake);
            let waited = watch.wait(None);
            if waited.is_err() {
                return;
            }
            if watch.is_ready(Some(signals)) {
                let ending = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
                while let Some(signal) = self.signals.next() {
                    if ending.contains(&signal) {
                        return;
                    }
                }
            } else {
                self.writer.woken();
            }
        }
    }
}

/// A folder of the job's own, where newcomers wait.
fn meeting_folder(job: &str, setup: &Setup) -> io::Result<String> {
    if setup.stations.iter().any(|station| station.remote.is_some()) {
        return Err(io::Error::other(
            "an elastic job on several hosts needs a folder that all of them see: name it in \
             RINGCOMM_ELASTIC",
        ));
    }
    let folder = std::env::temp_dir().join(format!("ringcomm-elastic-{job}"));
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder.to_string_lossy().into_owned())
}

/// Remove what an earlier job has left in a folder, but for newcomers that wait there.
fn clear(folder: &str) -> io::Result<()> {
    let named =
        |name: &str| ["leave.", "job.", "ticket."].iter().any(|kind| name.starts_with(kind));
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        if file.file_name().to_str().is_some_and(named) {
            std::fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

/// Run the job, as often as it takes; returns the exit status.
pub fn run(options: Options, setup: Setup) -> Result<u8, String> {
    let mut launcher = Launcher::new(options, setup).map_err(|error| error.to_string())?;
    let most = launcher.options.max_restarts;
    let mut restart = 0;
    let status = loop {
        let outcome = job_run::run(&mut launcher, restart)?;
        if !outcome.wants_restart || restart == most {
            break outcome.status;
        }
        restart += 1;
        launcher.writer.complain(&format!("starting the job anew ({restart} of {most})"));
    };
    launcher.finish();
    if let Some(folder) = launcher.elastic.filter(|_| launcher.own_elastic) {
        // What is left lies among temporary files.
        let _ = std::fs::remove_dir_all(folder);
    }
    Ok(status)
}
