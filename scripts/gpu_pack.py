"""What scripts/gpu-check takes to a machine with a GPU: programs that are built, and of which sources."""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# All that runs there beside Python.
PACKED = ["ring-perf", "ringrun", "libringcomm.so", "libringcomm_nccl.so", "cuda-tests", "ringcomm.fatbin",
          "kernels-host.so"]
# They travel in one file. Most of them have the same kernels in them, seven MiB, and that file has these once:
# so far back a repetition is found.
ARCHIVE, WINDOW = "programs.tar.xz", 64 << 20
# Says of which sources they are.
ORIGIN = "origin.json"
# What a machine with a GPU is sent at most, the checkout with it.
MOST_SENT = 64 << 20
# What Cargo calls the folder of a profile. What the tests have built is `dev`: it shows that packing works, and
# is no use for figures.
PROFILES = {"release": "release", "dev": "debug"}
# What the programs are made of, and the scripts that run them.
SOURCES = ["Cargo.toml", "Cargo.lock", "build.rs", "src", "kernels", "programs", "cbindings/nccl", "tests/support",
           "tests/arithmetic", "scripts", "python/ringcomm"]


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, cwd=ROOT, **more)


def shown(path):
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def digest(root=ROOT):
    """One number of all sources of a checkout, which need not have a history. With one, what git ignores is no
    source: it does not travel."""
    whole = hashlib.sha256()
    found = [path for name in SOURCES for path in [root / name, *(root / name).rglob("*")]]
    words = ["git", "-C", str(root), "check-ignore", "--stdin", "-z"]
    names = "\0".join(map(str, found))
    try:
        done = subprocess.run(words, input=names, capture_output=True, text=True)
        ignored = set(done.stdout.split("\0"))
    except OSError:
        ignored = set()
    found = [path for path in found if str(path) not in ignored]
    for path in sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts):
        whole.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def commit():
    """The commit that is checked out, marked where files differ from it; none without a history."""
    words = ["git", "describe", "--always", "--abbrev=40", "--match=", "--dirty"]
    try:
        return run(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def origin(folder):
    """What the programs in the folder are made of, as far as it says, and whether that is this checkout."""
    path = folder / ORIGIN
    said = json.loads(path.read_text()) if path.exists() else {"commit": None, "sources": None}
    return said | {"is_this_checkout": said["sources"] == digest()}


def checkout():
    """What is sent of the checkout: all that git has or does not ignore; without a history, all but what was
    built."""
    try:
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = run(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode().split("\0")
        found = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if path.relative_to(ROOT).parts[0] not in ("target", ".git")]
    return [path for path in found if path.is_file()]


def sent(paths):
    """Bytes of files in an archive, which has whole blocks of 512 and one more for each."""
    return sum(512 + -(-path.stat().st_size // 512) * 512 for path in paths)


def built(profile):
    """The programs, by their names in the folder, and the kernels of so many machines in one file."""
    option = ["--release"] if profile == "release" else []
    run("cargo", "build", *option, "--lib", "--bin", "ring-perf", "--bin", "ringrun")
    run("cargo", "build", *option, "-p", "ringcomm-nccl")
    messages = run("cargo", "test", *option, "--test", "cuda", "--no-run", "--message-format=json",
                   stdout=subprocess.PIPE, text=True).stdout
    rows = [json.loads(line) for line in messages.splitlines() if line.startswith("{")]
    tests = [row["executable"] for row in rows
             if row.get("executable") and row.get("target", {}).get("name") == "cuda"]
    [out] = [Path(row["out_dir"]) for row in rows if row.get("reason") == "build-script-executed"
             and "/ringcomm-" in row["out_dir"] and (Path(row["out_dir"]) / "ringcomm.fatbin").exists()]
    place = target() / PROFILES[profile]
    return {"ring-perf": place / "ring-perf", "ringrun": place / "ringrun", "cuda-tests": tests[-1],
            "libringcomm.so": place / "libringcomm.so", "libringcomm_nccl.so": place / "libringcomm_nccl.so",
            "ringcomm.fatbin": out / "ringcomm.fatbin"}


def target():
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def compress(programs, place):
    """Make one file of the programs."""
    import lzma
    # Harder, it takes ten times as long for a seventh less.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": WINDOW}]
    with lzma.open(place, "wb", filters=filters) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        for path in programs:
            archive.add(path, path.name)


def unpacked(folder, scratch):
    """Where the programs of a folder are: in it as they are, or, out of its archive, in the other one."""
    if not (folder / ARCHIVE).exists():
        return folder
    with tarfile.open(folder / ARCHIVE) as archive:
        # Python before 3.12 has the word only in its later releases.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(scratch, **safe)
    return scratch


def pack(folder, profile):
    """Build, kernels included, and gather the results; whether they are too large for the way."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import tools
    # As the tests take it, which go without where it was not asked for.
    if profile == "release" or (tools.TARGET / "venv-cuda").exists():
        os.environ["NVCC"] = tools.nvcc()
    folder.mkdir(parents=True, exist_ok=True)
    made_of = {"commit": commit(), "sources": digest(), "profile": profile}
    with tempfile.TemporaryDirectory() as scratch:
        programs = [Path(scratch) / name for name in PACKED]
        for name, path in built(profile).items():
            shutil.copy(path, Path(scratch) / name)
        # Another machine may have another C++ library.
        run("kernels/build-host", Path(scratch) / "kernels-host.so", "-static-libstdc++", "-static-libgcc")
        run("strip", "--strip-debug", *(path for path in programs if path.suffix != ".fatbin"))
        if profile == "release" and (Path(scratch) / "ringcomm.fatbin").stat().st_size == 0:
            sys.exit("gpu-check: built without kernels")
        # Where nobody takes figures of it that is no matter.
        if profile == "release" and digest() != made_of["sources"]:
            sys.exit("gpu-check: the sources changed while they were compiled")
        compress(programs, folder / ARCHIVE)
        for path in programs:
            print(f"{path.stat().st_size / 2**20:6.1f} MiB  {path.name}")
            # What was there before archives were.
            (folder / path.name).unlink(missing_ok=True)
    (folder / ORIGIN).write_text(json.dumps(made_of) + "\n")
    return weigh(folder)


def weigh(folder):
    """Say what is sent, and whether it is too much."""
    packed = [folder / ARCHIVE, folder / ORIGIN]
    # Where git does not ignore the folder it is a part of the checkout.
    whole = sent({*packed, *checkout()})
    print(f"{sent(packed) / 2**20:6.1f} MiB in {shown(folder)}, {whole / 2**20:.1f} with this checkout, of "
          f"{MOST_SENT >> 20} at most; both are all that scripts/gpu-check {shown(folder)} needs")
    return whole > MOST_SENT
