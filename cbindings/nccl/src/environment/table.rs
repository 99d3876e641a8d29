//! Every variable that NCCL documents, and what becomes of it here.

use super::variable;

/// What becomes of a variable.
pub enum Use {
    /// It says what a variable of the library's says; how its value is read.
    As(&'static str, fn(&str) -> Option<String>),
    /// This layer itself follows it.
    Followed,
    /// It changes nothing: why.
    Accepted(&'static str),
}

use Use::{Accepted, As, Followed};

const IB: &str = "InfiniBand";
const GPU: &str = "NCCL's own kernels and GPU links";
const PLUGIN: &str = "NCCL's plugins";
const TUNING: &str = "the cost model chooses";
const LOCAL: &str = "ranks of a host share memory";

/// By name, without `NCCL_`.
pub static VARIABLES: &[(&str, Use)] = &[
    ("SOCKET_IFNAME", As("RINGCOMM_SOCKET_IFNAME", same)),
    ("SOCKET_FAMILY", As("RINGCOMM_SOCKET_FAMILY", same)),
    ("HOSTID", As("RINGCOMM_HOSTID", same)),
    ("BUFFSIZE", As("RINGCOMM_BUFFSIZE", buffer_bytes)),
    ("ALGO", As("RINGCOMM_ALGO", algorithm)),
    ("NSOCKS_PERTHREAD", As("RINGCOMM_NSOCKS", sockets)),
    ("COMM_ID", Followed),
    ("COMM_BLOCKING", Followed),
    ("CONF_FILE", Followed),
    ("DEBUG", Followed),
    ("DEBUG_FILE", Followed),
    ("DEBUG_SUBSYS", Followed),
    ("PARAM_DUMP_ALL", Followed),
    ("DEBUG_TIMESTAMP_FORMAT", Accepted("lines carry no time")),
    ("DEBUG_TIMESTAMP_LEVELS", Accepted("lines carry no time")),
    ("WARN_ENABLE_DEBUG_INFO", Accepted("a warning says what, where and what to do")),
    ("SET_THREAD_NAME", Accepted("threads have names")),
    ("SOCKET_NTHREADS", Accepted("one thread serves all sockets of a rank; see NSOCKS_PERTHREAD")),
    ("SOCKET_RETRY_CNT", Accepted("addresses are tried until the deadline")),
    ("SOCKET_RETRY_SLEEP_MSEC", Accepted("addresses are tried until the deadline")),
    ("SOCKET_POLL_TIMEOUT_MSEC", Accepted("RINGCOMM_TIMEOUT_MS is the deadline")),
    ("OOB_NET_ENABLE", Accepted("ranks meet over TCP")),
    ("OOB_NET_IFNAME", Accepted("ranks meet where SOCKET_IFNAME says")),
    ("UID_STAGGER_RATE", Accepted("ranks meet in a tree")),
    ("UID_STAGGER_THRESHOLD", Accepted("ranks meet in a tree")),
    ("CROSS_NIC", Accepted("one network interface, or SOCKET_IFNAME's")),
    ("NET", As("RINGCOMM_NET", net)),
    ("NET_PLUGIN", Followed),
    ("NETDEVS_POLICY", Accepted("a plugin's fastest devices are used")),
    ("NET_FORCE_FLUSH", Accepted(GPU)),
    ("NET_GDR_LEVEL", Accepted(GPU)),
    ("NET_GDR_READ", Accepted(GPU)),
    ("NET_GDR_C2C", Accepted(GPU)),
    ("NET_SHARED_BUFFERS", Accepted(TUNING)),
    ("NET_SHARED_COMMS", Accepted(TUNING)),
    ("NET_MERGE_LEVEL", Accepted(IB)),
    ("NET_FORCE_MERGE", Accepted(IB)),
    ("TUNER_PLUGIN", Accepted(PLUGIN)),
    ("TUNER_CONFIG_FILE", Accepted(PLUGIN)),
    ("PROFILER_PLUGIN", Accepted(PLUGIN)),
    ("ENV_PLUGIN", Accepted(PLUGIN)),
    ("GIN_PLUGIN", Accepted(PLUGIN)),
    ("RMA_PLUGIN", Accepted(PLUGIN)),
    ("COLLNET_ENABLE", Accepted(PLUGIN)),
    ("COLLNET_NODE_THRESHOLD", Accepted(PLUGIN)),
    ("P2P_DISABLE", Accepted(LOCAL)),
    ("P2P_LEVEL", Accepted(GPU)),
    ("P2P_DIRECT_DISABLE", Accepted(GPU)),
    ("P2P_NET_CHUNKSIZE", Accepted(TUNING)),
    ("P2P_NVL_CHUNKSIZE", Accepted(TUNING)),
    ("P2P_PCI_CHUNKSIZE", Accepted(TUNING)),
    ("P2P_LL_THRESHOLD", Accepted(TUNING)),
    ("SHM_DISABLE", Accepted(LOCAL)),
    ("SHM_USE_CUDA_MEMCPY", Accepted(GPU)),
    ("SHM_MEMCPY_MODE", Accepted(GPU)),
    ("IB_DISABLE", Accepted(IB)),
    ("IB_HCA", Accepted(IB)),
    ("IB_TIMEOUT", Accepted(IB)),
    ("IB_RETRY_CNT", Accepted(IB)),
    ("IB_GID_INDEX", Accepted(IB)),
    ("IB_ADDR_FAMILY", Accepted(IB)),
    ("IB_ADDR_RANGE", Accepted(IB)),
    ("IB_ROCE_VERSION_NUM", Accepted(IB)),
    ("IB_SL", Accepted(IB)),
    ("IB_TC", Accepted(IB)),
    ("IB_FIFO_TC", Accepted(IB)),
    ("IB_CUDA_SUPPORT", Accepted(IB)),
    ("IB_QPS_PER_CONNECTION", Accepted(IB)),
    ("IB_SPLIT_DATA_ON_QPS", Accepted(IB)),
    ("IB_AR_THRESHOLD", Accepted(IB)),
    ("IB_PCI_RELAXED_ORDERING", Accepted(IB)),
    ("IB_ADAPTIVE_ROUTING", Accepted(IB)),
    ("IB_RETURN_ASYNC_EVENTS", Accepted(IB)),
    ("IB_ECE_ENABLE", Accepted(IB)),
    ("IB_MERGE_NICS", Accepted(IB)),
    ("IB_MERGE_VFS", Accepted(IB)),
    ("IB_DATA_DIRECT", Accepted(IB)),
    ("IB_PREPOST_RECEIVE_WORK_REQUESTS", Accepted(IB)),
    ("IB_ASYNC_EVENTS", Accepted(IB)),
    ("IB_USE_INLINE", Accepted(IB)),
    ("IB_PKEY", Accepted(IB)),
    ("PROTO", Accepted(TUNING)),
    ("NTHREADS", Accepted(GPU)),
    ("MAX_NCHANNELS", Accepted(TUNING)),
    ("MIN_NCHANNELS", Accepted(TUNING)),
    ("MAX_CTAS", Accepted(GPU)),
    ("MIN_CTAS", Accepted(GPU)),
    ("NCHANNELS_PER_NET_PEER", Accepted(TUNING)),
    ("MAX_NRINGS", Accepted(TUNING)),
    ("MIN_NRINGS", Accepted(TUNING)),
    ("MAX_P2P_NCHANNELS", Accepted(TUNING)),
    ("MIN_P2P_NCHANNELS", Accepted(TUNING)),
    ("LL_BUFFSIZE", Accepted(TUNING)),
    ("LL128_BUFFSIZE", Accepted(TUNING)),
    ("CGA_CLUSTER_SIZE", Accepted(GPU)),
    ("CTA_POLICY", Accepted(GPU)),
    ("CHECKS_DISABLE", Accepted("arguments are always checked")),
    ("CHECK_POINTERS", Accepted("arguments are always checked")),
    ("LAUNCH_MODE", Accepted(GPU)),
    ("LAUNCH_ORDER_IMPLICIT", Accepted(GPU)),
    ("LAUNCH_RACE_FATAL", Accepted(GPU)),
    ("GRAPH_MIXING_SUPPORT", Accepted(GPU)),
    ("GRAPH_REGISTER", Accepted(GPU)),
    ("GRAPH_STREAM_ORDERING", Accepted(GPU)),
    ("LOCAL_REGISTER", Accepted(GPU)),
    ("LEGACY_CUDA_REGISTER", Accepted(GPU)),
    ("CUMEM_ENABLE", Accepted(GPU)),
    ("CUMEM_HOST_ENABLE", Accepted(GPU)),
    ("DMABUF_ENABLE", Accepted(GPU)),
    ("GDRCOPY_ENABLE", Accepted(GPU)),
    ("NVLS_ENABLE", Accepted(GPU)),
    ("NVLS_CHUNKSIZE", Accepted(GPU)),
    ("NVLS_NCHANNELS", Accepted(GPU)),
    ("NVB_DISABLE", Accepted(GPU)),
    ("NVB_PRECONNECT", Accepted(GPU)),
    ("NVLINK_CENTRIC_SCHED", Accepted(GPU)),
    ("NVLINK_UTIL_CENTRIC_SCHED_ENABLE", Accepted(GPU)),
    ("MNNVL_ENABLE", Accepted(GPU)),
    ("MNNVL_UUID", Accepted(GPU)),
    ("MNNVL_CLIQUE_ID", Accepted(GPU)),
    ("MULTI_RANK_GPU_ENABLE", Accepted("a GPU may have any number of ranks")),
    ("WIN_ENABLE", Accepted(GPU)),
    ("SYM_CTAS", Accepted(GPU)),
    ("SYM_KERNEL", Accepted(GPU)),
    ("PXN_DISABLE", Accepted(GPU)),
    ("PXN_C2C", Accepted(GPU)),
    ("P2P_PXN_LEVEL", Accepted(GPU)),
    ("TOPO_FILE", Accepted("links are measured")),
    ("TOPO_DUMP_FILE", Accepted("links are measured")),
    ("TOPO_DUMP_FILE_RANK", Accepted("links are measured")),
    ("GRAPH_FILE", Accepted("links are measured")),
    ("GRAPH_DUMP_FILE", Accepted("links are measured")),
    ("IGNORE_CPU_AFFINITY", Accepted("no affinity is set")),
    ("RUNTIME_CONNECT", Accepted("ranks connect when the communicator is made")),
    ("COMM_SPLIT_SHARE_RESOURCES", Accepted("a communicator has its own")),
    ("COMM_SHRINK_SHARE_RESOURCES", Accepted("a communicator has its own")),
    ("SINGLE_RING_THRESHOLD", Accepted(TUNING)),
    ("TREE_THRESHOLD", Accepted(TUNING)),
    ("SINGLE_PROC_MEM_REG_ENABLE", Accepted(GPU)),
    ("NUM_RMA_CTX", Accepted("a window has one context")),
    ("RAS_ENABLE", Accepted("ringrun --status asks every rank")),
    ("RAS_ADDR", Accepted("ringrun --status asks every rank")),
    ("RAS_TIMEOUT_FACTOR", Accepted("ringrun --status asks every rank")),
    ("WORK_FIFO_BYTES", Accepted(GPU)),
    ("WORK_ARGS_BYTES", Accepted(GPU)),
    ("STORE_ID", Accepted("PyTorch reads it")),
    ("ASYNC_ERROR_HANDLING", Accepted("PyTorch reads it")),
    ("BLOCKING_WAIT", Accepted("PyTorch reads it")),
    ("DESYNC_DEBUG", Accepted("PyTorch reads it")),
];

/// What the table says about one of the library's variables.
pub fn value_of(library: &str) -> Option<String> {
    VARIABLES.iter().find_map(|(name, used)| match used {
        As(own, read) if *own == library => {
            variable(&format!("NCCL_{name}")).and_then(|value| read(value.trim()))
        }
        _ => None,
    })
}

fn same(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_string())
}

/// NCCL's is of each connection, the library's of all; less than it takes is raised.
fn buffer_bytes(value: &str) -> Option<String> {
    let bytes = integer(value).filter(|bytes| *bytes > 0)?;
    Some(bytes.max(ringcomm::config::LEAST_BUFF_SIZE as i64).to_string())
}

/// The first of NCCL's algorithms that the library has. Those that are only excluded, or named for
/// one collective, leave the choice to the cost model.
fn algorithm(value: &str) -> Option<String> {
    if value.contains(['^', ':', ';']) {
        return None;
    }
    value.split(',').find_map(|name| match &name.trim().to_ascii_lowercase()[..] {
        "ring" => Some("ring".to_string()),
        "tree" => Some("tree".to_string()),
        _ => None,
    })
}

fn sockets(value: &str) -> Option<String> {
    let threads = variable("NCCL_SOCKET_NTHREADS").and_then(|value| integer(&value)).unwrap_or(1);
    let all = integer(value)?.saturating_mul(threads.max(1));
    let most = ringcomm::config::MOST_NSOCKS as i64;
    (all > 0).then(|| all.min(most).to_string())
}

/// NCCL's own transports, which have no plugin, or a plugin's name, which is looked for where the
/// plugin is started.
fn net(value: &str) -> Option<String> {
    let own = match value.to_ascii_lowercase().as_str() {
        "socket" => "tcp",
        "ib" => "auto",
        _ => "plugin",
    };
    Some(own.into())
}

/// A number as `strtoll` reads it, in base 10, 16 or 8.
pub fn integer(value: &str) -> Option<i64> {
    let value = value.trim();
    let (sign, digits) = match value.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, value.strip_prefix('+').unwrap_or(value)),
    };
    let lower = digits.to_ascii_lowercase();
    let number = match lower.strip_prefix("0x") {
        Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16),
        None if lower.len() > 1 && lower.starts_with('0') => i64::from_str_radix(&lower, 8),
        None => lower.parse(),
    };
    Some(sign * number.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_there_once_and_those_that_it_stands_for_exist() {
        let mut names: Vec<&str> = VARIABLES.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        let known: Vec<&str> = ringcomm::Config::variables().map(|(name, _)| name).collect();
        for (name, used) in VARIABLES {
            if let As(own, _) = used {
                assert!(known.contains(own), "{name} stands for {own}");
            }
        }
    }

    #[test]
    fn values_are_read_as_nccl_reads_them() {
        for (value, wanted) in [("10", 10), ("0x10", 16), ("010", 8), ("-3", -3), (" 7 ", 7)] {
            assert_eq!(integer(value), Some(wanted), "{value}");
        }
        assert_eq!(integer("many"), None);
        assert_eq!(buffer_bytes("8388608").as_deref(), Some("8388608"));
        assert_eq!(buffer_bytes("1024"), Some(ringcomm::config::LEAST_BUFF_SIZE.to_string()));
        assert_eq!(buffer_bytes("-2"), None);
        for (value, wanted) in [
            ("Ring", Some("ring")),
            ("NVLS,Tree", Some("tree")),
            ("^Tree", None),
            ("allreduce:ring", None),
            ("NVLS", None),
        ] {
            assert_eq!(algorithm(value).as_deref(), wanted, "{value}");
        }
    }
}
