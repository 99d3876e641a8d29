//! The values of options: what a word on the command line means, or why it means nothing.

use super::operation::Operation;
use super::options::{Average, Child, Csv, Roots};
use ringcomm::suggest::nearest;
use ringcomm::types::{DataType, ReduceOp};
use std::time::Duration;

/// What follows a name that is not known: the nearest, or all that are.
fn known(text: &str, names: &[&str], more: &str) -> String {
    let guess = nearest(text, names).map(|near| format!("; did you mean {near}?"));
    guess.unwrap_or_else(|| format!("; known: {}{more}", names.join(" ")))
}

pub fn operations(name: &str) -> Result<Vec<Operation>, String> {
    if name == "all" {
        return Ok(Operation::ALL.to_vec());
    }
    let operation = Operation::parse(name).ok_or_else(|| {
        let known = known(name, &Operation::ALL.map(Operation::name), "");
        format!("there is no operation {name}{known}")
    })?;
    Ok(vec![operation])
}

pub fn data_types(text: &str) -> Result<Vec<DataType>, String> {
    if text == "all" {
        return Ok(DataType::ALL.to_vec());
    }
    text.split(',').map(data_type).collect()
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
    DataType::ALL
        .into_iter()
        .find(|data_type| data_type.name() == name)
        .ok_or_else(|| format!("there is no such type{}", known(text, &names, " all")))
}

pub fn reductions(text: &str) -> Result<Vec<ReduceOp>, String> {
    // The plain reductions and nccl-tests' `mulsum`.
    let all: Vec<ReduceOp> = ReduceOp::ALL.into_iter().chain([ReduceOp::PreMulSum]).collect();
    if text == "all" {
        return Ok(all);
    }
    let names: Vec<&str> = all.iter().map(|op| op.name()).collect();
    let one = |text: &str| {
        let name = if text == "mulsum" { "premulsum" } else { text };
        all.iter()
            .find(|op| op.name() == name)
            .copied()
            .ok_or_else(|| format!("there is no such reduction{}", known(text, &names, " all")))
    };
    text.split(',').map(one).collect()
}

pub fn roots(text: &str) -> Result<Roots, String> {
    if text == "all" { Ok(Roots::All) } else { number(text).map(Roots::One) }
}

/// nccl-tests takes a number of checks; here there are some or none.
pub fn checks(text: &str) -> Result<bool, String> {
    text.parse().map(|checks: u32| checks > 0).map_err(|_| "is not a number".into())
}

pub fn average(text: &str) -> Result<Average, String> {
    let all = [Average::RankZero, Average::Mean, Average::Least, Average::Most];
    all.get(number(text)?).copied().ok_or("0 rank 0, 1 mean, 2 min or 3 max".into())
}

/// Seconds, in milliseconds.
pub fn seconds(text: &str) -> Result<u64, String> {
    Ok((number(text)? as u64).saturating_mul(1000))
}

pub fn milliseconds(text: &str) -> Result<Duration, String> {
    Ok(Duration::from_millis(number(text)? as u64))
}

pub fn registers(text: &str) -> Result<bool, String> {
    switch(text).map_err(|_| "what is registered is mapped by every process: use 0 or -R 1".into())
}

pub fn csv(file: &str) -> Result<Csv, String> {
    Ok(if file.is_empty() { Csv::Output } else { Csv::File(file.into()) })
}

pub fn svg(file: &str) -> Result<String, String> {
    let is_svg = file.to_ascii_lowercase().ends_with(".svg");
    if is_svg { Ok(file.into()) } else { Err("must end in .svg".into()) }
}

pub fn fraction(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('%').parse().map_err(|_| "is not a number")?;
    let value = if text.ends_with('%') { value / 100.0 } else { value };
    if value >= 0.0 { Ok(value) } else { Err("must not be negative".into()) }
}

/// Ranks of a simulation, which has a limit of its own.
pub fn simulated(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        ranks if ranks <= 1_000_000 => Ok(ranks),
        _ => Err("at most 1000000".into()),
    }
}

pub fn rank_process(text: &str) -> Result<Child, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let [process, board, report] = parts[..] else { return Err("three numbers".into()) };
    let descriptor = |text: &str| number(text).map(|value| value as i32);
    let (board, report) = (descriptor(board)?, descriptor(report)?);
    Ok(Child { process: number(process)?, board, report })
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "is not a whole number".to_string())
}

fn at_least(value: usize, least: usize) -> Result<usize, String> {
    if value < least { Err(format!("must be at least {least}")) } else { Ok(value) }
}

pub fn at_least_one(text: &str) -> Result<usize, String> {
    at_least(number(text)?, 1)
}

/// Result buffers at most: every one of them is listed, so past this it is a typing error.
const MOST_BUFFERS: usize = 65_536;

/// A number of calls whose results all have buffers of their own.
pub fn buffers(text: &str) -> Result<usize, String> {
    match at_least_one(text)? {
        count if count <= MOST_BUFFERS => Ok(count),
        _ => Err(format!("every call has a result buffer of its own: at most {MOST_BUFFERS}")),
    }
}

pub fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("use 0 or 1".into()),
    }
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

pub fn some_bytes(text: &str) -> Result<usize, String> {
    at_least(size(text)?, 1)
}
