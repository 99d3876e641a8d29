"""Builds the library and its programs with cargo, and puts them into the wheel."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, Dict

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: What cargo makes, and where the package has it.
PARTS = {
    "libringcomm.so": "ringcomm/lib/libringcomm.so",
    # In a folder of its own, as `make install` has it: no program finds it unasked.
    "libringcomm_nccl.so": "ringcomm/lib/ringcomm/libnccl.so.2",
    "ring-perf": "ringcomm/bin/ring-perf",
    "ringrun": "ringcomm/bin/ringrun",
}


class CargoHook(BuildHookInterface):
    """Needs Rust on the machine that builds; who installs the wheel needs nothing."""

    def initialize(self, version: str, build_data: Dict[str, Any]) -> None:
        root = Path(self.root).parent
        if not (root / "Cargo.toml").exists():
            raise SystemExit(
                f"{root} has no Cargo.toml: build from a checkout, with `pip install ./python`"
            )
        if not shutil.which("cargo"):
            raise SystemExit(
                "cargo is not here: install Rust 1.89 or later (https://rustup.rs), or a wheel"
            )
        for what in (["--lib", "--bins"], ["-p", "ringcomm-nccl"]):
            subprocess.run(["cargo", "build", "--release", *what], cwd=root, check=True)
        built = root / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
        # cargo leaves the editable install's modules where they are: there they look for their
        # library.
        place = Path(self.root) if version == "editable" else built / "wheel"
        for name, where in PARTS.items():
            part = place / where
            part.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            strip(built / name, part)
            if version != "editable":
                build_data["force_include"][str(part)] = where
        for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
            build_data["force_include"][str(root / licence)] = f"ringcomm/{licence}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform(built / name for name in PARTS)}"


def strip(source: Path, target: Path) -> None:
    """Copy a program without its debug information, which is most of it."""
    shutil.copy2(source, target)
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-debug", str(target)], check=True)


def platform(parts: Any) -> str:
    """The platform tag: the oldest glibc that has every symbol version that the parts ask for."""
    asked = {
        int(minor) for part in parts for minor in re.findall(rb"GLIBC_2\.(\d+)", part.read_bytes())
    }
    machine = sysconfig.get_platform().rpartition("-")[2].replace(".", "_")
    return f"manylinux_2_{max(asked)}_{machine}" if asked else f"linux_{machine}"
