//! The options themselves, in the order of the help text.

use super::options::{Entry, Options, Tagging, Takes};
use crate::agent::environment;
use crate::placement::hosts;
use crate::tools::check_pairs;
use std::fmt::Write;
use std::time::Duration;

use Takes::{Nothing, Value};

const fn row(
    names: &'static [&'static str],
    takes: Takes,
    help: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
) -> Entry {
    Entry { names, takes, help, set }
}

pub static OPTIONS: &[Entry] = &[
    row(
        &["-np", "-n", "--np"],
        Value("N"),
        "ranks (default: every slot; here, every core)",
        |o, v| {
            o.ranks = Some(at_least(number(v)?, 1)?);
            Ok(())
        },
    ),
    row(
        &["-H", "--hosts", "--host", "-host"],
        Value("HOST:SLOTS,..."),
        "hosts, filled in this order (default: here)",
        |o, v| set_hosts(o, hosts::parse_list(v)?),
    ),
    row(
        &["--hostfile", "-hostfile", "--machinefile"],
        Value("FILE"),
        "the same, in lines of `host slots=N`",
        |o, v| {
            let text = std::fs::read_to_string(v).map_err(|error| error.to_string())?;
            set_hosts(o, hosts::parse_file(&text)?)
        },
    ),
    row(&["-x", "--env"], Value("NAME[=VALUE]"), "set a variable for every rank", variable),
    row(
        &["--network-interface", "--network-interfaces"],
        Value("NAME,..."),
        "as -x RINGCOMM_SOCKET_IFNAME==NAME,...",
        |o, v| variable(o, &format!("RINGCOMM_SOCKET_IFNAME=={v}")),
    ),
    row(
        &["--wdir", "-wdir"],
        Value("DIR"),
        "directory of the ranks (default: this one)",
        |o, v| {
            o.directory = Some(v.into());
            Ok(())
        },
    ),
    row(&["--tag-output"], Nothing, "prefix the output of a single rank too", |o, _| {
        o.tagging = Tagging::Always;
        Ok(())
    }),
    row(&["--no-prefix"], Nothing, "no prefix; ranks here write to the terminal itself", |o, _| {
        o.tagging = Tagging::Never;
        Ok(())
    }),
    row(&["--timestamp"], Nothing, "begin every line with the time (UTC)", |o, _| {
        o.timestamp = true;
        Ok(())
    }),
    row(&["--output-filename"], Value("DIR"), "also write DIR/rank.N/stdout and stderr", |o, v| {
        o.output_folder = Some(v.into());
        Ok(())
    }),
    row(&["--keep-going"], Nothing, "when a rank fails, the others go on", |o, _| {
        o.keep_going = true;
        Ok(())
    }),
    row(&["--max-restarts"], Value("N"), "start a failed job anew so often (default 0)", |o, v| {
        o.max_restarts = number(v)?;
        Ok(())
    }),
    row(&["--kill-grace"], Value("SECONDS"), "from asking to killing (default 10)", |o, v| {
        o.grace = seconds(v)?;
        Ok(())
    }),
    row(&["--start-timeout"], Value("SECONDS"), "for reaching the hosts (default 60)", |o, v| {
        o.start_timeout = seconds(v)?;
        Ok(())
    }),
    row(&["--master-addr"], Value("ADDRESS"), "MASTER_ADDR (default: the first host's)", |o, v| {
        o.address = Some(v.into());
        Ok(())
    }),
    row(&["--master-port"], Value("PORT"), "MASTER_PORT (default: one that is free)", |o, v| {
        o.port = Some(port(v)?);
        Ok(())
    }),
    row(
        &["--ssh-command"],
        Value("COMMAND"),
        "remote shell (default ssh; also RINGCOMM_SSH)",
        |o, v| {
            o.ssh_command = Some(v.into());
            Ok(())
        },
    ),
    row(&["-p", "--ssh-port"], Value("PORT"), "port of the hosts' ssh", |o, v| {
        o.ssh_port = Some(port(v)?);
        Ok(())
    }),
    row(&["-i", "--ssh-identity-file"], Value("FILE"), "key to log in with", |o, v| {
        o.ssh_identity = Some(v.into());
        Ok(())
    }),
    row(
        &["--remote-path"],
        Value("FILE"),
        "ringrun on the other hosts (default: as here)",
        |o, v| {
            o.remote_path = Some(v.into());
            Ok(())
        },
    ),
    row(&["--check"], Nothing, "run no program: measure every pair of ranks", |o, _| {
        o.check = true;
        o.tagging = Tagging::Never;
        Ok(())
    }),
    row(&[check_pairs::ARGUMENT], Value("LOW,HIGH"), "", |o, v| {
        let (low, high) = v.split_once(',').ok_or("write two hosts' places")?;
        o.pair = Some((number(low)?, number(high)?));
        Ok(())
    }),
    row(&["--dry-run"], Nothing, "print who would start where, and with what", |o, _| {
        o.dry_run = true;
        Ok(())
    }),
];

fn set_hosts(options: &mut Options, hosts: Vec<hosts::Host>) -> Result<(), String> {
    if options.hosts.is_some() {
        return Err("the hosts were given already; use one -H or one --hostfile".into());
    }
    options.hosts = Some(hosts);
    Ok(())
}

fn variable(options: &mut Options, text: &str) -> Result<(), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_string())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err("write NAME or NAME=VALUE".into());
    }
    if environment::is_own(name) {
        let instead = match name {
            "MASTER_ADDR" => "; use --master-addr",
            "MASTER_PORT" => "; use --master-port",
            _ => "",
        };
        return Err(format!("ringrun itself sets {name}{instead}"));
    }
    options.variables.push((name.to_string(), value));
    Ok(())
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "is not a whole number".to_string())
}

fn at_least(value: usize, least: usize) -> Result<usize, String> {
    if value < least { Err(format!("must be at least {least}")) } else { Ok(value) }
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("is not a port".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| "is not a number of seconds")?;
    // A hundred years: durations and clocks can add it up.
    if (0.0..3.2e9).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err("is not a number of seconds".into())
    }
}

const BEGINNING: &str = "\
ringrun: start a program as the ranks of one job, here and on other hosts

usage: ringrun [OPTION...] [--] PROGRAM [ARGUMENT...]
       ringrun --check [OPTION...]
       ringrun --status [JOB|PID] [--json] [--trace FILE]

  ringrun python train.py                      a rank for every core of this machine
  ringrun -np 4 python train.py                four ranks here
  ringrun -np 4 -H a:2,b:2 python train.py     two on each of two hosts, through ssh
  ringrun --check -H a:2,b:2                   latency and bandwidth between all pairs
  ringrun --status                             who waits for whom in the job that runs here
  ringrun -np 4 -x DATA=/data --max-restarts 3 --output-filename logs ./train

options:
";

const REST: &str = "
environment: every rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
  MASTER_ADDR, MASTER_PORT; RINGCOMM_RANK, _NRANKS, _LOCAL_RANK, _LOCAL_SIZE, _SECRET, _JOB,
  _RESTART, _STATUS_DIR, and _ADDRESS where there are several hosts, unless it or --master-port is
  given; HOROVOD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _CROSS_RANK, _CROSS_SIZE; and, where several
  ranks share a host and it is not set, OMP_NUM_THREADS=1, as torchrun does. Ranks here inherit
  the rest of the environment; ranks on other hosts have what a login there has, the variables
  that begin with RINGCOMM_, and those of -x. What an outer launcher says of its own processes
  is removed, unless -x names it:
";

const END: &str = "
output: lines of several ranks are prefixed `[RANK]<stdout>:` or `[RANK]<stderr>:` and appear
  when they are whole. Rank 0 reads ringrun's standard input, the others read /dev/null.

signals: INT, TERM, HUP, USR1 and USR2 go to every rank and what it started; a TSTP (Ctrl-Z) stops
  ringrun with the ranks, a CONT lets them go on. After INT, TERM or HUP, a second one or the end
  of --kill-grace kills. What is left of a rank's process group when it ends is killed, and when
  the last has ended, whatever else they started.

other hosts: ringrun must be there, in the same version. They are asked through
  `ssh -o BatchMode=yes HOST RINGRUN --agent`, so ssh must log in without a password; the job
  and its secret go over that connection, never on a command line. When it ends, or has been
  silent for a minute, the ranks there are ended: TERM, and KILL after --kill-grace.

status: every process with a communicator serves a socket in a folder of its own user's, which
  goes with the job. --status shows the newest job's ranks on this machine, also while they hang;
  for those on another host, run it there. --trace writes what they did last, for Perfetto.

exit status: that of the first rank that failed (128 + signal if it was killed, which counts before
  others that end with it); 0 if none did; 2 a bad option; 126, 127 the program cannot be run, is
  not there; 255 a host was lost
";

pub fn help() -> String {
    let mut text = String::from(BEGINNING);
    let always = [("-h, --help".to_string(), "this"), ("-V, --version".to_string(), "the version")];
    let shown = OPTIONS.iter().filter(|entry| !entry.help.is_empty()).map(|entry| {
        let value = match entry.takes {
            Nothing => String::new(),
            Value(what) => format!(" {what}"),
        };
        (format!("{}{value}", entry.names.join(", ")), entry.help)
    });
    for (name, help) in shown.chain(always) {
        if name.len() > 34 {
            writeln!(text, "  {name}\n  {:34} {help}", "").expect("a string takes all");
        } else {
            writeln!(text, "  {name:34} {help}").expect("a string takes all");
        }
    }
    text.push_str(REST);
    let mut line = String::from(" ");
    for name in environment::REMOVED {
        if line.len() + name.len() > 94 {
            text.push_str(&line);
            text.push('\n');
            line = String::from(" ");
        }
        write!(line, " {name}").expect("a string takes all");
    }
    text.push_str(&line);
    text.push('\n');
    text.push_str(END);
    text
}
