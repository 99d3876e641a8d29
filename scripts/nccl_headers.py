"""NVIDIA's NCCL headers, read out of its wheels on PyPI into target/nccl-headers/VERSION.

The suite `abi` holds the library's NCCL interface against them. A wheel has hundreds of megabytes and
its headers a few hundred kilobytes, so only those bytes are asked for: a zip file has its table of
contents at its end. A server that knows no ranges sends the whole wheel, into a temporary file.

What is there is kept. Once a day the index is asked which releases are the newest. Prints the folders;
where the network fails, says which address failed, and why. Nothing of NVIDIA's is ever committed.
"""

import functools
import html
import http.client
import io
import json
import os
import re
import shutil
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from urllib.parse import urljoin

PLACE = Path(__file__).resolve().parent.parent / "target/nccl-headers"
#: Where a package's files are listed; the second is asked where the first fails.
PAGES = ("https://pypi.org/pypi/{name}/json", "https://pypi.org/simple/{name}/")
#: The package whose newest release counts, and the one that has old ones.
NEWEST, OLDER = "nvidia-nccl-cu13", "nvidia-nccl-cu12"
#: The releases whose newest patch is read: those in which a structure or the list of functions grew.
SERIES = ("2.18", "2.21", "2.23", "2.25", "2.27", "2.28", "2.30")

#: What a wheel is called that we read.
WHEEL = re.compile(r"nvidia_nccl_cu1[23]-(\d+\.\d+\.\d+)-py3-none-manylinux\w*[\w.]*x86_64\.whl")
#: The members of a wheel that are unpacked, and where: `nccl_device.h` includes a tree of others.
MEMBER = re.compile(r"nvidia/nccl/include/(nccl\.h|nccl_device\.h|nccl_device/[\w/.-]+\.h)")

DAY_SECONDS = 24 * 60 * 60
#: Of one answer.
TIMEOUT_SECONDS = 60
#: Between the attempts to get one address.
PAUSES_SECONDS = (2, 10, None)
#: What is asked for at once: a table of contents, or all headers, fits into a few of these.
BLOCK_BYTES = 1 << 18
#: Where Debian and its like have certificates, also those of an intercepting proxy.
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


class Unreachable(Exception):
    """An address that gave no usable answer, and why."""

    def __init__(self, url, reason):
        super().__init__(f"{url}: {reason}")


@functools.lru_cache(None)
def certificates():
    """The context of TLS with Python's own certificates, and those that pip is told to trust."""
    context = ssl.create_default_context()
    for path in (os.environ.get("PIP_CERT"), CERTIFICATES):
        if path and Path(path).is_file():
            context.load_verify_locations(path)
    return context


def ask(url, headers, use):
    """What `use` makes of the answer; asks again where the network fails."""
    for pause in PAUSES_SECONDS:
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=certificates()) as answer:
                return use(answer)
        except (OSError, http.client.HTTPException) as error:
            code = getattr(error, "code", None)
            # Of what a client did wrong, only too much in too short a time passes.
            if pause is None or code and 400 <= code < 500 and code != 429:
                reason = getattr(error, "reason", None) or str(error) or type(error).__name__
                raise Unreachable(url, f"{code} {reason}" if code else reason) from error
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


class NoRanges(Exception):
    """A server that answers with the whole file."""


class Remote(io.RawIOBase):
    """A file on a web server, to be read and sought in; blocks are fetched as they are needed."""

    def __init__(self, url):
        super().__init__()
        self.url, self.at, self.blocks = url, 0, {}
        self.size = self.fetch(0)

    def fetch(self, number):
        """Fetch one block; returns the length of the whole file."""
        first = number * BLOCK_BYTES

        def use(answer):
            if answer.status != 206:
                raise NoRanges
            span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
            data = answer.read()
            if not span or int(span[1]) != first or len(data) != int(span[2]) - first + 1:
                raise http.client.HTTPException(f"{answer.headers.get('Content-Range')!r} is not what was asked for")
            self.blocks[number] = data
            return int(span[3])
        return ask(self.url, {"Range": f"bytes={first}-{first + BLOCK_BYTES - 1}"}, use)

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=os.SEEK_SET):
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.size}[whence]
        self.at = max(0, start + offset)
        return self.at

    def tell(self):
        return self.at

    def readinto(self, buffer):
        number, within = divmod(self.at, BLOCK_BYTES)
        if self.at >= self.size:
            return 0
        if number not in self.blocks:
            self.fetch(number)
        part = self.blocks[number][within:within + len(buffer)]
        buffer[:len(part)] = part
        self.at += len(part)
        return len(part)


def unpack(wheel, folder):
    """Write the headers in an open wheel into a folder."""
    with zipfile.ZipFile(wheel) as members:
        for name in members.namelist():
            if found := MEMBER.fullmatch(name):
                path = folder / found[1]
                # A wheel is not to write anywhere else.
                if ".." in path.parts:
                    raise zipfile.BadZipFile(f"it has a member {name}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(members.read(name))
    if not (folder / "nccl.h").is_file():
        raise zipfile.BadZipFile("it has no nvidia/nccl/include/nccl.h")


def download(url, into):
    """The whole of a file, where a server knows no ranges."""
    def use(answer):
        into.seek(0)
        into.truncate()
        shutil.copyfileobj(answer, into)
        wanted = answer.headers.get("Content-Length")
        if wanted is not None and into.tell() != int(wanted):
            raise http.client.HTTPException(f"{into.tell()} of {wanted} bytes came")
    ask(url, {}, use)


def take(url, folder):
    """Put the headers of the wheel at an address into a folder, which is there only when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # On the disk of target/: a wheel is larger than many a /tmp.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".taking-") as temporary:
        made = Path(temporary) / "headers"
        try:
            try:
                with io.BufferedReader(Remote(url)) as wheel:
                    unpack(wheel, made)
            except NoRanges:
                with open(Path(temporary) / "wheel", "w+b") as wheel:
                    download(url, wheel)
                    unpack(wheel, made)
        except (zipfile.BadZipFile, EOFError) as error:
            raise Unreachable(url, f"the wheel cannot be read ({error})") from error
        if not folder.exists():
            made.rename(folder)


def listed(text, page):
    """The files that a page lists, by their names: PyPI's JSON, that of the index, or the index in HTML."""
    try:
        said = json.loads(text)
    except ValueError:
        anchors = re.findall(r"<a\s([^>]*)>\s*([^<]+?)\s*</a>", text)
        found = ((name, re.search(r"href=[\"']([^\"']+)", attributes)) for attributes, name in anchors
                 if "data-yanked" not in attributes)
        return {html.unescape(name): urljoin(page, html.unescape(link[1])) for name, link in found if link}
    files = said.get("files") or [one for release in said.get("releases", {}).values() for one in release]
    return {one["filename"]: urljoin(page, one["url"]) for one in files if not one.get("yanked")}


def wheels(package):
    """The addresses of a package's wheels, by their versions."""
    failed = []
    for page in PAGES:
        page = page.format(name=package)
        # The index has two forms; PyPI's own page has but one.
        accept = "application/vnd.pypi.simple.v1+json, application/json;q=0.9, text/html;q=0.1"
        try:
            final, text = ask(page, {"Accept": accept},
                              lambda answer: (answer.geturl(), answer.read().decode("utf-8", "replace")))
            named = ((WHEEL.fullmatch(name), url) for name, url in listed(text, final).items())
            found = {name[1]: url for name, url in named if name}
            if found:
                return found
            failed.append(str(Unreachable(page, "it lists no wheel for x86-64")))
        except Unreachable as error:
            failed.append(str(error))
    raise Unreachable(package, "; ".join(failed))


def number(version):
    """A version, to be compared."""
    return tuple(map(int, version.split(".")))


def chosen(newest, older):
    """The versions that are wanted, of those that the two packages have; the newest is the last."""
    picked = [max((one for one in older if one.startswith(f"{series}.")), key=number, default=None)
              for series in SERIES]
    lacking = [series for series, one in zip(SERIES, picked) if one is None]
    if lacking:
        raise Unreachable(OLDER, f"it has no release {', '.join(lacking)}")
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
                take({**older, **newest}[version], place / version)
        stamp.write_text(json.dumps(versions))
    return [place / version for version in versions]


def main():
    """Fetch all, and print where they are; 1 where the network fails."""
    try:
        for folder in headers(PLACE):
            print(folder)
    except Unreachable as error:
        print(f"error: NCCL's headers cannot be fetched: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
