"""The Python package under every other Python that it runs on and the machine has.

Each gets the wheel that scripts/build-wheel made, NumPy and pytest in an environment of its own below target/, and runs the
package's tests, two at a time: the oldest and the newest all of them, those between the ones of
`BETWEEN`; those of the programs in the pages run under one Python only. Prints how many passed
under each.
"""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACES = ROOT / "target/pythons"
#: The oldest that `python/pyproject.toml` takes.
OLDEST = 9
REQUIREMENTS = ["numpy<3", "ml_dtypes<1", "pytest<10"]
#: What a Python between others could have of its own: how arguments come, and what is compiled.
BETWEEN = ["collectives", "buffers", "integers", "package", "help"]
# Ten times what all of them take on two cores.
MOST_SECONDS = 600
PYTEST = re.compile(r"^\d+ (?:passed|failed|skipped|errors?)\b.* in [\d.]+s", re.MULTILINE)


def others():
    """An interpreter of each other release, by its minor number."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    found = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")):
            named = re.fullmatch(r"python3\.(\d+)", path.name)
            minor = int(named[1]) if named else 0
            if minor >= OLDEST and minor != sys.version_info.minor and minor not in found:
                # A name may stand for nothing, as pyenv's do for releases that are not chosen.
                if ran(path, "-c", "import venv")[0]:
                    found[minor] = path
    return dict(sorted(found.items()))


def ran(*words):
    """Run a command to its end: whether it succeeded, and what it printed."""
    try:
        done = subprocess.run([str(word) for word in words], check=False, cwd=ROOT, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=MOST_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return False, str(error)
    return done.returncode == 0, done.stdout


def tests_of(minor, minors):
    """The tests that run under one of these Pythons."""
    if minor in (min(minors), max(minors)):
        return ["python/tests/core", "--ignore=python/tests/core/test_docs.py"]
    return [f"python/tests/core/test_{name}.py" for name in BETWEEN]


def tested(minor, interpreter, wheel, tests):
    """Install and test under one interpreter; whether all is well, and what was said."""
    place = PLACES / f"3.{minor}"
    python = place / "bin/python"
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python", python]
    steps = [[*pip, "install", "--force-reinstall", "--no-deps", wheel],
             [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]]
    ready = place / f"ready-{'+'.join(REQUIREMENTS)}"
    if not ready.exists():
        steps[:0] = [[interpreter, "-m", "venv", "--without-pip", "--clear", place],
                     [*pip, "install", *REQUIREMENTS], ["touch", ready]]
    text = ""
    for step in steps:
        good, text = ran(*step)
        # What a package index does not give the first time it may give the second.
        if not good and step[:len(pip)] == pip:
            time.sleep(10)
            good, text = ran(*step)
        if not good:
            return False, text
    return True, text


def main():
    """Test under all of them; 1 where something failed."""
    found = others()
    if not found:
        # Counted as a test that has nothing to do here.
        print("ok: the wheel under every other Python that is here\nskipped: python_versions::main: "
              f"no other Python than 3.{sys.version_info.minor} from 3.{OLDEST} on is here")
        return 0
    # Their tests wait for ranks of their own: with more at once they wait for each other's.
    [wheel] = (ROOT / "target/python-wheel").glob("*.whl")
    with ThreadPoolExecutor(2) as pool:
        minors = [*found, sys.version_info.minor]
        results = list(pool.map(lambda item: tested(*item, wheel, tests_of(item[0], minors)),
                                found.items()))
    for (minor, interpreter), (good, text) in zip(found.items(), results):
        summary = PYTEST.search(text)
        # pytest's last line is counted, the one behind it is read.
        print(text if not good else summary[0] if summary else "FAILED: nothing was tested")
        print(f"under Python 3.{minor}: {summary[0] if summary else 'it could not be tested'}")
        if not good and not summary:
            print(f"FAILED: the wheel under {interpreter}")
    return 0 if all(good for good, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
