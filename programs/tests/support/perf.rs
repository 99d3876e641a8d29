//! ring-perf as a test runs it.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder of this test's own, gone with it.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ring-perf-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

pub fn ring_perf(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring-perf"))
        .args(arguments.split_whitespace())
        .output()
        .expect("ring-perf starts")
}

/// Run, and expect a status; gives standard output and standard error.
pub fn expect(status: i32, arguments: &str) -> (String, String) {
    let output = ring_perf(arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "ring-perf {arguments}\n{out}\n{err}");
    (out, err)
}

/// The rows of a table: their first field is a size.
pub fn rows(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() == 19 && fields[0].parse::<usize>().is_ok())
        .collect()
}

/// Small enough for any test machine.
pub const SMALL: &str = "--probe 0 --budget 1 -n 4 -w 1";
