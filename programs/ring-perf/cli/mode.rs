//! The mode: ranks as processes or as threads, and the config of their communicators.

use super::options::Options;
use ringcomm::config::Config;
use ringcomm::error::Result;

/// How the ranks of a run are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mode {
    /// `None`: threads of this process.
    pub procs: Option<usize>,
    pub threads: usize,
    /// The ranks are those of a launched job.
    pub launched: bool,
}

impl Mode {
    pub fn nranks(self) -> usize {
        self.procs.unwrap_or(1) * self.threads
    }

    pub fn name(self) -> &'static str {
        match (self.procs, self.threads) {
            _ if self.launched => "launched",
            (None, _) => "threads",
            (Some(_), 1) => "processes",
            (Some(_), _) => "processes of threads",
        }
    }

    /// Threads if only `-t` is given, processes with `--procs`, and one after the other by default.
    pub fn chosen(options: &Options) -> Vec<Mode> {
        let mode = |procs, threads| Mode { procs, threads, launched: false };
        match (options.procs, options.threads) {
            (None, None) if options.tcp => vec![mode(Some(2), 1)],
            (None, None) => vec![mode(Some(2), 1), mode(None, 2)],
            (None, Some(threads)) => vec![mode(None, threads)],
            (Some(procs), threads) => vec![mode(Some(procs), threads.unwrap_or(1))],
        }
    }

    /// As many ranks of a launched job, each a process.
    pub fn of_job(nranks: usize) -> Mode {
        Mode { procs: Some(nranks), threads: 1, launched: true }
    }
}

/// The communicators' config: the environment, then the command line.
pub fn config(options: &Options) -> Result<Config> {
    let mut config = Config::from_environment()?;
    if let Some(timeout_ms) = options.timeout_ms {
        config.timeout_ms = timeout_ms;
    }
    config.algorithm = options.algorithm.clone().or(config.algorithm);
    config.tuning_file = options.tuning.clone().or(config.tuning_file);
    config.net = options.net.clone().unwrap_or(config.net);
    config.deterministic |= options.deterministic;
    if options.tcp {
        // Hosts that are one machine meet there, whatever its other interfaces are.
        config.interfaces.get_or_insert_with(|| "lo".into());
    }
    Ok(config)
}

/// The config of one rank: with `--tcp` it says that it is on a host of its own.
pub fn config_of(rank: usize, nranks: usize, config: &Config, options: &Options) -> Config {
    let mut config = config.clone();
    if options.tcp {
        let host = rank / options.ranks_per_host.unwrap_or(1);
        config.host_id.get_or_insert_with(|| format!("ring-perf host {host}"));
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        if nranks > cores {
            // Such hosts do not know that they share the cores, where polling keeps others waiting.
            config.spins.get_or_insert(1);
        }
    }
    config
}
