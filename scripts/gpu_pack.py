"""What scripts/gpu-check takes to a machine with a GPU: programs that are built, and of which sources."""
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# All that runs there beside Python.
PACKED = ["ring-perf", "ringrun", "cuda-tests", "ringcomm.fatbin", "kernels-host.so"]
# Says of which sources they are.
ORIGIN = "origin.json"
# What may be sent along with a checkout at most, in MiB: 64 with the checkout.
MOST_PACKED = 56
# What the programs are made of, and the scripts that run them.
SOURCES = ["Cargo.toml", "Cargo.lock", "build.rs", "src", "kernels", "tests/cuda", "tests/support", "scripts"]


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, cwd=ROOT, **more)


def shown(path):
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def digest(root=ROOT):
    """One number of all sources of a checkout, which need not have a history."""
    whole = hashlib.sha256()
    found = [path for name in SOURCES for path in [root / name, *(root / name).rglob("*")]]
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


def pack(folder):
    """Build for release, kernels included, and gather the results; whether they are too large."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import tools
    os.environ["NVCC"] = tools.nvcc()
    folder.mkdir(parents=True, exist_ok=True)
    made_of = {"commit": commit(), "sources": digest()}
    run("cargo", "build", "--release", "--lib", "--bin", "ring-perf", "--bin", "ringrun")
    messages = run("cargo", "test", "--release", "--test", "cuda", "--no-run", "--message-format=json",
                   stdout=subprocess.PIPE, text=True).stdout
    built = [json.loads(line) for line in messages.splitlines() if line.startswith("{")]
    tests = [row["executable"] for row in built
             if row.get("executable") and row.get("target", {}).get("name") == "cuda"]
    [out] = [Path(row["out_dir"]) for row in built if row.get("reason") == "build-script-executed"
             and "/ringcomm-" in row["out_dir"] and (Path(row["out_dir"]) / "ringcomm.fatbin").exists()]
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for program in ["ring-perf", "ringrun"]:
        shutil.copy(target / "release" / program, folder / program)
    shutil.copy(tests[-1], folder / "cuda-tests")
    shutil.copy(out / "ringcomm.fatbin", folder / "ringcomm.fatbin")
    # Another machine may have another C++ library.
    run("kernels/build-host", folder / "kernels-host.so", "-static-libstdc++", "-static-libgcc")
    run("strip", "--strip-debug", *(folder / name for name in PACKED if not name.endswith(".fatbin")))
    if (folder / "ringcomm.fatbin").stat().st_size == 0:
        sys.exit("gpu-check: built without kernels")
    if digest() != made_of["sources"]:
        sys.exit("gpu-check: the sources changed while they were compiled")
    (folder / ORIGIN).write_text(json.dumps(made_of) + "\n")
    total = 0
    for name in PACKED:
        size = (folder / name).stat().st_size
        total += size
        print(f"{size / 2**20:6.1f} MiB  {shown(folder / name)}")
    print(f"{total / 2**20:6.1f} MiB in all, of {MOST_PACKED} at most; with this checkout they are all that "
          f"scripts/gpu-check {shown(folder)} needs")
    return total > MOST_PACKED << 20
