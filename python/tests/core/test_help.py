"""What `help(ringcomm)` tells a newcomer."""

import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ringcomm

ROOT = Path(__file__).resolve().parents[3]
#: What comes first: before the lists of classes and functions.
BEGINNING = ringcomm.__doc__
PAGES = sorted(page.stem for page in (ROOT / "docs/python").glob("*.md"))


def test_help_has_every_public_name():
    text = pydoc.plain(pydoc.render_doc(ringcomm))
    missing = [name for name in ringcomm.__all__ if not re.search(rf"\b{name}\b", text)]
    assert not missing and ringcomm.__doc__.splitlines()[0] in text


@pytest.mark.parametrize("name", [n for n in ringcomm.__all__ if not n.isupper()])
def test_every_name_says_what_it_is(name):
    text = inspect.getdoc(getattr(ringcomm, name))
    assert text and len(text.splitlines()[0]) > 20 and not text.startswith(f"{name}(")


def test_every_way_of_training_is_in_it():
    for way in (
        "init_process_group(\"ringcomm\")",
        "DistributedDataParallel",
        "DataParallel",
        "reduce_gradients",
        "convert_sync_batchnorm",
        "share_buckets",
        "ringcomm.horovod",
        "python -m ringcomm.run",
        "python -m ringcomm.perf",
        "python -m ringcomm.nccl",
        "spawn(",
    ):
        assert way in BEGINNING, way


def test_every_page_of_the_documentation_is_in_it():
    for page in PAGES:
        assert f"{page}.md" in BEGINNING, page
    assert set(re.findall(r"([\w-]+)\.md", BEGINNING)) == set(PAGES)


def test_its_program_runs():
    program = re.search(r"^    import numpy.*?\n(?=\n-|\n\S)", BEGINNING, re.S | re.M)[0]
    code = inspect.cleandoc(program)
    launched = [sys.executable, "-m", "ringcomm.run", "-np", "2", sys.executable, "-c", code]
    done = subprocess.run(launched, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
