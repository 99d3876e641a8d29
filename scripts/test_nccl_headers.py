"""NCCL's headers out of wheels: in parts, whole, and not at all. Run this file; it needs no network."""

import contextlib
import functools
import http.server
import io
import os
import re
import socket
import tempfile
import threading
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import nccl_headers
import pip_wheels

#: A wheel's bulk, which nobody asks for where the server knows ranges.
BULK_BYTES = 8 * pip_wheels.BLOCK_BYTES
NAME = "nvidia_nccl_{cuda}-{version}-py3-none-{platform}.whl"
LINUX = "manylinux2014_x86_64.manylinux_2_17_x86_64"
OLD = ["2.18.1", "2.18.3", "2.21.5", "2.23.4", "2.25.1", "2.25.1.post1", "2.27.7", "2.28.9", "2.30.4", "2.30.7"]


@functools.lru_cache(None)
def wheel(version, header="nvidia/nccl/include/nccl.h", package="nvidia_nccl_cu12"):
    """A wheel with headers that name its version, between what is large."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as members:
        members.writestr("nvidia/nccl/lib/libnccl_device.bc", bytes(BULK_BYTES))
        members.writestr(header, f"of {version}")
        members.writestr("nvidia/nccl/include/nccl_device/impl/core.h", "a header below")
        members.writestr("nvidia/nccl/include/nccl_device/some.cuh", "not a header")
        members.writestr("nvidia/nccl/lib/libnccl.so.2", bytes(BULK_BYTES))
        about = f"{package}-{version}.dist-info"
        members.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        members.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    return made.getvalue()


class Server(http.server.BaseHTTPRequestHandler):
    """A server of one wheel; the server object says whether it knows ranges."""

    def do_HEAD(self):
        self.send(200, b"", len(wheel("2.18.3")))

    def do_GET(self):
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        data = wheel("2.18.3")
        part = data[int(span[1]):int(span[2]) + 1] if span else data
        self.send(206 if span else 200, part, len(part))

    def send(self, status, data, length):
        self.server.sent += len(data)
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if self.server.has_ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.place = self.folder / "headers"
        self.patch(nccl_headers, PLACE=self.place)

    def patch(self, module, **values):
        for name, value in values.items():
            patch = mock.patch.object(module, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def whole(self, folder):
        """Fails unless a folder has the headers of its version, and nothing else."""
        files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.*")}
        self.assertEqual(files, {"nccl.h": f"of {folder.name}", "nccl_device/impl/core.h": "a header below"})
        self.assertEqual([path.name for path in folder.parent.glob(".taking-*")], [])

    def failure(self):
        """What the program says at its end where it fails."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(nccl_headers.main(), 1)
        *before, line = said.getvalue().splitlines()
        self.assertFalse([other for other in before if "error" in other])
        return line


class Headers(Case):
    """With functions in the place of those that talk to pip."""

    def setUp(self):
        super().setUp()
        self.versions = {"cu12": list(OLD), "cu13": ["2.9.9", "2.32.3", "2.32.1"]}
        self.asked, self.wheel, self.reason = [], wheel, None
        self.patch(pip_wheels, listed=self.listed, opened=self.opened, downloaded=self.downloaded)

    def listed(self, name):
        self.asked.append(name)
        cuda = name.rpartition("-")[2]
        return [], [f"https://host/{cuda}/{NAME.format(cuda=cuda, version=version, platform=platform)}"
                    for version in self.versions[cuda] for platform in (LINUX, "manylinux2014_aarch64")]

    def opened(self, url):
        self.asked.append(url)
        if self.reason:
            raise OSError("no ranges here")
        return io.BytesIO(self.wheel(re.search(r"cu1[23]-([\d.]+)-py3-none-manylinux2014_x86_64", url)[1]))

    def downloaded(self, name, version, _url, _folder):
        raise pip_wheels.Failed(name, f"{self.reason} for {version}")

    def check(self, newest="2.32.3"):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            folders = nccl_headers.headers(self.place)
        self.assertEqual(said.getvalue(), "")
        wanted = ["2.18.3", "2.21.5", "2.23.4", "2.25.1", "2.27.7", "2.28.9", "2.30.7", newest]
        self.assertEqual([folder.name for folder in folders], wanted)
        for folder in folders:
            self.whole(folder)

    def test_pip_is_asked_once_a_day(self):
        self.check()
        asked = len(self.asked)
        self.check()
        self.assertEqual(len(self.asked), asked)
        self.versions["cu13"].append("2.33.1")
        stamp = self.place / "versions.json"
        yesterday = stamp.stat().st_mtime - nccl_headers.DAY_SECONDS - 1
        os.utime(stamp, (yesterday, yesterday))
        self.check(newest="2.33.1")
        # Two lists, and one wheel.
        self.assertEqual([url.split("-")[1] for url in self.asked[asked:] if "/" in url], ["2.33.1"])
        self.assertEqual(len(self.asked), asked + 3)

    def test_what_is_lost_is_fetched_anew(self):
        self.check()
        (self.place / "2.21.5/nccl.h").unlink()
        self.check()

    def test_a_failure_is_one_line_with_package_and_reason(self):
        self.reason = "No matching distribution"
        self.assertEqual(self.failure(), "error: NCCL's headers cannot be fetched: "
                         "nvidia-nccl-cu12: No matching distribution for 2.18.3")
        self.assertFalse((self.place / "2.18.3").exists())

    def test_a_series_that_is_gone_is_told(self):
        self.versions["cu12"] = OLD[2:]
        self.assertIn("nvidia-nccl-cu12: it has no release 2.18", self.failure())

    def test_a_package_without_wheels_is_told(self):
        self.versions["cu13"] = []
        self.assertIn("nvidia-nccl-cu13: pip lists no wheel", self.failure())

    def test_a_wheel_without_the_header_is_told(self):
        self.wheel = functools.partial(wheel, header="nvidia/nccl/nccl.h")
        self.assertIn("nvidia-nccl-cu12 2.18.3: the wheel cannot be read (it has no nvidia/nccl/include/nccl.h)",
                      self.failure())
        self.assertFalse((self.place / "2.18.3").exists())

    def test_a_wheel_that_climbs_out_is_refused(self):
        climbs = "nvidia/nccl/include/nccl_device/../../../out.h"
        self.wheel = functools.partial(wheel, header=climbs)
        self.assertIn(f"it has a member {climbs}", self.failure())
        self.assertEqual([*self.folder.rglob("out.h")], [])


class Pip(Case):
    """With pip itself, its packages in a folder or on a server of this machine."""

    def setUp(self):
        super().setUp()
        self.links = self.folder / "links"
        self.links.mkdir()
        environment = mock.patch.dict("os.environ", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self.links),
                                      PIP_CONFIG_FILE=os.devnull, no_proxy="127.0.0.1")
        environment.start()
        self.addCleanup(environment.stop)

    def test_pip_lists_and_downloads(self):
        # Pip lists a package that has a wheel for this Python; that of another machine is listed, too.
        (self.links / NAME.format(cuda="cu12", version="2.0.0", platform="any")).write_bytes(wheel("2.0.0"))
        path = self.links / NAME.format(cuda="cu12", version="2.18.3", platform="manylinux_2_99_x86_64")
        path.write_bytes(wheel("2.18.3"))
        [(version, (package, url))] = nccl_headers.wheels("nvidia-nccl-cu12").items()
        self.assertEqual((version, package, url), ("2.18.3", "nvidia-nccl-cu12", path.as_uri()))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            nccl_headers.take(package, version, url, self.place / version)
        self.whole(self.place / version)
        # Pip's code for parts reads no file.
        self.assertIn("nvidia-nccl-cu12 2.18.3: pip downloads the whole wheel", said.getvalue())

    def test_pips_reason_is_told(self):
        # Nobody listens there.
        with socket.create_server(("127.0.0.1", 0)) as taken:
            index = f"http://127.0.0.1:{taken.getsockname()[1]}/simple"
        with mock.patch.dict("os.environ", PIP_NO_INDEX="0", PIP_INDEX_URL=index, PIP_RETRIES="0"):
            line = self.failure()
        self.assertIn(f"fetched: nvidia-nccl-cu13: Could not fetch URL {index}/nvidia-nccl-cu13/", line)
        self.assertIn("refused", line)
        self.assertIn("; ERROR: No matching distribution found for nvidia-nccl-cu13", line)

    def test_of_a_wheel_only_what_is_needed_is_fetched(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        server.sent, server.has_ranges = 0, True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        url = f"http://127.0.0.1:{server.server_port}/{NAME.format(cuda='cu12', version='2.18.3', platform=LINUX)}"
        nccl_headers.take("nvidia-nccl-cu12", "2.18.3", url, self.place / "2.18.3")
        self.whole(self.place / "2.18.3")
        self.assertLess(server.sent, 4 * pip_wheels.BLOCK_BYTES)
        server.has_ranges = False
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(pip_wheels.Failed):
            nccl_headers.take("nvidia-nccl-cu12", "2.18.3", url, self.place / "again")


if __name__ == "__main__":
    unittest.main()
