//! The command line: mpirun's and horovodrun's spellings, in one table.
//!
//! Options end where the program's name begins; everything from there on is the program's.

use super::option_table::OPTIONS;
use crate::placement::hosts::Host;
use crate::tools::check;
use crate::tools::status::Wanted;
use ringcomm::config::ports;
use ringcomm::suggest::nearest;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// Whether lines of output say whose they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tagging {
    /// Unless the job is a single rank on this machine.
    Automatic,
    Always,
    Never,
}

/// What the command line asked for.
#[derive(Clone, Debug)]
pub struct Options {
    pub ranks: Option<usize>,
    pub hosts: Option<Vec<Host>>,
    /// Variables to forward; without a value, the launcher's own.
    pub variables: Vec<(String, Option<String>)>,
    pub directory: Option<String>,
    pub tagging: Tagging,
    pub timestamp: bool,
    pub output_folder: Option<PathBuf>,
    pub keep_going: bool,
    pub max_restarts: usize,
    pub grace: Duration,
    pub start_timeout: Duration,
    pub address: Option<String>,
    pub port: Option<u16>,
    pub ssh_command: Option<String>,
    pub ssh_port: Option<u16>,
    pub ssh_identity: Option<String>,
    pub remote_path: Option<String>,
    pub dry_run: bool,
    /// Measure every pair of ranks instead of running a program.
    pub check: bool,
    /// Of the hosts, only these two, with a rank each.
    pub pair: Option<(usize, usize)>,
    pub command: Vec<OsString>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            ranks: None,
            hosts: None,
            variables: Vec::new(),
            directory: None,
            tagging: Tagging::Automatic,
            timestamp: false,
            output_folder: None,
            keep_going: false,
            max_restarts: 0,
            // Long enough to write a small checkpoint, a third of what Slurm gives.
            grace: Duration::from_secs(10),
            // A login over a slow name service takes seconds; ten times that is no login.
            start_timeout: Duration::from_secs(60),
            address: None,
            port: None,
            ssh_command: None,
            ssh_port: None,
            ssh_identity: None,
            remote_path: None,
            dry_run: false,
            check: false,
            pair: None,
            command: Vec::new(),
        }
    }
}

/// How an option takes a value.
#[derive(Clone, Copy, PartialEq)]
pub enum Takes {
    Nothing,
    Value(&'static str),
}

/// One option of the table.
pub struct Entry {
    /// Every spelling, the one for the help text's first column first.
    pub names: &'static [&'static str],
    pub takes: Takes,
    pub help: &'static str,
    pub set: fn(&mut Options, &str) -> Result<(), String>,
}

/// What makes this program an agent; with `=20000-20100` behind it, one that looks for ports there.
pub const AGENT: &str = "--agent";

/// What the arguments amount to.
#[derive(Debug)]
pub enum Parsed {
    Run(Box<Options>),
    Help,
    Version,
    /// What the ranks of a job that runs already are doing.
    Status(Wanted),
    /// This process serves a launcher, whose ranks listen on these ports if it says so.
    Agent(Option<RangeInclusive<u16>>),
    /// This process is a rank of a check.
    CheckRank,
}

pub fn parse(arguments: &[OsString]) -> Result<Parsed, String> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    let mut is_marked = false;
    while let Some(argument) = rest.next() {
        let bytes = argument.as_encoded_bytes();
        if !bytes.starts_with(b"-") || bytes == b"-" {
            options.command = std::iter::once(argument).chain(rest).cloned().collect();
            break;
        }
        let text = argument.to_str().ok_or("an option that is not UTF-8")?;
        match text {
            "-h" | "--help" => return Ok(Parsed::Help),
            "-V" | "--version" => return Ok(Parsed::Version),
            check::ARGUMENT => return Ok(Parsed::CheckRank),
            "--status" => return wanted(rest.as_slice()).map(Parsed::Status),
            "--" => {
                is_marked = true;
                options.command = rest.cloned().collect();
                break;
            }
            _ => {}
        }
        let (name, attached) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        if name == AGENT {
            return Ok(Parsed::Agent(attached.map(ports).transpose()?));
        }
        let entry = find(name)?;
        let value = match (entry.takes, attached) {
            (Takes::Nothing, None) => "",
            (Takes::Nothing, Some(_)) => return Err(format!("{name} takes no value")),
            (Takes::Value(_), Some(value)) => value,
            (Takes::Value(what), None) => {
                let next = rest.next().ok_or_else(|| format!("{name} needs {what}"))?;
                next.to_str().ok_or_else(|| format!("{name}: its value is not UTF-8"))?
            }
        };
        (entry.set)(&mut options, value).map_err(|why| format!("{name} {value}: {why}"))?;
    }
    options.consistent()?;
    if !is_marked {
        one_program(&options.command)?;
    }
    Ok(Parsed::Run(Box::new(options)))
}

/// mpirun's colon begins another program, with options of its own. To ringrun it is an argument, as
/// it is to many programs; where options follow it, somebody meant mpirun's.
fn one_program(command: &[OsString]) -> Result<(), String> {
    let begins = |pair: &[OsString]| {
        let name = pair[1].to_str().unwrap_or("").split('=').next().unwrap_or("");
        pair[0] == ":" && name.starts_with('-') && find(name).is_ok()
    };
    match command.windows(2).any(begins) {
        true => {
            Err("ringrun runs one program: there is no other behind a colon, as mpirun has it; \
                     start a script that asks for RANK (or write -- before the program, if the \
                     colon is an argument of its own)"
                .into())
        }
        false => Ok(()),
    }
}

/// What follows `--status`.
fn wanted(arguments: &[OsString]) -> Result<Wanted, String> {
    let mut wanted = Wanted::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.to_str().unwrap_or("") {
            "--json" => wanted.json = true,
            "--trace" => {
                let path = rest.next().ok_or("--trace needs FILE")?;
                wanted.trace = Some(path.into());
            }
            job if wanted.job.is_none() && !job.is_empty() && !job.starts_with('-') => {
                wanted.job = Some(job.to_string());
            }
            _ => {
                return Err(format!(
                    "--status does not know {}; it takes a job or a process, --json, --trace FILE",
                    argument.to_string_lossy()
                ));
            }
        }
    }
    Ok(wanted)
}

impl Options {
    /// What makes no sense together.
    fn consistent(&self) -> Result<(), String> {
        if self.check && !self.command.is_empty() {
            return Err("--check runs no program: leave it out".into());
        }
        if self.command.is_empty() && !self.check {
            return Err("there is no program to run; see ringrun --help".into());
        }
        if self.keep_going && self.max_restarts > 0 {
            return Err("--keep-going and --max-restarts are two answers to one failure: \
                        choose one"
                .into());
        }
        Ok(())
    }
}

/// What mpirun and horovodrun have and ringrun does not, and what to do instead.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (&["--verbose", "-v"], "use -x RINGCOMM_DEBUG=2"),
    (&["--oversubscribe", "-oversubscribe"], "leave it out, hosts take as many ranks as -H says"),
    (&["-mca", "--mca", "-genv"], "settings are variables RINGCOMM_..., given with -x"),
    (&["--bind-to", "-bind-to", "--map-by", "-map-by"], "leave it out, ranks are bound to no core"),
    (&["--allow-run-as-root"], "leave it out, nothing is needed for that"),
    (&["--gloo", "--mpi", "--use-gloo", "--use-mpi"], "leave it out, there is one way to start"),
];

fn find(name: &str) -> Result<&'static Entry, String> {
    let same = |entry: &&Entry| entry.names.contains(&name);
    OPTIONS.iter().find(same).ok_or_else(|| {
        // Compared without their dashes, of which mpirun and horovodrun want one or two.
        let all: Vec<&str> = OPTIONS
            .iter()
            .flat_map(|entry| entry.names)
            .copied()
            .chain(["--help", "--version"])
            .filter(|name| name.trim_start_matches('-').len() > 1)
            .collect();
        let bare: Vec<&str> = all.iter().map(|name| name.trim_start_matches('-')).collect();
        let guess = nearest(name.trim_start_matches('-'), &bare)
            .and_then(|near| bare.iter().position(|bare| *bare == near))
            .map(|at| format!("; did you mean {}?", all[at]));
        if let Some((_, instead)) = ELSEWHERE.iter().find(|(names, _)| names.contains(&name)) {
            return format!("ringrun has no {name}: {instead}");
        }
        let help = "; ringrun --help lists them all".to_string();
        format!("there is no option {name}{}", guess.unwrap_or(help))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str) -> Result<Options, String> {
        let arguments: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        match parse(&arguments)? {
            Parsed::Run(options) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_launchers_spelling_means_the_same() {
        for text in [
            "-np=4 -H=a:2,b:2 p",
            "-np 4 -H a:2,b:2 p",
            "-n 4 --hosts a:2,b:2 p",
            "--np=4 -host a:2,b:2 p",
        ] {
            let options = run(text).unwrap();
            assert_eq!((options.ranks, options.hosts.unwrap().len()), (Some(4), 2), "{text}");
        }
    }

    #[test]
    fn everything_from_the_program_on_is_its_own() {
        let options = run("-n 2 python -n 3 --help -- -H x").unwrap();
        assert_eq!((options.ranks, options.command.len()), (Some(2), 7));
        let options = run("-n 2 -- -odd --name").unwrap();
        assert_eq!(options.command, ["-odd", "--name"]);
        assert_eq!(run("-n 2 sh -c : x").unwrap().command.len(), 4);
        assert_eq!(run("-n 2 p : -c").unwrap().command.len(), 3);
        assert_eq!(run("-n 2 -- p : -n 1").unwrap().command.len(), 4);
    }

    #[test]
    fn a_slip_is_answered_with_the_nearest_name() {
        for (text, wanted) in [
            ("--hostfil x p", "did you mean --hostfile?"),
            ("--max-restart 2 p", "did you mean --max-restarts?"),
            ("--kep-going p", "did you mean --keep-going?"),
            ("-q p", "ringrun --help"),
            ("-np", "-np needs N"),
            ("-np none p", "-np none: is not a whole number"),
            ("-np 0 p", "at least 1"),
            ("--keep-going=1 p", "takes no value"),
            ("--keep-going --max-restarts 1 p", "choose one"),
            ("-n 2", "no program"),
            ("--check p", "leave it out"),
            ("--status --jso", "does not know --jso"),
            ("-x RANK=3 p", "sets RANK"),
            ("--verbose -np 2 p", "use -x RINGCOMM_DEBUG=2"),
            ("-np 2 --oversubscribe p", "as many ranks as -H says"),
            ("-np 2 -mca btl tcp p", "variables RINGCOMM_"),
            ("-np 2 -bind-to none p", "bound to no core"),
            ("-np 1 a : -np 1 b", "runs one program"),
            ("-np 1 a x : -H=b:1 b", "runs one program"),
        ] {
            let error = run(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn variables_are_kept_in_order() {
        let options = run("-x A -x B=1=2 --env=C= p").unwrap();
        let expected = [("A", None), ("B", Some("1=2")), ("C", Some(""))]
            .map(|(name, value)| (name.to_string(), value.map(str::to_string)));
        assert_eq!(options.variables, expected);
        let options = run("-np 2 --network-interface eth0,eth1 p").unwrap();
        let expected = ("RINGCOMM_SOCKET_IFNAME".to_string(), Some("=eth0,eth1".to_string()));
        assert_eq!(options.variables, [expected]);
    }
}
