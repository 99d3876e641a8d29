//! The help, around the list of options.

use crate::agent::environment;

pub const BEGINNING: &str = "\
ringrun: start a program as the ranks of one job, here and on other hosts

usage: ringrun [OPTION...] [--] PROGRAM [ARGUMENT...]
       ringrun --check [OPTION...]
       ringrun --status [JOB|PID] [--json] [--trace FILE]

  ringrun python train.py                      a rank for every core of this machine
  ringrun -np 4 python train.py                four ranks here
  ringrun -np 4 -H a:2,b:2 python train.py     two on each of two hosts, through ssh
  ringrun --nccl -np 4 python train.py         ringcomm in the place of NCCL
  ringrun --compat -np 4 python train.py       ringcomm in the place of Horovod and apex
  ringrun --check -H a:2,b:2                   latency and bandwidth between all pairs
  ringrun --status                             who waits for whom in the job that runs here
  ringrun -np 4 -x DATA=/data --max-restarts 3 --output-filename logs ./train

options:";

const REST: &str =
    "environment: every rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
  MASTER_ADDR, MASTER_PORT; RINGCOMM_RANK, _NRANKS, _LOCAL_RANK, _LOCAL_SIZE, _SECRET, _JOB,
  _RESTART, _STATUS_DIR, and _ADDRESS where there are several hosts, unless it or --master-port is
  given; HOROVOD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _CROSS_RANK, _CROSS_SIZE; and, where several
  ranks share a host and it is not set, OMP_NUM_THREADS=1, as torchrun does. Ranks here inherit
  the rest of the environment; ranks on other hosts have what a login there has, the variables
  that begin with RINGCOMM_, and those of -x. What an outer launcher says of its own processes
  is removed, unless -x names it:
";

const END: &str = "
NCCL: --nccl puts ringcomm's libnccl.so.2 in front of the ranks' LD_PRELOAD and LD_LIBRARY_PATH.
  Programs that are linked with libnccl.so.2, or open it by this name, get it. On every host it
  is where RINGCOMM_NCCL_LIBRARY says, else nccl/libnccl.so.2 beside ringrun, else
  ../lib/ringcomm/libnccl.so.2 from there.

Horovod, apex: --compat puts a folder of ringcomm's Python package in front of the ranks'
  PYTHONPATH, in which `horovod` and `apex` are names of ringcomm's. Elsewhere nothing changes.

output: lines of several ranks are prefixed `[RANK]<stdout>:` or `[RANK]<stderr>:` and appear
  when they are whole. Rank 0 reads ringrun's standard input, the others read /dev/null.

signals: INT, TERM, HUP, USR1 and USR2 go to every rank and what it started; a TSTP (Ctrl-Z) stops
  ringrun with the ranks, a CONT lets them go on. After INT, TERM or HUP, a second one or the end
  of --kill-grace kills. What is left of a rank's process group when it ends is killed, and when
  the last has ended, whatever else they started.

other hosts: ringrun must be there, in the same version. They are asked through
  `ssh -o BatchMode=yes HOST RINGRUN --agent`, so ssh must log in without a password; the job
  and its secret go over that connection, never on a command line. When it ends, or has been
  silent for a minute, the ranks there are ended: TERM, and KILL after --kill-grace.

status: every process with a communicator serves a socket in a folder of its own user's, which
  goes with the job. --status shows the newest job's ranks on this machine, also while they hang;
  for those on another host, run it there. --trace writes what they did last, for Perfetto.

exit status: that of the first rank that failed (128 + signal if it was killed, which counts before
  others that end with it); 0 if none did; 2 a bad option; 126, 127 the program cannot be run, is
  not there; 255 a host was lost
";

/// What follows the options.
pub fn end() -> String {
    let mut text = String::from(REST);
    let mut line = String::from(" ");
    for name in environment::REMOVED {
        if line.len() + name.len() > 94 {
            text.push_str(&line);
            text.push('\n');
            line = String::from(" ");
        }
        line = format!("{line} {name}");
    }
    text + &line + "\n" + END
}
