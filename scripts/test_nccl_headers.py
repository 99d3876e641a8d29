"""NCCL's headers out of wheels: from servers with ranges and without, and from none. Run this file."""

import contextlib
import functools
import http.server
import io
import json
import os
import re
import tempfile
import threading
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import nccl_headers

#: A wheel's bulk, which nobody asks for where the server knows ranges.
BULK_BYTES = 8 * nccl_headers.BLOCK_BYTES
OLD = ["2.18.1", "2.18.3", "2.21.5", "2.23.4", "2.25.1", "2.27.7", "2.28.9", "2.30.4", "2.30.7"]
NAME = "nvidia_nccl_{cuda}-{version}-py3-none-manylinux_2_18_x86_64.whl"


@functools.lru_cache(None)
def wheel(version):
    """A wheel with headers that name its version, between what is large."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as members:
        members.writestr("nvidia/nccl/lib/libnccl_device.bc", bytes(BULK_BYTES))
        members.writestr("nvidia/nccl/include/nccl.h", f"of {version}")
        members.writestr("nvidia/nccl/include/nccl_device/impl/core.h", "a header below")
        members.writestr("nvidia/nccl/include/nccl_device/some.cuh", "not a header")
        members.writestr("nvidia/nccl/lib/libnccl.so.2", bytes(BULK_BYTES))
    return made.getvalue()


class Index(http.server.BaseHTTPRequestHandler):
    """An index of wheels, with links that are relative; the server says how it behaves."""

    def do_GET(self):
        server = self.server
        server.asked.append(self.path)
        found = re.fullmatch(r"/files/nvidia_nccl_cu1[23]-([\d.]+)-py3.*", self.path)
        package = re.fullmatch(r"/(json|simple)/nvidia-nccl-(cu1[23])/?", self.path)
        if found:
            self.send_wheel(wheel(found[1]))
        elif package and package[1] in server.pages:
            self.send(200, server.pages[package[1]](server.versions[package[2]], package[2]).encode())
        else:
            self.send(404, b"")

    def send_wheel(self, data):
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not span or not self.server.has_ranges:
            self.send(200, data)
            return
        part = data[int(span[1]):int(span[2]) + 1]
        self.send(206, part, **{"Content-Range": f"bytes {span[1]}-{int(span[1]) + len(part) - 1}/{len(data)}"})

    def send(self, status, data, **headers):
        self.server.sent += len(data)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def as_json(versions, cuda):
    """PyPI's own page, with files that are no wheel for this machine, and one that was withdrawn."""
    files = {version: [{"filename": NAME.format(cuda=cuda, version=version), "yanked": False,
                        "url": "../files/" + NAME.format(cuda=cuda, version=version)},
                       {"filename": f"nvidia_nccl_{cuda}-{version}-py3-none-manylinux2014_aarch64.whl",
                        "yanked": False, "url": "nowhere"}] for version in versions}
    files["2.99.1"] = [{"filename": NAME.format(cuda=cuda, version="2.99.1"), "yanked": True, "url": "no"}]
    files["2.25.1.post1"] = [{"filename": NAME.format(cuda=cuda, version="2.25.1.post1"), "url": "no"}]
    return json.dumps({"releases": files})


def as_html(versions, cuda):
    """The index as a mirror has it that knows no JSON."""
    names = (NAME.format(cuda=cuda, version=version) for version in versions)
    return "".join(f'<a href="../../files/{name}#sha256=0" data-requires-python="&gt;=3">{name}</a><br/>'
                   for name in names)


class Headers(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
        self.server.asked, self.server.sent = [], 0
        self.server.has_ranges, self.server.pages = True, {"json": as_json}
        self.server.versions = {"cu12": OLD, "cu13": ["2.9.9", "2.32.3", "2.32.1"]}
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.root = f"http://127.0.0.1:{self.server.server_port}"
        pages = (f"{self.root}/json/{{name}}", f"{self.root}/simple/{{name}}/")
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.place = Path(temporary.name) / "headers"
        for name, value in {"PAGES": pages, "PAUSES_SECONDS": (0, None), "PLACE": self.place}.items():
            patch = mock.patch.object(nccl_headers, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        environment = mock.patch.dict("os.environ", no_proxy="127.0.0.1")
        environment.start()
        self.addCleanup(environment.stop)

    def check(self, newest="2.32.3"):
        folders = nccl_headers.headers(self.place)
        wanted = ["2.18.3", "2.21.5", "2.23.4", "2.25.1", "2.27.7", "2.28.9", "2.30.7", newest]
        self.assertEqual([folder.name for folder in folders], wanted)
        for folder in folders:
            files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.*")}
            self.assertEqual(files, {"nccl.h": f"of {folder.name}", "nccl_device/impl/core.h": "a header below"})
        self.assertEqual([path.name for path in self.place.glob(".taking-*")], [])

    def test_of_a_wheel_only_what_is_needed_is_fetched(self):
        self.check()
        self.assertLess(self.server.sent, 8 * 3 * nccl_headers.BLOCK_BYTES)

    def test_a_server_without_ranges_sends_all(self):
        self.server.has_ranges = False
        self.check()

    def test_an_index_in_html_does(self):
        self.server.pages = {"simple": as_html}
        self.check()

    def test_the_index_is_asked_once_a_day(self):
        self.check()
        asked = len(self.server.asked)
        self.check()
        self.assertEqual(len(self.server.asked), asked)
        self.server.versions["cu13"].append("2.33.1")
        stamp = self.place / "versions.json"
        yesterday = stamp.stat().st_mtime - nccl_headers.DAY_SECONDS - 1
        os.utime(stamp, (yesterday, yesterday))
        self.check(newest="2.33.1")
        # Two pages, and of one wheel the parts.
        later = self.server.asked[asked:]
        self.assertEqual({path.split("-")[1] for path in later if "files" in path}, {"2.33.1"})

    def test_what_is_lost_is_fetched_anew(self):
        self.check()
        (self.place / "2.21.5/nccl.h").unlink()
        self.check()

    def failure(self):
        """What the program says where it fails."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(nccl_headers.main(), 1)
        [line] = said.getvalue().splitlines()
        return line

    def test_a_failure_is_one_line_with_address_and_reason(self):
        self.server.pages = {}
        line = self.failure()
        self.assertIn(f"{self.root}/json/nvidia-nccl-cu13: 404 Not Found", line)
        self.assertIn(f"{self.root}/simple/nvidia-nccl-cu13/: 404", line)

    def test_a_series_that_is_gone_is_told(self):
        self.server.versions["cu12"] = OLD[2:]
        self.assertIn("no release 2.18", self.failure())

    def test_a_wheel_without_the_header_is_told(self):
        with mock.patch.object(nccl_headers, "MEMBER", re.compile("elsewhere/(.*)")):
            self.assertIn("no nvidia/nccl/include/nccl.h", self.failure())
        self.assertFalse((self.place / "2.18.3").exists())


if __name__ == "__main__":
    unittest.main()
