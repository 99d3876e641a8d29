//! The command line: one structure of options, nccl-tests' names first.
//!
//! An option is a field, and the field's comment is its help. What nccl-tests has beyond, and
//! ring-perf takes only where it is off, is in a table (`nccl_tests`).

use super::nccl_tests;
use super::operation::Operation;
use super::sizes::{Progression, Sizes};
use super::values::*;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches, Parser};
use ringcomm::config::NetChoice;
use ringcomm::suggest::nearest;
use ringcomm::types::{DataType, ReduceOp};
use std::time::Duration;

/// Which rank's time stands for the iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Average {
    RankZero,
    Mean,
    Least,
    Most,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Roots {
    One(usize),
    All,
}

/// Where the report in comma-separated values goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Csv {
    Output,
    File(String),
}

/// What a rank process inherits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Child {
    pub process: usize,
    pub board: i32,
    pub report: i32,
}

/// Lists that one value of an option holds. To clap a `Vec` is an option given several times.
type Operations = Vec<Operation>;
type Types = Vec<DataType>;
type Reductions = Vec<ReduceOp>;

const ABOUT: &str = "\
ring-perf: measure and check collectives, with nccl-tests' options and columns

With no ranks given it is one rank of the job that a launcher (ringrun, torchrun, mpirun, srun)
started; without one it runs twice: 2 processes, then 2 threads.";

const STATUS: &str = "\
exit status: 0 all right; 1 a wrong result or a failed run; 2 a bad option;
3 slower than --compare allows";

/// What the command line asked for.
#[derive(Clone, Debug, Parser)]
#[command(name = "ring-perf", version, about = ABOUT, after_help = STATUS)]
#[command(args_override_self = true, disable_version_flag = true, rename_all = "snake_case")]
pub struct Options {
    #[arg(value_name = "OPERATION", value_parser = operations)]
    pub named: Vec<Operations>,
    #[arg(skip)]
    pub operations: Operations,
    /// smallest size (default 8)
    #[arg(short = 'b', long = "minbytes", value_name = "BYTES", value_parser = size)]
    pub min_bytes: Option<usize>,
    /// largest size (default 64M)
    #[arg(short = 'e', long = "maxbytes", value_name = "BYTES", value_parser = size)]
    pub max_bytes: Option<usize>,
    /// add this to get the next size, unless -f
    #[arg(short = 'i', long = "stepbytes", value_name = "BYTES", value_parser = size)]
    pub step_bytes: Option<usize>,
    /// multiply by this (default 2; 1: go by -i)
    #[arg(short = 'f', long = "stepfactor", value_name = "N")]
    pub step_factor: Option<usize>,
    // What the two of them amount to.
    #[arg(skip = Progression::Multiply(2))]
    pub progression: Progression,
    /// timed iterations (default: by --budget)
    #[arg(short = 'n', long = "iters", value_name = "N", value_parser = at_least_one)]
    pub iterations: Option<usize>,
    // Fewer where five would eat the budget.
    /// untimed iterations before them (default 5)
    #[arg(short = 'w', long = "warmup_iters", value_name = "N")]
    pub warmup: Option<usize>,
    // The time is that of one call.
    /// calls per iteration, in a group but ping_pong (default 1)
    #[arg(short = 'm', long = "agg_iters", value_name = "N", value_parser = buffers)]
    #[arg(default_value = "1", hide_default_value = true)]
    pub aggregate: usize,
    /// ranks as threads of a process
    #[arg(short = 't', long = "nthreads", value_name = "N", value_parser = at_least_one)]
    pub threads: Option<usize>,
    /// ranks as processes (times -t)
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub procs: Option<usize>,
    /// every rank as a host of its own: loopback TCP
    #[arg(long)]
    pub tcp: bool,
    /// between hosts: auto, tcp, ucx, plugin, plugin:NAME
    #[arg(long, value_name = "NET", value_parser = NetChoice::from_name)]
    pub net: Option<NetChoice>,
    /// GPUs, with -t ranks on each (0: host memory)
    #[arg(short = 'g', long = "ngpus", value_name = "N")]
    #[arg(default_value = "0", hide_default_value = true)]
    pub gpus: usize,
    /// element type (default float)
    #[arg(short = 'd', long = "datatype", value_name = "TYPE|all", value_parser = data_types)]
    #[arg(default_value = "float", hide_default_value = true)]
    pub types: Types,
    /// reduction (default sum)
    #[arg(short = 'o', long = "op", value_name = "OP|all", value_parser = reductions)]
    #[arg(default_value = "sum", hide_default_value = true)]
    pub reductions: Reductions,
    /// root (default 0)
    #[arg(short = 'r', long = "root", value_name = "RANK|all", value_parser = roots)]
    #[arg(default_value = "0", hide_default_value = true)]
    pub roots: Roots,
    /// 0: check none, call on zeros in place (default 1)
    #[arg(short = 'c', long, value_name = "N", value_parser = checks, action = ArgAction::Set)]
    #[arg(default_value = "1", hide_default_value = true)]
    pub check: bool,
    /// threads join one by one by id (default 0)
    #[arg(short = 'p', long, value_name = "0|1", value_parser = switch, action = ArgAction::Set)]
    #[arg(default_value = "0", hide_default_value = true)]
    pub parallel_init: bool,
    /// time of rank 0, mean, min, max (default 3)
    #[arg(short = 'a', long, value_name = "0|1|2|3", value_parser = average)]
    #[arg(default_value = "3", hide_default_value = true)]
    pub average: Average,
    /// fail what waits longer (0: the default)
    #[arg(short = 'T', long = "timeout", value_name = "SECONDS", value_parser = seconds)]
    pub timeout_ms: Option<u64>,
    /// register the buffers: zero copy between processes
    #[arg(long, overrides_with = "local_register")]
    pub register: bool,
    /// as --register
    #[arg(short = 'R', long, value_name = "0|1", value_parser = registers)]
    #[arg(overrides_with = "register")]
    pub local_register: Option<bool>,
    /// force an algorithm where it exists
    #[arg(long = "algo", value_name = "NAME")]
    pub algorithm: Option<String>,
    /// constants of the cost model, from a file
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<String>,
    /// measure these constants, write them, and end
    #[arg(long = "save-tuning", value_name = "FILE")]
    pub save_tuning: Option<String>,
    /// reduce as the serial loop in rank order
    #[arg(long)]
    pub deterministic: bool,
    /// default both; out where in is N/A
    #[arg(long, value_name = "both|out|in", value_parser = ["both", "out", "in"])]
    #[arg(default_value = "both", hide_default_value = true, hide_possible_values = true)]
    pub placement: String,
    #[arg(skip)]
    pub out_of_place: bool,
    #[arg(skip)]
    pub in_place: bool,
    /// write every input anew before each block of calls
    #[arg(long)]
    pub rewrite: bool,
    // The default table has 96 cells: 60 ms each, and start-up, stay under 20 s.
    /// time for each placement of a row (default 60)
    #[arg(long = "budget", value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(default_value = "60", hide_default_value = true)]
    pub budget_ms: u64,
    /// result buffers used in turn (default: by size)
    #[arg(long, value_name = "N", value_parser = buffers)]
    pub rotate: Option<usize>,
    /// bind ranks to cores (default: if they fit)
    #[arg(long, value_name = "0|1", value_parser = switch)]
    pub pin: Option<bool>,
    /// measure memory and cores first (default 1)
    #[arg(long, value_name = "0|1", value_parser = switch, action = ArgAction::Set)]
    #[arg(default_value = "1", hide_default_value = true)]
    pub probe: bool,
    /// write the rows and the machine's facts
    #[arg(short = 'J', long, visible_alias = "output_file", value_name = "FILE")]
    pub json: Option<String>,
    /// comma-separated values, in place of the table
    #[arg(long, value_name = "FILE", value_parser = csv, overrides_with = "csv_file")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub csv: Option<Csv>,
    /// as --csv FILE
    #[arg(short = 'F', long, value_name = "FILE", value_parser = csv, overrides_with = "csv")]
    pub csv_file: Option<Csv>,
    /// draw time and busbw against size
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    pub plot: Option<String>,
    /// print ratios; exit 3 past the tolerance
    #[arg(long, value_name = "OLD.json")]
    pub compare: Option<String>,
    // Medians of one quiet machine repeat to a few percent; 15 % is a change, not noise.
    /// how much slower is allowed (default 0.15)
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    #[arg(default_value = "0.15", hide_default_value = true)]
    pub tolerance: f64,
    /// algorithm, channels, chunks, predicted time
    #[arg(long)]
    pub explain: bool,
    // The simulator's own limit.
    /// the table for so many ranks, not run
    #[arg(long, value_name = "RANKS", value_parser = simulated)]
    pub simulate: Option<usize>,
    /// of --tcp (which it implies) or --simulate: so many on a host
    #[arg(long, value_name = "RANKS", value_parser = at_least_one)]
    pub ranks_per_host: Option<usize>,
    /// as alpha=2us,beta=12.5GB/s (the default)
    #[arg(long, value_name = "SPEC")]
    pub network: Option<String>,
    /// replay a model's gradients: name count type
    #[arg(long, value_name = "FILE")]
    pub trace: Option<String>,
    // What torch's DistributedDataParallel ships: 25 MiB buckets, the first of 1 MiB.
    /// gradient bucket (default 25M)
    #[arg(long = "bucket", value_name = "BYTES", value_parser = some_bytes)]
    #[arg(default_value = "25M", hide_default_value = true)]
    pub bucket_bytes: usize,
    /// the first bucket (default 1M)
    #[arg(long = "first_bucket", value_name = "BYTES", value_parser = some_bytes)]
    #[arg(default_value = "1M", hide_default_value = true)]
    pub first_bucket_bytes: usize,
    #[arg(long = "inject-fault", value_name = "RANK:CALL:BYTE", hide = true)]
    pub fault: Option<String>,
    // The run has to end so soon, whatever is left out.
    #[arg(long = "time-left", value_name = "MS", value_parser = milliseconds, hide = true)]
    pub time_left: Option<Duration>,
    // Set in a child: which process of the job it is, and its inherited descriptors.
    #[arg(long = "rank-process", value_name = "INDEX:BOARD:REPORT", hide = true)]
    #[arg(value_parser = rank_process)]
    pub child: Option<Child>,
    // The long names of the options that were given.
    #[arg(skip)]
    pub given: Vec<String>,
    // The arguments as given, for the report and for the children.
    #[arg(skip)]
    pub arguments: Vec<String>,
}

impl Default for Options {
    /// As without arguments, but for the time that such a run may take.
    fn default() -> Options {
        let options = Options { time_left: None, ..Options::parse_from(["ring-perf"]) };
        options.finished().expect("the defaults go together")
    }
}

/// Of the 20 s of a run without arguments: starting processes, and what is begun last, take the
/// rest.
const DEFAULT_RUN: Duration = Duration::from_secs(17);

impl Options {
    /// The time for a placement of a row.
    pub fn budget(&self) -> Duration {
        Duration::from_millis(self.budget_ms)
    }

    /// The sizes of the scan, in bytes.
    pub fn sizes(&self) -> Sizes {
        let least = self.min_bytes.unwrap_or(self.max_bytes.map_or(8, |most| most.min(8)));
        // 64 MiB: past every cache of today's machines, and a gradient's usual upper end.
        let most = self.max_bytes.unwrap_or(least.max(64 << 20));
        Sizes::new(least, most, self.progression)
    }

    /// With what several options amount to, where they go together.
    fn finished(mut self) -> Result<Options, String> {
        self.progression = Progression::new(self.step_factor, self.step_bytes)?;
        for names in std::mem::take(&mut self.named) {
            match names.len() {
                1 => self.operations.extend(names),
                _ => self.operations = names,
            }
        }
        let others = self.operations.iter().any(|operation| *operation != Operation::AllReduce);
        if self.trace.is_some() && others {
            return Err("--trace replays all-reduces: leave the operations out".into());
        }
        if self.operations.is_empty() {
            self.operations.push(Operation::AllReduce);
        }
        self.timeout_ms = self.timeout_ms.filter(|timeout_ms| *timeout_ms > 0);
        self.register |= self.local_register == Some(true);
        self.csv = self.csv.or(self.csv_file.take());
        self.out_of_place = self.placement != "in";
        self.in_place = self.placement != "out";
        // Hosts that are measured are there; the others are simulated.
        self.tcp |= self.ranks_per_host.is_some() && self.simulate.is_none();
        self.consistent()?;
        Ok(self)
    }
}

fn command() -> Command {
    let known: Vec<_> =
        Operation::ALL.map(Operation::name).chunks(8).map(|names| names.join(" ")).collect();
    // With a number, nccl-tests' -V is another option.
    let version = Arg::new("version").long("version").action(ArgAction::Version);
    Options::command()
        .mut_arg("named", |arg| {
            arg.help(format!("what to measure: all, or of\n{}", known.join("\n")))
        })
        .args(nccl_tests::arguments())
        .arg(version.help("print version; -V alone, too"))
}

/// The options that the arguments ask for; or what to print in their place, with an exit status.
pub fn parse(arguments: &[String]) -> Result<Options, clap::Error> {
    let mut command = command();
    let refused = |command: &mut Command, text| command.error(ErrorKind::ValueValidation, text);
    let words = if *arguments == ["-V"] {
        vec!["--version".to_string()]
    } else {
        joined(arguments).map_err(|text| refused(&mut command, text))?
    };
    let program = std::iter::once("ring-perf".to_string());
    let matches = command.try_get_matches_from_mut(program.chain(words))?;
    let mut options = Options::from_arg_matches(&matches)?;
    let is_given =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    options.given = command
        .get_arguments()
        .filter(is_given)
        .filter_map(Arg::get_long)
        .map(String::from)
        .collect();
    options.arguments = arguments.to_vec();
    // What runs without having been asked for anything takes less than 20 s.
    if arguments.is_empty() {
        options.time_left = Some(DEFAULT_RUN);
    }
    options.finished().map_err(|text| refused(&mut command, text))
}

/// The arguments, with a file behind `--csv` joined to it: any other word there is an operation.
fn joined(arguments: &[String]) -> Result<Vec<String>, String> {
    let is_file = |word: &&String| {
        !word.starts_with('-') && *word != "all" && Operation::parse(word).is_none()
    };
    let mut joined = Vec::new();
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        match rest.next_if(|word| argument == "--csv" && is_file(word)) {
            None => joined.push(argument.clone()),
            Some(file) => {
                is_no_slip(file)?;
                joined.push(format!("--csv={file}"));
            }
        }
    }
    Ok(joined)
}

/// Refuse a word that is rather an operation's name, mistyped, than a file's.
fn is_no_slip(word: &str) -> Result<(), String> {
    match nearest(word, &Operation::ALL.map(Operation::name)).filter(|_| !word.contains(['.', '/']))
    {
        None => Ok(()),
        Some(near) => Err(format!(
            "--csv {word}: did you mean {near}? For a file of that name write --csv={word}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> Result<Options, String> {
        let arguments: Vec<String> = arguments.iter().map(|text| text.to_string()).collect();
        parse(&arguments).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn nccl_tests_command_lines_mean_the_same() {
        let options = run(&["-b", "8", "-e128M", "-f", "4", "--nthreads=3", "-o", "max"]).unwrap();
        assert_eq!(options.sizes().next(), Some(8));
        assert_eq!(options.sizes().last(), Some(128 << 20));
        assert_eq!((options.threads, options.reductions[0]), (Some(3), ReduceOp::Max));
        // A factor above 1 wins, wherever it stands; 1 is the way to ask for steps.
        for (words, wanted) in [
            (&["-f", "4", "-i", "512"][..], Progression::Multiply(4)),
            (&["-i", "512", "-f", "4"], Progression::Multiply(4)),
            (&["-f", "1", "-i", "512"], Progression::Add(512)),
            (&["-f", "2", "-i", "0"], Progression::Multiply(2)),
        ] {
            assert_eq!(run(words).unwrap().progression, wanted, "{words:?}");
        }
    }

    #[test]
    fn what_nccl_tests_has_beyond_is_taken_where_it_is_off() {
        let off =
            "-y 0 -G 0 -C 0 -T 0 -N 1 -I 0 -K 0 -S 0 -M 0 -u 0 -D 0 -V 16 -x 0 -z 3 -R 0 -i 0";
        assert!(run(&off.split(' ').collect::<Vec<_>>()).is_ok());
        for (letter, on, instead) in [
            ("-y", "1", "no stream"),
            ("-G", "4", "-g replays a graph"),
            ("-C", "1", "-g"),
            ("-N", "0", "repeat"),
            ("-K", "5", "-w"),
            ("-S", "1", "time of day"),
            ("-M", "1", "ARCHITECTURE.md"),
            ("-u", "1", "alignment"),
            ("-D", "1", "--algo"),
            ("-V", "32", "-D"),
            ("-x", "2", "policy"),
            ("-R", "2", "-R 1"),
        ] {
            let error = run(&[letter, on]).unwrap_err();
            assert!(error.contains(instead), "{letter} {on}: {error}");
        }
        assert_eq!(run(&["-J", "rows.json"]).unwrap().json.as_deref(), Some("rows.json"));
        assert_eq!(run(&["-T", "5"]).unwrap().timeout_ms, Some(5000));
    }

    #[test]
    fn a_slip_is_answered_with_the_nearest_name() {
        let error = run(&["--minbyte", "8"]).unwrap_err();
        assert!(error.contains("'--minbytes'"), "{error}");
        let error = run(&["allreduce"]).unwrap_err();
        assert!(error.contains("did you mean all_reduce?"), "{error}");
        let error = run(&["-d", "flaot"]).unwrap_err();
        assert!(error.contains("did you mean float?"), "{error}");
        assert!(run(&["-b", "9", "-e", "8"]).is_err());
        let most = usize::MAX.to_string();
        let error = run(&["-t", &most, "--procs", &most]).unwrap_err();
        assert!(error.contains("ranks on one machine"), "{error}");
    }

    #[test]
    fn an_optional_value_does_not_swallow_an_operation() {
        let options = run(&["--csv", "broadcast"]).unwrap();
        assert_eq!(
            (options.csv, options.operations),
            (Some(Csv::Output), vec![Operation::Broadcast])
        );
        for words in [&["--csv", "a.csv"][..], &["--csv", "rows"], &["--csv=all_reduec"]] {
            let file = words[words.len() - 1].trim_start_matches("--csv=");
            assert_eq!(run(words).unwrap().csv, Some(Csv::File(file.into())));
        }
    }
}
