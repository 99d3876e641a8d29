"""`horovod.run`: a function as the ranks of a job on this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Callable, Dict, List, Optional, Sequence

from .job import shutdown


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Optional[Dict[str, Any]] = None,
    np: int = 1,
    hosts: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    **others: Any,
) -> List[Any]:
    """Call `func` in `np` new processes, which are the ranks of a job; what each has returned.

    The function itself calls `hvd.init()`. Only on this machine: `ringrun -H` starts programs on
    others. Horovod's options that choose how ranks talk are accepted, and without effect.
    """
    if hosts is not None and {one.split(":")[0] for one in hosts.split(",")} != {"localhost"}:
        raise ValueError(f"run() starts ranks on this machine, not on {hosts}; use ringrun -H")
    try:
        from cloudpickle import dumps  # type: ignore[import,unused-ignore]
    except ImportError:
        dumps = pickle.dumps
    work = dumps((func, tuple(args), dict(kwargs or {})))
    fresh = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(np, fresh) as pool:
        ranks = [
            pool.submit(_rank, rank, np, f"file://{folder}/meet", work, dict(env or {}), dumps)
            for rank in range(np)
        ]
        return [pickle.loads(rank.result()) for rank in ranks]


def _rank(
    rank: int, nranks: int, url: str, work: bytes, env: Dict[str, str], dumps: Callable[..., bytes]
) -> bytes:
    os.environ.update(env)
    os.environ.update(
        RINGCOMM_RANK=str(rank),
        RINGCOMM_NRANKS=str(nranks),
        RINGCOMM_LOCAL_RANK=str(rank),
        RINGCOMM_ADDRESS=url,
    )
    function, arguments, named = pickle.loads(work)
    try:
        return dumps(function(*arguments, **named))
    finally:
        # The process lives on for a while, and would wait for the others as a rank.
        shutdown()
