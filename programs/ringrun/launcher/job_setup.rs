//! A job before it starts: who runs where, with what, reached how.

use super::ssh;
use crate::agent::environment::{self, Facts};
use crate::cli::options::Options;
use crate::placement::hosts::Host;
use crate::placement::{self, Place};
use crate::protocol::frame::Variable;
use crate::protocol::messages::{Job, RankJob};
use crate::tools::check;
use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

/// A host that has ranks.
pub struct Station {
    pub name: String,
    /// The name without the user to log in as.
    address: String,
    /// The command that runs an agent there; `None` for this machine.
    pub remote: Option<Vec<String>>,
    /// The argument that makes this program one.
    pub agent: String,
}

pub struct Setup {
    /// What this machine calls itself, this program's path, and the argument that makes it an
    /// agent.
    own_name: String,
    program: String,
    agent: String,
    /// What was named, also if it is not used yet.
    pub hosts: Vec<Host>,
    pub stations: Vec<Station>,
    pub places: Vec<Place>,
    forwarded: Vec<Variable>,
    directory: Vec<u8>,
    command: Vec<Vec<u8>>,
    /// MASTER_ADDR.
    address: String,
    grace: Duration,
    nccl: bool,
    compat: bool,
    replacements: u32,
}

impl Setup {
    pub fn new(options: &Options) -> Result<Setup, String> {
        let mut hosts = options.hosts.clone().unwrap_or_else(|| vec![here(options.ranks)]);
        let mut ranks = options.ranks;
        if let Some((low, high)) = options.pair {
            let alone = |place: usize| hosts.get(place).map(|h| Host { slots: 1, ..h.clone() });
            let pair = alone(low).zip(alone(high)).ok_or("there are fewer hosts")?;
            (hosts, ranks) = (vec![pair.0, pair.1], Some(2));
        }
        let places = placement::place(ranks, &hosts)?;
        let used = places.last().map_or(0, |place| place.host + 1);
        let program = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
        let (own_name, program) = (ssh::own_name(), program.to_string_lossy().into_owned());
        let forwarded = forwarded(options)?;
        let agent = ssh::agent(ports(&forwarded)?);
        let directory = match &options.directory {
            Some(directory) => OsString::from(directory),
            None => std::env::current_dir()
                .map_err(|error| format!("the current directory: {error}"))?
                .into_os_string(),
        };
        let mut setup = Setup {
            own_name,
            program,
            agent,
            address: String::new(),
            grace: options.grace,
            nccl: options.nccl,
            compat: options.compat,
            replacements: options.replacements().min(u32::MAX as usize) as u32,
            stations: Vec::new(),
            places,
            forwarded,
            directory: directory.into_vec(),
            command: match options.check {
                // An agent takes an empty name for its own program.
                true => vec![Vec::new(), check::ARGUMENT.into()],
                false => options.command.iter().cloned().map(OsString::into_vec).collect(),
            },
            hosts,
        };
        setup.stations =
            setup.hosts[..used].iter().map(|host| setup.station(options, host)).collect();
        setup.address =
            options.address.clone().unwrap_or_else(|| address(&setup.stations, &setup.own_name));
        Ok(setup)
    }

    /// How a host is reached.
    pub fn station(&self, options: &Options, host: &Host) -> Station {
        Station {
            name: host.name.clone(),
            address: host.address().to_string(),
            remote: (!host.is_here(&self.own_name))
                .then(|| ssh::command_line(options, &host.name, &self.program, &self.agent)),
            agent: self.agent.clone(),
        }
    }

    /// Take on so many more ranks, on a station that is new; their numbers go on.
    pub fn add(&mut self, station: Station, count: usize) {
        let (first, host) = (self.places.len(), self.stations.len());
        self.stations.push(station);
        self.places.extend((0..count).map(|local_rank| Place {
            rank: first + local_rank,
            host,
            local_rank,
            local_size: count,
            cross_rank: 0,
            cross_size: 1,
        }));
    }

    pub fn nranks(&self) -> usize {
        self.places.len()
    }

    pub fn ranks_of(&self, station: usize) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(move |place| place.host == station)
    }

    /// What all ranks of one start have in common; `port` as text, `secret` in hexadecimal.
    pub fn facts(&self, port: String, secret: String, job: String, restart: usize) -> Facts {
        let address = self.address.clone();
        let (nranks, meeting, elastic) = (self.nranks(), None, None);
        Facts { nranks, address, port, secret, job, restart, meeting, elastic }
    }

    /// RINGCOMM_ADDRESS, on a port of its own: PyTorch may use those from MASTER_PORT on. Ranks of
    /// one machine need none, nor does who has set it.
    pub fn meeting(&self, options: &Options, port: u16) -> Result<Option<String>, String> {
        let given = self.forwarded.iter().any(|(name, _)| name == b"RINGCOMM_ADDRESS");
        if self.stations.len() == 1 || options.port.is_some() || given {
            return Ok(None);
        }
        if port == 0 {
            return Err(format!(
                "host {}: there is no free port for the ranks to meet at; RINGCOMM_PORT_RANGE \
                 needs one for each of them and two more",
                self.stations[0].name
            ));
        }
        let host = match self.address.contains(':') {
            true => format!("[{}]", self.address),
            false => self.address.clone(),
        };
        Ok(Some(format!("{host}:{port}")))
    }

    /// What the agent of a station is told.
    pub fn job(&self, station: usize, facts: &Facts, raw_output: Option<u32>) -> Job {
        let bytes = |(name, value): (&str, String)| (name.into(), value.into_bytes());
        let rank = |place: &Place| RankJob {
            rank: place.rank as u32,
            local_size: place.local_size as u32,
            variables: environment::variables(place, facts).into_iter().map(bytes).collect(),
        };
        Job {
            command: self.command.clone(),
            directory: self.directory.clone(),
            forwarded: self.forwarded.clone(),
            ranks: self.ranks_of(station).map(rank).collect(),
            input_rank: (station == 0).then_some(0),
            raw_output,
            grace: self.grace,
            remote: self.stations[station].remote.is_some(),
            nccl: self.nccl,
            compat: self.compat,
            replacements: self.replacements,
        }
    }

    /// The answer to `--dry-run`.
    pub fn describe(&self, options: &Options) -> String {
        let port = options.port.map_or("(chosen at start)".into(), |port| port.to_string());
        let mut facts = self.facts(port, "(secret)".into(), "(random)".into(), 0);
        let meeting = self.meeting(options, 1).ok().flatten();
        facts.meeting = meeting.map(|_| format!("{}:(chosen at start)", self.address));
        let show = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let mut text = String::new();
        let mut line = |words: String| writeln!(text, "{words}").expect("a string takes all");
        line(format!("command: {}", self.command.iter().map(show).collect::<Vec<_>>().join(" ")));
        line(format!("directory: {}", show(&self.directory)));
        if self.nccl {
            line("LD_PRELOAD: begins with the libnccl.so.2 of each host's ringcomm".into());
        }
        if self.compat {
            line("PYTHONPATH: begins with the folder `compat` of each host's ringcomm".into());
        }
        for (name, value) in &self.forwarded {
            line(format!("forwarded: {}={}", show(name), show(value)));
        }
        for (at, station) in self.stations.iter().enumerate() {
            let how = match &station.remote {
                Some(words) => format!("through {}", words.join(" ")),
                None => "here".into(),
            };
            line(format!("host {}: {how}", station.name));
            for place in self.ranks_of(at) {
                let variables = environment::variables(place, &facts);
                let pairs = variables.iter().map(|(name, value)| format!(" {name}={value}"));
                line(format!("  rank {}:{}", place.rank, pairs.collect::<String>()));
            }
            if self.ranks_of(at).count() > 1 {
                line("  and OMP_NUM_THREADS=1, unless it is set".into());
            }
        }
        text
    }
}

/// This machine, with as many slots as ranks are wanted, or cores are there.
fn here(ranks: Option<usize>) -> Host {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
    Host { name: "localhost".into(), slots: ranks.unwrap_or_else(cores) }
}

/// The first host's address as all others reach it.
fn address(stations: &[Station], own_name: &str) -> String {
    let Some(first) = stations.first() else { return String::new() };
    if first.remote.is_some() {
        return first.address.clone();
    }
    match stations.iter().find(|station| station.remote.is_some()) {
        None => "127.0.0.1".into(),
        Some(other) => ssh::address_towards(&other.address)
            .map_or_else(|| own_name.to_string(), |address| address.to_string()),
    }
}

/// The ports that the ranks listen on, if their settings say.
fn ports(forwarded: &[Variable]) -> Result<Option<&str>, String> {
    let range = forwarded.iter().find(|(name, _)| name == b"RINGCOMM_PORT_RANGE");
    let Some((_, range)) = range.filter(|(_, range)| !range.is_empty()) else { return Ok(None) };
    let range = str::from_utf8(range).unwrap_or("(not UTF-8)").trim();
    match ringcomm::config::ports(range) {
        Ok(_) => Ok(Some(range)),
        Err(why) => Err(format!("RINGCOMM_PORT_RANGE={range:?} {why}")),
    }
}

/// The launcher's RINGCOMM_* settings, which must be the same on all ranks, and what `-x` names.
fn forwarded(options: &Options) -> Result<Vec<Variable>, String> {
    let own = std::env::vars_os().map(|(name, value)| (name.into_vec(), value.into_vec()));
    let mut all = environment::settings(own.collect());
    for (name, value) in &options.variables {
        let value = match value {
            Some(value) => OsString::from(value),
            None => std::env::var_os(name)
                .ok_or_else(|| format!("-x {name}: it is not set here; write -x {name}=VALUE"))?,
        };
        all.retain(|(known, _)| known != name.as_bytes());
        all.push((name.clone().into_bytes(), value.into_vec()));
    }
    Ok(all)
}
