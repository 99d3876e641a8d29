//! What the suites share: ranks as threads or processes, guarded buffers, and a plain oracle.
//!
//! A suite describes a call as a [`case::Case`]; the oracle says what every byte of every rank's
//! memory must be afterwards, and a rank checks its own.
#![allow(dead_code, unused_imports)]

#[path = "../arithmetic/oracle.rs"]
pub mod oracle;

pub mod case;
pub mod data;
pub mod delays;
pub mod device;
pub mod exchange;
pub mod forks;
pub mod guarded;
pub mod holdings;
pub mod pace;
pub mod processes;
pub mod samples;
pub mod scratch;
pub mod skips;
pub mod slips;
pub mod threads;
pub mod work;

pub use case::{Case, Prepared};
pub use data::{Data, Random};
pub use guarded::{Guarded, Memory};
pub use processes::on_processes;
pub use threads::{joined_hosts, on_hosts, on_joined_threads, on_threads, seated_hosts};

use ringcomm::algorithm::select::Costs;
use ringcomm::bootstrap::UniqueId;
use ringcomm::config::{Config, NetChoice, Protection};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The longest a test may wait for its ranks before it is called stuck. Loaded machines have been
/// seen to stop a process for seconds; nothing here takes that long by itself.
pub const HARD_DEADLINE_S: u64 = 120;

/// In which every rank knows that their calls do not match.
pub const MISMATCH_KNOWN: Duration = Duration::from_secs(1);

/// The defaults, with a deadline that ends a defect's wait before the suite's own does, or the one
/// of the environment, which says, too, whether ranks print why a path was not taken.
pub fn config() -> Config {
    let timeout_ms = number("RINGCOMM_TIMEOUT_MS").unwrap_or(60_000);
    let debug = number("RINGCOMM_DEBUG").unwrap_or(0);
    Config { timeout_ms, debug, net: net(), ..Config::default() }
}

/// What RINGCOMM_NET says: suites run over an engine, too.
fn net() -> NetChoice {
    let text = std::env::var("RINGCOMM_NET").ok();
    text.map_or_else(NetChoice::default, |text| NetChoice::from_name(&text).expect("RINGCOMM_NET"))
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// A configuration whose connections have two slots of `slot_bytes` (a multiple of 64): the
/// smallest that works, so that short vectors already take several slices.
pub fn small_slots(nranks: usize, slot_bytes: usize) -> Config {
    // A ring's counter is 128 bytes, a slot's header 64.
    let buff_size = Some((nranks - 1).max(1) * (128 + 2 * (slot_bytes + 64)));
    Config { buff_size, ..config() }
}

/// A configuration whose choices do not depend on how busy the machine is: the cost model's default
/// constants, as if every rank had a core.
pub fn calm(nranks: usize) -> Config {
    let costs = Costs { cores: nranks.max(2), ..Costs::default() };
    with_costs(&nranks.to_string(), &costs)
}

/// A configuration in which long sums between processes go through windows of scratch: meetings
/// cost nothing.
pub fn windowed(nranks: usize) -> Config {
    let (cores, free) = (nranks.max(2), 0.0);
    let costs = Costs { cores, alpha_us: free, message_us: free, ..Costs::default() };
    with_costs(&format!("windowed-{nranks}"), &costs)
}

/// A configuration in which the kernel copies whatever it may for processes: that costs nothing.
pub fn by_cma(nranks: usize) -> Config {
    let (cores, free) = (nranks.max(2), 0.0);
    let costs = Costs { cores, alpha_us: free, message_us: free, ..Costs::default() };
    let costs = Costs { cma_us: free, cma_us_per_byte: 1e-9, ..costs };
    with_costs(&format!("by-kernel-{nranks}"), &costs)
}

/// A configuration in which they go through slots: every meeting takes a millisecond.
pub fn staged(nranks: usize) -> Config {
    let costs = Costs { cores: nranks.max(2), alpha_us: 1000.0, ..Costs::default() };
    with_costs(&format!("staged-{nranks}"), &costs)
}

/// A configuration of ranks on so many cores, and with a wire on which a byte takes so long; not
/// encrypted, as what is encrypted goes in shorter messages.
pub fn wired(cores: usize, wire_us_per_byte: f64) -> Config {
    let costs = Costs { cores, wire_us_per_byte, ..Costs::default() };
    let config = with_costs(&format!("wired-{cores}-{wire_us_per_byte}"), &costs);
    Config { protection: Protection::Checksum, ..config }
}

/// A configuration with constants of the cost model, in a tuning file of this name.
fn with_costs(name: &str, costs: &Costs) -> Config {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Threads of a test program may ask for one at the same time.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, SeqCst);
    let fresh = format!("{name}-{}-{number}", std::process::id());
    let path = format!("{name}.profile");
    let (path, fresh) = (folder.join(path), folder.join(fresh));
    // Renamed when whole: another test may be reading it.
    std::fs::write(&fresh, costs.to_text()).expect("a tuning file");
    std::fs::rename(&fresh, &path).expect("a tuning file");
    Config { tuning_file: Some(path.to_string_lossy().into_owned()), ..config() }
}

/// Whether the error of a rank says which other rank it is about.
pub fn names_another(text: &str, rank: usize, nranks: usize) -> bool {
    (0..nranks).filter(|other| *other != rank).any(|other| {
        let name = format!("rank {other}");
        text.split(&name).skip(1).any(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
    })
}

/// Whether such an error, of a rank that has met the others, says it in full: host, process, and
/// the call with its number.
pub fn names_in_full(text: &str, rank: usize, nranks: usize) -> bool {
    names_another(text, rank, nranks) && ["(host ", "pid ", " #"].iter().all(|it| text.contains(it))
}

/// The lists of missing ranks in a text: after `missing: ` or `missing of 3 ranks: `.
pub fn missing(text: &str) -> Vec<Vec<usize>> {
    let list = |rest: &str| {
        let list = rest.split_once(": [").and_then(|(_, list)| list.split_once(']'));
        let list = list.unwrap_or_else(|| panic!("who is missing? {text}")).0.split(", ");
        list.map(|rank| rank.parse().unwrap_or_else(|_| panic!("{rank:?} is no rank: {text}")))
            .collect()
    };
    text.split("missing").skip(1).map(list).collect()
}

/// Whether the error of a rank whose `init_rank` failed says who is missing, or that the meeting's
/// root is, which is no rank but this process, and where its id says.
pub fn names_who_is_missing(text: &str, rank: usize, nranks: usize, id: &UniqueId) -> bool {
    let listed = text.split_once("missing: [").is_some_and(|(_, list)| !list.starts_with(']'));
    let root = ["root", "unique id"].iter().any(|name| text.contains(name));
    let pid = format!("pid {})", std::process::id());
    let mut places = id.addresses().into_iter().map(|address| address.to_string());
    let is_found = text.contains(&pid) || places.any(|place| text.contains(&place));
    // The root told this rank so, by a connection that has been made since.
    let is_told =
        text.contains(&format!("the rendezvous's root lost its connection with rank {rank},"));
    listed || is_told || (root && is_found) || names_another(text, rank, nranks)
}
