"""The folder in which newcomers wait for a job that runs.

A process that waits, and each rank, holds a lock on a file of its own there: a lock ends with its
process. A newcomer that is let in gets a ticket: how many ranks there are, which it is, and the
secret with which they meet. The launcher, or who ever else, names ranks that are to go.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sys
import time
from typing import Dict, List, Optional

from ...buffers import CPU
from ...communicator import Communicator
from ...config import Config
from ...errors import RingError

#: Names the folder; every rank and newcomer has it.
FOLDER = "RINGCOMM_ELASTIC"
#: Says that this process is a newcomer.
NEWCOMER = "RINGCOMM_ELASTIC_JOIN"
#: How a newcomer ends whose job has failed: a launcher starts no other in its place.
TURNED_AWAY = 75
#: Between two looks into the folder.
GLANCE_S = 0.01
#: Without a ticket, a newcomer looks so often whether the job still runs.
LOOK_S = 0.5
#: For those who are known to live, and are about to call.
MOST_JOIN_MS = 30000


class Meeting:
    """The folder, as one process uses it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        try:
            found = os.stat(folder)
        except OSError as error:
            raise ValueError(
                f"{FOLDER}={folder}: {error.strerror}; make the folder first"
            ) from None
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ValueError(
                f"{FOLDER}={folder}: others may write there, and so could join the job; give a "
                "folder that is yours, of mode 0700"
            )
        #: Descriptors of held files, by their paths. To close one would end the lock.
        self._held: Dict[str, int] = {}

    def _path(self, kind: str, name: str) -> str:
        return os.path.join(self._folder, f"{kind}.{name}")

    def _names(self, kind: str) -> List[str]:
        start = f"{kind}."
        return sorted(
            one.name[len(start):] for one in os.scandir(self._folder) if one.name.startswith(start)
        )

    def _hold(self, path: str) -> None:
        """Make a file and lock it, before anybody sees it."""
        hidden = os.path.join(self._folder, f"new.{secrets.token_hex(8)}")
        descriptor = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.rename(hidden, path)
        self._held[path] = descriptor

    def _let_go(self, path: str) -> None:
        descriptor = self._held.pop(path, None)
        if descriptor is not None:
            _remove(path)
            os.close(descriptor)

    def _lives(self, path: str) -> bool:
        """Whether somebody else holds the file; what nobody holds is removed."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            _remove(path)
            return False
        finally:
            os.close(descriptor)

    # What ranks do

    def be_rank(self) -> None:
        """Show that the job has a rank here."""
        self._hold(self._path("rank", f"{os.getpid()}-{secrets.token_hex(8)}"))

    def leave(self) -> None:
        """This process is no longer a rank."""
        for path in list(self._held):
            self._let_go(path)

    def waiting(self) -> List[str]:
        """The newcomers that live, in the order in which they have come."""
        return [one for one in self._names("waiting") if self._lives(self._path("waiting", one))]

    def admit(self, newcomer: str, unique_id: bytes, nranks: int, rank: int) -> None:
        """Let a newcomer in."""
        ticket = {"id": unique_id.hex(), "nranks": nranks, "rank": rank}
        hidden = os.path.join(self._folder, f"new.{secrets.token_hex(8)}")
        with open(os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            json.dump(ticket, file)
        os.rename(hidden, self._path("ticket", newcomer))

    def withdraw(self, newcomer: str) -> None:
        """The ticket is good no more."""
        _remove(self._path("ticket", newcomer))

    def leaving(self) -> List[str]:
        """The launcher's numbers of ranks that are to go."""
        return self._names("leave")

    def has_left(self, name: str) -> None:
        """The rank with this number goes."""
        _remove(self._path("leave", name))

    def end(self) -> None:
        """The job needs nobody any more."""
        os.close(os.open(self._path("job", "over"), os.O_CREAT | os.O_WRONLY, 0o600))

    # What newcomers do

    def join(self) -> Communicator:
        """Wait until the job lets this process in. Where it ends before, so does this process."""
        name = f"{time.time_ns():020}-{secrets.token_hex(8)}"
        path = self._path("waiting", name)
        self._hold(path)
        while True:
            ticket = self._ticket(name)
            made = self._use(ticket["id"], int(ticket["nranks"]), int(ticket["rank"]))
            self.withdraw(name)
            if made is not None:
                self._let_go(path)
                return made

    def _ticket(self, name: str) -> Dict[str, str]:
        looked, path = time.monotonic(), self._path("ticket", name)
        while True:
            try:
                with open(path, encoding="utf-8") as file:
                    ticket: Dict[str, str] = json.load(file)
                return ticket
            except FileNotFoundError:
                pass
            if time.monotonic() - looked >= LOOK_S:
                looked = time.monotonic()
                self._check_job()
            time.sleep(GLANCE_S)

    def _check_job(self) -> None:
        if "over" in self._names("job"):
            self.leave()
            sys.exit(0)
        begun = "begun" in self._names("job")
        ranks = [one for one in self._names("rank") if self._lives(self._path("rank", one))]
        if begun and not ranks:
            self.leave()
            print(
                f"the job of {FOLDER}={self._folder} has no rank left that this one could join",
                file=sys.stderr,
            )
            sys.exit(TURNED_AWAY)

    def begin(self) -> None:
        """The job has ranks from now on."""
        os.close(os.open(self._path("job", "begun"), os.O_CREAT | os.O_WRONLY, 0o600))

    def _use(self, unique_id: str, nranks: int, rank: int) -> Optional[Communicator]:
        made: Optional[Communicator] = None
        try:
            made = meet(bytes.fromhex(unique_id), nranks, rank)
            # The second comes when the ranks have agreed that all are there.
            made.barrier()
            return made
        except RingError:
            if made is not None:
                made.abort()
            return None


def meet(unique_id: bytes, nranks: int, rank: int) -> Communicator:
    """The communicator of old ranks and new, once all have come."""
    made = Communicator.init(
        nranks, rank, unique_id, Config(device=CPU, init_timeout_ms=MOST_JOIN_MS)
    )
    try:
        made.barrier()
    except RingError:
        made.abort()
        raise
    return made


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


_here: Optional[Meeting] = None


def here() -> Optional[Meeting]:
    """The folder that the environment names; None: there is none."""
    global _here
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    if _here is None or _here._folder != folder:
        _here = Meeting(folder)
    return _here


def is_newcomer() -> bool:
    """Whether this process is to join a job that runs."""
    return os.environ.get(NEWCOMER, "0") not in ("", "0")
