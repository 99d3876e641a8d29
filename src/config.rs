//! What a user can set: one table of `RINGCOMM_*` variables and the config a communicator carries.
//!
//! An explicit config field wins over the variable, the variable over the default. Values that
//! change results or memory must be the same on all ranks; the rendezvous checks that.

use crate::error::{Error, Result};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Settings of one communicator.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Longest time one operation may wait for its peers before it fails, in milliseconds.
    pub timeout_ms: u64,
    /// Longest time that making a communicator may wait for its ranks, in milliseconds; `None`
    /// takes `timeout_ms`.
    pub meeting_ms: Option<u64>,
    /// Bytes of connection buffers of a rank; `None` takes [`DEFAULT_BUFFER_BYTES`], of which more
    /// than two ranks use half. Less is shared by all its peers; as much and more by those of its
    /// host alone, while those of other hosts have slots of their own, up to 20 MiB of addresses
    /// each, which become memory as they are used.
    pub buffer_bytes: Option<usize>,
    /// Every result equals the serial loop over ranks 0, 1, 2, ... bit for bit.
    pub deterministic: bool,
    /// The algorithm to use, by name, where it exists for the collective; else the cost model's.
    pub algorithm: Option<String>,
    /// Times to poll before the first `sched_yield`; `None` chooses by ranks against cores.
    pub spins: Option<u32>,
    /// A profile file with the cost model's constants; `None` measures them.
    pub profile: Option<String>,
    /// Network interfaces between hosts: `eth,ib` by prefix, `=eth0` by name, `^docker` all but.
    pub interfaces: Option<String>,
    /// Ports to listen on; `None` takes what the kernel gives.
    pub ports: Option<RangeInclusive<u16>>,
    /// The address family between hosts; `None` uses both.
    pub family: Option<Family>,
    /// How payloads between hosts are guarded.
    pub protection: Protection,
    /// Sockets to each peer on another host.
    pub sockets: usize,
    /// Ranks with the same text count as one host; `None` asks the machine.
    pub host_id: Option<String>,
    /// The host of every rank, by rank, instead of where it is: to try on one machine what runs
    /// between several. Not for users, and without a variable.
    #[doc(hidden)]
    pub hosts: Option<Vec<usize>>,
    /// Where this rank's memory is. Ranks may differ.
    pub seat: Seat,
    /// Print warnings (1) or every call (2) to standard error; 0 prints nothing.
    pub debug: u32,
}

/// Whose memory a rank's calls may name beside the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Seat {
    /// That of the CUDA device which is current on the thread that makes the communicator, if the
    /// program uses CUDA.
    #[default]
    Current,
    /// Nobody's.
    Host,
    /// That of the CUDA device with this number.
    Device(i32),
    /// That of the device of a CUDA context, by its address.
    Context(u64),
}

/// An address family, to use it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// How payloads between hosts are guarded. All ranks of a communicator use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protection {
    /// TCP's own checksum, which misses one damaged segment in 65,536.
    Clear = 0,
    /// CRC-32C over every payload.
    #[default]
    Checksum = 1,
    /// AES-256-GCM over header and payload, with keys of the connection.
    Encrypted = 2,
}

impl Protection {
    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Protection::Clear => "clear",
            Protection::Checksum => "checksum",
            Protection::Encrypted => "encrypted",
        }
    }

    /// The protection of such a name.
    fn from_name(name: &str) -> std::result::Result<Protection, String> {
        match name {
            "clear" => Ok(Protection::Clear),
            "checksum" => Ok(Protection::Checksum),
            "encrypted" => Ok(Protection::Encrypted),
            _ => Err("is no protection; use clear, checksum or encrypted".into()),
        }
    }
}

/// Most sockets to a peer: more than a few only cost memory and polls.
pub const MOST_SOCKETS: usize = 16;

impl Default for Config {
    fn default() -> Config {
        Config {
            // Five minutes: longer than any honest gap between ranks (a checkpoint, a validation
            // pass, a data loader's start), a sixth of what torch.distributed lets a job sit dead.
            timeout_ms: 300_000,
            meeting_ms: None,
            buffer_bytes: None,
            deterministic: false,
            algorithm: None,
            spins: None,
            profile: None,
            interfaces: None,
            ports: None,
            family: None,
            protection: Protection::default(),
            sockets: 1,
            host_id: None,
            hosts: None,
            seat: Seat::Current,
            debug: 0,
        }
    }
}

impl Config {
    /// How long the ranks of a new communicator wait for each other.
    pub fn meeting(&self) -> Duration {
        Duration::from_millis(self.meeting_ms.unwrap_or(self.timeout_ms))
    }
}

/// 4 MiB, NCCL's own default for its per-connection buffer, here for all peers of a host together.
pub const DEFAULT_BUFFER_BYTES: usize = 4 << 20;

/// The least that [`Config::buffer_bytes`] may be: two slots of a page for each of seven peers.
pub const LEAST_BUFFER_BYTES: usize = 64 << 10;

/// A variable, what it sets, and how its text is read.
struct Variable {
    name: &'static str,
    help: &'static str,
    set: fn(&mut Config, &str) -> std::result::Result<(), String>,
}

const VARIABLES: [Variable; 14] = [
    Variable {
        name: "RINGCOMM_TIMEOUT_MS",
        help: "milliseconds an operation waits for its peers before it fails",
        set: |config, text| number(text, 1).map(|ms| config.timeout_ms = ms as u64),
    },
    Variable {
        name: "RINGCOMM_BUFFSIZE",
        help: "bytes of connection buffers per rank and communicator",
        set: |config, text| {
            number(text, LEAST_BUFFER_BYTES).map(|bytes| config.buffer_bytes = Some(bytes))
        },
    },
    Variable {
        name: "RINGCOMM_DETERMINISTIC",
        help: "1: every result equals the serial loop in rank order, bit for bit",
        set: |config, text| number(text, 0).map(|on| config.deterministic = on != 0),
    },
    Variable {
        name: "RINGCOMM_ALGO",
        help: "algorithm to use where it exists for the collective (see ring-perf --explain)",
        set: |config, text| {
            config.algorithm = Some(text.to_string());
            Ok(())
        },
    },
    Variable {
        name: "RINGCOMM_SPINS",
        help: "polls before a waiting rank first yields its core",
        set: |config, text| small(text).map(|spins| config.spins = Some(spins)),
    },
    Variable {
        name: "RINGCOMM_PROFILE",
        help: "file with the cost model's constants, one \"key = value\" a line",
        set: |config, text| {
            config.profile = Some(text.to_string());
            Ok(())
        },
    },
    Variable {
        name: "RINGCOMM_SOCKET_IFNAME",
        help: "interfaces between hosts: eth,ib by prefix; =eth0 by name; ^docker all but",
        set: |config, text| {
            config.interfaces = Some(text.to_string());
            Ok(())
        },
    },
    Variable {
        name: "RINGCOMM_SOCKET_FAMILY",
        help: "address family between hosts: AF_INET or AF_INET6",
        set: |config, text| family(text).map(|family| config.family = Some(family)),
    },
    Variable {
        name: "RINGCOMM_PORT_RANGE",
        help: "ports to listen on, as 20000-20100",
        set: |config, text| ports(text).map(|ports| config.ports = Some(ports)),
    },
    Variable {
        name: "RINGCOMM_PROTECTION",
        help: "what guards payloads between hosts: clear, checksum or encrypted",
        set: |config, text| {
            Protection::from_name(text).map(|protection| config.protection = protection)
        },
    },
    Variable {
        name: "RINGCOMM_SOCKETS",
        help: "sockets to each peer on another host, 1 to 16",
        set: |config, text| match number(text, 1)? {
            sockets if sockets <= MOST_SOCKETS => {
                config.sockets = sockets;
                Ok(())
            }
            _ => Err(format!("must be at most {MOST_SOCKETS}")),
        },
    },
    Variable {
        name: "RINGCOMM_HOSTID",
        help: "ranks with the same text count as one host, others as another",
        set: |config, text| {
            config.host_id = Some(text.to_string());
            Ok(())
        },
    },
    Variable {
        name: "RINGCOMM_CUDA",
        help: "0: host memory only, also where the program uses CUDA",
        set: |config, text| {
            let on = number(text, 0)? != 0;
            config.seat = if on { Seat::Current } else { Seat::Host };
            Ok(())
        },
    },
    Variable {
        name: "RINGCOMM_DEBUG",
        help: "1 prints warnings to standard error, 2 every call",
        set: |config, text| small(text).map(|level| config.debug = level),
    },
];

/// Variables of the rendezvous, which are no settings of a communicator.
const RENDEZVOUS: [(&str, &str); 9] = [
    ("RINGCOMM_RANK", "this rank, where no launcher says it"),
    ("RINGCOMM_NRANKS", "the number of ranks"),
    ("RINGCOMM_LOCAL_RANK", "this rank among those of its machine"),
    ("RINGCOMM_LOCAL_SIZE", "the number of ranks on this machine"),
    ("RINGCOMM_ADDRESS", "where the ranks meet: host:port of rank 0, or a URL"),
    ("RINGCOMM_JOB", "a name that tells this job's ranks from all others"),
    ("RINGCOMM_RESTART", "how often the job was started again"),
    ("RINGCOMM_SECRET", "what strangers do not know: the same text on every rank"),
    ("RINGCOMM_SECRET_FILE", "a file of mode 0600 that holds the secret"),
];

/// Variables for those who build or test the kernels.
const KERNELS: [(&str, &str); 1] =
    [("RINGCOMM_KERNELS", "file with CUDA kernels to use instead of those built in")];

/// Variables for those who look on, which are no settings of a communicator either.
const ONLOOKERS: [(&str, &str); 2] = [
    ("RINGCOMM_STATUS_DIR", "folder for a socket that ringrun --status asks; ringrun sets it"),
    ("RINGCOMM_TIMELINE", "file for a trace of every operation as it happens"),
];

/// A whole number, with an optional K, M or G (powers of 1024), at least `least`.
fn number(text: &str, least: usize) -> std::result::Result<usize, String> {
    let text = text.trim();
    let (digits, shift) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 10),
        Some('m' | 'M') => (&text[..text.len() - 1], 20),
        Some('g' | 'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let value: usize = digits.parse().map_err(|_| "is not a whole number".to_string())?;
    let value = value.checked_mul(1 << shift).ok_or("is too large")?;
    if value < least { Err(format!("must be at least {least}")) } else { Ok(value) }
}

fn family(text: &str) -> std::result::Result<Family, String> {
    match text.trim() {
        "AF_INET" => Ok(Family::V4),
        "AF_INET6" => Ok(Family::V6),
        _ => Err("is neither AF_INET nor AF_INET6".into()),
    }
}

/// `FIRST-LAST`, or one port.
pub fn ports(text: &str) -> std::result::Result<RangeInclusive<u16>, String> {
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err("is not a range of ports, as 20000-20100".into()),
    }
}

/// As [`number`], for what is counted in 32 bits.
fn small(text: &str) -> std::result::Result<u32, String> {
    u32::try_from(number(text, 0)?).map_err(|_| "is too large".into())
}

impl Config {
    /// The defaults, changed by the environment.
    pub fn from_environment() -> Result<Config> {
        Config::from_variables(|name| std::env::var(name).ok())
    }

    /// The defaults, changed by what `lookup` knows of [`Config::variables`].
    pub fn from_variables(lookup: impl Fn(&str) -> Option<String>) -> Result<Config> {
        let mut config = Config::default();
        for variable in &VARIABLES {
            if let Some(text) = lookup(variable.name).filter(|text| !text.is_empty()) {
                (variable.set)(&mut config, &text).map_err(|why| {
                    Error::argument(format!("{}={text:?} {why} ({})", variable.name, variable.help))
                })?;
            }
        }
        Ok(config)
    }

    /// Every variable with its meaning, for help texts and the documentation.
    pub fn variables() -> impl Iterator<Item = (&'static str, &'static str)> {
        VARIABLES
            .iter()
            .map(|variable| (variable.name, variable.help))
            .chain(RENDEZVOUS)
            .chain(ONLOOKERS)
            .chain(KERNELS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_override_defaults() {
        let config = Config::from_variables(|name| match name {
            "RINGCOMM_TIMEOUT_MS" => Some("250".into()),
            "RINGCOMM_BUFFSIZE" => Some("2M".into()),
            "RINGCOMM_DETERMINISTIC" => Some("1".into()),
            _ => None,
        })
        .unwrap();
        assert_eq!((config.timeout_ms, config.buffer_bytes), (250, Some(2 << 20)));
        assert!(config.deterministic);
    }

    #[test]
    fn a_port_range_has_two_ends_in_order() {
        assert_eq!(ports("20000-20100"), Ok(20000..=20100));
        assert_eq!(ports("8080"), Ok(8080..=8080));
        for bad in ["", "0", "9-8", "1-2-3", "70000", "-5", "0-9"] {
            assert!(ports(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_and_not_cut() {
        for (variable, text) in [("RINGCOMM_SPINS", "4G"), ("RINGCOMM_BUFFSIZE", "17179869184G")] {
            let lookup = |name: &str| (name == variable).then(|| text.to_string());
            let error = Config::from_variables(lookup).unwrap_err().to_string();
            assert!(error.contains("is too large"), "{error}");
        }
    }

    #[test]
    fn a_bad_value_names_the_variable_and_the_reason() {
        let error = Config::from_variables(|name| {
            (name == "RINGCOMM_TIMEOUT_MS").then(|| "soon".to_string())
        })
        .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("RINGCOMM_TIMEOUT_MS=\"soon\" is not a whole number"), "{text}");
    }
}
