"""Collective communication for CPUs and GPUs: all-reduce and its family, between threads, processes
and hosts.

    import numpy as np
    import ringcomm

    with ringcomm.init() as comm:                # a rank of ringrun, torchrun, mpirun or srun
        gradients = np.full(4, comm.rank, np.float32)
        comm.all_reduce(gradients)               # in place, the sum; or (send, recv, ringcomm.MAX)
        handle = comm.all_reduce(gradients, async_op=True)
        ...                                      # meanwhile, compute
        handle.wait()

- `init()` joins the job that this process is a rank of; `spawn(function, nprocs)` starts ranks from
  one process; `Communicator.all(n)` makes many ranks in one process, for a thread each;
  `get_unique_id` and `Communicator.init` are NCCL's way.
- `Communicator` has every collective, for anything contiguous with the buffer protocol,
  `__dlpack__`, `__array_interface__` or `__cuda_array_interface__`, and for PyTorch tensors:
  nothing is copied. Python objects go by `all_gather_object` and its like.
- Nothing hangs: a dead rank, one that does not come and one that makes another call end in a
  `RingError` that names it.
- The GIL is released in every call of the library.
- `python -m ringcomm.run -np 4 python program.py` starts a program as ranks, on several hosts too;
  `python -m ringcomm.perf` measures; `python -m ringcomm.nccl program.py` runs what is built for
  NCCL.

Training goes on it in these ways:

- PyTorch: `import ringcomm.torch`, then `init_process_group("ringcomm")`, and all of
  `torch.distributed` works as it is: DistributedDataParallel, FSDP2, ZeRO, DTensor, checkpoints.
- `ringcomm.torch` has tools of its own: `DataParallel` for many devices in one process,
  `reduce_gradients` for hand-written loops, `convert_sync_batchnorm`, and `share_buckets`, with
  which DistributedDataParallel takes less of the processors.
- `ringcomm.horovod.torch`, `.tensorflow` and `.tensorflow.keras` are Horovod's interface.
- Everything else: `Communicator` on arrays of NumPy, JAX (as inputs), CuPy and others.

The documentation is in `docs/python` of the repository: begin with `index.md` and `tutorial.md`; on
PyTorch `pytorch.md` and `training.md`; on jobs that outlive a rank `surviving.md` and `elastic.md`;
who comes from elsewhere reads `from-nccl.md`, `from-gloo.md`, `from-horovod.md` or `from-apex.md`;
`api.md` lists every name, and `errors.md` what goes wrong and what to do.
"""

from ._native import Collective, DataType, Protection, ReduceOp, Result, version
from .communicator import Communicator, free_unique_id, get_unique_id
from .config import Config, Explanation
from .errors import (
    RingAbortedError,
    RingArgumentError,
    RingError,
    RingRemoteError,
    RingSystemError,
    RingTimeoutError,
    RingUsageError,
)
from .groups import group, group_end, group_start
from .launch import Launcher, SpawnError, init, launcher, spawn
from .memory import Memory, PreMulSum, Registration
from .streams import Handle, Stream

__version__ = "0.1.0"

SUM, PROD, MAX, MIN, AVG = ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.AVG
BAND, BOR, BXOR = ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR

__all__ = [
    "AVG", "BAND", "BOR", "BXOR", "MAX", "MIN", "PROD", "SUM",
    "Collective", "Communicator", "Config", "DataType", "Explanation", "Handle", "Launcher",
    "Memory", "PreMulSum", "Protection", "ReduceOp", "Registration", "Result",
    "RingAbortedError", "RingArgumentError", "RingError", "RingRemoteError", "RingSystemError",
    "RingTimeoutError", "RingUsageError", "SpawnError", "Stream",
    "free_unique_id", "get_unique_id", "group", "group_end", "group_start", "init", "launcher", "spawn", "version",
]  # fmt: skip
