//! The options themselves, in the order of the help text.

use super::options::{Average, Child, Csv, Entry, Options, Roots, Takes};
use ringcomm::suggest::nearest;
use ringcomm::types::{DataType, ReduceOp};
use std::fmt::Write;
use std::time::Duration;

use Takes::{Nothing, Perhaps, Value};

/// One row; `short` is a letter or a blank.
const fn row(
    short: char,
    long: &'static str,
    takes: Takes,
    help: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
) -> Entry {
    let short = if short == ' ' { None } else { Some(short) };
    Entry { short, long, takes, help, set }
}

pub static OPTIONS: &[Entry] = &[
    row('b', "minbytes", Value("BYTES"), "smallest size (default 8)", |o, v| {
        size(v).map(|bytes| o.min_bytes = Some(bytes))
    }),
    row('e', "maxbytes", Value("BYTES"), "largest size (default 64M)", |o, v| {
        size(v).map(|bytes| o.max_bytes = Some(bytes))
    }),
    row('i', "stepbytes", Value("BYTES"), "add this to get the next size, unless -f", |o, v| {
        size(v).map(|step| o.step_bytes = Some(step))
    }),
    row('f', "stepfactor", Value("N"), "multiply by this (default 2; 1: go by -i)", |o, v| {
        number(v).map(|factor| o.step_factor = Some(factor))
    }),
    row('n', "iters", Value("N"), "timed iterations (default: by --budget)", |o, v| {
        at_least(number(v)?, 1).map(|count| o.iterations = Some(count))
    }),
    row('w', "warmup_iters", Value("N"), "untimed iterations before them (default 5)", |o, v| {
        number(v).map(|count| o.warmup = Some(count))
    }),
    row(
        'm',
        "agg_iters",
        Value("N"),
        "calls per iteration, in a group but ping_pong (default 1)",
        |o, v| buffers(number(v)?).map(|count| o.aggregate = count),
    ),
    row('t', "nthreads", Value("N"), "ranks as threads of a process", |o, v| {
        at_least(number(v)?, 1).map(|count| o.threads = Some(count))
    }),
    row(' ', "procs", Value("N"), "ranks as processes (times -t)", |o, v| {
        at_least(number(v)?, 1).map(|count| o.procs = Some(count))
    }),
    row(' ', "tcp", Nothing, "every rank as a host of its own: loopback TCP", |o, _| {
        o.tcp = true;
        Ok(())
    }),
    row('g', "ngpus", Value("N"), "GPUs, with -t ranks on each (0: host memory)", |o, v| {
        number(v).map(|count| o.gpus = count)
    }),
    row('d', "datatype", Value("TYPE|all"), "element type (default float)", data_types),
    row('o', "op", Value("OP|all"), "reduction (default sum)", reductions),
    row('r', "root", Value("RANK|all"), "root (default 0)", |o, v| {
        o.roots = if v == "all" { Roots::All } else { Roots::One(number(v)?) };
        Ok(())
    }),
    row('c', "check", Value("N"), "0: check none, call on zeros in place (default 1)", |o, v| {
        // nccl-tests takes a number of checks here.
        v.parse().map(|checks: u32| o.check = checks > 0).map_err(|_| "is not a number".into())
    }),
    row('p', "parallel_init", Value("0|1"), "threads join one by one by id (default 0)", |o, v| {
        switch(v).map(|on| o.parallel_init = on)
    }),
    row('z', "blocking", Value("0|1|2|3"), "no effect: host calls return when done", |_, v| {
        only(v, &["0", "1", "2", "3"], "use 0, 1, 2 or 3")
    }),
    row('a', "average", Value("0|1|2|3"), "time of rank 0, mean, min, max (default 3)", |o, v| {
        let all = [Average::RankZero, Average::Mean, Average::Least, Average::Most];
        o.average = *all.get(number(v)?).ok_or("0 rank 0, 1 mean, 2 min or 3 max")?;
        Ok(())
    }),
    row('T', "timeout", Value("SECONDS"), "fail what waits longer (0: the default)", |o, v| {
        let seconds = Some(number(v)? as u64).filter(|seconds| *seconds > 0);
        o.timeout_ms = seconds.map(|seconds| seconds.saturating_mul(1000));
        Ok(())
    }),
    row('R', "local_register", Value("0|1"), "as --register", |o, v| {
        only(v, &["0", "1"], "what is registered is mapped by every process: use 0 or -R 1")?;
        o.register = v == "1";
        Ok(())
    }),
    row('I', "per_iter_timing", Value("0|1"), "no effect: min and p99 are always shown", |_, v| {
        switch(v).map(|_| ())
    }),
    row('J', "output_file", Value("FILE"), "as --json FILE", |o, v| {
        o.json = Some(v.into());
        Ok(())
    }),
    row('G', "cudagraph", Value("0"), "-g replays a graph for every row", |_, v| {
        only(v, &["0"], "-g replays a graph for every row; host calls have none: use 0")
    }),
    row('C', "report_cputime", Value("0"), "with -g --json has the host's part", |_, v| {
        only(v, &["0"], "--json with -g has the host's part of a call as eager_us: use 0")
    }),
    row('y', "stream_null", Value("0"), "host calls have no stream", |_, v| {
        only(v, &["0"], "host calls have no stream, with -g every rank has its own: use 0")
    }),
    row('N', "run_cycles", Value("1"), "repeat the command instead", |_, v| {
        only(v, &["1"], "the table is measured once; repeat the command, and --compare: use 1")
    }),
    row('K', "per_iter_skip", Value("0"), "-w leaves out the first iterations", |_, v| {
        only(v, &["0"], "-w leaves out the first iterations: use 0")
    }),
    row('S', "report_timestamps", Value("0"), "rows have no time of day", |_, v| {
        only(v, &["0"], "rows have no time of day: use 0")
    }),
    row('M', "memory", Value("0"), "ARCHITECTURE.md, Memory, says what it takes", |_, v| {
        only(v, &["0"], "ARCHITECTURE.md, \"Memory\", says what a communicator takes: use 0")
    }),
    row('u', "unalign", Value("0"), "buffers begin at a cache line or a page", |_, v| {
        only(v, &["0"], "buffers begin at a cache line or a page, no other alignment: use 0")
    }),
    row('D', "device_implementation", Value("0"), "--algo forces an algorithm", |_, v| {
        only(v, &["0"], "kernels cannot be exchanged, --algo forces an algorithm: use 0")
    }),
    row('V', "device_cta_count", Value("16"), "goes with another -D than 0", |_, v| {
        only(v, &["16"], "it goes with another -D than 0, which there is not: use 16")
    }),
    row('x', "cta_policy", Value("0"), "there is one policy", |_, v| {
        only(v, &["0"], "there is one policy, the library's own: use 0")
    }),
    row(' ', "register", Nothing, "register the buffers: zero copy between processes", |o, _| {
        o.register = true;
        Ok(())
    }),
    row(' ', "algo", Value("NAME"), "force an algorithm where it exists", |o, v| {
        o.algorithm = Some(v.into());
        Ok(())
    }),
    row(' ', "tuning", Value("FILE"), "constants of the cost model, from a file", |o, v| {
        o.tuning = Some(v.into());
        Ok(())
    }),
    row(
        ' ',
        "save-tuning",
        Value("FILE"),
        "measure these constants, write them, and end",
        |o, v| {
            o.save_tuning = Some(v.into());
            Ok(())
        },
    ),
    row(' ', "deterministic", Nothing, "reduce as the serial loop in rank order", |o, _| {
        o.deterministic = true;
        Ok(())
    }),
    row(' ', "placement", Value("both|out|in"), "default both; out where in is N/A", |o, v| {
        (o.out_of_place, o.in_place) = match v {
            "both" => (true, true),
            "out" => (true, false),
            "in" => (false, true),
            _ => return Err("use both, out or in".into()),
        };
        Ok(())
    }),
    row(' ', "rewrite", Nothing, "write every input anew before each block of calls", |o, _| {
        o.rewrite = true;
        Ok(())
    }),
    row(' ', "budget", Value("MS"), "time for each placement of a row (default 60)", |o, v| {
        at_least(number(v)?, 1).map(|ms| o.budget_ms = ms as u64)
    }),
    row(' ', "rotate", Value("N"), "result buffers used in turn (default: by size)", |o, v| {
        buffers(number(v)?).map(|count| o.rotate = Some(count))
    }),
    row(' ', "pin", Value("0|1"), "bind ranks to cores (default: if they fit)", |o, v| {
        switch(v).map(|on| o.pin = Some(on))
    }),
    row(' ', "probe", Value("0|1"), "measure memory and cores first (default 1)", |o, v| {
        switch(v).map(|on| o.probe = on)
    }),
    row(' ', "json", Value("FILE"), "write the rows and the machine's facts", |o, v| {
        o.json = Some(v.into());
        Ok(())
    }),
    row(' ', "csv", Perhaps("FILE"), "comma-separated values, in place of the table", csv),
    row('F', "csv_file", Value("FILE"), "as --csv FILE", csv),
    row(' ', "plot", Value("FILE.svg"), "draw time and busbw against size", |o, v| {
        o.plot = Some(v.into());
        if v.to_ascii_lowercase().ends_with(".svg") {
            Ok(())
        } else {
            Err("must end in .svg".into())
        }
    }),
    row(' ', "compare", Value("OLD.json"), "print ratios; exit 3 past the tolerance", |o, v| {
        o.compare = Some(v.into());
        Ok(())
    }),
    row(
        ' ',
        "tolerance",
        Value("FRACTION"),
        "how much slower is allowed (default 0.15)",
        |o, v| {
            let value: f64 = v.trim_end_matches('%').parse().map_err(|_| "is not a number")?;
            o.tolerance = if v.ends_with('%') { value / 100.0 } else { value };
            if o.tolerance >= 0.0 { Ok(()) } else { Err("must not be negative".into()) }
        },
    ),
    row(' ', "explain", Nothing, "algorithm, channels, chunks, predicted time", |o, _| {
        o.explain = true;
        Ok(())
    }),
    row(' ', "simulate", Value("RANKS"), "the table for so many ranks, not run", |o, v| {
        // The simulator's own limit.
        let ranks = at_least(number(v)?, 1)?;
        o.simulate = Some(ranks);
        if ranks <= 100_000 { Ok(()) } else { Err("at most 100000".into()) }
    }),
    row(
        ' ',
        "ranks_per_host",
        Value("RANKS"),
        "of --tcp (which it implies) or --simulate: so many on a host",
        |o, v| {
            o.ranks_per_host = Some(at_least(number(v)?, 1)?);
            Ok(())
        },
    ),
    row(' ', "network", Value("SPEC"), "as alpha=2us,beta=12.5GB/s (the default)", |o, v| {
        o.network = Some(v.into());
        Ok(())
    }),
    row(' ', "trace", Value("FILE"), "replay a model's gradients: name count type", |o, v| {
        o.trace = Some(v.into());
        Ok(())
    }),
    row(' ', "bucket", Value("BYTES"), "gradient bucket (default 25M)", |o, v| {
        at_least(size(v)?, 1).map(|bytes| o.bucket_bytes = bytes)
    }),
    row(' ', "first_bucket", Value("BYTES"), "the first bucket (default 1M)", |o, v| {
        at_least(size(v)?, 1).map(|bytes| o.first_bucket_bytes = bytes)
    }),
    row(' ', "inject-fault", Value("RANK:CALL:BYTE"), "", |o, v| {
        o.fault = Some(v.into());
        Ok(())
    }),
    row(' ', "time-left", Value("MS"), "", |o, v| {
        o.time_left = Some(Duration::from_millis(number(v)? as u64));
        Ok(())
    }),
    row(' ', "rank-process", Value("INDEX:BOARD:REPORT"), "", |o, v| {
        let parts: Vec<&str> = v.split(':').collect();
        let [process, board, report] = parts[..] else { return Err("three numbers".into()) };
        let number = |text: &str| number(text).map(|value| value as i32);
        let process = number(process)? as usize;
        o.child = Some(Child { process, board: number(board)?, report: number(report)? });
        Ok(())
    }),
];

fn data_types(options: &mut Options, text: &str) -> Result<(), String> {
    if text == "all" {
        options.types = DataType::ALL.to_vec();
        return Ok(());
    }
    options.types = text.split(',').map(data_type).collect::<Result<_, _>>()?;
    Ok(())
}

/// A type by its name, or by the other names that people use for it.
pub fn data_type(text: &str) -> Result<DataType, String> {
    let name = match text {
        "char" => "int8",
        "int" => "int32",
        "f16" | "float16" | "fp16" => "half",
        "bf16" => "bfloat16",
        "f32" | "float32" | "fp32" => "float",
        "f64" | "float64" | "fp64" => "double",
        other => other,
    };
    let names: Vec<&str> = DataType::ALL.iter().map(|data_type| data_type.name()).collect();
    DataType::ALL.into_iter().find(|data_type| data_type.name() == name).ok_or_else(|| {
        let known = format!("; known: {} all", names.join(" "));
        let guess = nearest(text, &names).map(|near| format!("; did you mean {near}?"));
        format!("there is no such type{}", guess.unwrap_or(known))
    })
}

/// The plain reductions and nccl-tests' `mulsum`.
fn all_reductions() -> Vec<ReduceOp> {
    ReduceOp::ALL.into_iter().chain([ReduceOp::PreMulSum]).collect()
}

fn reductions(options: &mut Options, text: &str) -> Result<(), String> {
    let all = all_reductions();
    if text == "all" {
        options.reductions = all;
        return Ok(());
    }
    let names: Vec<&str> = all.iter().map(|op| op.name()).collect();
    let one = |text: &str| {
        let name = if text == "mulsum" { "premulsum" } else { text };
        all.iter().find(|op| op.name() == name).copied().ok_or_else(|| {
            let known = format!("; known: {} all", names.join(" "));
            let guess = nearest(text, &names).map(|near| format!("; did you mean {near}?"));
            format!("there is no such reduction{}", guess.unwrap_or(known))
        })
    };
    options.reductions = text.split(',').map(one).collect::<Result<_, _>>()?;
    Ok(())
}

fn csv(options: &mut Options, file: &str) -> Result<(), String> {
    let file = Some(file).filter(|file| !file.is_empty());
    options.csv = Some(file.map_or(Csv::Output, |file| Csv::File(file.into())));
    Ok(())
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "is not a whole number".to_string())
}

fn at_least(value: usize, least: usize) -> Result<usize, String> {
    if value < least { Err(format!("must be at least {least}")) } else { Ok(value) }
}

/// Result buffers at most: every one of them is listed, so past this it is a typing error.
const MOST_BUFFERS: usize = 65_536;

/// A number of calls whose results all have buffers of their own.
fn buffers(count: usize) -> Result<usize, String> {
    match at_least(count, 1)? {
        count if count <= MOST_BUFFERS => Ok(count),
        _ => Err(format!("every call has a result buffer of its own: at most {MOST_BUFFERS}")),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("use 0 or 1".into()),
    }
}

/// Values that nccl-tests' option can have here; of any other, what there is instead.
fn only(text: &str, values: &[&str], instead: &str) -> Result<(), String> {
    if values.contains(&text) { Ok(()) } else { Err(instead.into()) }
}

/// A size in bytes with an optional K, M or G (powers of 1024); `1.5M` is allowed.
pub fn size(text: &str) -> Result<usize, String> {
    let upper = text.trim().to_ascii_uppercase();
    let plain = upper.trim_end_matches('B').trim_end_matches('I');
    let (digits, shift) = match plain.chars().last() {
        Some('K') => (&plain[..plain.len() - 1], 10),
        Some('M') => (&plain[..plain.len() - 1], 20),
        Some('G') => (&plain[..plain.len() - 1], 30),
        _ => (plain, 0),
    };
    let value: f64 = digits.parse().map_err(|_| "is not a size; write 8, 64K, 1.5M or 2G")?;
    let bytes = value * (1u64 << shift) as f64;
    // 2^53: whole numbers are exact in a double up to here.
    if !(0.0..9.0e15).contains(&bytes) {
        return Err("is not a size that a machine could hold".into());
    }
    Ok(bytes as usize)
}

pub fn help() -> String {
    let mut text = String::from(
        "ring-perf: measure and check collectives, with nccl-tests' options and columns\n\n\
         usage: ring-perf [OPERATION...] [OPTION...]\n\n\
         With no ranks given it is one rank of the job that a launcher (ringrun, torchrun,\n\
         mpirun, srun) started; without one it runs twice: 2 processes, then 2 threads.\n\n\
         operations: all",
    );
    let mut column = 15;
    for operation in super::operation::Operation::ALL {
        if column + operation.name().len() > 90 {
            text.push_str("\n           ");
            column = 11;
        }
        write!(text, " {}", operation.name()).expect("a string takes all");
        column += operation.name().len() + 1;
    }
    text.push_str("\n\noptions:\n");
    for entry in OPTIONS.iter().filter(|entry| !entry.help.is_empty()) {
        let short = entry.short.map_or("    ".to_string(), |short| format!("-{short}, "));
        let value = match entry.takes {
            Nothing => String::new(),
            Value(what) => format!(" {what}"),
            Perhaps(what) => format!(" [{what}]"),
        };
        let name = format!("{short}--{}{value}", entry.long);
        writeln!(text, "  {name:34} {}", entry.help).expect("a string takes all");
    }
    text.push_str(
        "\nexit status: 0 all right; 1 a wrong result or a failed run; 2 a bad option;\n\
         3 slower than --compare allows\n",
    );
    text
}
