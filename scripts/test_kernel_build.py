#!/usr/bin/env python3
"""The gates of the library's build script, on kernels and compilers that are made for them: it fails on
spilled registers, local memory and kernels without bounds, looks for nvcc where it says, and does
without. Run this file after a debug build, whose build script it runs in folders of its own.
"""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import tools

ROOT = Path(__file__).resolve().parent.parent
HOST = f"{os.uname().machine}-unknown-linux-gnu"

GOOD = """
extern "C" __global__ void __launch_bounds__(512) kernel(float *data) { data[threadIdx.x] *= 2; }
"""
# More values at once than the 64 registers that a thread of so large a block has.
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024) kernel(float *data) {
    float kept[96];
#pragma unroll
    for (int i = 0; i < 96; i++) kept[i] = data[1024 * i + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 96; i++) data[1024 * i + threadIdx.x] = kept[95 - i];
}
"""
# An array of which only the data says what is written where.
LOCAL = """
extern "C" __global__ void __launch_bounds__(512) kernel(int *data) {
    int kept[64] = {};
    for (int i = 0; i < 1000; i++) kept[data[i + threadIdx.x] & 63] += i;
    data[threadIdx.x] = kept[data[threadIdx.x] & 63];
}
"""
UNBOUNDED = """
extern "C" __global__ void kernel(float *data) { data[threadIdx.x] *= 2; }
"""

# Says that it is an nvcc, and writes its name for a fatbin.
NAMED = """#!/bin/sh
case "$*" in *--version*) echo "Cuda compilation tools, release {release}, {name}" ;; esac
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then echo {name} > "$2"; fi
    shift
done
"""


def build_script():
    """That of the last debug build."""
    # Its name ends with a hash; other packages of the project have script and name of their own.
    made = (ROOT / "target/debug/build").glob(f"ringcomm-{'[0-9a-f]' * 16}/build-script-build")
    return max(made, key=lambda script: script.stat().st_mtime)


class Builds(unittest.TestCase):
    def setUp(self):
        self.place = Path(tempfile.mkdtemp(prefix="ringcomm-build-"))
        self.addCleanup(shutil.rmtree, self.place)
        (self.place / "kernels").mkdir()
        (self.place / "out").mkdir()
        self.source(GOOD)

    def source(self, text):
        (self.place / "kernels/ringcomm.cu").write_text(text)

    def build(self, **variables):
        """The build's status, all that it said, and the fatbin."""
        fatbin = self.place / "out/ringcomm.fatbin"
        fatbin.unlink(missing_ok=True)
        env = {"OUT_DIR": str(fatbin.parent), "HOST": HOST, "TARGET": HOST, **variables}
        done = subprocess.run([build_script()], cwd=self.place, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr, fatbin.read_bytes() if fatbin.exists() else b""


class Gates(Builds):
    """With the real compiler and the build's own flags."""

    def compiled(self, text):
        self.source(text)
        return self.build(NVCC=tools.nvcc(), PATH=os.environ["PATH"])

    def test_a_kernel_that_keeps_the_rules_is_built(self):
        status, said, fatbin = self.compiled(GOOD)
        self.assertEqual((status, len(fatbin) > 1000), (0, True), said)

    def refuses(self, text, why):
        status, said, fatbin = self.compiled(text)
        self.assertNotEqual(status, 0, said)
        self.assertIn(why, said)
        self.assertEqual(fatbin, b"")

    def test_spilled_registers_fail_the_build(self):
        self.refuses(SPILLS, "Registers are spilled to local memory")

    def test_local_memory_fails_the_build(self):
        self.refuses(LOCAL, "Local memory used for function")

    def test_a_kernel_without_bounds_fails_the_build(self):
        self.refuses(UNBOUNDED, "a kernel without __launch_bounds__")


class Compilers(Builds):
    """Which compiler is taken, of some that only say their names."""

    def setUp(self):
        super().setUp()
        # What the path has of real programs: no nvcc that the machine may have.
        self.path = self.place / "path"
        self.path.mkdir()
        for program in ("g++", "git", "sh"):
            (self.path / program).symlink_to(shutil.which(program))
        self.variables = {"PATH": str(self.path)}

    def nvcc(self, path, name, release="13.0"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(NAMED.format(name=name, release=release))
        path.chmod(0o755)
        return path

    def taken(self):
        status, said, fatbin = self.build(**self.variables)
        self.assertEqual(status, 0, said)
        return fatbin.decode().strip()

    def refused(self):
        """Why there are no kernels: a warning, and a library without."""
        status, said, fatbin = self.build(**self.variables)
        self.assertEqual((status, fatbin), (0, b""), said)
        warnings = [line for line in said.splitlines() if line.startswith("cargo:warning=")]
        self.assertEqual(len(warnings), 1, said)
        return warnings[0]

    def test_the_first_of_four_places_is_taken(self):
        self.variables["NVCC"] = str(self.nvcc(self.place / "named/compiler", "by-NVCC"))
        self.nvcc(self.place / "home/bin/nvcc", "by-CUDA_HOME")
        self.variables["CUDA_HOME"] = str(self.place / "home")
        on_path = self.nvcc(self.path / "nvcc", "by-PATH")
        tests = "target/venv-cuda/lib/python3.11/site-packages/nvidia/cu13/bin/nvcc"
        of_tests = self.nvcc(self.place / tests, "of-the-tests")
        self.assertEqual(self.taken(), "by-NVCC")
        # What does not run is none.
        self.variables["NVCC"] = str(self.place / "nothing")
        self.assertEqual(self.taken(), "by-CUDA_HOME")
        del self.variables["NVCC"]
        self.assertEqual(self.taken(), "by-CUDA_HOME")
        del self.variables["CUDA_HOME"]
        self.assertEqual(self.taken(), "by-PATH")
        on_path.unlink()
        self.assertEqual(self.taken(), "of-the-tests")
        of_tests.unlink()
        self.assertIn("no nvcc by NVCC, CUDA_HOME or PATH", self.refused())

    def test_without_a_compiler_the_library_is_built_with_a_warning(self):
        self.assertIn("built without GPU kernels: no nvcc", self.refused())

    def test_cargo_watches_for_a_compiler_without_building_each_time(self):
        def watched():
            status, said, _ = self.build(**self.variables)
            self.assertEqual(status, 0, said)
            lines = [line for line in said.splitlines() if "rerun-if-changed=target" in line]
            return [self.place / line.split("=")[1] for line in lines]
        self.assertEqual(watched(), [])
        (self.place / "target").mkdir()
        [missed] = watched()
        # A file that is missing, or younger than the build, would have Cargo build again.
        self.assertEqual(missed.stat().st_mtime, 0)
        # Found, there is nothing more to wait for.
        self.nvcc(self.path / "nvcc", "by-PATH")
        self.assertEqual(watched(), [])

    def test_a_compiler_that_is_too_old_is_none(self):
        self.variables["NVCC"] = str(self.nvcc(self.place / "nvcc", "old", "12.4"))
        self.assertIn("is older than 12.8", self.refused())
        self.nvcc(self.place / "nvcc", "old-enough", "12.8")
        self.assertEqual(self.taken(), "old-enough")

    def test_a_compiler_needs_another_for_its_host_side(self):
        self.variables["NVCC"] = str(self.nvcc(self.place / "nvcc", "alone"))
        (self.path / "g++").unlink()
        self.assertIn("nvcc needs g++", self.refused())


if __name__ == "__main__":
    unittest.main()
