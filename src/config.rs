//! What a user can set: one table of `RINGCOMM_*` variables and the config a communicator carries.
//!
//! An explicit config field wins over the variable, the variable over the default. Values that
//! change results or memory must be the same on all ranks; the rendezvous checks that.

use crate::error::{Error, Result};
use crate::os::environment;
use std::ops::RangeInclusive;
use std::time::Duration;

pub mod docs_page;
mod other_variables;
#[cfg(test)]
mod tests;

/// Settings of one communicator.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Longest time one operation may wait for its peers before it fails, in milliseconds.
    pub timeout_ms: u64,
    /// Longest time that making a communicator may wait for its ranks, in milliseconds; `None`
    /// takes `timeout_ms`.
    pub init_timeout_ms: Option<u64>,
    /// Bytes of connection buffers of a rank; `None` takes [`DEFAULT_BUFF_SIZE`], of which more
    /// than two ranks use half. Less is shared by all its peers; as much and more by those of its
    /// host alone, while those of other hosts have slots of their own, up to 20 MiB of addresses
    /// each, which become memory as they are used.
    pub buff_size: Option<usize>,
    /// Every result equals the serial loop over ranks 0, 1, 2, ... bit for bit.
    pub deterministic: bool,
    /// The algorithm to use, by name, where it exists for the collective; else the cost model's.
    pub algorithm: Option<String>,
    /// Times to poll before the first `sched_yield`; `None` chooses by ranks against cores.
    pub spins: Option<u32>,
    /// A file with the cost model's constants; `None` measures them.
    pub tuning_file: Option<String>,
    /// Network interfaces between hosts: `eth,ib` by prefix, `=eth0` by name, `^docker` all but.
    pub interfaces: Option<String>,
    /// Ports to listen on; `None` takes what the kernel gives.
    pub ports: Option<RangeInclusive<u16>>,
    /// The address family between hosts; `None` uses both.
    pub family: Option<AddressFamily>,
    /// How payloads between hosts are guarded.
    pub protection: Protection,
    /// Sockets to each peer on another host.
    pub nsocks: usize,
    /// What moves messages between hosts.
    pub net: NetChoice,
    /// Ranks with the same text count as one host; `None` asks the machine.
    pub host_id: Option<String>,
    /// The host of every rank, by rank, instead of where it is: to try on one machine what runs
    /// between several. Not for users, and without a variable.
    #[doc(hidden)]
    pub hosts: Option<Vec<usize>>,
    /// Where this rank's memory is. Ranks may differ.
    pub device: DeviceChoice,
    /// Print warnings (1) or every call (2) to standard error; 0 prints nothing.
    pub debug: u32,
}

/// What moves messages between hosts.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum NetChoice {
    /// An engine that every rank has, where it is faster than TCP.
    #[default]
    Auto,
    Tcp,
    Ucx,
    /// One of NCCL's network plugins: by name or path, or the usual one.
    Plugin(Option<String>),
}

impl NetChoice {
    /// As a user writes it.
    pub fn name(&self) -> String {
        match self {
            NetChoice::Auto => "auto".into(),
            NetChoice::Tcp => "tcp".into(),
            NetChoice::Ucx => "ucx".into(),
            NetChoice::Plugin(None) => "plugin".into(),
            NetChoice::Plugin(Some(name)) => format!("plugin:{name}"),
        }
    }

    pub fn from_name(text: &str) -> std::result::Result<NetChoice, String> {
        let (kind, name) = text.split_once(':').map_or((text, None), |(kind, name)| {
            (kind, Some(name.to_string()).filter(|name| !name.is_empty()))
        });
        match (kind.trim().to_ascii_lowercase().as_str(), name) {
            ("auto", None) => Ok(NetChoice::Auto),
            ("tcp", None) => Ok(NetChoice::Tcp),
            ("ucx", None) => Ok(NetChoice::Ucx),
            ("plugin", name) => Ok(NetChoice::Plugin(name)),
            _ => Err("is none of auto, tcp, ucx, plugin and plugin:NAME".into()),
        }
    }
}

/// Whose memory a rank's calls may name beside the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeviceChoice {
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
pub enum AddressFamily {
    V4,
    V6,
}

/// How payloads between hosts are guarded. All ranks of a communicator use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protection {
    /// TCP's own checksum, which misses one damaged segment in 65,536.
    Clear = 0,
    /// CRC-32C over every payload: against damage, not against somebody on the path.
    Checksum = 1,
    /// AES-128-GCM over header and payload, with keys of the connection.
    #[default]
    Encrypted = 2,
}

impl Protection {
    pub const ALL: [Protection; 3] =
        [Protection::Clear, Protection::Checksum, Protection::Encrypted];

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
        let found = Protection::ALL.into_iter().find(|one| one.name() == name);
        let names = "is no protection; use clear, checksum or encrypted";
        found.ok_or_else(|| names.into())
    }
}

/// Most sockets to a peer: more than a few only cost memory and polls.
pub const MOST_NSOCKS: usize = 16;

impl Default for Config {
    fn default() -> Config {
        Config {
            // Five minutes: longer than any honest gap between ranks (a checkpoint, a validation
            // pass, a data loader's start), a sixth of what torch.distributed lets a job sit dead.
            timeout_ms: 300_000,
            init_timeout_ms: None,
            buff_size: None,
            deterministic: false,
            algorithm: None,
            spins: None,
            tuning_file: None,
            interfaces: None,
            ports: None,
            family: None,
            protection: Protection::default(),
            nsocks: 1,
            net: NetChoice::default(),
            host_id: None,
            hosts: None,
            device: DeviceChoice::Current,
            debug: 0,
        }
    }
}

impl Config {
    /// How long the ranks of a new communicator wait for each other.
    pub fn init_timeout(&self) -> Duration {
        Duration::from_millis(self.init_timeout_ms.unwrap_or(self.timeout_ms))
    }
}

/// 4 MiB, NCCL's own default for its per-connection buffer, here for all peers of a host together.
pub const DEFAULT_BUFF_SIZE: usize = 4 << 20;

/// The least that [`Config::buff_size`] may be: two slots of a page for each of seven peers.
pub const LEAST_BUFF_SIZE: usize = 64 << 10;

/// A variable, what it sets, and how its text is read. The texts are the page
/// `docs/configuration.md` ([`docs_page::markdown`]); errors quote `help`.
struct Variable {
    name: &'static str,
    /// What it does, in a line.
    help: &'static str,
    /// The values that it takes.
    values: &'static str,
    /// What holds where it is not set.
    default: &'static str,
    /// Sentences that the page adds; an empty line begins a paragraph.
    more: &'static str,
    /// The field of `ringConfig_t` that wins over it; "" where there is none.
    field: &'static str,
    set: fn(&mut Config, &str) -> std::result::Result<(), String>,
}

static VARIABLES: [Variable; 15] = [
    Variable {
        name: "RINGCOMM_TIMEOUT_MS",
        help: "milliseconds an operation waits for its peers before it fails",
        values: "milliseconds, at least 1",
        default: "300000, which is five minutes",
        more: "The deadline is for a rank that lives and does not call. A host whose kernel \
               answers nothing counts as dead after about seven seconds, whatever the deadline \
               is.\n\n\
               Making a communicator has the same deadline. The field `initTimeoutMs` sets another \
               one for that.",
        field: "timeoutMs",
        set: |config, text| number(text, 1).map(|ms| config.timeout_ms = ms as u64),
    },
    Variable {
        name: "RINGCOMM_BUFFSIZE",
        help: "bytes of connection buffers per rank and communicator",
        values: "bytes, at least 64K",
        default: "4M; 2M where a host has more than two ranks",
        more: "The default and larger values are for the peers of the rank's own host. A smaller \
               value is shared by all peers.\n\n\
               With the default or a larger value, each peer on another host also gets up to 20 \
               MiB of addresses. These become memory as they are used. A call fails with an error \
               where the process may not map them.\n\n\
               A rank on a CUDA device has twice as many bytes of pinned memory, for calls that \
               go through the host. Where hosts have several ranks and some rank is on a CUDA \
               device, the buffers are for all peers.",
        field: "buffSize",
        set: |config, text| {
            number(text, LEAST_BUFF_SIZE).map(|bytes| config.buff_size = Some(bytes))
        },
    },
    Variable {
        name: "RINGCOMM_DETERMINISTIC",
        help: "1: every result equals the serial loop in rank order, bit for bit",
        values: "0 or 1",
        default: "0",
        more: "With 0, the same call gives the same bits on all ranks, and again in every run \
               with as many ranks on each host. With 1, it gives the same bits wherever the ranks \
               are.",
        field: "deterministic",
        set: |config, text| number(text, 0).map(|on| config.deterministic = on != 0),
    },
    Variable {
        name: "RINGCOMM_ALGO",
        help: "algorithm to use where it exists for the collective (see ring-perf --explain)",
        values: "oneshot, twoshot, ring, doubling, halving, tree, chain, binomial, pairwise, \
                 local, hierarchical or leaders",
        default: "the one that the cost model finds fastest",
        more: "Where nothing is set, sums of floating-point numbers use only algorithms that \
               reduce in the order of ranks. `ring-perf --explain` prints what runs for every \
               size.",
        field: "algorithm",
        set: |config, text| {
            config.algorithm = Some(text.to_string());
            Ok(())
        },
    },
    Variable {
        name: "RINGCOMM_SPINS",
        help: "polls before a waiting rank first yields its core",
        values: "a number of polls",
        default: "many where every rank has a core, few where ranks share cores",
        more: "Ranks may have different values. No value delays a deadline or an abort by more \
               than some milliseconds.",
        field: "spins",
        set: |config, text| small(text).map(|spins| config.spins = Some(spins)),
    },
    Variable {
        name: "RINGCOMM_TUNING_FILE",
        help: "file with the cost model's constants, one \"key = value\" a line",
        values: "the path of a file",
        default: "none: the constants are measured",
        more: "`ring-perf --save-tuning FILE` writes such a file. A line holds `key = value`, \
               and `#` begins a comment. The constants of the network are measured where the file \
               has none. Where it has neither `cma_us` nor `cma_us_per_byte`, the kernel \
               copies nothing between processes.",
        field: "tuningFile",
        set: |config, text| {
            config.tuning_file = Some(text.to_string());
            Ok(())
        },
    },
    Variable {
        name: "RINGCOMM_SOCKET_IFNAME",
        help: "interfaces between hosts: eth,ib by prefix; =eth0 by name; ^docker all but",
        values: "a list in NCCL's syntax",
        default: "all but loopback and the bridges of containers",
        more: "A communicator of `ringCommSplit` or `ringCommShrink` keeps the interfaces of its \
               parent, whatever the variable says.",
        field: "interfaces",
        set: |config, text| {
            config.interfaces = Some(text.to_string());
            Ok(())
        },
    },
    Variable {
        name: "RINGCOMM_SOCKET_FAMILY",
        help: "address family between hosts: AF_INET or AF_INET6",
        values: "AF_INET or AF_INET6",
        default: "both",
        more: "A communicator of `ringCommSplit` or `ringCommShrink` keeps the family of its \
               parent.",
        field: "",
        set: |config, text| family(text).map(|family| config.family = Some(family)),
    },
    Variable {
        name: "RINGCOMM_PORT_RANGE",
        help: "ports to listen on, as 20000-20100",
        values: "FIRST-LAST, or one port",
        default: "the kernel chooses the port",
        more: "Every communicator that spans hosts takes a port for each rank of the host, and so \
               do those of a split or a shrink. `ringGetUniqueId` and `ringrun` take two more \
               where they start. A firewall between the hosts has to let ranks through to these \
               ports, in both directions.",
        field: "ports",
        set: |config, text| ports(text).map(|ports| config.ports = Some(ports)),
    },
    Variable {
        name: "RINGCOMM_PROTECTION",
        help: "what guards payloads between hosts: clear, checksum or encrypted",
        values: "clear, checksum (CRC-32C) or encrypted (AES-128-GCM)",
        default: "encrypted",
        more: "Every connection between hosts begins with a handshake that proves the job's \
               secret, whatever this is.",
        field: "protection",
        set: |config, text| {
            Protection::from_name(text).map(|protection| config.protection = protection)
        },
    },
    Variable {
        name: "RINGCOMM_NSOCKS",
        help: "sockets to each peer on another host, 1 to 16",
        values: "1 to 16",
        default: "1",
        more: "",
        field: "nsocks",
        set: |config, text| match number(text, 1)? {
            sockets if sockets <= MOST_NSOCKS => {
                config.nsocks = sockets;
                Ok(())
            }
            _ => Err(format!("must be at most {MOST_NSOCKS}")),
        },
    },
    Variable {
        name: "RINGCOMM_NET",
        help: "what moves messages between hosts: auto, tcp, ucx, plugin or plugin:NAME",
        values: "auto, tcp, ucx, plugin or plugin:NAME",
        default: "auto",
        more: "`auto` takes UCX or a plugin of NCCL's where every rank has one with a better \
               device than TCP's, and a measurement finds it faster. `ucx` needs `libucp.so.0` \
               on every host. `plugin` takes the plugin that `NCCL_NET_PLUGIN` names, else \
               `libnccl-net.so`; `plugin:NAME` takes a path or `libnccl-net-NAME.so`. \
               [Networks](networks.md) says which cluster needs what.",
        field: "net",
        set: |config, text| NetChoice::from_name(text).map(|net| config.net = net),
    },
    Variable {
        name: "RINGCOMM_HOSTID",
        help: "ranks with the same text count as one host, others as another",
        values: "any text",
        default: "by boot id, network namespace and user of the machine",
        more: "Set it for all ranks or for none. `ringrun` does not send it to other machines; \
               its option `-x` does. Ranks of one machine with different texts talk over loopback \
               TCP, which needs a secret and a place to meet. Both `ringrun` and torchrun give a \
               place; `RINGCOMM_ADDRESS` does for others.\n\n\
               Machines that were restored from one snapshot have the same boot id. Give each of \
               them a text of its own.",
        field: "",
        set: |config, text| {
            config.host_id = Some(text.to_string());
            Ok(())
        },
    },
    Variable {
        name: "RINGCOMM_CUDA",
        help: "0: host memory only, also where the program uses CUDA",
        values: "0 or 1",
        default: "1: the device that is current where the communicator is made",
        more: "With 0, communicators whose config names no device take host memory only. The \
               field takes the number of a device, and -1 for none.",
        field: "device",
        set: |config, text| {
            let on = number(text, 0)? != 0;
            config.device = if on { DeviceChoice::Current } else { DeviceChoice::Host };
            Ok(())
        },
    },
    Variable {
        name: "RINGCOMM_DEBUG",
        help: "WARN prints warnings to standard error, TRACE every call",
        values: "NONE, WARN or TRACE; or 0, 1 or 2",
        default: "NONE",
        more: "With WARN, `ringCommInitUrl` also says what it found in the environment.",
        field: "debug",
        set: |config, text| level(text).map(|level| config.debug = level),
    },
];

/// How much is printed, by NCCL's words or as a number.
pub(crate) fn level(text: &str) -> std::result::Result<u32, String> {
    match text.trim() {
        "NONE" => Ok(0),
        "WARN" => Ok(1),
        "TRACE" => Ok(2),
        other => small(other),
    }
}

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

fn family(text: &str) -> std::result::Result<AddressFamily, String> {
    match text.trim() {
        "AF_INET" => Ok(AddressFamily::V4),
        "AF_INET6" => Ok(AddressFamily::V6),
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
        Config::from_variables(environment::variable)
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
        docs_page::SECTIONS
            .iter()
            .flat_map(|section| section.variables)
            .map(|variable| (variable.name, variable.help))
    }
}
