//! The flight record for those who look on: as JSON, as a trace, as a line of a table.
//!
//! Everything here reads pages and nothing else, so it works from any thread, also while the rank
//! hangs. A record that is being written may show two operations mixed.

use crate::bootstrap::rendezvous;
use crate::communicator::call::rank_state::SETUP_OPERATIONS;
use crate::communicator::call::rank_state::{self, number, state_of};
use crate::cycle_counter;
use crate::error::Operation;
use crate::executor::control_block::{ControlBlock, Life, RECORDS, Record};
use crate::executor::links::Pages;
use crate::os::environment;
use crate::sync::atomic::Ordering::Relaxed;
use std::fmt::Write;

/// A communicator as onlookers see it.
#[derive(Clone)]
pub struct FlightDump {
    pub pages: Pages,
    /// Half of the number that messages carry: the same on all its ranks.
    pub number: u32,
}

/// One operation.
struct FlightRecord {
    operation: Operation,
    sequence: u64,
    fingerprint: u64,
    /// Clock ticks.
    started: u64,
    /// `None` where it runs or has failed.
    ended: Option<u64>,
    waiting_for: Option<usize>,
    waited_ms: u64,
    /// Steps done and all of them, as of its last long wait.
    progress: Option<(u32, u32)>,
}

impl FlightRecord {
    fn of(record: &Record) -> FlightRecord {
        let operation = rank_state::operation(record);
        FlightRecord {
            sequence: operation.sequence.unwrap_or(0),
            operation,
            fingerprint: record.fingerprint.load(Relaxed),
            started: record.started.load(Relaxed),
            ended: Some(record.ended.load(Relaxed)).filter(|ended| *ended > 0),
            waiting_for: record.waiting_for(),
            waited_ms: record.waited_ms(),
            progress: record.progress(),
        }
    }

    /// Steps done and all of them, as JSON. An operation that has ended has done them all.
    fn progress(&self) -> (String, String) {
        match self.progress {
            None => ("null".into(), "null".into()),
            Some((done, steps)) => {
                let done = if self.ended.is_some() { steps } else { done };
                (done.to_string(), steps.to_string())
            }
        }
    }

    fn waiting_for(&self) -> String {
        self.waiting_for.map_or("null".into(), |peer| peer.to_string())
    }

    /// The name of the call, and all about it, as JSON.
    fn described(&self) -> (String, String) {
        let name = self.operation.call.split('(').next().unwrap_or_default();
        let (done, steps) = self.progress();
        let arguments = format!(
            "{{\"call\":{},\"sequence\":{},\"fingerprint\":\"{:016x}\",\"complete\":{},\
             \"steps_done\":{done},\"steps\":{steps},\"waiting_for\":{},\"waited_ms\":{}}}",
            quote(&self.operation.call),
            self.sequence,
            self.fingerprint,
            self.ended.is_some(),
            self.waiting_for(),
            self.waited_ms
        );
        (quote(name), arguments)
    }

    fn json(&self, now: u64, tick: f64) -> String {
        let microseconds = |from: u64, to: u64| to.saturating_sub(from) as f64 * tick / 1000.0;
        let took = |ended: u64| format!("{:.3}", microseconds(self.started, ended));
        let (done, steps) = self.progress();
        format!(
            "{{\"sequence\":{},\"call\":{},\"fingerprint\":\"{:016x}\",\"age_us\":{:.1},\
             \"took_us\":{},\"steps_done\":{done},\"steps\":{steps},\"waiting_for\":{},\
             \"waited_ms\":{}}}",
            self.sequence,
            quote(&self.operation.call),
            self.fingerprint,
            microseconds(self.started, now),
            self.ended.map_or("null".into(), took),
            self.waiting_for(),
            self.waited_ms
        )
    }
}

/// The rank that a launcher gave this process.
pub fn launcher_rank() -> Option<usize> {
    rendezvous::launched(environment::variable).ok().map(|found| found.rank)
}

/// The name of an operation that has just begun, and all about it, as JSON.
pub fn described(record: &Record) -> (String, String) {
    FlightRecord::of(record).described()
}

/// Collectives in order, the user's alone.
fn collectives(page: &ControlBlock) -> Vec<FlightRecord> {
    let completed = page.completed();
    // The page is written by its rank alone, but in memory that its peers can write.
    // The oldest is there until another operation begins, which takes its place.
    let first = completed.saturating_sub(RECORDS as u64).max(SETUP_OPERATIONS);
    (first..=completed).filter_map(|sequence| page.record(sequence)).map(FlightRecord::of).collect()
}

/// Batches of messages in order.
fn batches(page: &ControlBlock) -> Vec<FlightRecord> {
    let mut all: Vec<FlightRecord> = page.batches().map(FlightRecord::of).collect();
    all.sort_by_key(|entry| entry.sequence);
    all
}

/// Text as a JSON string.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if (c as u32) < 0x20 => {
                let _ = write!(quoted, "\\u{:04x}", c as u32);
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Trace events as a whole file. The wall clock at time 0 is for those who compare machines.
pub fn trace(events: &str) -> String {
    let zero = cycle_counter::wall_us() - cycle_counter::monotonic_us();
    format!(
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"wall_us_at_0\":{zero:.0}}},\
         \"traceEvents\":[{events}]}}"
    )
}

impl FlightDump {
    /// The record of this rank and the state of all.
    pub fn dump(&self, failure: Option<String>) -> String {
        let pages = &self.pages;
        let rank = pages.rank;
        let (tick, now) = (cycle_counter::nanoseconds_per_tick(), cycle_counter::ticks());
        let mut json = format!("{{\"rank\":{rank},\"nranks\":{}", pages.nranks());
        let failure = failure.map_or("null".into(), |text| quote(&text));
        let _ = write!(json, ",\"communicator\":\"{:08x}\"", self.number);
        let _ = write!(json, ",\"failure\":{failure},\"ranks\":[");
        for peer in 0..pages.nranks() {
            let control = pages.of(peer);
            let comma = if peer == 0 { "" } else { "," };
            let _ = write!(
                json,
                "{comma}{{\"rank\":{peer},\"host\":{},\"pid\":{},\"completed\":{},\"state\":{}}}",
                quote(&control.host()),
                control.pid.load(Relaxed),
                number(control.completed()),
                quote(&state_of(control, peer))
            );
        }
        let page = pages.mine();
        let list = |entries: Vec<FlightRecord>| {
            entries.iter().map(|entry| entry.json(now, tick)).collect::<Vec<_>>().join(",")
        };
        let _ = write!(json, "],\"operations\":[{}]", list(collectives(page)));
        let _ = write!(json, ",\"batches\":[{}]", list(batches(page)));
        let waiting = page.open_batch().map(|_| quote(&state_of(page, rank)));
        let _ = write!(json, ",\"messages\":{}}}", waiting.unwrap_or("null".into()));
        json
    }

    /// The failure that its page tells of.
    pub fn failure(&self) -> Option<String> {
        let page = self.pages.mine();
        (page.life() == Life::Failed).then(|| page.failure().1)
    }

    /// Whether another rank is a thread of this process.
    pub fn is_threads(&self) -> bool {
        let pages = &self.pages;
        let who = |rank: usize| {
            let page = pages.of(rank);
            (page.pid.load(Relaxed), page.host())
        };
        let mut others = (0..pages.nranks()).filter(|rank| *rank != pages.rank);
        others.any(|rank| who(rank) == who(pages.rank))
    }

    /// The process that stands for this rank in a trace: the rank itself, unless the launcher
    /// numbers this process otherwise. Ranks that are threads have one each.
    pub fn trace_pid(&self) -> usize {
        let pages = &self.pages;
        if self.is_threads() {
            return pages.rank;
        }
        launcher_rank().unwrap_or(pages.rank)
    }

    /// The events that name the process and the track, without a comma at the end.
    pub fn names(&self) -> String {
        let (pages, page, process) = (&self.pages, self.pages.mine(), self.trace_pid());
        let pid = page.pid.load(Relaxed);
        let who = quote(&format!("rank {process} ({}, pid {pid})", page.host()));
        let number = self.number;
        let nranks = pages.nranks();
        let track = quote(&format!("communicator {number:08x}, rank {} of {nranks}", pages.rank));
        let event = |what: &str, track: String, name: &str| {
            format!(
                "{{\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{process}{track},\
                 \"args\":{{\"name\":{name}}}}}"
            )
        };
        event("process_name", String::new(), &who)
            + ","
            + &event("thread_name", format!(",\"tid\":{number}"), &track)
    }

    /// The record as trace events, separated by commas.
    pub fn events(&self) -> String {
        let page = self.pages.mine();
        let (tick, now) = (cycle_counter::nanoseconds_per_tick(), cycle_counter::ticks());
        let now_us = cycle_counter::monotonic_us();
        let mut events = self.names();
        let (process, track) = (self.trace_pid(), self.number);
        let mut entries = collectives(page);
        entries.extend(batches(page));
        entries.sort_by_key(|entry| entry.started);
        for entry in entries {
            let microseconds = |ticks: u64| ticks as f64 * tick / 1000.0;
            let began = now_us - microseconds(now.saturating_sub(entry.started));
            let took = microseconds(entry.ended.unwrap_or(now).saturating_sub(entry.started));
            let (name, arguments) = entry.described();
            let _ = write!(
                events,
                ",{{\"ph\":\"X\",\"name\":{name},\"cat\":\"ringcomm\",\"pid\":{process},\
                 \"tid\":{track},\"ts\":{began:.3},\"dur\":{took:.3},\"args\":{arguments}}}"
            );
        }
        events
    }

    /// A line of the table of all ranks: fields apart by tabs, in the order of the table's columns.
    pub fn row(&self) -> String {
        let (pages, page) = (&self.pages, self.pages.mine());
        let (state, entry) = self.doing();
        let (tick, now) = (cycle_counter::nanoseconds_per_tick(), cycle_counter::ticks());
        let since = |entry: &FlightRecord| {
            let at = entry.ended.unwrap_or(entry.started);
            (now.saturating_sub(at) as f64 * tick / 1e6) as u64
        };
        let dash = || "-".to_string();
        let fields = [
            self.trace_pid().to_string(),
            page.host(),
            page.pid.load(Relaxed).to_string(),
            format!("{:08x}", self.number),
            format!("{}/{}", pages.rank, pages.nranks()),
            entry.as_ref().map_or_else(dash, |entry| entry.sequence.to_string()),
            state,
            entry
                .as_ref()
                .and_then(|entry| entry.waiting_for)
                .map_or_else(dash, |peer| peer.to_string()),
            entry.as_ref().map_or_else(dash, |entry| since(entry).to_string()),
            entry.as_ref().map_or_else(dash, |entry| entry.operation.call.clone()),
            self.failure().unwrap_or_default(),
        ];
        fields.map(|field| field.replace(['\t', '\n'], " ")).join("\t") + "\n"
    }

    /// A word for what this rank is at, and the operation that it is in or was in last.
    fn doing(&self) -> (String, Option<FlightRecord>) {
        let page = self.pages.mine();
        let completed = page.completed();
        let running = page.open_batch().or_else(|| page.record(completed)).map(FlightRecord::of);
        let last = || {
            let call = collectives(page).pop();
            call.into_iter().chain(batches(page).pop()).max_by_key(|entry| entry.started)
        };
        let word = match (page.life(), &running) {
            (Life::Failed, _) => "failed",
            (Life::Left, _) => "finalized",
            (Life::Working, Some(entry)) if entry.waiting_for.is_some() => "waiting",
            (Life::Working, Some(_)) => "running",
            (Life::Working, None) => "between calls",
        };
        (word.to_string(), running.or_else(last))
    }
}
