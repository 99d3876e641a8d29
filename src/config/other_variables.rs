//! Variables that are no settings of a communicator: the code that each is for reads it.

use super::Variable;

/// A variable that sets nothing in a [`Config`](super::Config): the code that it is for reads it.
const fn apart(
    name: &'static str,
    help: &'static str,
    values: &'static str,
    default: &'static str,
    more: &'static str,
) -> Variable {
    Variable { name, help, values, default, more, field: "", set: |_, _| Ok(()) }
}

/// Variables of the rendezvous, which are no settings of a communicator.
pub(super) static RENDEZVOUS: [Variable; 9] = [
    apart(
        "RINGCOMM_RANK",
        "this rank, where no launcher says it",
        "0 to the number of ranks less 1",
        "what the launcher sets",
        "`ringrun` sets it. docs/launchers.md has the names of other launchers.",
    ),
    apart(
        "RINGCOMM_NRANKS",
        "the number of ranks",
        "at least 1",
        "what the launcher sets",
        "`ringrun` sets it.",
    ),
    apart(
        "RINGCOMM_LOCAL_RANK",
        "this rank among those of its machine",
        "0 to the number of ranks there less 1",
        "unknown",
        "`ringrun` sets it, and `ringLauncherInfo` returns it.",
    ),
    apart(
        "RINGCOMM_LOCAL_SIZE",
        "the number of ranks on this machine",
        "at least 1",
        "unknown",
        "`ringrun` sets it. Where it equals the number of ranks, they need no address to meet.",
    ),
    apart(
        "RINGCOMM_ADDRESS",
        "where the ranks meet: host:port of rank 0, or a URL",
        "`host:port`, `tcp://host:port`, `file:///path`, `env://` or `slurm://`",
        "`MASTER_ADDR` and the port after `MASTER_PORT`",
        "",
    ),
    apart(
        "RINGCOMM_JOB",
        "a name that tells this job's ranks from all others",
        "any text",
        "the job's name of the launcher, where it has one",
        "Set it where several jobs run on one machine and nothing else tells them apart.",
    ),
    apart(
        "RINGCOMM_RESTART",
        "how often the job was started again",
        "any text, the same on every rank",
        "the launcher's own count, where it has one",
        "It keeps ranks of an earlier start out. `ringrun --max-restarts` sets it.",
    ),
    apart(
        "RINGCOMM_SECRET",
        "what strangers do not know: the same text on every rank",
        "at least 16 characters; `openssl rand -hex 32` prints a good one",
        "none: ranks meet on one machine only",
        "`ringrun` draws one for every job. It wins over `RINGCOMM_SECRET_FILE`.",
    ),
    apart(
        "RINGCOMM_SECRET_FILE",
        "a file of mode 0600 that holds the secret",
        "the path of a file of your own",
        "none",
        "",
    ),
];

/// Variables for those who build or test the kernels.
pub(super) static KERNELS: [Variable; 1] = [apart(
    "RINGCOMM_FATBIN",
    "file with CUDA kernels to use instead of those built in",
    "the path of a file",
    "the kernels of the library",
    "It is for those who build or test kernels.",
)];

/// Variables for those who look on, which are no settings of a communicator either.
pub(super) static ONLOOKERS: [Variable; 2] = [
    apart(
        "RINGCOMM_STATUS_DIR",
        "folder for a socket that ringrun --status asks; ringrun sets it",
        "the path of a folder",
        "none: no process serves a socket",
        "docs/debugging.md says what a socket answers.",
    ),
    apart(
        "RINGCOMM_TIMELINE",
        "file for a trace of every operation as it happens",
        "the path of a file",
        "`HOROVOD_TIMELINE`, else none",
        "Rank 0 writes the file, and rank N the same name with `.N` behind it. docs/debugging.md \
         has the rest.",
    ),
];

/// Variables of the programs and packages around the library.
pub(super) static PROGRAMS: [Variable; 4] = [
    apart(
        "RINGCOMM_SSH",
        "the remote shell by which ringrun reaches other hosts",
        "a command with its options",
        "`ssh` with options that keep it from asking",
        "The option `--ssh-command` wins over it.",
    ),
    apart(
        "RINGCOMM_LIBRARY",
        "the library that the Python package loads",
        "the path of a `libringcomm.so`",
        "the library in the package",
        "",
    ),
    apart(
        "RINGCOMM_NCCL_LIBRARY",
        "the library that takes NCCL's place under `ringrun --nccl` and `python -m ringcomm.nccl`",
        "the path of ringcomm's `libnccl.so.2`",
        "the library that was installed with the program",
        "",
    ),
    apart(
        "RINGCOMM_AS_BACKEND",
        "backends of torch.distributed whose place ringcomm takes under `--compat`",
        "`nccl`, `gloo` or both, with a comma",
        "none",
        "docs/launchers.md says more of it.",
    ),
];
