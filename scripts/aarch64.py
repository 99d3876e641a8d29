"""A compiler and an emulator for AArch64: Debian's, unpacked into a directory of their own.

Nothing is installed and nobody need be root: apt works on lists and a state that lie in that
directory, and every program is started with the libraries beside it. As a program, this checks that
an emulator's log holds instructions: `aarch64.py LOG INSTRUCTION...`.
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TARGET = "aarch64-unknown-linux-gnu"

# The release whose C library and cross compiler these are. Its Rust follows the browsers' needs.
SOURCES = """\
deb [signed-by={key}] http://deb.debian.org/debian bookworm main
deb [signed-by={key}] http://deb.debian.org/debian-security bookworm-security main
"""
KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"
CONFIGURATION = """\
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; "arm64"; }};
APT::Sandbox::User "root";
APT::Update::Post-Invoke "";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::Cache "{place}/cache";
Dir::Etc::sourcelist "{place}/sources.list";
Dir::Etc::sourceparts "-";
Dir::State "{place}/state";
Dir::State::status "{place}/state/status";
"""

PACKAGES = [
    "rustc-web", "libstd-rust-web-dev", "libstd-rust-web-dev:arm64",
    "gcc-12-aarch64-linux-gnu", "cpp-12-aarch64-linux-gnu", "binutils-aarch64-linux-gnu", "libgcc-12-dev-arm64-cross",
    "libgcc-s1-arm64-cross", "libc6-arm64-cross", "libc6-dev-arm64-cross", "qemu-user",
]
# Those whose libraries this machine may lack, and the libraries that come with any gcc: older ones
# than the loader's own would not start.
NEED_LIBRARIES = ["libstd-rust-web-dev", "cpp-12-aarch64-linux-gnu", "binutils-aarch64-linux-gnu",
                  "qemu-user"]
PRESENT = {"libc6", "libgcc-s1", "libstdc++6"}

LOADER = "/lib64/ld-linux-x86-64.so.2"
# What a program is started with. Its libraries are an argument to the loader, which does not reach
# the programs that it starts in turn, as the variable would; the linker's do need them.
PROGRAMS = {
    "rustc": [LOADER, "--library-path", "{libraries}", "{root}/usr/bin/rustc",
              "--sysroot", "{root}/usr"],
    "linker": ["/usr/bin/env", "LD_LIBRARY_PATH={libraries}",
               "{root}/usr/bin/aarch64-linux-gnu-gcc-12", "--sysroot={root}"],
    "archiver": ["/usr/bin/env", "LD_LIBRARY_PATH={libraries}",
                 "{root}/usr/bin/aarch64-linux-gnu-ar"],
    "emulator": [LOADER, "--library-path", "{libraries}", "{root}/usr/bin/qemu-aarch64",
                 "-L", "{root}/usr/aarch64-linux-gnu"],
}
# Not the shell, which drops what cargo calls CARGO_BIN_EXE_ring-perf.
START = """\
#!{python} -I
import os, sys
words = {words}
os.execv(words[0], words + sys.argv[1:])
"""


class Missing(Exception):
    """What keeps the tools from being had here."""


def run(*words, place, cwd=None):
    env = {**os.environ, "APT_CONFIG": str(place / "apt.conf"), "LC_ALL": "C"}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    # apt-get update succeeds without the lists that it could not fetch, and says so.
    bad = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W: Failed"))]
    if done.returncode or bad:
        reason = (bad or done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]
        raise Missing(f"{' '.join(words[:2])}: {reason}")
    return done.stdout


def libraries(place):
    """The packages with the libraries that the programs need and not every machine has."""
    words = ["apt-cache", "depends", "--recurse", "--important", *NEED_LIBRARIES]
    names = re.findall(r"^((?:lib|zlib)[^\s:]+)$", run(*words, place=place), re.MULTILINE)
    return sorted(set(names) - PRESENT - set(PACKAGES))


def fetch(place):
    """Download and unpack everything into `place/root`."""
    if os.uname().machine != "x86_64" or not Path(LOADER).exists():
        raise Missing("the packages are for x86-64")
    for program in ("apt-get", "apt-cache", "dpkg-deb"):
        if not shutil.which(program):
            raise Missing(f"{program}, which unpacks Debian's cross compiler, is not installed")
    if not Path(KEY).exists():
        raise Missing(f"{KEY}, which proves Debian's packages, is not installed")
    shutil.rmtree(place, ignore_errors=True)
    for name in ("cache/archives/partial", "state/lists/partial", "packages", "root"):
        (place / name).mkdir(parents=True)
    (place / "apt.conf").write_text(CONFIGURATION.format(place=place))
    (place / "sources.list").write_text(SOURCES.format(key=KEY))
    (place / "state/status").touch()
    run("apt-get", "update", "-q", place=place)
    names = PACKAGES + libraries(place)
    run("apt-get", "download", "-q", *names, place=place, cwd=place / "packages")

    def unpack(package):
        run("dpkg-deb", "-x", str(package), str(place / "root"), place=place)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(unpack, (place / "packages").glob("*.deb")))
    for name in ("cache", "state", "packages"):
        shutil.rmtree(place / name)


def tools(place):
    """The variables under which cargo compiles for AArch64 and runs what it compiled. The tools are
    fetched once."""
    ready = place / "ready-2"
    if not ready.exists():
        fetch(place)
        root = place / "root"
        for name, words in PROGRAMS.items():
            words = [word.format(root=root, libraries=root / "usr/lib/x86_64-linux-gnu")
                     for word in words]
            (place / name).write_text(START.format(python=sys.executable, words=words))
            (place / name).chmod(0o755)
        ready.touch()
    prefix = f"CARGO_TARGET_{TARGET.upper().replace('-', '_')}"
    return {"RUSTC": str(place / "rustc"), f"{prefix}_LINKER": str(place / "linker"),
            f"{prefix}_RUNNER": str(place / "emulator"),
            # For what crates have in C and assembly.
            f"CC_{TARGET.replace('-', '_')}": str(place / "linker"),
            f"AR_{TARGET.replace('-', '_')}": str(place / "archiver")}


def main(log, *wanted):
    """Whether the emulator, which logs the blocks that it runs, ran every one of the
    instructions."""
    # With the lanes of the first operand: conversions of f16 and of f32 differ in nothing else.
    line = re.compile(r"^0x[0-9a-f]+:\s+[0-9a-f]{8}\s+(\S+)(?:\s+v\d+(\.\w+))?", re.MULTILINE)
    ran = {name + lanes for name, lanes in line.findall(Path(log).read_text(errors="replace"))}
    for name in wanted:
        print(f"ok: ran {name}" if name in ran else f"FAILED: {name} never ran, by {log}")
    return 0 if ran.issuperset(wanted) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
