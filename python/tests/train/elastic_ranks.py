"""The ranks of an elastic job: forked processes that may be killed, and newcomers to them."""

import multiprocessing
import os
import pickle
import signal
import time
import traceback

from ringcomm.horovod.elastic import meeting

#: Longer than any test waits on a machine that does ten other things.
MOST_SECONDS = 120


class Ranks:
    """A job in a folder, whose processes each call `body(slot, *arguments)`."""

    def __init__(self, folder, nranks, body, *arguments, **variables):
        self.folder, self.nranks, self.body, self.arguments = folder, nranks, body, arguments
        self.meeting = folder / "meeting"
        self.meeting.mkdir(mode=0o700)
        self.variables = {"RINGCOMM_ELASTIC": str(self.meeting), **variables}
        self.processes = {}
        for slot in range(nranks):
            self._start(slot, {})

    def add(self, slot):
        """A newcomer; `slot` is the launcher's number of it."""
        self._start(slot, {"RINGCOMM_ELASTIC_JOIN": "1"})

    def add_when_asked(self, slot):
        """A newcomer, at the time that `ask` says."""
        wait_for((self.meeting / "asked").exists)
        self.add(slot)

    def _start(self, slot, more):
        variables = {
            "RINGCOMM_RANK": str(slot),
            "RINGCOMM_NRANKS": str(self.nranks),
            "RINGCOMM_ADDRESS": f"file://{self.folder}/meet",
            "RINGCOMM_TIMEOUT_MS": str(1000 * MOST_SECONDS),
            "RINGCOMM_DETERMINISTIC": "1",
            **self.variables,
            **more,
        }
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=self._main, args=(slot, variables))
        process.start()
        self.processes[slot] = process

    def _main(self, slot, variables):
        os.environ.update(variables)
        try:
            result = self.body(slot, *self.arguments)
        except Exception:
            result = traceback.format_exc()
            self._leave(slot, result)
            os._exit(1)
        self._leave(slot, result)

    def _leave(self, slot, result):
        hidden = self.folder / f"hidden.{slot}"
        hidden.write_bytes(pickle.dumps(result))
        hidden.rename(self.folder / f"result.{slot}")

    def results(self):
        """What each process has returned: a text where it failed, None where it was killed. Second:
        how each has ended."""
        until = time.monotonic() + MOST_SECONDS
        for process in self.processes.values():
            process.join(max(0, until - time.monotonic()))
        late = [slot for slot, process in self.processes.items() if process.is_alive()]
        for process in self.processes.values():
            process.kill()
        found = {}
        for slot in self.processes:
            file = self.folder / f"result.{slot}"
            found[slot] = pickle.loads(file.read_bytes()) if file.exists() else None
        assert not late, f"{late} have not ended; {found}"
        return found, {slot: process.exitcode for slot, process in self.processes.items()}


def die():
    """As by the kernel: nothing is said to anybody."""
    os.kill(os.getpid(), signal.SIGKILL)


def ask():
    """Wait for a newcomer, which is not started before; once."""
    asked = os.path.join(os.environ["RINGCOMM_ELASTIC"], "asked")
    if not os.path.exists(asked):
        open(asked, "w").close()
        wait_for(meeting.here().waiting)


def wait_for(what):
    """Return when `what()` is true."""
    until = time.monotonic() + MOST_SECONDS
    while not what():
        assert time.monotonic() < until, "it has not come"
        time.sleep(0.01)
