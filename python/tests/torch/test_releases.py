"""What is said under a release of PyTorch that is too old."""

import subprocess
import sys

PROGRAM = """
import torch
torch.__version__ = {version!r}
import ringcomm.torch
"""


def imported(version):
    program = PROGRAM.format(version=version)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_an_old_release_is_refused_with_what_to_do():
    done = imported("2.6.0+cpu")
    assert done.returncode == 1
    assert "ringcomm.torch needs PyTorch 2.7 or later, and this is 2.6.0+cpu" in done.stderr
    assert imported("2.7.0a0+git").returncode == 0
