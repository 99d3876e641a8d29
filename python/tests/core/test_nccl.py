"""ringcomm's libnccl.so.2 where a program looks for NCCL's: `ringcomm.nccl`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringcomm import nccl

LIMIT_S = 120
#: A process that tells what it is: the libraries that it has by now, and its own words.
TELLS = """
import ctypes, json, os, sys
version = ctypes.c_int()
asked = ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
maps = [line.split(None, 5)[-1].strip() for line in open("/proc/self/maps")]
print(json.dumps({
    "asked": asked, "version": version.value, "argv": sys.argv, "path": sys.path[0],
    "flags": [sys.flags.optimize, sys.flags.utf8_mode],
    "preload": os.environ["LD_PRELOAD"], "folders": os.environ["LD_LIBRARY_PATH"],
    "nccl": sorted({path for path in maps if "nccl" in os.path.basename(path)}),
}))
"""


def python(*words, **variables):
    """Run this Python, in an environment without what other programs preload, unless given."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**plain, **variables},
    )


def told(*words, **variables):
    """What a process says that has `TELLS`."""
    done = python(*words, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "telling.py"
    path.write_text(TELLS)
    return path


def test_who_opens_nccl_gets_ringcomm():
    said = told("-m", "ringcomm.nccl", "-c", TELLS, "a", "-b")
    assert said["asked"] == 0 and said["version"] > 22000, said
    assert said["nccl"] == [os.path.realpath(nccl.library())]
    assert said["preload"] == nccl.library()
    assert said["folders"] == os.path.dirname(nccl.library())
    assert said["argv"] == ["-c", "a", "-b"]


def test_it_takes_what_python_takes(program):
    plain = told("-m", "ringcomm.nccl", program, "a", "-m", "--help")
    assert plain["argv"] == [str(program), "a", "-m", "--help"]
    assert plain["path"] == str(program.parent)
    path = os.pathsep.join([str(program.parent), os.environ.get("PYTHONPATH", "")])
    module = told("-m", "ringcomm.nccl", "-m", "telling", "x", PYTHONPATH=path)
    assert module["argv"] == [str(program), "x"]


@pytest.mark.parametrize(
    "words",
    [
        ["-O", "-X", "utf8", "-m", "ringcomm.nccl"],
        ["-OX", "utf8", "-mringcomm.nccl"],
        ["-X", "utf8", "-Om", "ringcomm.nccl"],
        ["-X", "utf8", "-Omringcomm.nccl"],
        # As torchrun starts what it is given without -m.
        ["-O", "-X", "utf8", nccl.__file__],
        # Options may stand behind it, too.
        ["-m", "ringcomm.nccl", "-O", "-X", "utf8"],
    ],
)
def test_options_of_the_interpreter_stay(words, program):
    said = told(*words, program, "x")
    assert said["flags"] == [1, 1]
    assert said["argv"] == [str(program), "x"]
    assert not told("-m", "ringcomm.nccl", program)["flags"][0]


def test_what_is_preloaded_comes_behind():
    library = nccl.library()
    # The C library, which every process has anyway.
    [other] = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libc.so" in line or "/libc-" in line
    }
    said = told("-m", "ringcomm.nccl", "-c", TELLS, LD_PRELOAD=other, LD_LIBRARY_PATH="/a:/b")
    assert said["preload"] == f"{library}:{other}"
    assert said["folders"] == f"{os.path.dirname(library)}:/a:/b"
    # A program of it that starts another one in the same way.
    twice = told("-m", "ringcomm.nccl", "-m", "ringcomm.nccl", "-c", TELLS, LD_PRELOAD=other)
    assert twice["preload"] == f"{library}:{other}"
    assert twice["argv"] == ["-c"]


def test_a_variable_names_another(tmp_path, program):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "libnccl.so.2").symlink_to(os.path.realpath(nccl.library()))
    named = str(elsewhere / "libnccl.so.2")
    said = told("-m", "ringcomm.nccl", program, RINGCOMM_NCCL_LIBRARY=named)
    assert said["preload"] == named and said["folders"] == str(elsewhere)


def test_the_path_is_absolute(monkeypatch):
    assert os.path.isabs(nccl.library()) and os.path.exists(nccl.library())
    here = nccl.library()
    monkeypatch.chdir(os.path.dirname(here))
    monkeypatch.setenv("RINGCOMM_NCCL_LIBRARY", "libnccl.so.2")
    assert nccl.library() == here


@pytest.mark.parametrize("folder", ["nccl", "ringcomm"])
def test_it_lies_beside_another_libringcomm(folder, monkeypatch, tmp_path):
    monkeypatch.delenv("RINGCOMM_NCCL_LIBRARY", raising=False)
    monkeypatch.setattr(nccl, "HERE", tmp_path / "package")
    monkeypatch.setenv("RINGCOMM_LIBRARY", str(tmp_path / "libringcomm.so"))
    place = tmp_path / folder / "libnccl.so.2"
    place.parent.mkdir()
    place.touch()
    assert nccl.library() == str(place)


def test_an_error_says_where_it_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr(nccl, "HERE", tmp_path)
    monkeypatch.setenv("RINGCOMM_NCCL_LIBRARY", "/nowhere/libnccl.so.2")
    with pytest.raises(FileNotFoundError, match="RINGCOMM_NCCL_LIBRARY names /nowhere/libnccl"):
        nccl.library()
    monkeypatch.setenv("RINGCOMM_NCCL_LIBRARY", "")
    monkeypatch.setenv("RINGCOMM_LIBRARY", str(tmp_path / "built/libringcomm.so"))
    with pytest.raises(FileNotFoundError) as refused:
        nccl.library()
    places = ["lib/ringcomm/libnccl.so.2", "built/nccl/libnccl.so.2", "built/ringcomm/libnccl.so.2"]
    for place in places:
        assert str(tmp_path / place) in str(refused.value)
    assert "RINGCOMM_NCCL_LIBRARY" in str(refused.value)


def test_the_program_says_what_is_wrong_in_one_line(tmp_path):
    done = python("-m", "ringcomm.nccl", "-c", "", RINGCOMM_NCCL_LIBRARY="/nowhere/libnccl.so.2")
    assert done.returncode == 1
    begin = "python -m ringcomm.nccl: RINGCOMM_NCCL_LIBRARY names /nowhere/libnccl.so.2"
    assert done.stderr.startswith(begin) and done.stderr.count("\n") == 1, done.stderr
    # The loader would take it for two.
    place = tmp_path / "a folder"
    place.mkdir()
    (place / "libnccl.so.2").symlink_to(os.path.realpath(nccl.library()))
    named = str(place / "libnccl.so.2")
    done = python("-m", "ringcomm.nccl", "-c", "", RINGCOMM_NCCL_LIBRARY=named)
    assert done.returncode == 1 and f"cannot name {named}" in done.stderr, done.stderr


def test_without_a_program_it_says_how_to_use_it():
    done = python("-m", "ringcomm.nccl")
    assert done.returncode == 2 and done.stderr.startswith("usage: python -m ringcomm.nccl")
    done = python("-m", "ringcomm.nccl", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: python -m ringcomm.nccl")


#: A rank of a program for NCCL, on memory of the host: `program RANK FILE`.
RANK = """
import ctypes, os, sys, time

class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]

rank, file = int(sys.argv[1]), sys.argv[2]
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetErrorString.restype = ctypes.c_char_p

def check(result):
    assert result == 0, nccl.ncclGetErrorString(result)

unique_id = UniqueId()
if rank == 0:
    check(nccl.ncclGetUniqueId(ctypes.byref(unique_id)))
    with open(file + ".part", "wb") as out:
        out.write(bytes(unique_id))
    os.rename(file + ".part", file)
while not os.path.exists(file):
    time.sleep(0.01)
ctypes.memmove(ctypes.byref(unique_id), open(file, "rb").read(), 128)
comm = ctypes.c_void_p()
check(nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique_id, rank))
values = (ctypes.c_float * 1000)(*range(rank, rank + 1000))
sums = (ctypes.c_float * 1000)()
FLOAT, SUM = 7, 0
check(nccl.ncclAllReduce(values, sums, ctypes.c_size_t(1000), FLOAT, SUM, comm, None))
assert list(sums) == [2 * at + 1 for at in range(1000)], sums[:4]
check(nccl.ncclCommDestroy(comm))
print("rank", rank, "has", sums[999])
"""


def test_two_ranks_reduce(tmp_path):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "ringcomm.nccl", "-c", RANK, str(rank), str(tmp_path / "id")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=plain,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(started):
        said, _ = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, said) == (0, f"rank {rank} has 1999.0\n")


def test_ringrun_has_the_same_library():
    """The launcher of the package finds it by itself."""
    said = told("-m", "ringcomm.run", "--nccl", "-np", "1", sys.executable, "-c", TELLS)
    assert said["asked"] == 0 and said["nccl"] == [os.path.realpath(nccl.library())]
