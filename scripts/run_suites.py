"""Runs the suites behind `scripts/test`, or those named.

Every command's output goes to its suite's log, from which passes and failures are counted
(results.py). A suite or a part of one for which the machine lacks something is skipped where
RINGCOMM_SKIP names it, and has failed where not.
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from results import FAILING, count, outcome
from suites import (LOGS, ROOT, SUITES, TARGET, USUAL, Command, Lacking, Together, aarch64, abi, asan,
                    distributed, examples, fuzz, integration, kernels, namespaces, nccl, nccl_clients, python, torch,
                    training, tsan)
from tools import Missing, nvcc, install_early, old_torch_venv, tensorflow_venv, torch_venv

# A command that takes longer than this has hung: the slowest, with everything to compile, takes a
# quarter of it on two cores.
MOST_SECONDS = 1800


def execute(command, out):
    """Run one command, with everything it started, to its end or its time; returns its status."""
    try:
        process = subprocess.Popen(command.words, cwd=command.cwd, stdin=subprocess.DEVNULL,
                                   env={**os.environ, **command.env}, stdout=out,
                                   stderr=subprocess.STDOUT, start_new_session=True)
    except OSError as error:
        out.write(f"error: {error}\n")
        return 1
    running.append(process)
    try:
        return process.wait(MOST_SECONDS)
    except subprocess.TimeoutExpired:
        out.write(f"error: killed after {MOST_SECONDS} s\n")
        return 1
    finally:
        # What it forked goes with it, also when it is itself interrupted.
        running.remove(process)
        end(process)


# What `execute` waits for, in any thread.
running = []


def end(process):
    """Kill a process and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@atexit.register
def end_all():
    for process in list(running):
        end(process)


# One thread at a time makes what a suite needs.
preparing = defaultdict(threading.Lock)

# The commands of suites, by name; what they need beyond them is there.
prepared = {}


def commands_of(suite):
    """The commands of a suite, and everything that it needs in place."""
    with preparing[suite.__name__]:
        if suite.__name__ not in prepared:
            prepared[suite.__name__] = suite()
        return prepared[suite.__name__]


def only_built(command):
    """The command that compiles what this one compiles and runs; None if it does neither."""
    if not isinstance(command, Command):
        return None
    if command.words == ["scripts/fuzz"]:
        return Command("scripts/fuzz", "--build")
    if command.words[0] != "cargo" or command.words[1] not in ("build", "check", "run", "test"):
        return None
    words = command.words[:command.words.index("--")] if "--" in command.words else command.words
    if words[1] == "test":
        words = [*words, "--no-run"]
    elif words[1] == "run":
        words = ["cargo", "build", *words[2:]]
    return Command(*words, env=command.env, cwd=command.cwd)


# Those that are compiled while others before them compile or wait: first what takes long on one core. They have what
# comes next in Cargo's directory of tests, or directories of their own: nobody waits for the lock.
EARLY = [examples, integration, nccl, tsan, asan, aarch64, fuzz]

# Those that leave a core to others: the second of each pair begins with the first, and is waited for
# when its turn comes. Fuzzing is compiled and runs on one core; namespaces wait for slow wires, and
# training, torch and python for their own processes.
BESIDE = {kernels: torch, abi: python, aarch64: fuzz, training: namespaces}

# The names of suites whose turn has come.
begun = set()

# What the first suite runs is compiled: who compiles what comes next may have Cargo's lock.
first_is_compiled = threading.Event()


def build_early(suites):
    """Compile what later suites run, with what the tests of earlier ones leave of the cores: many of
    those wait. What fails here fails again, and is told, in its suite."""
    if not shutil.which("chrt"):
        return
    # Where the kernel shares the cores among sessions first, this one is to have the least share.
    least = 'echo 19 > /proc/self/autogroup; exec chrt --idle 0 "$@"'
    idle = ["sh", "-c", least, "sh"]

    def build():
        with (LOGS / "early.log").open("w") as out:
            for suite in suites:
                try:
                    commands = commands_of(suite)
                except Missing:
                    continue
                for command in filter(None, map(only_built, commands)):
                    # Cargo locks a profile's directory.
                    if "--release" not in command.words:
                        first_is_compiled.wait()
                    if suite.__name__ not in begun:
                        command.words = [*idle, *command.words]
                        execute(command, out)
    threading.Thread(target=build, daemon=True).start()


# What may be skipped where the machine lacks something. Only some machines let a user make network
# namespaces; all else is needed to say that the tests pass.
MAY_SKIP = os.environ.get("RINGCOMM_SKIP", "namespaces").split(",")

# What was skipped with this permission.
skipped = []


def lacks(name, reason):
    """Note what cannot run; the failures that it counts as."""
    if name in MAY_SKIP:
        print(f"{name}: skipped: {reason}", flush=True)
        skipped.append(name)
        return 0
    print(f"{name}: failed: {reason}; RINGCOMM_SKIP names what to do without", flush=True)
    return 1


def run_command(command, log):
    """Run one command of a suite; returns its status. What it prints is in the log."""
    with log.open("w") as out:
        out.write(f"$ {' '.join(command.words)}\n")
        out.flush()
        if not first_is_compiled.is_set():
            if compiled := only_built(command):
                execute(compiled, out)
            first_is_compiled.set()
        return execute(command, out)


def run(suite):
    """Run one suite; returns its counts."""
    name, start = suite.__name__, time.monotonic()
    begun.add(name)
    log = LOGS / f"{name}.log"
    try:
        commands = commands_of(suite)
    except Missing as reason:
        return 0, lacks(name, reason)
    passed, failed, idle, notes = 0, 0, 0, []
    log.write_text("")
    for command in commands:
        if isinstance(command, Lacking):
            failed += lacks(command.name, command.reason)
            continue
        together = command.commands if isinstance(command, Together) else [command]
        logs = [log.with_suffix(f".{number}.log") for number in range(len(together))]
        with ThreadPoolExecutor(2) as pool:
            codes = list(pool.map(run_command, together, logs))
        for one, part, code in zip(together, logs, codes):
            text = part.read_text(errors="replace")
            part.unlink()
            with log.open("a") as out:
                out.write(text)
            counts = count(text)
            good, bad = outcome(one.words, code, *counts[:2])
            passed, failed = passed + good, failed + bad
            notes += counts[2]
            idle += counts[3]
            if bad:
                why = "nothing was tested by " if code == 0 and not any(counts[:2]) else ""
                line = " ".join(one.words)
                print(f"{name}: failed: {why}{line} (see {log.relative_to(ROOT)})", flush=True)
        if any(codes) and together[0].words[:2] == ["cargo", "build"]:
            break
    for note in notes:
        print(f"{name}: {note}", flush=True)
    seconds = time.monotonic() - start
    nothing = f", {idle} of them with nothing to do here" if idle else ""
    print(f"{name}: {passed} passed{nothing}, {failed} failed ({seconds:.0f} s)", flush=True)
    if failed:
        failing = [line for line in log.read_text(errors="replace").splitlines()
                   if FAILING.search(line)]
        print("".join(f"    {line}\n" for line in failing[:40]), end="", flush=True)
    return passed, failed


def run_all(chosen):
    """Run suites in order; returns the counts of each."""
    pool, early, results = ThreadPoolExecutor(), {}, []
    try:
        for at, suite in enumerate(chosen):
            if BESIDE.get(suite) in chosen[at:]:
                early[BESIDE[suite]] = pool.submit(run, BESIDE[suite])
            results.append(early[suite].result() if suite in early else run(suite))
    except BaseException:
        # Who interrupts waits for none.
        end_all()
        raise
    finally:
        pool.shutdown()
    return results


# What everything together puts below target/ on a machine that had nothing: half of it is PyTorch, twice, with the
# libraries that its wheels want, and the sanitizers' programs.
GIGABYTES = 26


def short_of_disk():
    """Say it before anything fails for it: a compiler's own word for it comes late and is long."""
    TARGET.mkdir(exist_ok=True)
    free = shutil.disk_usage(TARGET).free / 1e9
    if free < GIGABYTES and not (TARGET / "debug").exists():
        print(f"{TARGET} has {free:.0f} GB free; all suites need {GIGABYTES}: make room, or name some "
              "of them", flush=True)


def main():
    names = {suite.__name__: suite for suite in SUITES}
    asked = list(names) if sys.argv[1:] == ["all"] else sys.argv[1:]
    unknown = [name for name in asked if name not in names]
    if unknown:
        print(f"no suite {', '.join(unknown)}; there are: {' '.join(names)}; or all", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    # Output of the programs is compared and counted: no colours.
    os.environ.update({"CARGO_TERM_COLOR": "never", "NO_COLOR": "1"})
    # Nothing is compiled twice here: what would make the second time faster takes a third more disk.
    os.environ.setdefault("CARGO_INCREMENTAL", "0")
    chosen = [names[name] for name in asked] or USUAL
    if len(chosen) >= len(USUAL):
        short_of_disk()
    if kernels in chosen or (TARGET / "venv-cuda").exists():
        try:
            os.environ["NVCC"] = nvcc()
        except Missing as reason:
            print(f"no kernels in what follows: {reason}", flush=True)
    # The network has minutes to spare while the first suites compile.
    large = {torch: [torch_venv], distributed: [torch_venv], training: [torch_venv, tensorflow_venv],
             nccl_clients: [torch_venv, old_torch_venv]}
    install_early(dict.fromkeys(make for suite in chosen for make in large.get(suite, [])))
    build_early([suite for suite in EARLY if suite in chosen[1:]])
    begun_at = time.monotonic()
    passed, failed = (sum(column) for column in zip(*run_all(chosen)))
    minutes, seconds = divmod(round(time.monotonic() - begun_at), 60)
    print(f"{len(chosen)} suites took {minutes} min {seconds} s\n{passed} passed, {failed} failed")
    if skipped:
        print(f"{len(skipped)} suites skipped: {' '.join(skipped)}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
