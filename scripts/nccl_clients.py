#!/usr/bin/env python3
"""Which functions of NCCL its clients call: makes and checks cbindings/nccl/clients.txt.

    nccl_clients.py [--all] [--nccl-tests REPOSITORY]   writes the list
    nccl_clients.py --check LIBRARY                     compares it with a library's exports

Pip names the clients' wheels.
Of a wheel only its directory and the members in question are read, a shared object no further than its tables.
A linked client's names are its undefined dynamic symbols.
A client that opens the library has them as strings, or in its Python sources.
nccl-tests are sources, read from a clone of their repository, bare or not.
Lines of versions that the list has are kept; --all makes them anew, less that of nccl-tests.
"""

import argparse
import contextlib
import datetime
import re
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections import namedtuple
from pathlib import Path

from pip_wheels import PYTHON, listed, session

LIST = Path(__file__).resolve().parent.parent / "cbindings/nccl/clients.txt"

# What is read of a client: MEMBERS matches names in its wheel, HOW is a function below.
# VERSIONS matches those asked for, and the newest of each group of matches is taken.
Client = namedtuple("Client", "name versions members how")
# The names of one client, and sentences on how it comes to the library.
Found = namedtuple("Found", "names facts")

NAME = re.compile(rb"p?nccl[A-Z]\w*")
WHOLE_STRING = re.compile(rb"(?<=\0)p?nccl[A-Z]\w*(?=\0)")
LIBRARY_STRING = re.compile(rb"(?<=\0)[\w./$-]*libnccl[\w.-]*(?=\0)")
CALL = re.compile(r"\b(p?nccl[A-Z]\w*)\s*\(")
# vLLM's and SGLang's tables of functions, by which they ask ctypes for them.
BOUND = re.compile(r"""\bFunction\(\s*["'](nccl[A-Z]\w*)["']""")
# C++ within a Python source.
EMBEDDED = re.compile(r'"""(.*?)"""', re.DOTALL)
LIBRARY = re.compile(r"-l:?(?:lib)?nccl(?:\.so[.\d]*)?|\blibnccl\.so(?:\.\d+)*")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

# Of nccl-tests: their own functions, and the inline ones of nccl_device.h that their kernels call.
OWN = re.compile(r"nccl(Test|Verifiable)")
INLINE = {"ncclCoopCta", "ncclGetLocalPointer", "ncclGetLsaMultimemPointer", "ncclGetLsaPointer", "ncclTeamTagLsa",
          "ncclTeamTagWorld", "ncclTeamWorld"}

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_RPATH, DT_RUNPATH = 1, 4, 5, 6, 10, 15, 29
DT_GNU_HASH, DT_VERSYM = 0x6ffffef5, 0x6ffffff0
STB_WEAK = 2
SYMBOL = struct.Struct("<IBBHQQ")
CHUNK = 1 << 20

fetched = 0


@contextlib.contextmanager
def request(url, first, last):
    """The answer to a request for these bytes of a URL; a server may send all."""
    asked = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
    with session().get(url, headers=asked, stream=True) as answer:
        answer.raise_for_status()
        yield answer


def counted(data):
    """The same bytes, added to those fetched."""
    global fetched
    fetched += len(data)
    return data


class Tail:
    """A file at a URL as zipfile wants it to read the directory at its end."""

    def __init__(self, url, size):
        self.url, self.size, self.place, self.blocks = url, size, 0, {}

    def seekable(self):
        return True

    def tell(self):
        return self.place

    def seek(self, offset, whence=0):
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def read(self, size=-1):
        end = self.size if size < 0 else min(self.size, self.place + size)
        data = bytearray()
        while self.place < end:
            block = self.place // CHUNK
            if block not in self.blocks:
                last = min(self.size, (block + 1) * CHUNK) - 1
                with request(self.url, block * CHUNK, last) as answer:
                    self.blocks[block] = counted(answer.raw.read())
            start = self.place % CHUNK
            data += self.blocks[block][start:start + end - self.place]
            self.place = block * CHUNK + min(CHUNK, start + end - self.place)
        return bytes(data)


class Wheel:
    """A wheel at a URL; where the server sends no ranges it is in a temporary file."""

    def __init__(self, url, folder):
        self.url, self.whole = url, None
        with request(url, 0, 0) as answer:
            if answer.status_code == 206:
                size = int(answer.headers["Content-Range"].rpartition("/")[2])
                self.zip = zipfile.ZipFile(Tail(url, size))
                return
            self.whole = tempfile.TemporaryFile(dir=folder)
            while data := counted(answer.raw.read(CHUNK)):
                self.whole.write(data)
        self.zip = zipfile.ZipFile(self.whole)

    def members(self, pattern):
        return [info for info in self.zip.infolist() if re.fullmatch(pattern, info.filename)]

    def chunks(self, info):
        """The inflated member, piece by piece; what is not asked for is not fetched."""
        if self.whole:
            with self.zip.open(info) as member:
                while data := member.read(CHUNK):
                    yield data
            return
        # The local header ends with a name and an extra field of lengths that it tells.
        room = 30 + (1 << 17)
        with request(self.url, info.header_offset, info.header_offset + room + info.compress_size) as answer:
            header = counted(answer.raw.read(30))
            counted(answer.raw.read(sum(struct.unpack_from("<HH", header, 26))))
            left = info.compress_size
            inflate = zlib.decompressobj(-zlib.MAX_WBITS) if info.compress_type else None
            while left:
                data = counted(answer.raw.read(min(CHUNK, left)))
                if not data:
                    raise EOFError(f"{info.filename} ends early")
                left -= len(data)
                yield inflate.decompress(data) if inflate else data


class Elf:
    """A shared object that comes in pieces, kept in a temporary file as far as it was asked for."""

    def __init__(self, chunks, folder):
        self.chunks, self.file, self.size = chunks, tempfile.TemporaryFile(dir=folder), 0
        if self.read(0, 6) != b"\x7fELF\x02\x01":
            raise ValueError("no little-endian ELF file of 64 bits")
        offset, = struct.unpack("<Q", self.read(32, 8))
        size, count = struct.unpack("<HH", self.read(54, 4))
        headers = [struct.unpack("<IIQQQQQQ", self.read(offset + n * size, 56)) for n in range(count)]
        self.loads = [(h[3], h[2], h[5]) for h in headers if h[0] == PT_LOAD]
        self.dynamic = []
        place, length = next((h[2], h[5]) for h in headers if h[0] == PT_DYNAMIC)
        for tag, value in struct.iter_unpack("<QQ", self.read(place, length)):
            if tag == 0:
                break
            self.dynamic.append((tag, value))
        self.strings = self.read(self.table(DT_STRTAB), dict(self.dynamic)[DT_STRSZ])

    def read(self, offset, length):
        while self.size < offset + length:
            data = next(self.chunks, None)
            if data is None:
                raise EOFError("a table lies behind the end of the file")
            self.file.seek(self.size)
            self.size += self.file.write(data)
        self.file.seek(offset)
        return self.file.read(length)

    def table(self, tag):
        """Where in the file the table of a dynamic tag begins; None without it."""
        address = dict(self.dynamic).get(tag)
        return next((address - at + offset for at, offset, size in self.loads
                     if address is not None and at <= address < at + size), None)

    def string(self, offset):
        return self.strings[offset:self.strings.index(b"\0", offset)]

    def named(self, tag):
        return [self.string(value).decode() for key, value in self.dynamic if key == tag]

    def loaded(self):
        """What is loaded into memory, in overlapping pieces, less the names of symbols."""
        names = self.table(DT_STRTAB), self.table(DT_STRTAB) + len(self.strings)
        for _, offset, size in self.loads:
            for start in range(offset, offset + size, CHUNK):
                data = bytearray(self.read(start, min(CHUNK + 1024, offset + size - start)))
                first, last = (min(max(place - start, 0), len(data)) for place in names)
                data[first:last] = bytes(last - first)
                yield data

    def undefined(self):
        """Index, name and binding of every symbol of NCCL that another library has to define."""
        if (hashed := self.table(DT_HASH)) is not None:
            _, count = struct.unpack("<II", self.read(hashed, 8))
        else:
            # This table leaves out the symbols before its first, and only those may be undefined.
            _, count = struct.unpack("<II", self.read(self.table(DT_GNU_HASH), 8))
        symbols = self.read(self.table(DT_SYMTAB), count * SYMBOL.size)
        for index, (name, info, _, section, _, _) in enumerate(SYMBOL.iter_unpack(symbols)):
            if section == 0 and NAME.fullmatch(self.string(name)):
                yield index, self.string(name).decode(), info >> 4

    def versioned(self, index):
        """Whether an undefined symbol asks for a version of its name."""
        versions = self.table(DT_VERSYM)
        return versions is not None and struct.unpack("<H", self.read(versions + 2 * index, 2))[0] & 0x7fff > 1


def shared(wheel, members, folder):
    """The names that shared objects leave undefined, else those that they have as strings for dlsym."""
    with contextlib.ExitStack() as stack:
        elves = [Elf(stack.enter_context(contextlib.closing(wheel.chunks(info))), folder) for info in members]
        mine = [linked(elf) for elf in elves]
        if not any(mine):
            mine = [opened(elf) for elf in elves]
    facts = [f"{Path(info.filename).name} {its[1]}" for info, its in zip(members, mine) if its]
    return Found({name for its in mine if its for name in its[0]}, facts)


def linked(elf):
    """Names and a sentence on a shared object that needs NCCL's library, or nothing."""
    undefined = list(elf.undefined())
    needed = [library for library in elf.named(DT_NEEDED) if "nccl" in library]
    if not needed:
        return None
    fact = f"is linked with {', '.join(needed)}"
    for tag, word in (DT_RPATH, "RPATH"), (DT_RUNPATH, "RUNPATH"):
        if paths := [path for value in elf.named(tag) for path in value.split(":") if "nccl" in path]:
            fact += f", {word} {':'.join(paths)}"
    if weak := sorted(name for _, name, binding in undefined if binding == STB_WEAK):
        fact += f", weak: {' '.join(weak)}"
    if versions := sorted(name for index, name, _ in undefined if elf.versioned(index)):
        fact += f", with versions: {' '.join(versions)}"
    return {name for _, name, _ in undefined}, f"{fact}, functions: {len(undefined)}"


def opened(elf):
    """Names and a sentence on a shared object that may open the library by itself."""
    if names := {name for _, name, _ in elf.undefined()}:
        return names, f"takes {len(names)} functions from another of the client's libraries"
    libraries = set()
    for data in elf.loaded():
        names.update(name.decode() for name in WHOLE_STRING.findall(data))
        libraries.update(library.decode() for library in LIBRARY_STRING.findall(data))
    opens = " or ".join(sorted(libraries)) or "a library whose name it makes at run time"
    return names, f"opens {opens}, functions: {len(names)}" if names or libraries else "opens none"


def python(wheel, members, _folder):
    """The names in tables of ctypes functions, and those that C++ within the sources calls."""
    names, facts = set(), []
    for info in members:
        text = b"".join(wheel.chunks(info)).decode()
        mine = set(BOUND.findall(text))
        for source in EMBEDDED.findall(text):
            if "#include" in source or 'extern "C"' in source:
                mine.update(CALL.findall(COMMENT.sub("", source)))
        names |= mine
        libraries = " or ".join(sorted(set(LIBRARY.findall(text)))) or "what it is told"
        does = "builds C++ with" if libraries.startswith("-l") else "opens"
        if mine:
            facts.append(f"{info.filename} {does} {libraries}, functions: {len(mine)}")
        elif "libnccl" in libraries:
            facts.append(f"{info.filename} names {libraries}")
    return Found(names, facts)


CLIENTS = [
    # The newest of every minor release from 2.1 on; from 2.11 on they are for CUDA 13.
    Client("torch", r"(2\.[1-9]\d*)\.\d+", r"torch/lib/libtorch_(cuda|python)\.so", shared),
    Client("cupy-cuda12x", r"(1[3-9])\.\d+\.\d+", r"cupy_backends/cuda/libs/nccl\..*\.so", shared),
    Client("jax-cuda12-pjrt", r"()[\d.]+", r"jax_plugins/xla_cuda12/xla_cuda_plugin\.so", shared),
    Client("tensorflow", r"(2)\.\d+\.\d+", r"tensorflow/libtensorflow_(cc|framework)\.so\.2", shared),
    # What was new in November 2024, and what is now.
    Client("vllm", r"()0\.6\.4\.post1", r"vllm/(.*/pynccl_(wrapper|allocator)|utils(/nccl)?)\.py", python),
    Client("vllm", r"()[\d.]+", r"vllm/(.*/pynccl_(wrapper|allocator)|utils(/nccl)?)\.py", python),
    Client("sglang", r"()[\d.]+(?:\.post\d+)?", r"sglang/.*/pynccl_(wrapper|allocator)\.py", python),
    Client("nccl4py", r"()[\d.]+(?:\.post\d+)?", r"nccl/bindings/_internal/nccl\..*\.so", shared),
]


def fitting(urls, version):
    """The URL of a version's newest build for this Python on x86-64 Linux."""
    python = "cp" + PYTHON.replace(".", "")
    best = []
    for url in urls:
        _, its, *build, tag, abi, platform = url.rpartition("/")[2].removesuffix(".whl").split("-")
        fits = abi == python or abi == "abi3" or tag == "py3" and abi == "none"
        if its == version and fits and platform.endswith("x86_64") and "linux" in platform:
            best.append((int(build[0]) if build else 0, url))
    if not best:
        raise FileNotFoundError(f"no wheel of {version} for {PYTHON} on x86-64 Linux")
    return max(best)[1]


def look(client, old, folder):
    """Version and findings for each of a client's versions, the old ones where there are."""
    versions, urls = listed(client.name)
    newest = {}
    for version in versions:
        if match := re.fullmatch(client.versions, version):
            newest.setdefault(match[1], version)
    for version in reversed(newest.values()):
        if (client.name, version) in old:
            yield version, old[client.name, version]
            continue
        begun, before = time.monotonic(), fetched
        wheel = Wheel(fitting(urls, version), folder)
        members = wheel.members(client.members)
        if not members:
            raise FileNotFoundError(f"{client.name} {version} has no {client.members}")
        found = client.how(wheel, members, folder)
        took = f"{time.monotonic() - begun:.1f} s, {(fetched - before) / 1e6:.1f} MB"
        print(f"{client.name} {version}: {len(found.names)} names, {took}; {'; '.join(found.facts)}", flush=True)
        yield version, found


def tests(repository):
    """Version and findings of the nccl-tests in a git repository."""
    def git(*words):
        return subprocess.run(["git", "-C", repository, *words], check=True, capture_output=True, text=True).stdout
    commit = git("rev-parse", "HEAD").strip()
    names, version = set(), None
    for path in git("ls-tree", "-r", "--name-only", "HEAD", "src").split():
        # One of these headers is for NCCL 1 alone.
        if not re.search(r"\.(cu|cc|h)$", path) or path.endswith("nccl1_compat.h"):
            continue
        text = git("show", f"HEAD:{path}")
        version = (re.findall(r'#define NCCL_TESTS_VERSION "([\d.]+)"', text) or [version])[0]
        names.update(CALL.findall(COMMENT.sub("", text)))
    names = {name for name in names if not OWN.match(name)} - INLINE
    print(f"nccl-tests {version}: {len(names)} names, commit {commit}")
    return version, Found(names, [f"sources of commit {commit}, linked with -lnccl"])


def read_list():
    """The list as it is: names, then facts, by client and version."""
    names, facts = {}, {}
    for line in LIST.read_text().splitlines() if LIST.exists() else []:
        if line.startswith("# * "):
            who, _, fact = line[4:].partition(": ")
            facts.setdefault(tuple(who.split()), []).append(fact)
        elif not line.startswith("#") and line.strip():
            who, _, words = line.partition(":")
            names[tuple(who.split())] = words.split()
    return {who: Found(names[who], facts.get(who, [])) for who in names}


def write_list(found):
    today = datetime.date.today().isoformat()
    lines = ["# The functions of NCCL that its clients need, by client and version.",
             f"# Made by scripts/nccl_clients.py on {today}, and compared with a library by its --check.",
             "# Python loads a linked client only where all of its names are there.",
             "# One that opens the library asks for its names one by one, and may live without some.",
             "# TensorFlow's and JAX's are the names in a table of stubs, of which they call a part.",
             "# How each client comes to the library:"]
    lines += [f"# * {' '.join(who)}: {fact}" for who, its in found.items() for fact in its.facts]
    lines += [f"{' '.join(who)}: {' '.join(sorted(its.names))}" for who, its in found.items()]
    LIST.parent.mkdir(parents=True, exist_ok=True)
    LIST.write_text("\n".join(lines) + "\n")


def make(everything, repository):
    begun, found, old = time.monotonic(), {}, read_list()
    with tempfile.TemporaryDirectory(prefix="nccl-clients-") as folder:
        for client in CLIENTS:
            for version, its in look(client, {} if everything else old, folder):
                found[client.name, version] = its
    if repository:
        version, its = tests(repository)
        found["nccl-tests", version] = its
    else:
        found.update((who, its) for who, its in old.items() if who[0] == "nccl-tests")
    write_list(found)
    print(f"{len(found)} clients in {time.monotonic() - begun:.0f} s, {fetched / 1e6:.0f} MB fetched")


def check(library):
    """Print what a library lacks for each client; whether it lacks nothing."""
    command = ["nm", "-D", "--defined-only", library]
    words = (line.split() for line in subprocess.run(command, check=True, capture_output=True,
                                                     text=True).stdout.splitlines())
    exports = {name.partition("@")[0] for *_, kind, name in words if kind in "TWi"}
    found, complete = read_list(), True
    if not found:
        raise FileNotFoundError(f"{LIST} lists no client")
    for who, its in found.items():
        missing = [name for name in its.names if name not in exports]
        complete = complete and not missing
        tells = f"missing: {' '.join(missing)}" if missing else "all there"
        print(f"{' '.join(who)}: {len(its.names)} names, {tells}")
    return complete


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="LIBRARY")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--nccl-tests", metavar="REPOSITORY")
    options = parser.parse_args()
    if options.check:
        sys.exit(0 if check(options.check) else 1)
    make(options.all, options.nccl_tests)


if __name__ == "__main__":
    main()
