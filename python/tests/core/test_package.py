"""The package against the header and the manifest, and the wheel as it is built."""

import ast
import os
import re
import zipfile
from pathlib import Path

import pytest

import ringcomm
from ringcomm import _native

ROOT = Path(__file__).resolve().parents[3]
HEADER = (ROOT / "include/ringcomm.h").read_text()


def enum(name):
    """Members of one of the header's enums."""
    body = re.search(
        rf"enum {name}\b[^{{]*\{{(.*?)\}};", re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S), re.S
    )
    return {member: int(value) for member, value in re.findall(r"(\w+) = (-?\d+)", body[1])}


ENUMS = {
    "ringResult_t": ringcomm.Result,
    "ringDataType_t": ringcomm.DataType,
    "ringRedOp_t": ringcomm.ReduceOp,
    "ringCollective_t": ringcomm.Collective,
    "ringScalarResidence_t": _native.Residence,
}


@pytest.mark.parametrize("name", ENUMS)
def test_enums_are_the_headers(name):
    def plain(word):
        return re.sub(
            r"^(ring)?(Coll)?|^Scalar|_", "", re.sub(r"^ring(Coll|Scalar)?", "", word)
        ).lower()

    theirs = {plain(member): value for member, value in enum(name).items()}
    ours = {member.name.replace("_", "").lower(): member.value for member in ENUMS[name]}
    assert ours == theirs


def test_every_function_of_the_header_is_there_with_its_arguments():
    text = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    found = dict(
        re.findall(r"^(?:ringResult_t|const char \*) ?\*?(ring\w+)\(([^)]*)\);", text, re.M)
    )
    assert set(found) == set(_native.SIGNATURES)
    pointer, size, number = _native._P, _native._N, _native._I
    for name, arguments in found.items():
        words = (
            []
            if arguments.strip() == "void"
            else [" ".join(word.split()) for word in arguments.split(",")]
        )
        ours = _native.SIGNATURES[name]
        assert len(words) == len(ours), name
        for word, kind in zip(words, ours):
            kind_of_c = word.rpartition(" ")[0]
            if kind_of_c in ("ringComm_t", "ringStream_t"):
                assert kind is (_native.OUT if "*" in word else pointer), (name, word)
            elif kind_of_c == "size_t":
                assert "*" in word or kind is size, (name, word)
            elif "*" not in word and kind_of_c != "struct ringUniqueId":
                assert kind is number or kind_of_c in ("uint64_t", "int64_t"), (name, word)


@pytest.mark.parametrize(
    "name,ours", [("ringConfig_t", _native.Config), ("ringExplain_t", _native.Explain)]
)
def test_structures_are_the_headers(name, ours):
    text = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    body = re.search(rf"typedef struct {name} \{{(.*?)\}}", text, re.S)[1]
    fields = re.findall(r"(\w+)(?:\[\w+\])?;", body)
    assert [field for field, _ in ours._fields_] == fields


def test_constants_are_the_headers():
    values = dict(re.findall(r"#define (RING_\w+) \(?(-?\d+)\)?$", HEADER, re.M))
    assert int(values["RING_MAGIC"]) == _native.MAGIC
    assert int(values["RING_UNIQUE_ID_BYTES"]) == _native.UNIQUE_ID_BYTES
    assert int(values["RING_NAME_BYTES"]) == _native.NAME_BYTES
    assert (int(values["RING_MAJOR"]), int(values["RING_MINOR"])) == _native.HEADER_VERSION
    assert int(values["RING_SPLIT_NOCOLOR"]) == _native.SPLIT_NOCOLOR
    assert int(values["RING_SHRINK_ABORT"]) == _native.SHRINK_ABORT
    for name in ("CLEAR", "CHECKSUM", "ENCRYPTED"):
        assert int(values[f"RING_PROTECTION_{name}"]) == ringcomm.Protection[name]


def test_versions_agree():
    manifest = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    assert ringcomm.__version__ == manifest


def test_only_one_file_knows_the_abi():
    """Who calls the library says what it means by name, in the order of the header's arguments."""
    package = Path(ringcomm.__file__).parent
    modules = [path for path in package.rglob("*.py") if path.name != "_native.py"]
    assert {"torch", "horovod"} <= {path.parent.name for path in modules}
    for module in modules:
        text = module.read_text()
        # DLPack's capsules are Python's own, not the library's.
        typed = set(re.findall(r"(\w+)\.argtypes", text)) - {"_pointer", "_valid"}
        assert "CDLL" not in text and not typed, module
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call):
                assert not numbers_in(call), f"{module}:{call.lineno}"


def numbers_in(call):
    """The numbers of the ABI that a call has as numbers: results, kinds, codes."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if re.fullmatch("Ring[A-Z][a-z]*Error|RingError", name):
        words = call.args[1:2]
    elif re.fullmatch("ring[A-Z][A-Za-z]*", name):
        # 0 is no address, no time, no rank: the same in every release.
        words = [word for word in call.args if getattr(word, "value", 0) != 0]
    else:
        words = []
    return [word for word in words if isinstance(getattr(word, "value", None), int)]


def test_everything_is_documented():
    for name in ringcomm.__all__:
        value = getattr(ringcomm, name)
        if isinstance(value, ringcomm.ReduceOp):
            continue
        assert value.__doc__ and not value.__doc__.startswith(f"{name}("), name
        for method, member in vars(value).items() if isinstance(value, type) else ():
            if callable(member) and not method.startswith("_"):
                assert member.__doc__, f"{name}.{method}"


@pytest.fixture
def wheel():
    named = os.environ.get("RINGCOMM_WHEEL")
    if not named:
        pytest.skip("no wheel: RINGCOMM_WHEEL names the one to look at")
    return Path(named)


def test_the_wheels_tag(wheel):
    machine = os.uname().machine
    assert re.fullmatch(
        rf"ringcomm-[\d.]+-py3-none-(manylinux_2_\d+|linux)_{machine}\.whl", wheel.name
    )
    with zipfile.ZipFile(wheel) as files:
        named = next(name for name in files.namelist() if name.endswith("/WHEEL"))
        assert "Root-Is-Purelib: false" in files.read(named).decode()


def test_the_wheels_contents(wheel):
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        modes = {info.filename: info.external_attr >> 16 for info in files.infolist()}
        # Of the package itself; `compat` has a small one for torch.
        (own,) = [name for name in names if re.fullmatch(r"[^/]+/METADATA", name)]
        metadata = files.read(own).decode()
    parts = ["__init__.py", "py.typed", "lib/libringcomm.so", "bin/ring-perf", "bin/ringrun"]
    parts += ["compat/horovod/__init__.py", "compat/ringcomm_compat-0.dist-info/entry_points.txt"]
    for part in (*parts, "lib/ringcomm/libnccl.so.2"):
        assert f"ringcomm/{part}" in names
    # Where a loader looks that looks for libringcomm.so, there is nothing of NCCL's name.
    assert [name for name in names if "libnccl" in name] == ["ringcomm/lib/ringcomm/libnccl.so.2"]
    assert not [name for name in names if "tests" in name or name.endswith((".pyc", ".toml"))]
    assert modes["ringcomm/bin/ringrun"] & 0o111 and modes["ringcomm/bin/ring-perf"] & 0o111
    assert "Requires-Dist" not in metadata and "Requires-Python: >=3.9" in metadata
    assert [name for name in names if "LICENSE" in name]
