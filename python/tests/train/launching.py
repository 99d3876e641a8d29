"""Start the examples as their users do, and read the weights that they trained."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "python/examples"
#: Far more than an example needs, so that one that hangs ends.
MOST_SECONDS = 500


def ringrun(*options):
    """The words that start a program as ranks under ringrun: the one built with the library."""
    program = os.environ.get("RINGRUN")
    if not program:
        built = Path(os.environ.get("RINGCOMM_LIBRARY", "/")).parent / "ringrun"
        program = built if built.exists() else shutil.which("ringrun")
    assert program, "there is no ringrun; build it, or name it in RINGRUN"
    return [str(program), *options, sys.executable]


def environment(**more):
    """Variables of an example: sums in the order of ranks; one thread a rank, as launchers say."""
    return {**os.environ, "RINGCOMM_DETERMINISTIC": "1", "OMP_NUM_THREADS": "1", **more}


def run(words, folder, **more):
    """Run to the end; returns standard output, and fails with all that was said."""
    done = subprocess.run(
        [str(word) for word in words],
        check=False,
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
    )
    assert done.returncode == 0, (
        f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout, done.stderr


def started(words, folder, stderr=subprocess.STDOUT, **more):
    """Start one of several processes that belong together; what they say is read together, too, but
    for what goes to a `stderr` of its own."""
    return subprocess.Popen(
        [str(word) for word in words],
        cwd=folder,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def weights(file):
    """The weights that an example wrote with `--save`."""
    return torch.load(file, weights_only=True)


def difference(found, network):
    """The greatest difference between two networks' weights and statistics."""
    expected = network.state_dict()
    assert list(found) == list(expected)
    return max(
        float((found[name].double() - expected[name].double()).abs().max()) for name in found
    )


def same_bits(found, network):
    """Whether two networks are equal in every bit."""
    expected = network.state_dict()
    return list(found) == list(expected) and all(torch.equal(found[n], expected[n]) for n in found)
