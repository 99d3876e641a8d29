//! The constants of the cost model, and the tuning file that keeps them.

use crate::error::{Error, Result};
use crate::fork::Once;
use std::fmt::Write;

/// What the machine takes for the things that plans are made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// From posting a message to the reader seeing it. Measured only where every rank has a core:
    /// else what a message takes is mostly `switch_us`, and this one stays the default's.
    pub alpha_us: f64,
    /// A rank's own time to post or take one message.
    pub message_us: f64,
    /// A byte copied.
    pub copy_us_per_byte: f64,
    /// A byte of each further operand of a reduction.
    pub reduce_us_per_byte: f64,
    /// How much longer a byte takes that another core wrote or read last: on top of what it takes
    /// in the own cache.
    pub cross_us_per_byte: f64,
    /// From posting a message to the reader on another host seeing it.
    pub wire_alpha_us: f64,
    /// A rank's own time to post or take a message between hosts.
    pub wire_message_us: f64,
    /// A byte that leaves or enters a host.
    pub wire_us_per_byte: f64,
    /// One more rank's turn on a core, where ranks outnumber cores.
    pub switch_us: f64,
    /// Cores that the ranks share.
    pub cores: usize,
    /// A copy that the kernel makes out of another process's memory: what it takes to begin with.
    pub cma_us: f64,
    /// A byte of such a copy; infinite where a rank is not permitted to make one.
    pub cma_us_per_byte: f64,
}

impl Default for Costs {
    /// Two near cores of an AMD EPYC: a cache line crosses in about 50 ns, one core copies 34 GB/s
    /// (read plus written), a turn on a shared core is less than 2 us
    /// (`benches/results/constants-2026-11-21.txt`). The wire is in the order of TCP over its
    /// loopback. Only a starting point: constants are measured at init or read from a tuning file.
    fn default() -> Costs {
        Costs {
            alpha_us: 0.06,
            message_us: 0.02,
            copy_us_per_byte: 2.0 / 35_000.0,
            reduce_us_per_byte: 2.0 / 35_000.0,
            cross_us_per_byte: 0.0,
            wire_alpha_us: 4.7,
            wire_message_us: 1.0,
            wire_us_per_byte: 1.0 / 4_900.0,
            switch_us: 1.2,
            cores: cores(),
            cma_us: 0.0,
            cma_us_per_byte: f64::INFINITY,
        }
    }
}

/// Cores that this process may use, as found first: the answer takes reading the control group.
fn cores() -> usize {
    static CORES: Once<usize> = Once::new();
    let found = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
    *CORES.get_or_make(found)
}

/// The keys of a tuning file, in the order of the file.
const KEYS: [&str; 12] = [
    "alpha_us",
    "message_us",
    "copy_us_per_byte",
    "reduce_us_per_byte",
    "cross_us_per_byte",
    "wire_alpha_us",
    "wire_message_us",
    "wire_us_per_byte",
    "switch_us",
    "cores",
    "cma_us",
    "cma_us_per_byte",
];

impl Costs {
    fn value(&self, key: &str) -> f64 {
        match key {
            "alpha_us" => self.alpha_us,
            "message_us" => self.message_us,
            "copy_us_per_byte" => self.copy_us_per_byte,
            "reduce_us_per_byte" => self.reduce_us_per_byte,
            "cross_us_per_byte" => self.cross_us_per_byte,
            "wire_alpha_us" => self.wire_alpha_us,
            "wire_message_us" => self.wire_message_us,
            "wire_us_per_byte" => self.wire_us_per_byte,
            "switch_us" => self.switch_us,
            "cores" => self.cores as f64,
            "cma_us" => self.cma_us,
            "cma_us_per_byte" => self.cma_us_per_byte,
            _ => unreachable!("a key of KEYS"),
        }
    }

    fn set(&mut self, key: &str, value: f64) {
        match key {
            "alpha_us" => self.alpha_us = value,
            "message_us" => self.message_us = value,
            "copy_us_per_byte" => self.copy_us_per_byte = value,
            "reduce_us_per_byte" => self.reduce_us_per_byte = value,
            "cross_us_per_byte" => self.cross_us_per_byte = value,
            "wire_alpha_us" => self.wire_alpha_us = value,
            "wire_message_us" => self.wire_message_us = value,
            "wire_us_per_byte" => self.wire_us_per_byte = value,
            "switch_us" => self.switch_us = value,
            "cores" => self.cores = value as usize,
            "cma_us" => self.cma_us = value,
            "cma_us_per_byte" => self.cma_us_per_byte = value,
            _ => unreachable!("a key of KEYS"),
        }
    }

    /// The constants in the order of a tuning file, and back: what ranks tell each other.
    pub fn to_words(&self) -> [f64; KEYS.len()] {
        KEYS.map(|key| self.value(key))
    }

    pub fn from_words(words: [f64; KEYS.len()]) -> Costs {
        let mut costs = Costs::default();
        KEYS.iter().zip(words).for_each(|(key, value)| costs.set(key, value));
        costs
    }

    /// The text of a tuning file with all of them.
    pub fn to_text(&self) -> String {
        Profile { costs: self.clone(), knows_wire: true }.to_text()
    }
}

/// The key of what crosses from core to core: nothing, by a tuning file without it.
const CROSS: std::ops::Range<usize> = 4..5;

/// Keys of the wire between hosts, which one host cannot measure.
const WIRE: std::ops::Range<usize> = 5..8;

/// Keys of the kernel's copies. A tuning file without them says that there are none.
const KERNEL: std::ops::Range<usize> = 10..12;

/// What a tuning file holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub costs: Costs,
    /// Whether it has the constants of the wire; else they are measured as without a tuning file.
    pub knows_wire: bool,
}

impl Profile {
    /// The text of a tuning file: one `key = value` a line, read back to the same bits.
    pub fn to_text(&self) -> String {
        let mut text = String::from("# ringcomm profile: times in microseconds\n");
        let has_copies = self.costs.cma_us_per_byte.is_finite();
        for (index, key) in KEYS.into_iter().enumerate() {
            let is_known = (self.knows_wire || !WIRE.contains(&index))
                && (has_copies || !KERNEL.contains(&index));
            if is_known {
                writeln!(text, "{key} = {}", self.costs.value(key))
                    .expect("a String takes any text");
            }
        }
        text
    }

    /// Read a tuning file; every key must be there once, but that each of three groups may be
    /// absent: the wire's, the kernel's copies', and what crosses. Errors name the line.
    pub fn from_text(text: &str) -> Result<Profile> {
        let mut costs = Costs::default();
        let mut seen = [false; KEYS.len()];
        for (number, line) in text.lines().enumerate() {
            let wrong = |what: String| Error::argument(format!("line {}: {what}", number + 1));
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                return Err(wrong(format!("{line:?} is not \"key = value\"")));
            };
            let (key, value) = (key.trim(), value.trim());
            let Some(index) = KEYS.iter().position(|known| *known == key) else {
                return Err(wrong(format!("unknown key {key:?}; the keys are {KEYS:?}")));
            };
            if std::mem::replace(&mut seen[index], true) {
                return Err(wrong(format!("{key} is set twice")));
            }
            let parsed: Option<f64> = value.parse().ok();
            let least = if key == "cores" { 1.0 } else { 0.0 };
            match parsed {
                Some(number) if number.is_finite() && number >= least => costs.set(key, number),
                _ => return Err(wrong(format!("{key} = {value:?} is not a number from {least}"))),
            }
        }
        let knows_wire = seen[WIRE].contains(&true);
        let may_be_absent = |index: &usize| {
            let group = [CROSS, WIRE, KERNEL].into_iter().find(|group| group.contains(index));
            group.is_some_and(|group| !seen[group].contains(&true))
        };
        let is_missing = |index: &usize| !seen[*index] && !may_be_absent(index);
        match (0..KEYS.len()).find(is_missing) {
            Some(missing) => Err(Error::argument(format!(
                "line {}: the tuning file ends without {}",
                text.lines().count(),
                KEYS[missing]
            ))),
            None => Ok(Profile { costs, knows_wire }),
        }
    }

    /// Read a tuning file.
    pub fn read(path: &str) -> Result<Profile> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::System {
            what: format!("reading the tuning file {path}"),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Profile::from_text(&text).map_err(|error| match error {
            Error::InvalidArgument(what) => Error::argument(format!("profile {path}, {what}")),
            other => other,
        })
    }
}
