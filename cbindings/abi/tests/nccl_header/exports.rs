//! What a library exports.

use std::collections::BTreeSet;
use std::process::Command;

pub fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// What NVIDIA's library exports beside: strong, with no twin, and in no header.
const ALONE: &str = "T ncclResetDebugInitInternal";

/// Where the symbols, as `nm` lists them, are not a weak `ncclX` and a strong `pncclX` for each
/// function X, and [`ALONE`].
pub fn differences<'a>(symbols: &str, functions: impl Iterator<Item = &'a str>) -> Vec<String> {
    let both = |function| [format!("W nccl{function}"), format!("T pnccl{function}")];
    let wanted: BTreeSet<String> = functions.flat_map(both).chain([ALONE.to_string()]).collect();
    let named = |line: &str| Some(line.split_once(' ')?.1.to_string());
    let had: BTreeSet<String> = symbols.lines().filter_map(named).collect();
    let lacking = wanted.difference(&had).map(|symbol| format!("it does not export {symbol}"));
    let surplus = had.difference(&wanted).map(|symbol| format!("it exports {symbol}"));
    lacking.chain(surplus).collect()
}
