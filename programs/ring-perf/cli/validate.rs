//! What makes no sense together on a command line, or nothing at all: refused, with the reason.

use super::options::{Csv, Options, Roots};
use ringcomm::algorithm::{Algorithm, serial_order};
use ringcomm::types::{DataType, ReduceOp};

/// Options that would change nothing beside others, by their long names.
struct Idle {
    beside: fn(&Options) -> bool,
    options: &'static [&'static str],
    why: &'static str,
}

const IDLE: &[Idle] = &[
    Idle {
        beside: |o| o.trace.is_some(),
        options: &["minbytes", "maxbytes", "stepbytes", "stepfactor", "datatype", "root"],
        why: "with --trace: its file says what is sent, and --bucket in which pieces",
    },
    Idle {
        beside: |o| o.trace.is_none(),
        options: &["bucket", "first_bucket"],
        why: "without --trace FILE: it is of that file's gradients",
    },
    Idle {
        beside: |o| o.simulate.is_some(),
        options: &[
            "iters",
            "warmup_iters",
            "agg_iters",
            "check",
            "average",
            "timeout",
            "local_register",
            "register",
            "placement",
            "parallel_init",
            "budget",
            "rotate",
            "rewrite",
            "pin",
            "probe",
            "net",
        ],
        why: "with --simulate: nothing is run and nothing is timed",
    },
    Idle {
        beside: |o| o.simulate.is_some(),
        options: &["tuning"],
        why: "with --simulate: give the constants of the network with --network",
    },
    Idle {
        beside: |o| o.compare.is_none(),
        options: &["tolerance"],
        why: "without --compare OLD.json",
    },
    Idle {
        beside: |o| o.csv == Some(Csv::Output),
        options: &["explain"],
        why: "with --csv, which has the output to itself: --json FILE has what it explains",
    },
];

impl Options {
    /// Refuse what makes no sense together.
    pub fn consistent(&self) -> Result<(), String> {
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
        if self.save_tuning.is_some() && (self.tuning.is_some() || self.simulate.is_some()) {
            return Err(
                "--save-tuning measures; it goes with neither --tuning nor --simulate".into()
            );
        }
        self.goes_with_gpus()?;
        let ranks = self.own_ranks();
        // A rank takes a thread, buffers and a set of connections: past this it is a typing error.
        if ranks > 1024 {
            return Err(format!("{ranks} ranks on one machine; use --simulate for such a job"));
        }
        self.has_several_hosts()?;
        self.has_one_order()?;
        self.all_have_an_effect()
    }

    /// With `--tcp` ranks reach others through sockets, which those of one host do not.
    fn has_several_hosts(&self) -> Result<(), String> {
        let (ranks, local) = (self.own_ranks(), self.ranks_per_host.unwrap_or(1));
        if !self.tcp || local < ranks {
            return Ok(());
        }
        let more = "more ranks with --procs or -t";
        Err(match ranks {
            1 => format!("--tcp: a rank alone has nobody to reach; give {more}"),
            _ => format!(
                "--ranks_per_host {local}: all {ranks} ranks are on one host, and nothing goes \
                 over TCP; give fewer for a host, or {more}"
            ),
        })
    }

    /// `--deterministic` wins over an algorithm of another order, which would not run.
    fn has_one_order(&self) -> Result<(), String> {
        let Some(name) = self.algorithm.as_ref().filter(|_| self.deterministic) else {
            return Ok(());
        };
        let asked = Algorithm::from_name(name).map_err(|error| format!("--algo: {error}"))?;
        let mut collectives = self.operations.iter().filter_map(|operation| operation.collective());
        match collectives.all(|collective| serial_order(asked, collective)) {
            true => Ok(()),
            false => Err(format!(
                "--algo {name} does not reduce in rank order, as --deterministic has it: give one \
                 of them"
            )),
        }
    }

    /// The ranks of this machine, where the command line is not part of a job.
    fn own_ranks(&self) -> usize {
        match (self.procs, self.threads) {
            (None, None) => 2,
            (procs, threads) => procs.unwrap_or(1).saturating_mul(threads.unwrap_or(1)),
        }
    }

    /// Whether the ranks of this machine are counted.
    fn has_ranks(&self) -> bool {
        self.procs.is_some() || self.threads.is_some()
    }

    /// The table of GPUs is one of its own.
    fn goes_with_gpus(&self) -> Result<(), String> {
        let elsewhere = self.procs.is_some()
            || self.tcp
            || self.simulate.is_some()
            || self.trace.is_some()
            || self.compare.is_some()
            || self.csv.is_some();
        // Not looked at there.
        let idle = self.aggregate > 1
            || self.register
            || self.rewrite
            || self.deterministic
            || self.explain
            || self.plot.is_some()
            || self.tuning.is_some()
            || self.pin.is_some()
            || !(self.in_place && self.out_of_place);
        if self.gpus > 0 && (elsewhere || idle) {
            return Err(
                "-g measures ranks on GPUs as threads of one process, or as the processes of \
                 a launched job: it goes with -t, -d, -o, sizes, iterations and --json"
                    .into(),
            );
        }
        Ok(())
    }

    /// An option that changes nothing is a misunderstanding, which a table must not hide.
    fn all_have_an_effect(&self) -> Result<(), String> {
        let idle = IDLE.iter().filter(|idle| (idle.beside)(self)).find_map(|idle| {
            let is_one = |name: &&String| idle.options.contains(&name.as_str());
            self.given.iter().find(is_one).map(|name| (name, idle.why))
        });
        idle.map_or(Ok(()), |(name, why)| Err(format!("--{name} has no effect {why}")))
    }

    /// Of types and reductions that are asked for by name, each goes with each. The types of a
    /// trace are in its file.
    fn reduces_something(&self) -> Result<(), String> {
        let by_name = self.types != DataType::ALL && self.names_reductions();
        if self.trace.is_some()
            || !by_name
            || !self.operations.iter().any(|operation| operation.reduces())
        {
            return Ok(());
        }
        self.types.iter().try_for_each(|data_type| self.all_reduce_on(*data_type))
    }

    /// Whether reductions were asked for by name: all that a type lacks is left out of all.
    pub fn names_reductions(&self) -> bool {
        self.reductions.len() < ReduceOp::ALL.len()
    }

    /// Refuse a type that one of the reductions does not exist for.
    pub fn all_reduce_on(&self, data_type: DataType) -> Result<(), String> {
        match self.reductions.iter().find(|reduction| !reduction.supports(data_type)) {
            None => Ok(()),
            Some(reduction) => Err(format!(
                "{} has no {}: there is nothing to run",
                data_type.name(),
                reduction.name()
            )),
        }
    }

    /// Whether the root is a rank; of a launched job with so many ranks, where it is part of one.
    pub fn has_its_root(&self, launched: Option<usize>) -> Result<(), String> {
        let Roots::One(root) = self.roots else { return Ok(()) };
        let ranks = launched.or(self.simulate).unwrap_or(self.own_ranks());
        match root < ranks {
            true => Ok(()),
            false => Err(format!("-r {root}: there are {ranks} ranks, from 0")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::options::{Options, parse};

    fn run(arguments: &str) -> Result<Options, String> {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_string).collect();
        parse(&arguments).map_err(|refusal| refusal.to_string())
    }

    fn refused(arguments: &str, why: &str) {
        let error = run(arguments).expect_err(arguments);
        assert!(error.contains(why), "{arguments}: {error}");
    }

    #[test]
    fn what_has_no_effect_is_refused() {
        refused("-d float -o band", "float has no band");
        refused("all_reduce barrier -d bool -o avg", "bool has no avg");
        refused("-d int,float -o sum,bor", "float has no bor");
        refused("--network alpha=2", "give both");
        refused("--plot x.png", "must end in .svg");
        refused("allgatherv", "did you mean all_gather_v?");
        assert!(run("-d all -o band").is_ok());
        assert!(run("-d float -o all").is_ok());
        assert!(run("barrier -d bool -o avg").is_ok());
    }

    #[test]
    fn a_trace_says_what_is_sent() {
        for option in ["-b 8", "-e 8", "-i 8", "-f 2", "-d half", "-r 0", "--minbytes=8"] {
            refused(&format!("--trace model.txt {option}"), "has no effect with --trace");
        }
        assert!(run("--trace model.txt -o sum,max --bucket 1M --first_bucket 64K -n 3").is_ok());
        for option in ["--bucket 1M", "--first_bucket 1M"] {
            refused(option, "has no effect without --trace");
        }
    }

    #[test]
    fn a_simulation_times_nothing() {
        for option in [
            "-n 5",
            "-w 5",
            "-m 2",
            "-c 1",
            "-a 1",
            "-T 5",
            "-R 1",
            "-p 1",
            "--register",
            "--pin 0",
            "--rotate 3",
            "--rewrite",
            "--budget 50",
            "--probe 0",
            "--placement in",
            "--tuning x",
        ] {
            refused(&format!("--simulate 8 {option}"), "has no effect with --simulate");
        }
        assert!(run("all --simulate 8 -b 8 -e 1K -f 2 -d half -o max -r 1 --algo ring").is_ok());
    }

    #[test]
    fn neither_the_tolerance_nor_the_explanation_is_taken_for_nothing() {
        refused("--tolerance 0.1", "has no effect without --compare");
        refused("--csv --explain", "has no effect with --csv");
        assert!(run("--csv rows.csv --explain --compare old.json --tolerance 0.1").is_ok());
    }

    #[test]
    fn gpus_have_a_table_of_their_own() {
        for option in
            ["-m 4", "-R 1", "--explain", "--placement in", "--pin 1", "--tuning x", "--rewrite"]
        {
            refused(&format!("-g 1 {option}"), "it goes with -t, -d, -o");
        }
        assert!(run("-g 1 -t 4 -m 1 -R 0 -n 3 -w 1 -c 0 -d all -o all --json rows.json").is_ok());
    }
}
