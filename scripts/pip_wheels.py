"""Wheels of a package, listed and read by pip: its index, its certificates and its configuration count.

A wheel's members are read by pip's inner code, which differs between releases.
Whoever reads that way needs `downloaded` for a pip without it, and for a server that sends no ranges.
"""

import functools
import re
import subprocess
import sys
from pathlib import Path

#: The Python whose wheels are listed.
PYTHON = "3.11"
#: What is asked for at once: a table of contents, or all headers of NCCL, fits into a few of these.
BLOCK_BYTES = 1 << 18


class Failed(Exception):
    """A package that pip did not get, and why."""

    def __init__(self, package, reason):
        super().__init__(f"{package}: {reason}")


def pip(package, *words):
    """What a command of pip prints; raises `Failed` with pip's reason."""
    command = [sys.executable, "-m", "pip", *words, "--no-input", "--no-color", "--disable-pip-version-check"]
    done = subprocess.run(command, check=False, text=True, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode:
        # What kept it from an address is told on the way, and the end says only that there is no version.
        told = re.findall(r"^ *(Could not fetch URL .*|ERROR: (?!Exception:).*)", done.stdout + done.stderr, re.MULTILINE)
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise Failed(package, "; ".join(dict.fromkeys(told or last)) or f"pip ended with {done.returncode}")
    return done.stdout


def listed(name):
    """The versions of a package, newest first, and its wheels' URLs, as pip tells them."""
    text = pip(name, "index", "versions", name, "-vv", "--only-binary", ":all:", "--python-version", PYTHON)
    versions = re.search(r"^Available versions: (.*)$", text, re.MULTILINE)
    if not versions:
        raise Failed(name, "pip lists no versions")
    urls = set(re.findall(r"(?:https?|file)://[^\s#]+\.whl", text))
    # Pip prints no password of an index; its session knows it.
    return versions[1].split(", "), sorted(re.sub(r"//[^/@]*@", "//", url) for url in urls)


@functools.lru_cache(None)
def session():
    """Pip's own session of requests, made as its command `download` makes it."""
    from pip._internal.commands import create_command
    command = create_command("download")
    options, _ = command.parse_args(["--no-cache-dir", "--no-input"])
    return command._build_session(options)


def opened(url):
    """The wheel at a URL as a file, of which only what is read is fetched."""
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP
    return LazyZipOverHTTP(url, session(), BLOCK_BYTES)


def downloaded(name, version, url, folder):
    """The path of the whole wheel, which pip downloads into a folder, also for another machine."""
    platforms = [word for one in url[:-len(".whl")].rpartition("-")[2].split(".") for word in ("--platform", one)]
    pip(name, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--python-version", PYTHON,
        *platforms, "-d", str(folder), f"{name}=={version}")
    return next(Path(folder).glob("*.whl"))
