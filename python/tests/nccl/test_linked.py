"""C programs that are compiled with NVIDIA's header and linked with NVIDIA's library start with this one."""

import os
import subprocess
import sysconfig
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "cbindings/nccl/examples"
NVIDIA = Path(sysconfig.get_paths()["purelib"]) / "nvidia/nccl"
#: The folder in which this library has NCCL's file name.
FOLDER = os.path.join(os.path.dirname(processes.library()), "nccl")

#: Two ranks in one thread, and which files they have mapped.
OWN = r"""
#include <nccl.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    ncclComm_t comms[2];
    float values[2] = {1, 2};
    char line[4096];
    if (ncclCommInitAll(comms, 2, NULL) != ncclSuccess)
        return puts(ncclGetLastError(NULL)), 1;
    ncclGroupStart();
    for (int rank = 0; rank < 2; rank++)
        ncclAllReduce(&values[rank], &values[rank], 1, ncclFloat, ncclSum, comms[rank], NULL);
    if (ncclGroupEnd() != ncclSuccess || values[0] != 3 || values[1] != 3)
        return 1;
    for (int rank = 0; rank < 2; rank++)
        ncclCommDestroy(comms[rank]);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "nccl.so") || strstr(line, "libnccl"))
            fputs(strchr(line, '/'), stdout);
    return 0;
}
"""


def linked(source, program):
    """Compile and link a program against NVIDIA's wheel."""
    # NVIDIA's header includes CUDA's, for which the examples have a stand-in.
    words = ["gcc", "-std=gnu11", "-Wall", "-pthread", f"-I{NVIDIA}/include", f"-I{EXAMPLES}/host",
             "-o", program, source, f"{NVIDIA}/lib/libnccl.so.2"]
    subprocess.run(words, check=True)
    needed = subprocess.run(["readelf", "-d", program], check=True, capture_output=True, text=True).stdout
    assert "[libnccl.so.2]" in needed
    return program


def run(program, folder):
    """Start a program that finds its library in a folder."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    return subprocess.run([program], env=environment, capture_output=True, text=True, timeout=300)


def test_a_program_of_few_lines(tmp_path):
    source = tmp_path / "own.c"
    source.write_text(OWN)
    program = linked(source, tmp_path / "own")
    ended = run(program, FOLDER)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert set(ended.stdout.split()) == {processes.library()}
    # The same program with the library that it was linked with, which finds no GPU.
    assert run(program, NVIDIA / "lib").returncode != 0


@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.c")))
def test_examples(example, tmp_path):
    program = linked(EXAMPLES / f"{example}.c", tmp_path / example)
    ended = run(program, FOLDER)
    assert ended.returncode == 0 and ended.stdout.startswith("ok "), ended.stdout + ended.stderr
