//! `ringrun --status`: asks every rank of a job on this machine what it is doing.
//!
//! A process answers at a socket of its own in its agent's folder, also while its calls hang; one
//! that is stopped does not, and is named.

use crate::agent::status_dir::{self, JobFolder};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What of the ranks is wanted.
#[derive(Clone, Debug, PartialEq, clap::Parser)]
pub struct Wanted {
    /// a job's name, or a process of it: ringrun, an agent or a rank (default: the newest job)
    #[arg(value_name = "JOB|PID")]
    pub job: Option<String>,
    /// print everything that the ranks tell, as JSON
    #[arg(long)]
    pub json: bool,
    /// write what the ranks did last, for Perfetto
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// How long a process has to answer; one that runs at all takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);

/// One process's answer, or why there is none.
type Answer = (u32, Result<String, String>);

/// Answer; the text to print.
pub fn answer(wanted: &Wanted) -> Result<String, String> {
    let all = status_dir::all();
    let newest = all.first().ok_or_else(|| match &wanted.job {
        Some(name) => format!("no job {name} of yours runs on this machine, nor any other"),
        None => "no job of yours runs on this machine".into(),
    })?;
    let chosen = match &wanted.job {
        None => newest,
        Some(name) => {
            let names: Vec<&str> = all.iter().map(|found| found.job.as_str()).collect();
            all.iter().find(|found| is_meant(found, name)).ok_or_else(|| {
                format!("no job {name} of yours runs on this machine; there is {}", list(&names))
            })?
        }
    };
    let sockets: Vec<PathBuf> =
        all.iter().filter(|found| found.job == chosen.job).flat_map(sockets).collect();
    let quiet = "no rank has a communicator yet".to_string();
    if let Some(path) = &wanted.trace {
        let text = trace(&ask(&sockets, "events"));
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        return Ok(format!("the trace is in {}; open it in ui.perfetto.dev", path.display()));
    }
    if wanted.json {
        return Ok(dump(&chosen.job, &ask(&sockets, "dump")));
    }
    let mut text = format!("job {}\n", chosen.job);
    text += &if sockets.is_empty() { quiet } else { table(&ask(&sockets, "table")) };
    let mut others: Vec<&str> = all.iter().map(|found| found.job.as_str()).collect();
    others.retain(|job| *job != chosen.job);
    others.dedup();
    if !others.is_empty() && wanted.job.is_none() {
        let _ = write!(text, "\nalso running: {}; see ringrun --status JOB", list(&others));
    }
    Ok(text)
}

fn list(names: &[&str]) -> String {
    names.join(", ")
}

/// Whether a job's folder is the one meant by its name or by a process.
fn is_meant(found: &JobFolder, name: &str) -> bool {
    let parent = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", found.agent)).ok()?;
        // The name in parentheses may hold anything; the parent is the second field after it.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1).map(str::to_string)
    };
    found.job == name
        || found.agent.to_string() == name
        || found.path.join(format!("rank.{name}")).exists()
        || parent().as_deref() == Some(name)
}

fn sockets(found: &JobFolder) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(&found.path).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| pid_of(path).is_some()).collect();
    paths.sort();
    paths
}

fn pid_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix("rank.")?.parse().ok()
}

/// Ask all of them at once.
fn ask(sockets: &[PathBuf], question: &str) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let asked: Vec<_> =
            sockets.iter().map(|path| scope.spawn(move || ask_one(path, question))).collect();
        let pids = sockets.iter().map(|path| pid_of(path).unwrap_or(0));
        pids.zip(asked)
            .map(|(pid, asked)| (pid, asked.join().unwrap_or_else(|_| Err("no answer".into()))))
            .collect()
    })
}

fn ask_one(path: &Path, question: &str) -> Result<String, String> {
    let mut socket = UnixStream::connect(path).map_err(|_| "it has ended".to_string())?;
    let silent = |_| format!("no answer within {} s: is it stopped?", PATIENCE.as_secs());
    socket.set_write_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
    socket.write_all(format!("{question}\n").as_bytes()).map_err(silent)?;
    let (until, mut text) = (Instant::now() + PATIENCE, Vec::new());
    let mut part = [0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left)).map_err(|error| error.to_string())?;
        match socket.read(&mut part).map_err(silent)? {
            0 => return String::from_utf8(text).map_err(|error| error.to_string()),
            count => text.extend_from_slice(&part[..count]),
        }
    }
}

const TITLES: [&str; 10] = [
    "RANK",
    "HOST",
    "PID",
    "COMMUNICATOR",
    "MEMBER",
    "NUMBER",
    "STATE",
    "WAITS FOR",
    "SINCE",
    "CALL",
];

/// All rows, by rank, in columns. A failure has a line of its own below.
fn table(answers: &[Answer]) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut notes = Vec::new();
    for (pid, answer) in answers {
        match answer {
            Ok(text) => {
                for line in text.lines() {
                    let mut fields: Vec<String> = line.split('\t').map(str::to_string).collect();
                    fields.resize(TITLES.len() + 1, String::new());
                    if let Some(failure) = fields.pop().filter(|failure| !failure.is_empty()) {
                        notes.push(format!("rank {}: {failure}", fields[0]));
                    }
                    if fields[7] != "-" {
                        fields[7] = format!("rank {}", fields[7]);
                    }
                    fields[8] = duration(&fields[8]);
                    rows.push(fields);
                }
            }
            Err(why) => notes.push(format!("pid {pid}: {why}")),
        }
    }
    rows.sort_by_key(|fields| (fields[0].parse::<usize>().unwrap_or(0), fields[3].clone()));
    rows.insert(0, TITLES.map(str::to_string).to_vec());
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..TITLES.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let fields = row.iter().zip(&widths).map(|(field, width)| format!("{field:width$}"));
        fields.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).chain(notes).collect::<Vec<_>>().join("\n")
}

/// Milliseconds as people read them.
fn duration(milliseconds: &str) -> String {
    match milliseconds.parse::<u64>() {
        Ok(ms) if ms < 1000 => format!("{ms} ms"),
        Ok(ms) if ms < 100_000 => format!("{:.1} s", ms as f64 / 1000.0),
        Ok(ms) => format!("{} s", ms / 1000),
        Err(_) => "-".into(),
    }
}

/// One document of all that answered, and the processes that did not.
fn dump(job: &str, answers: &[Answer]) -> String {
    let read = |text: &String| serde_json::from_str::<Value>(text).ok();
    let mut processes = Vec::new();
    let mut silent = Vec::new();
    for (pid, answer) in answers {
        // What is no JSON is no answer.
        match answer.as_ref().ok().and_then(read) {
            Some(told) => processes.push(told),
            None => silent.push(pid),
        }
    }
    json!({ "job": job, "processes": processes, "silent": silent }).to_string()
}

fn trace(answers: &[Answer]) -> String {
    let read = |text: &String| serde_json::from_str::<Vec<Value>>(&format!("[{text}]")).ok();
    let events = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok().and_then(read));
    let events: Vec<Value> = events.flatten().collect();
    json!({ "displayTimeUnit": "ns", "traceEvents": events }).to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_by_rank_and_who_is_silent_is_named() {
        let row = |rank: usize| {
            format!("{rank}\thost\t10{rank}\tabcd\t{rank}/2\t3\twaiting\t1\t1500\tBarrier()\t\n")
        };
        let silent = (7, Err("no answer".to_string()));
        let text = table(&[(101, Ok(row(1))), silent, (100, Ok(row(0)))]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("RANK  HOST"), "{text}");
        assert!(lines[1].starts_with("0     host  100"), "{text}");
        assert!(lines[2].ends_with("waiting  rank 1     1.5 s  Barrier()"), "{text}");
        assert_eq!(lines[3], "pid 7: no answer");
    }
}
