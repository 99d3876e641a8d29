"""Horovod's exceptions, under its names."""


class HorovodInternalError(RuntimeError):
    """An operation has failed: ranks differ in it, a rank has died or has left the job."""


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed. `skip_sync`: hosts have left it only, so that all
    ranks have the state already."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync
