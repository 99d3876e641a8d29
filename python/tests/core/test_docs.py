"""The programs in the documentation run, and its list of names is complete."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ringcomm

PAGES = Path(__file__).resolve().parents[3] / "docs/python"
PROGRAMS = {
    f"{page.stem}-{number}": text
    for page in sorted(PAGES.glob("*.md"))
    for number, text in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    )
    if not re.search("import (torch|tensorflow)|ringcomm.torch", text)
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[name])
    # Those that start ranks by themselves are started once, the others as two ranks.
    launched = (
        []
        if "ringcomm.init(" not in PROGRAMS[name]
        else ["-m", "ringcomm.run", "-np", "2", sys.executable]
    )
    done = subprocess.run(
        [sys.executable, *launched, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_name_is_in_the_list():
    listed = set(re.findall(r"\w+", (PAGES / "api.md").read_text()))
    methods = {name for name in dir(ringcomm.Communicator) if not name.startswith("_")}
    assert methods | set(ringcomm.__all__) <= listed


def test_every_setting_is_in_the_list():
    listed = re.search(r"`Config\((.*?)\)`", (PAGES / "api.md").read_text())
    fields = [field.name for field in dataclasses.fields(ringcomm.Config)]
    assert re.findall(r"(\w+)=", listed[1]) == fields
