//! The command line: mpirun's and horovodrun's spellings.
//!
//! An option is a field, and the field's comment is its help. Options end where the program's name
//! begins; everything from there on is the program's.

use super::help;
use super::values::{interfaces, number, one_or_more, pair, port, read_hosts, seconds, variable};
use crate::placement::hosts::{self, Host};
use crate::tools::status::Wanted;
use crate::tools::{check, check_pairs};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches, Parser};
use ringcomm::config::ports;
use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whether lines of output say whose they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Tagging {
    /// Unless the job is a single rank on this machine.
    #[default]
    Automatic,
    Always,
    Never,
}

/// A list that one value holds. To clap a `Vec` is an option given several times.
type HostList = Vec<Host>;

/// A variable to forward; without a value, the launcher's own.
pub type Forwarded = (String, Option<String>);

/// What the command line asked for.
#[derive(Clone, Debug, Parser)]
#[command(name = "ringrun", version, about = help::BEGINNING, after_help = help::end())]
#[command(help_template = "{about}\n{options}{after-help}", args_override_self = true)]
#[command(override_usage = "ringrun [OPTION...] [--] PROGRAM [ARGUMENT...]")]
pub struct Options {
    /// ranks (default: every slot; here, every core); -np, too
    #[arg(short = 'n', long = "np", value_name = "N", value_parser = one_or_more)]
    pub ranks: Option<usize>,
    /// hosts, filled in this order (default: here)
    #[arg(short = 'H', long = "hosts", visible_alias = "host", value_name = "HOST:SLOTS,...")]
    #[arg(value_parser = hosts::parse_list)]
    pub lists: Vec<HostList>,
    /// the same, in lines of `host slots=N`
    #[arg(long = "hostfile", visible_alias = "machinefile", value_name = "FILE")]
    #[arg(value_parser = read_hosts)]
    pub files: Vec<HostList>,
    #[arg(skip)]
    pub hosts: Option<HostList>,
    /// set a variable for every rank
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    pub variables: Vec<Forwarded>,
    /// as -x RINGCOMM_SOCKET_IFNAME==NAME,...
    #[arg(long = "network-interface", visible_alias = "network-interfaces")]
    #[arg(value_name = "NAME,...", value_parser = interfaces)]
    pub interfaces: Vec<Forwarded>,
    /// give the ranks ringcomm where they load NCCL
    #[arg(long)]
    pub nccl: bool,
    /// give Python ranks ringcomm where they import Horovod or apex
    #[arg(long)]
    pub compat: bool,
    /// directory of the ranks (default: this one)
    #[arg(long = "wdir", value_name = "DIR")]
    pub directory: Option<String>,
    /// prefix the output of a single rank too
    #[arg(long, overrides_with = "no_prefix")]
    pub tag_output: bool,
    /// no prefix; ranks here write to the terminal itself
    #[arg(long, overrides_with = "tag_output")]
    pub no_prefix: bool,
    #[arg(skip)]
    pub tagging: Tagging,
    /// begin every line with the time (UTC)
    #[arg(long)]
    pub timestamp: bool,
    /// also write DIR/rank.N/stdout and stderr
    #[arg(long = "output-filename", value_name = "DIR")]
    pub output_folder: Option<PathBuf>,
    /// when a rank fails, the others go on
    #[arg(long)]
    pub keep_going: bool,
    /// elastic: the others go on, and replacements join; so many have to be there
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    pub min_np: Option<usize>,
    /// elastic: no more than so many (default: -np)
    #[arg(long, value_name = "N", value_parser = one_or_more)]
    pub max_np: Option<usize>,
    /// elastic: a program that prints the hosts that there are, as lines HOST:SLOTS
    #[arg(long, value_name = "FILE")]
    pub host_discovery_script: Option<String>,
    /// slots of a host that it prints without a number (default 1)
    #[arg(long, visible_alias = "slots", value_name = "N", value_parser = one_or_more)]
    #[arg(default_value = "1", hide_default_value = true)]
    pub slots_per_host: usize,
    /// start a failed job anew so often (default 0); elastic: replace so many ranks (default 100)
    #[arg(long, value_name = "N", value_parser = number)]
    #[arg(default_value = "0", hide_default_value = true)]
    pub max_restarts: usize,
    // Long enough to write a small checkpoint, a third of what Slurm gives.
    /// from asking to killing (default 10)
    #[arg(long = "kill-grace", value_name = "SECONDS", value_parser = seconds)]
    #[arg(default_value = "10", hide_default_value = true)]
    pub grace: Duration,
    // A login over a slow name service takes seconds; ten times that is no login.
    /// for reaching the hosts (default 60)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    #[arg(default_value = "60", hide_default_value = true)]
    pub start_timeout: Duration,
    /// MASTER_ADDR (default: the first host's)
    #[arg(long = "master-addr", value_name = "ADDRESS")]
    pub address: Option<String>,
    /// MASTER_PORT (default: one that is free)
    #[arg(long = "master-port", value_name = "PORT", value_parser = port)]
    pub port: Option<u16>,
    /// remote shell (default ssh; also RINGCOMM_SSH)
    #[arg(long, value_name = "COMMAND")]
    pub ssh_command: Option<String>,
    /// port of the hosts' ssh
    #[arg(short = 'p', long, value_name = "PORT", value_parser = port)]
    pub ssh_port: Option<u16>,
    /// key to log in with
    #[arg(short = 'i', long = "ssh-identity-file", value_name = "FILE")]
    pub ssh_identity: Option<String>,
    /// ringrun on the other hosts (default: as here)
    #[arg(long, value_name = "FILE")]
    pub remote_path: Option<String>,
    /// run no program: measure every pair of ranks
    #[arg(long)]
    pub check: bool,
    // Of the hosts, only these two, with a rank each.
    #[arg(long = &check_pairs::ARGUMENT[2..], value_name = "LOW,HIGH", hide = true)]
    #[arg(value_parser = pair)]
    pub pair: Option<(usize, usize)>,
    /// print who would start where, and with what
    #[arg(long)]
    pub dry_run: bool,
    #[arg(skip)]
    pub command: Vec<OsString>,
}

impl Default for Options {
    fn default() -> Options {
        Options::parse_from(["ringrun"])
    }
}

/// What makes this program an agent; with `=20000-20100` behind it, one that looks for ports there.
pub const AGENT: &str = "--agent";

/// What the arguments amount to.
#[derive(Debug)]
pub enum Parsed {
    Run(Box<Options>),
    /// What the ranks of a job that runs already are doing.
    Status(Wanted),
    /// This process serves a launcher, whose ranks listen on these ports if it says so.
    Agent(Option<RangeInclusive<u16>>),
    /// This process is a rank of a check.
    CheckRank,
}

/// What the arguments ask for; or what to print in its place, with an exit status. `called` is the
/// name under which this program was started.
pub fn parse(called: &OsStr, arguments: &[OsString]) -> Result<Parsed, clap::Error> {
    let mut command = Options::command();
    let name = OsString::from("ringrun");
    let (mut words, rest) = split(&command, arguments);
    if Path::new(called).file_name() == Some(OsStr::new("horovodrun")) {
        words.retain(|word| word.to_str().is_none_or(|word| !OF_HOROVODRUN.contains(&word)));
        words.push("--compat".into());
    }
    let first = rest.first().and_then(|word| word.to_str()).unwrap_or("");
    let (inner, attached) = match first.split_once('=') {
        Some((inner, value)) => (inner, Some(value)),
        None => (first, None),
    };
    match inner {
        check::ARGUMENT => return Ok(Parsed::CheckRank),
        AGENT => {
            let ports = attached.map(ports).transpose();
            let told = |why| command.error(ErrorKind::ValueValidation, why);
            return ports.map(Parsed::Agent).map_err(told);
        }
        STATUS => {
            let words = std::iter::once("ringrun --status".into()).chain(rest[1..].to_vec());
            return Wanted::try_parse_from(words).map(Parsed::Status);
        }
        _ => {}
    }
    let is_marked = first == "--";
    let matches = command.try_get_matches_from_mut(std::iter::once(name).chain(words));
    let matches = matches.map_err(|error| elsewhere(&mut command, error))?;
    let mut options = Options::from_arg_matches(&matches)?;
    options.command = rest[usize::from(is_marked)..].to_vec();
    let finished = options.finished().and_then(|options| {
        if !is_marked {
            one_program(&command, &options.command)?;
        }
        Ok(Parsed::Run(Box::new(options)))
    });
    finished.map_err(|why| command.error(ErrorKind::ValueValidation, why))
}

const STATUS: &str = "--status";

/// What horovodrun's users write, and of which there is one kind here.
const OF_HOROVODRUN: [&str; 5] = ["--gloo", "--mpi", "--use-gloo", "--use-mpi", "--verbose"];

/// What mpirun and horovodrun write with one dash; clap wants two.
const ONE_DASH: [&str; 9] = [
    "-np",
    "-host",
    "-hostfile",
    "-wdir",
    "-oversubscribe",
    "-mca",
    "-genv",
    "-bind-to",
    "-map-by",
];

/// The options, as clap has them, and what follows: a program, `--` before one, or what makes this
/// program another one.
fn split<'a>(command: &Command, arguments: &'a [OsString]) -> (Vec<OsString>, &'a [OsString]) {
    let mut words = Vec::new();
    let mut rest = arguments;
    while let [word, after @ ..] = rest {
        let bytes = word.as_encoded_bytes();
        let name = word.to_str().unwrap_or("").split('=').next().unwrap_or("");
        let is_end = ["--", STATUS, AGENT, check::ARGUMENT].contains(&name);
        if !bytes.starts_with(b"-") || bytes == b"-" || is_end {
            break;
        }
        let mut spelled = OsString::from(if ONE_DASH.contains(&name) { "-" } else { "" });
        spelled.push(word);
        rest = after;
        if known(command, spelled.to_str().unwrap_or("")) == Some(true)
            && let [value, after @ ..] = rest
        {
            words.extend([spelled, value.clone()]);
            rest = after;
        } else {
            words.push(spelled);
        }
    }
    (words, rest)
}

/// Whether the word behind an option is its value; nothing where there is no such option.
fn known(command: &Command, word: &str) -> Option<bool> {
    let name = word.split('=').next().unwrap_or("");
    let is_named = |arg: &&clap::Arg| match name.strip_prefix("--") {
        Some(long) => {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long) || aliases.contains(&long)
        }
        None => name.len() == 2 && arg.get_short() == name.chars().nth(1),
    };
    let arg = command.get_arguments().find(is_named)?;
    Some(arg.get_action().takes_values() && name == word)
}

/// mpirun's colon begins another program, with options of its own. To ringrun it is an argument, as
/// it is to many programs; where options follow it, somebody meant mpirun's.
fn one_program(command: &Command, words: &[OsString]) -> Result<(), String> {
    let begins = |two: &[OsString]| {
        let (options, _) = split(command, &two[1..]);
        let name = options.first().and_then(|name| name.to_str());
        two[0] == ":" && name.is_some_and(|name| known(command, name).is_some())
    };
    match words.windows(2).any(begins) {
        true => {
            Err("ringrun runs one program: there is no other behind a colon, as mpirun has it; \
                     start a script that asks for RANK (or write -- before the program, if the \
                     colon is an argument of its own)"
                .into())
        }
        false => Ok(()),
    }
}

impl Options {
    /// Whether ranks may come and go while the job runs.
    pub fn is_elastic(&self) -> bool {
        self.min_np.is_some() || self.max_np.is_some() || self.host_discovery_script.is_some()
    }

    /// The most ranks of an elastic job: of one whose hosts do not change, as many as it has first.
    pub fn most(&self, first: usize) -> usize {
        let otherwise = if self.host_discovery_script.is_some() { usize::MAX } else { first };
        self.max_np.unwrap_or(otherwise)
    }

    /// How many ranks of a host are replaced: enough for any job whose ranks do not fail at once.
    pub fn replacements(&self) -> usize {
        match (self.is_elastic(), self.max_restarts) {
            (false, _) => 0,
            (true, 0) => 100,
            (true, given) => given,
        }
    }

    /// With what several options amount to, where they go together.
    fn finished(mut self) -> Result<Options, String> {
        let mut hosts = self.lists.drain(..).chain(self.files.drain(..));
        self.hosts = hosts.next();
        if hosts.next().is_some() {
            return Err("the hosts were given already; use one -H or one --hostfile".into());
        }
        drop(hosts);
        if self.host_discovery_script.is_some() {
            if self.hosts.is_some() {
                return Err("the hosts come from --host-discovery-script: leave out -H and \
                            --hostfile"
                    .into());
            }
            if self.output_folder.is_some() || self.check {
                return Err("--host-discovery-script goes with neither --output-filename nor \
                            --check"
                    .into());
            }
        }
        self.variables.append(&mut self.interfaces);
        self.tagging = match (self.check || self.no_prefix, self.tag_output) {
            (true, _) => Tagging::Never,
            (false, true) => Tagging::Always,
            (false, false) => Tagging::Automatic,
        };
        if self.check && !self.command.is_empty() {
            return Err("--check runs no program: leave it out".into());
        }
        if self.check && self.nccl {
            return Err("--check runs no program that loads NCCL: leave --nccl out".into());
        }
        if self.check && self.compat {
            return Err("--check runs no program that imports Horovod: leave --compat out".into());
        }
        if self.command.is_empty() && !self.check {
            return Err("there is no program to run; see ringrun --help".into());
        }
        if self.keep_going && self.is_elastic() {
            return Err("--keep-going starts no replacements, as --min-np and --max-np do: \
                        choose one"
                .into());
        }
        let (least, most) = (self.min_np.unwrap_or(1), self.max_np.unwrap_or(usize::MAX));
        if least > most {
            return Err("--min-np is more than --max-np".into());
        }
        if self.ranks.is_some_and(|ranks| !(least..=most).contains(&ranks)) {
            return Err("-np is less than --min-np, or more than --max-np".into());
        }
        if self.keep_going && self.max_restarts > 0 {
            return Err("--keep-going and --max-restarts are two answers to one failure: \
                        choose one"
                .into());
        }
        Ok(self)
    }
}

/// What mpirun and horovodrun have and ringrun does not, and what to do instead.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (&["--verbose", "-v"], "use -x RINGCOMM_DEBUG=2"),
    (&["--oversubscribe"], "leave it out, hosts take as many ranks as -H says"),
    (&["--mca", "--genv"], "settings are variables RINGCOMM_..., given with -x"),
    (&["--bind-to", "--map-by"], "leave it out, ranks are bound to no core"),
    (&["--allow-run-as-root"], "leave it out, nothing is needed for that"),
    (&["--gloo", "--mpi", "--use-gloo", "--use-mpi"], "leave it out, there is one way to start"),
];

/// What to do without an option that only others have.
fn elsewhere(command: &mut Command, error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidArg) else { return error };
    match ELSEWHERE.iter().find(|(names, _)| names.contains(&name.as_str())) {
        Some((_, instead)) if error.kind() == ErrorKind::UnknownArgument => {
            let text = format!("ringrun has no {name}: {instead}");
            command.error(ErrorKind::UnknownArgument, text)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str) -> Result<Options, String> {
        let arguments: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        match parse(OsStr::new("ringrun"), &arguments).map_err(|refusal| refusal.to_string())? {
            Parsed::Run(options) => Ok(*options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn under_horovodruns_name_it_stands_for_horovodrun() {
        let words: Vec<OsString> =
            "--gloo -np 2 --verbose p --gloo".split(' ').map(OsString::from).collect();
        let Ok(Parsed::Run(options)) = parse(OsStr::new("/usr/bin/horovodrun"), &words) else {
            panic!("it is refused");
        };
        assert!(options.compat && options.ranks == Some(2));
        assert_eq!(options.command, ["p", "--gloo"]);
        assert!(parse(OsStr::new("ringrun"), &words).is_err());
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
            ("--hostfil x p", "'--hostfile'"),
            ("--max-restart 2 p", "'--max-restarts'"),
            ("--kep-going p", "'--keep-going'"),
            ("-q p", "unexpected argument '-q'"),
            ("-np", "a value is required for '--np <N>'"),
            ("-np none p", "is not a whole number"),
            ("-np 0 p", "at least 1"),
            ("--keep-going=1 p", "unexpected value '1' for '--keep-going'"),
            ("--keep-going --max-restarts 1 p", "choose one"),
            ("--keep-going --min-np 1 p", "choose one"),
            ("--min-np 3 --max-np 2 p", "more than --max-np"),
            ("-n 2", "no program"),
            ("--check p", "leave it out"),
            ("--check --nccl", "leave --nccl out"),
            ("--check --compat", "leave --compat out"),
            ("--status --jso", "unexpected argument '--jso'"),
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
