"""Programs that end in time, and what can be known of those that do not, before they are killed."""
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

# Lines of the kernel's log that bear on a GPU or on a process that was ended.
TELLING = re.compile(r"NVRM|Xid|nvidia|segfault|general protection|oom|Out of memory|hung_task|blocked for more", re.I)
MOST_LINES = 40
# Seconds for the debugger, which stops the device first; and the most processes that it looks at.
DEBUGGER_SECONDS, MOST_DEBUGGED = 12, 2
# What it is asked: the kernels that are on the device and where their blocks are, then the threads of the host.
QUESTIONS = ["info cuda kernels", "info cuda blocks", "info cuda lanes", "thread apply all backtrace 16"]
MOST_DEBUGGER_OUTPUT = 16_000
MOST_THREADS = 200
# After it was killed a process may be in the driver for so many seconds; then it is left to it.
FAREWELL = 2


def bounded(words, seconds, env, cwd=None):
    """Status, output and, where it had to be ended, all that is known of it; nobody that it started is left, if
    the driver lets go of them."""
    hang = []
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                       env=env, cwd=cwd, start_new_session=True)
        except OSError as error:
            return "not started", str(error), hang
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status, hang = "out of time", known_of(process.pid)
        end(process.pid)
        try:
            process.wait(FAREWELL)
        except subprocess.TimeoutExpired:
            status = "out of time, and still there after it was killed"
        output.seek(0)
        return status, output.read().decode(errors="replace"), hang


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
    """Lines of a log that came since."""
    known = set(before)
    return [line for line in after if line not in known]


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


def debugged(pid):
    """What the debugger says of a process, and of its kernels on the device."""
    program = debugger()
    if program is None:
        return "there is no cuda-gdb and no gdb"
    asked = QUESTIONS if program.endswith("cuda-gdb") else QUESTIONS[-1:]
    words = [program, "-nx", "-batch", "-p", str(pid), *(word for one in asked for word in ("-ex", one))]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True, text=True, errors="replace")
    try:
        said, _ = process.communicate(timeout=DEBUGGER_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate()[0] + f"\n(ended after {DEBUGGER_SECONDS} s)"
    return said[-MOST_DEBUGGER_OUTPUT:]


def known_of(leader):
    """All that there is to know of a session that does not end."""
    found = processes_of(leader)
    # Those with most threads first: programs, not what starts them.
    threads = {pid: list(threads_of(pid)) for pid in found}
    busiest = sorted(found, key=lambda pid: -len(threads[pid]))[:MOST_DEBUGGED]
    return [{"process": pid, "command": read(f"/proc/{pid}/cmdline").replace("\0", " ").strip(),
             "threads": threads[pid], "debugger": debugged(pid) if pid in busiest else "not asked"}
            for pid in found]


def end(leader):
    """Kill a session and all that it started."""
    for pid in processes_of(leader):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def text(hang):
    """The same for a reader, in lines."""
    for process in hang:
        yield f"process {process['process']}: {process['command']}"
        for one in process["threads"]:
            stack = " < ".join(line.split("]")[-1].strip() for line in one["stack"][:4])
            yield (f"  thread {one['thread']} {one['name']}: {one['state']}, waits in {one['wait_channel']}, "
                   f"system call {one['system_call']}{stack and ', ' + stack}")
        yield from (f"  | {line}" for line in process["debugger"].splitlines()[-60:])
