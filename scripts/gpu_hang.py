"""Programs that end in time, and what can be known of those that do not, before they are killed.

All that looks has an end of its own: what is looked at may be stuck in the driver, and so may who looks.
"""
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

# Lines of the kernel's log that bear on a GPU or on a process that was ended.
TELLING = re.compile(r"NVRM|Xid|nvidia|segfault|general protection|oom|Out of memory|hung_task|blocked for more", re.I)
MOST_LINES = 40
# Seconds for the debuggers, which stop the device first, all at once; and the most processes that they look at.
DEBUGGER_SECONDS, MOST_DEBUGGED = 12, 2
# What they are asked: the kernels that are on the device, where their blocks are, then the threads of the host.
QUESTIONS = ["info cuda kernels", "info cuda blocks", "info cuda warps", "thread apply all backtrace 16"]
# Of what one says, the beginning and the end: the device comes first, and the last thread is the main one.
MOST_DEBUGGER_OUTPUT = 24_000
MOST_THREADS = 200
# After it was killed a process may be in the driver for so many seconds; then it is left to it.
FAREWELL = 2


class Program:
    """One that was started, in a session of its own, and what it prints."""

    def __init__(self, words, env=None, cwd=None):
        self.output = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.output, env=env, cwd=cwd,
                                            stderr=subprocess.STDOUT, start_new_session=True)
        except OSError:
            self.output.close()
            raise

    def wait(self, seconds):
        """Its status; None where it is still there."""
        try:
            return self.process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        """Kill it and all that it started; whether it is gone."""
        end(self.process.pid)
        return self.wait(FAREWELL) is not None

    def said(self):
        self.output.seek(0)
        return self.output.read().decode(errors="replace")

    def close(self):
        """What it said, which was all."""
        with self.output:
            return self.said()


def bounded(words, seconds, env, cwd=None, look=None):
    """Status, output, seconds, and what `look` has found of a program that did not end. It is killed after that,
    with all that it started."""
    begun = time.monotonic()
    try:
        program = Program(words, env, cwd)
    except OSError as error:
        return "not started", str(error), 0.0, []
    status, found = program.wait(seconds), []
    took = time.monotonic() - begun
    if status is None:
        status = "out of time"
        found = look(program) if look else []
    if not program.end():
        status = f"{status}, and still there after it was killed"
    return status, program.close(), took, found


def kernel_log():
    """Telling lines of the kernel's log, oldest first; why there are none, where it cannot be read."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=3, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as reason:
        return [f"dmesg: {reason}"]
    if done.returncode:
        return [f"dmesg: {done.stderr.strip()}"]
    return [line for line in done.stdout.splitlines() if TELLING.search(line)][-MOST_LINES:]


def new_lines(before, after):
    """Lines of a log that came since, and why it cannot be read."""
    known = set(before)
    return [line for line in after if line not in known or line.startswith("dmesg: ")]


def read(path):
    """A file of /proc, or why not."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError as reason:
        return f"({reason.strerror})"


def identity(pid):
    """Parent and session of a process; None where it is gone."""
    try:
        # The name before them, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return {"state": fields[0], "parent": int(fields[1]), "session": int(fields[3])}


def processes_of(leader):
    """Live processes of a session, and whatever they started, by number."""
    known = {int(name): identity(name) for name in os.listdir("/proc") if name.isdigit()}
    alive = {pid: one for pid, one in known.items() if one and one["state"] not in "ZX"}
    found = {pid for pid, one in alive.items() if pid == leader or one["session"] == leader}
    while more := {pid for pid, one in alive.items() if one["parent"] in found} - found:
        found |= more
    return sorted(found)


def threads_of(pid):
    """Name, state, wait channel, system call and kernel stack of every thread."""
    try:
        tasks = sorted(map(int, os.listdir(f"/proc/{pid}/task")))[:MOST_THREADS]
    except OSError:
        return
    for task in tasks:
        at = f"/proc/{pid}/task/{task}"
        state = re.search(r"^State:\s*(\S+)", read(f"{at}/status"), re.MULTILINE)
        yield {"thread": task, "name": read(f"{at}/comm"), "state": state[1] if state else "gone",
               "wait_channel": read(f"{at}/wchan"), "system_call": read(f"{at}/syscall").split(" ")[0],
               "stack": read(f"{at}/stack").splitlines()}


def debugger():
    usual = f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin"
    return shutil.which("cuda-gdb", path=usual) or shutil.which("gdb", path=usual)


def debugged(pids, seconds):
    """What a debugger says of each of some processes, and of their kernels on the device."""
    program = debugger()
    if program is None:
        return {pid: "there is no cuda-gdb and no gdb" for pid in pids}
    asked = QUESTIONS if program.endswith("cuda-gdb") else QUESTIONS[-1:]
    commands = [word for one in asked for word in ("-ex", f"echo \\n== {one}\\n", "-ex", one)]
    end_at = time.monotonic() + min(seconds, DEBUGGER_SECONDS)
    begun = {pid: Program([program, "-nx", "-batch", "-p", str(pid), *commands]) for pid in pids}
    said = {}
    for pid, one in begun.items():
        is_late = one.wait(end_at - time.monotonic()) is None
        one.end()
        said[pid] = shortened(one.close()) + ("\n(the debugger was ended)" if is_late else "")
    return said


def shortened(text):
    """The beginning and the end of a long text."""
    half = MOST_DEBUGGER_OUTPUT // 2
    return text if len(text) <= 2 * half else f"{text[:half]}\n(...)\n{text[-half:]}"


def known_of(leader, seconds):
    """All that there is to know of a session that does not end, within so many seconds for debuggers."""
    found = processes_of(leader)
    # Those with most threads first: programs, not what starts them.
    threads = {pid: list(threads_of(pid)) for pid in found}
    busiest = sorted(found, key=lambda pid: -len(threads[pid]))[:MOST_DEBUGGED]
    said = debugged(busiest, seconds) if seconds >= 1 else {}
    # Not its words, whose memory another thread of it may hold.
    return [{"process": pid, "name": read(f"/proc/{pid}/comm"), "threads": threads[pid],
             "debugger": said.get(pid, "not asked")} for pid in found]


def end(leader):
    """Kill a session and all that it started."""
    for pid in processes_of(leader):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def text(hang, most):
    """The same for a reader, in lines; of each debugger so many of the first, and of the last."""
    for process in hang:
        yield f"process {process['process']} {process['name']}"
        for one in process["threads"]:
            stack = " < ".join(line.split("]")[-1].strip() for line in one["stack"][:4])
            yield (f"  thread {one['thread']} {one['name']}: {one['state']}, waits in {one['wait_channel']}, "
                   f"system call {one['system_call']}{stack and ', ' + stack}")
        lines = process["debugger"].splitlines()
        kept = lines if len(lines) <= 2 * most else [*lines[:most], "(...)", *lines[-most:]]
        yield from (f"  | {line}" for line in kept)
