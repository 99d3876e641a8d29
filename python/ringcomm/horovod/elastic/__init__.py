"""Horovod's elastic training: ranks that are left go on when one dies, and newcomers join them.

    @hvd.elastic.run
    def train(state):
        while state.step < steps:
            ...
            state.step += 1
            state.commit()

Nobody is started again: the survivors shrink the job's communicator. Newcomers wait in a folder
(`meeting`), and are let in at the next commit (`members`).
"""

from ..exceptions import HorovodInternalError, HostsUpdatedInterrupt
from .loop import run, run_fn
from .state import HostUpdateResult, ObjectState, State

__all__ = [
    "HorovodInternalError", "HostUpdateResult", "HostsUpdatedInterrupt", "ObjectState", "State",
    "run", "run_fn",
]  # fmt: skip
