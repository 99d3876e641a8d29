"""The programs on the documentation's pages about PyTorch run, as two ranks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_launchers import LIMIT_S, ringrun

PAGES = Path(__file__).resolve().parents[3] / "docs/python"
PROGRAMS = {
    f"{page}-{number}": text
    for page in (
        "pytorch", "training", "surviving", "from-gloo", "from-horovod", "from-apex",
    )  # fmt: skip
    for number, text in enumerate(
        re.findall(r"^```python\n(.*?)^```", (PAGES / f"{page}.md").read_text(), re.S | re.M)
    )
    if "import tensorflow" not in text
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[name])
    words = [*ringrun(), "-np", "2", sys.executable, str(program)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
