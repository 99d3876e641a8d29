"""NVIDIA's NCCL headers, read out of its wheels into target/nccl-headers/VERSION.

The suite `abi` holds the library's NCCL interface against them. Pip names the wheels and reads them.
A wheel has hundreds of megabytes and its headers a few hundred kilobytes, so only those bytes are fetched.
Where pip or the server cannot do so, pip downloads the whole wheel into a temporary folder.

What is there is kept. Once a day pip is asked which releases are the newest. Prints the folders.
Where it fails, it says which package failed, and pip's reason. Nothing of NVIDIA's is ever committed.
"""

import json
import re
import shutil
import sys
import tempfile
import time
import zipfile
import zlib
from pathlib import Path

import pip_wheels
from pip_wheels import Failed

PLACE = Path(__file__).resolve().parent.parent / "target/nccl-headers"
#: The package whose newest release counts, and the one that has old ones.
NEWEST, OLDER = "nvidia-nccl-cu13", "nvidia-nccl-cu12"
#: The releases whose newest patch is read: those in which a structure or the list of functions grew.
SERIES = ("2.18", "2.21", "2.23", "2.25", "2.27", "2.28", "2.30")

#: What a wheel is called that we read.
WHEEL = re.compile(r"nvidia_nccl_cu1[23]-(\d+\.\d+\.\d+)-py3-none-manylinux\w*[\w.]*x86_64\.whl")
#: The members of a wheel that are unpacked, and where: `nccl_device.h` includes a tree of others.
MEMBER = re.compile(r"nvidia/nccl/include/(nccl\.h|nccl_device\.h|nccl_device/[\w/.-]+\.h)")

DAY_SECONDS = 24 * 60 * 60


class WrongWheel(Exception):
    """A wheel that was read and does not have what it should."""


def unpack(wheel, folder):
    """Write the headers in an open wheel into a folder."""
    with zipfile.ZipFile(wheel) as members:
        for name in members.namelist():
            if found := MEMBER.fullmatch(name):
                path = folder / found[1]
                # A wheel is not to write anywhere else.
                if ".." in path.parts:
                    raise WrongWheel(f"it has a member {name}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(members.read(name))
    if not (folder / "nccl.h").is_file():
        raise WrongWheel("it has no nvidia/nccl/include/nccl.h")


def read(package, version, url, temporary):
    """A folder of the headers in the wheel at a URL, below a temporary one."""
    try:
        with pip_wheels.opened(url) as wheel:
            unpack(wheel, temporary / "parts")
        return temporary / "parts"
    except WrongWheel:
        raise
    except Exception as error:
        # Pip's inner code changes, and may raise anything; its command works, or says what is wrong.
        why = str(error) or type(error).__name__
        print(f"{package} {version}: pip downloads the whole wheel ({why})", file=sys.stderr)
    wheel = pip_wheels.downloaded(package, version, url, temporary)
    unpack(wheel, temporary / "whole")
    return temporary / "whole"


def take(package, version, url, folder):
    """Put the headers of a version into a folder, which is there only when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # On the disk of target/: a wheel is larger than many a /tmp.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".taking-") as temporary:
        try:
            made = read(package, version, url, Path(temporary))
        except (WrongWheel, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise Failed(f"{package} {version}", f"the wheel cannot be read ({error})") from error
        if not folder.exists():
            made.rename(folder)


def wheels(package):
    """The name of a package and the URL of its wheel, by version."""
    named = ((WHEEL.fullmatch(url.rpartition("/")[2]), url) for url in pip_wheels.listed(package)[1])
    found = {name[1]: (package, url) for name, url in named if name}
    if not found:
        raise Failed(package, "pip lists no wheel for x86-64")
    return found


def number(version):
    """A version, to be compared."""
    return tuple(map(int, version.split(".")))


def chosen(newest, older):
    """The versions that are wanted, of those that the two packages have; the newest is the last."""
    picked = [max((one for one in older if one.startswith(f"{series}.")), key=number, default=None)
              for series in SERIES]
    lacking = [series for series, one in zip(SERIES, picked) if one is None]
    if lacking:
        raise Failed(OLDER, f"it has no release {', '.join(lacking)}")
    newest = max(newest, key=number)
    return [one for one in picked if one != newest] + [newest]


def remembered(stamp, now):
    """The versions that were wanted a short time ago, where all of them are there."""
    try:
        age = now - stamp.stat().st_mtime
        versions = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return None
    whole = all((stamp.parent / version / "nccl.h").is_file() for version in versions)
    return versions if whole and 0 <= age < DAY_SECONDS else None


def headers(place):
    """The folders of headers below `place`, fetched where they are missing; the newest is the last."""
    stamp = place / "versions.json"
    versions = remembered(stamp, time.time())
    if versions is None:
        newest, older = wheels(NEWEST), wheels(OLDER)
        versions = chosen(newest, older)
        for version in versions:
            if not (place / version / "nccl.h").is_file():
                shutil.rmtree(place / version, ignore_errors=True)
                package, url = {**older, **newest}[version]
                take(package, version, url, place / version)
        stamp.write_text(json.dumps(versions))
    return [place / version for version in versions]


def main():
    """Fetch all, and print where they are; 1 where pip fails."""
    try:
        for folder in headers(PLACE):
            print(folder)
    except Failed as error:
        print(f"error: NCCL's headers cannot be fetched: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
