//! The command line's options and their defaults; the table that reads them is `option_table`.
//!
//! Every option is a row with a setter, so that parsing, the help text and the suggestions for a
//! mistyped name all read the same table.

use super::operation::Operation;
use super::sizes::{Progression, Sizes};
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

/// What the command line asked for.
#[derive(Clone, Debug)]
pub struct Options {
    pub operations: Vec<Operation>,
    pub min_bytes: Option<usize>,
    pub max_bytes: Option<usize>,
    pub step_bytes: Option<usize>,
    pub step_factor: Option<usize>,
    /// What the two of them amount to.
    pub progression: Progression,
    /// Exactly so many timed iterations; `None` fits them to the time budget.
    pub iterations: Option<usize>,
    /// `None`: five, fewer where they would eat the budget.
    pub warmup: Option<usize>,
    /// Calls per iteration, more than one as a group; the time is that of one call.
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
    /// Write every input anew before each block of calls, also where nothing is checked.
    pub rewrite: bool,
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
    pub tuning: Option<String>,
    pub save_tuning: Option<String>,
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
    /// Set in a child: which process of the job it is, and its inherited descriptors.
    pub child: Option<Child>,
    /// The options that were given, as they were written and by their long names.
    pub given: Vec<(String, &'static str)>,
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
            step_bytes: None,
            step_factor: None,
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
            rewrite: false,
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
            tuning: None,
            save_tuning: None,
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
            child: None,
            given: Vec::new(),
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
    pub fn sizes(&self) -> Sizes {
        let least = self.min_bytes.unwrap_or(self.max_bytes.map_or(8, |most| most.min(8)));
        // 64 MiB: past every cache of today's machines, and a gradient's usual upper end.
        let most = self.max_bytes.unwrap_or(least.max(64 << 20));
        Sizes::new(least, most, self.progression)
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
        // With a number, nccl-tests' -V is another option.
        if argument == "--version" || *arguments == ["-V"] {
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
            Takes::Perhaps(_) => match attached {
                Some(value) => value.into(),
                None => {
                    let free = |next: &&String| {
                        !next.starts_with('-') && *next != "all" && Operation::parse(next).is_none()
                    };
                    let word = rest.next_if(|next| free(next)).cloned().unwrap_or_default();
                    is_a_file(name, &word)?;
                    word
                }
            },
        };
        (entry.set)(&mut options, &value).map_err(|why| format!("{name} {value}: {why}"))?;
        options.given.push((name.into(), entry.long));
    }
    options.progression = Progression::new(options.step_factor, options.step_bytes)?;
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
    super::option_table::OPTIONS.iter().find(same).ok_or_else(|| {
        let shown = super::option_table::OPTIONS.iter().filter(|entry| !entry.help.is_empty());
        let names: Vec<&str> = shown.map(|entry| entry.long).chain(["help", "version"]).collect();
        let guess = match name.strip_prefix("--") {
            Some(long) => nearest(long, &names).map(|near| format!("; did you mean --{near}?")),
            None => None,
        };
        let help = "; ring-perf --help lists them all".to_string();
        format!("there is no option {name}{}", guess.unwrap_or(help))
    })
}

/// Refuse a word that is rather an operation's name, mistyped, than a file's.
fn is_a_file(option: &str, word: &str) -> Result<(), String> {
    let names: Vec<&str> = Operation::ALL.iter().map(|operation| operation.name()).collect();
    match nearest(word, &names).filter(|_| !word.contains(['.', '/'])) {
        None => Ok(()),
        Some(near) => Err(format!(
            "{option} {word}: did you mean {near}? For a file of that name write {option}={word}"
        )),
    }
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
