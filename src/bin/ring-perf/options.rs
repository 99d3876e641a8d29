//! The command line: one table of options, nccl-tests' names first.
//!
//! Every option is a row with a setter, so that parsing, the help text and the suggestions for a
//! mistyped name all read the same table.

use crate::operation::Operation;
use ringcomm::nearest::nearest;
use ringcomm::types::{DataType, ReduceOp};
use std::time::Duration;

/// How the next size follows from the last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progression {
    Add(usize),
    Multiply(usize),
}

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

/// What the command line asked for.
#[derive(Clone, Debug)]
pub struct Options {
    pub operations: Vec<Operation>,
    pub min_bytes: Option<usize>,
    pub max_bytes: Option<usize>,
    pub progression: Progression,
    /// Exactly so many timed iterations; `None` fits them to the time budget.
    pub iterations: Option<usize>,
    /// `None`: five, fewer where they would eat the budget.
    pub warmup: Option<usize>,
    /// Calls per iteration; the time is that of one call.
    pub aggregate: usize,
    pub threads: Option<usize>,
    pub procs: Option<usize>,
    /// GPUs to put ranks on; none: host memory.
    pub gpus: usize,
    /// Ranks are on hosts of their own, so many on each, and between them is loopback TCP.
    pub tcp: bool,
    pub types: Vec<DataType>,
    pub reductions: Vec<ReduceOp>,
    pub roots: Roots,
    pub check: bool,
    pub parallel_init: bool,
    pub average: Average,
    pub timeout_ms: Option<u64>,
    pub json: Option<String>,
    pub csv: Option<Csv>,
    pub plot: Option<String>,
    pub compare: Option<String>,
    /// How much slower than the compared file a row may be, as a fraction.
    pub tolerance: f64,
    pub explain: bool,
    pub simulate: Option<usize>,
    pub ranks_per_host: Option<usize>,
    /// Of the simulation.
    pub network: Option<String>,
    pub trace: Option<String>,
    pub bucket_bytes: usize,
    pub first_bucket_bytes: usize,
    pub register: bool,
    pub algorithm: Option<String>,
    pub profile: Option<String>,
    pub save_profile: Option<String>,
    pub deterministic: bool,
    pub out_of_place: bool,
    pub in_place: bool,
    /// Milliseconds of wall time for one placement of one row.
    pub budget_ms: u64,
    /// The run has to end so soon, whatever is left out.
    pub time_left: Option<Duration>,
    pub rotate: Option<usize>,
    pub pin: Option<bool>,
    pub probe: bool,
    pub fault: Option<String>,
    pub naive: bool,
    /// Set in a child: which process of the job it is, and its inherited descriptors.
    pub child: Option<Child>,
    /// The arguments as given, for the report and for the children.
    pub arguments: Vec<String>,
}

/// What a rank process inherits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Child {
    pub process: usize,
    pub board: i32,
    pub report: i32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            operations: Vec::new(),
            min_bytes: None,
            max_bytes: None,
            progression: Progression::Multiply(2),
            iterations: None,
            warmup: None,
            aggregate: 1,
            threads: None,
            procs: None,
            gpus: 0,
            tcp: false,
            types: vec![DataType::Float32],
            reductions: vec![ReduceOp::Sum],
            roots: Roots::One(0),
            check: true,
            parallel_init: false,
            average: Average::Most,
            timeout_ms: None,
            json: None,
            csv: None,
            plot: None,
            compare: None,
            // Medians of one quiet machine repeat to a few percent; 15 % is a change, not noise.
            tolerance: 0.15,
            explain: false,
            simulate: None,
            ranks_per_host: None,
            network: None,
            trace: None,
            // What torch's DistributedDataParallel ships: 25 MiB buckets, the first of 1 MiB.
            bucket_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            register: false,
            algorithm: None,
            profile: None,
            save_profile: None,
            deterministic: false,
            out_of_place: true,
            in_place: true,
            // The default table has 96 cells: 60 ms each, and start-up, stay under 20 s.
            budget_ms: 60,
            time_left: None,
            rotate: None,
            pin: None,
            probe: true,
            fault: None,
            naive: false,
            child: None,
            arguments: Vec::new(),
        }
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
    pub fn sizes(&self) -> Vec<usize> {
        let least = self.min_bytes.unwrap_or(self.max_bytes.map_or(8, |most| most.min(8)));
        // 64 MiB: past every cache of today's machines, and a gradient's usual upper end.
        let most = self.max_bytes.unwrap_or(least.max(64 << 20));
        let mut sizes = Vec::new();
        let mut bytes = least;
        while bytes <= most {
            sizes.push(bytes);
            let next = match self.progression {
                Progression::Add(step) => bytes.saturating_add(step),
                Progression::Multiply(factor) => bytes.saturating_mul(factor).max(bytes + 1),
            };
            bytes = next;
        }
        sizes
    }

    /// Whether the ranks of this machine are counted.
    fn has_ranks(&self) -> bool {
        self.procs.is_some() || self.threads.is_some()
    }

    /// Refuse what makes no sense together.
    fn consistent(&self) -> Result<(), String> {
        if let (Some(least), Some(most)) = (self.min_bytes, self.max_bytes)
            && least > most
        {
            return Err(format!("-b {least} is larger than -e {most}: there is nothing to run"));
        }
        if self.compare.is_some() && self.simulate.is_some() {
            return Err("--compare needs measured times; it does not go with --simulate".into());
        }
        if self.tcp && self.simulate.is_some() {
            return Err("--tcp runs, --simulate does not: give one of them".into());
        }
        if let (Some(nranks), true) = (self.simulate, self.has_ranks()) {
            return Err(format!(
                "--simulate {nranks} says how many ranks there are: leave -t and --procs out"
            ));
        }
        if self.simulate.is_some() && self.trace.is_some() {
            return Err("--trace is measured; with --simulate give operations and sizes".into());
        }
        if self.network.is_some() && self.simulate.is_none() {
            return Err("--network describes what --simulate RANKS simulates: give both".into());
        }
        self.reduces_something()?;
        if self.save_profile.is_some() && (self.profile.is_some() || self.simulate.is_some()) {
            return Err(
                "--save-profile measures; it goes with neither --profile nor --simulate".into()
            );
        }
        let elsewhere = self.procs.is_some()
            || self.tcp
            || self.naive
            || self.simulate.is_some()
            || self.trace.is_some()
            || self.compare.is_some()
            || self.csv.is_some();
        if self.gpus > 0 && elsewhere {
            return Err(
                "-g measures ranks on GPUs as threads of one process, or as the processes of \
                 a launched job: it goes with -t, -d, -o, sizes, iterations and --json"
                    .into(),
            );
        }
        if self.naive && self.procs.is_some() {
            return Err("the naive endpoint works between threads only: use -t".into());
        }
        let ranks = self.procs.unwrap_or(1).saturating_mul(self.threads.unwrap_or(1));
        // A rank takes a thread, buffers and a set of connections: past this it is a typing error.
        if ranks > 1024 {
            return Err(format!("{ranks} ranks on one machine; use --simulate for such a job"));
        }
        Ok(())
    }

    /// Of types and reductions that are asked for by name, each goes with each.
    fn reduces_something(&self) -> Result<(), String> {
        let by_name = self.types != DataType::ALL && self.reductions.len() < ReduceOp::ALL.len();
        if !by_name || !self.operations.iter().any(|operation| operation.reduces()) {
            return Ok(());
        }
        let pairs = self.types.iter().flat_map(|data_type| {
            self.reductions.iter().map(move |reduction| (data_type, reduction))
        });
        match pairs.into_iter().find(|(data_type, reduction)| !reduction.supports(**data_type)) {
            None => Ok(()),
            Some((data_type, reduction)) => Err(format!(
                "{} has no {}: there is nothing to run",
                data_type.name(),
                reduction.name()
            )),
        }
    }

    /// Whether the root is a rank; of a launched job with so many ranks, where it is part of one.
    pub fn has_its_root(&self, launched: Option<usize>) -> Result<(), String> {
        let Roots::One(root) = self.roots else { return Ok(()) };
        let own = match (self.procs, self.threads) {
            (None, None) => 2,
            (procs, threads) => procs.unwrap_or(1).saturating_mul(threads.unwrap_or(1)),
        };
        let ranks = launched.or(self.simulate).unwrap_or(own);
        match root < ranks {
            true => Ok(()),
            false => Err(format!("-r {root}: there are {ranks} ranks, from 0")),
        }
    }
}

/// How an option takes a value.
#[derive(Clone, Copy, PartialEq)]
pub enum Takes {
    Nothing,
    Value(&'static str),
    Perhaps(&'static str),
}

/// One option of the table.
pub struct Entry {
    pub short: Option<char>,
    pub long: &'static str,
    pub takes: Takes,
    /// Empty: not shown in the help.
    pub help: &'static str,
    pub set: fn(&mut Options, &str) -> Result<(), String>,
}

/// What the arguments amount to.
pub enum Parsed {
    Run(Box<Options>),
    Help,
    Version,
}

pub fn parse(arguments: &[String]) -> Result<Parsed, String> {
    let mut options = Options { arguments: arguments.to_vec(), ..Options::default() };
    // What runs without having been asked for anything takes less than 20 s.
    options.time_left = arguments.is_empty().then_some(DEFAULT_RUN);
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        if matches!(argument.as_str(), "-h" | "--help") {
            return Ok(Parsed::Help);
        }
        if matches!(argument.as_str(), "-V" | "--version") {
            return Ok(Parsed::Version);
        }
        if !argument.starts_with('-') || argument == "-" {
            add_operation(&mut options, argument)?;
            continue;
        }
        let (name, attached) = split(argument);
        let entry = find(name)?;
        let value = match entry.takes {
            Takes::Nothing => match attached {
                Some(_) => return Err(format!("{name} takes no value")),
                None => String::new(),
            },
            Takes::Value(what) => {
                match attached.map(str::to_string).or_else(|| rest.next().cloned()) {
                    Some(value) => value,
                    None => return Err(format!("{name} needs {what}")),
                }
            }
            Takes::Perhaps(_) => attached.map(str::to_string).unwrap_or_else(|| {
                let free = |next: &&String| {
                    !next.starts_with('-') && *next != "all" && Operation::parse(next).is_none()
                };
                rest.next_if(|next| free(next)).cloned().unwrap_or_default()
            }),
        };
        (entry.set)(&mut options, &value).map_err(|why| format!("{name} {value}: {why}"))?;
    }
    let others = options.operations.iter().any(|operation| *operation != Operation::AllReduce);
    if options.trace.is_some() && others {
        return Err("--trace replays all-reduces: leave the operations out".into());
    }
    if options.operations.is_empty() {
        options.operations.push(Operation::AllReduce);
    }
    // Hosts that are measured are there; the others are simulated.
    options.tcp |= options.ranks_per_host.is_some() && options.simulate.is_none();
    options.consistent()?;
    Ok(Parsed::Run(Box::new(options)))
}

/// `--name=value` and `-nvalue` carry their value; the rest take the next argument.
fn split(argument: &str) -> (&str, Option<&str>) {
    if argument.starts_with("--") {
        match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument, None),
        }
    } else {
        let second = argument.char_indices().nth(2).map_or(argument.len(), |(at, _)| at);
        let value = &argument[second..];
        (&argument[..second], (!value.is_empty()).then_some(value))
    }
}

fn find(name: &str) -> Result<&'static Entry, String> {
    let same = |entry: &&Entry| match name.strip_prefix("--") {
        Some(long) => entry.long == long,
        None => entry.short.is_some_and(|short| name[1..].starts_with(short)),
    };
    crate::option_table::OPTIONS.iter().find(same).ok_or_else(|| {
        let shown = crate::option_table::OPTIONS.iter().filter(|entry| !entry.help.is_empty());
        let names: Vec<&str> = shown.map(|entry| entry.long).chain(["help", "version"]).collect();
        let guess = match name.strip_prefix("--") {
            Some(long) => nearest(long, &names).map(|near| format!("; did you mean --{near}?")),
            None => None,
        };
        let help = "; ring-perf --help lists them all".to_string();
        format!("there is no option {name}{}", guess.unwrap_or(help))
    })
}

fn add_operation(options: &mut Options, name: &str) -> Result<(), String> {
    if name == "all" {
        options.operations = Operation::ALL.to_vec();
        return Ok(());
    }
    match Operation::parse(name) {
        Some(operation) => options.operations.push(operation),
        None => {
            let names: Vec<&str> =
                Operation::ALL.iter().map(|operation| operation.name()).collect();
            let guess = nearest(name, &names).map(|near| format!("; did you mean {near}?"));
            let known = format!("; known: {}", names.join(" "));
            return Err(format!("there is no operation {name}{}", guess.unwrap_or(known)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> Result<Options, String> {
        let arguments: Vec<String> = arguments.iter().map(|text| text.to_string()).collect();
        match parse(&arguments)? {
            Parsed::Run(options) => Ok(*options),
            _ => panic!("not a run"),
        }
    }

    #[test]
    fn nccl_tests_command_lines_mean_the_same() {
        let options = run(&["-b", "8", "-e128M", "-f", "4", "--nthreads=3", "-o", "max"]).unwrap();
        assert_eq!(options.sizes().first(), Some(&8));
        assert_eq!(options.sizes().last(), Some(&(128 << 20)));
        assert_eq!((options.threads, options.reductions[0]), (Some(3), ReduceOp::Max));
    }

    #[test]
    fn a_slip_is_answered_with_the_nearest_name() {
        let error = run(&["--minbyte", "8"]).unwrap_err();
        assert!(error.contains("did you mean --minbytes?"), "{error}");
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
    fn what_has_no_effect_is_refused() {
        let refused = |arguments: &[&str], why: &str| {
            let error = run(arguments).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        refused(&["-d", "float", "-o", "band"], "float has no band");
        refused(&["all_reduce", "barrier", "-d", "bool", "-o", "avg"], "bool has no avg");
        refused(&["-d", "int,float", "-o", "sum,bor"], "float has no bor");
        refused(&["--network", "alpha=2"], "give both");
        refused(&["--plot", "x.png"], "must end in .svg");
        refused(&["allgatherv"], "did you mean all_gather_v?");
        assert!(run(&["-d", "all", "-o", "band"]).is_ok());
        assert!(run(&["-d", "float", "-o", "all"]).is_ok());
        assert!(run(&["barrier", "-d", "bool", "-o", "avg"]).is_ok());
    }

    #[test]
    fn an_optional_value_does_not_swallow_an_operation() {
        let options = run(&["--csv", "broadcast"]).unwrap();
        assert_eq!(
            (options.csv, options.operations),
            (Some(Csv::Output), vec![Operation::Broadcast])
        );
        let options = run(&["--csv", "a.csv"]).unwrap();
        assert_eq!(options.csv, Some(Csv::File("a.csv".into())));
    }
}
