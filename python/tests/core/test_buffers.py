"""What may be a buffer, and the sentence that everything else gets."""

import array
import ctypes
import gc
import mmap
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest

import ringcomm
from ringcomm import DataType, buffers, dlpack
from ringcomm._native import lib


class Interface:
    """Only `__array_interface__`."""

    def __init__(self, array, **changes):
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, **changes}


class Exporter:
    """Only `__dlpack__`, of either version."""

    def __init__(self, array, versioned):
        self.array, self.versioned = array, versioned

    def __dlpack__(self, **options):
        if not self.versioned:
            if options:
                raise TypeError("an old one")
            return self.array.__dlpack__()
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)


class Device:
    def __init__(self, type, index=None):
        self.type, self.index = type, index

    def __str__(self):
        return self.type


class Tensor:
    """What of PyTorch's tensors is used, without PyTorch."""

    def __init__(self, array, device="cpu", dtype=None, negative=False):
        self.negative = negative
        self.array, self.device, self.is_cpu = array, Device(device), device == "cpu"
        self.dtype = dtype or f"torch.{array.dtype}"

    def data_ptr(self):
        return self.array.ctypes.data

    def numel(self):
        return self.array.size

    def is_neg(self):
        return self.negative

    def is_contiguous(self):
        return self.array.flags.c_contiguous


class Sparse(Tensor):
    """One that does not say whether it is contiguous."""

    layout = "torch.sparse_csr"

    def is_contiguous(self):
        raise RuntimeError("Sparse CSR tensors do not have is_contiguous")


class CudaArray:
    __cuda_array_interface__ = {
        "data": (4096, False), "shape": (4,), "typestr": "<f4", "version": 3, "strides": None,
    }  # fmt: skip


def floats():
    return np.arange(6, dtype=np.float32)


SOURCES = {
    "numpy": floats(),
    "numpy, read-only": np.frombuffer(floats().tobytes(), np.float32),
    "numpy, two dimensions": floats().reshape(2, 3),
    "bytes": floats().tobytes(),
    "bytearray": bytearray(floats().tobytes()),
    "memoryview": memoryview(floats()),
    "array": array.array("f", floats()),
    "ctypes": (ctypes.c_float * 6)(*floats()),
    "interface": Interface(floats()),
    "dlpack": Exporter(floats(), True),
    "old dlpack": Exporter(floats(), False),
    "tensor": Tensor(floats()),
    "mmap": mmap.mmap(-1, 4096),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources(one, name):
    given = SOURCES[name]
    address, count, datatype, device, _ = buffers.source(given)
    assert device == buffers.CPU
    assert datatype is (
        DataType.UINT8 if name in ("bytes", "bytearray", "mmap") else DataType.FLOAT32
    )
    length = count * datatype.itemsize
    if name == "mmap":
        assert length == 4096
        return
    assert ctypes.string_at(address, length) == floats().tobytes()
    out = np.zeros(count, np.uint8 if datatype is DataType.UINT8 else np.float32)
    one.all_reduce(given, out)
    assert out.tobytes() == floats().tobytes()


TARGETS = [
    "numpy",
    "numpy, two dimensions",
    "bytearray",
    "memoryview",
    "array",
    "ctypes",
    "interface",
    "tensor",
    "mmap",
]
if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
    # Before, its capsules did not say that they may be written.
    TARGETS.append("dlpack")


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_written_in_place(one, name):
    assert buffers.target(SOURCES[name])[0] == buffers.source(SOURCES[name])[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_has_not(ranks, dtype):
    from conftest import on_threads

    def work(comm):
        given = np.full(9, comm.rank + 1, getattr(ml_dtypes, dtype))
        comm.all_reduce(given)
        return given

    for got in on_threads(ranks(3), work):
        assert (got.astype(np.float32) == 6).all()


def test_bfloat16_tensors(one):
    bits = np.array([0x3F80, 0x4000], np.uint16)
    assert buffers.source(Tensor(bits, dtype="torch.bfloat16"))[2] is DataType.BFLOAT16
    one.all_reduce(Tensor(bits, dtype="torch.bfloat16"))
    assert list(bits) == [0x3F80, 0x4000]


def test_empty_buffers(one):
    for given in (np.zeros(0), b"", bytearray(), array.array("d"), Tensor(np.zeros((3, 0)))):
        assert buffers.source(given)[1] == 0
    one.all_reduce(np.zeros((0, 4)))


REFUSED = {
    "a slice": (np.zeros(10)[::2], "numpy.ascontiguousarray"),
    "a transpose": (np.zeros((3, 4)).T, "do not lie one after the other"),
    "a slice of an interface": (Interface(np.zeros(10)[::2]), "do not lie one after the other"),
    "a slice of dlpack": (Exporter(np.zeros(10)[::2], True), "do not lie one after the other"),
    "a slice of a view": (memoryview(bytearray(10))[::2], "do not lie one after the other"),
    "a slice of a tensor": (Tensor(np.zeros(10)[::2]), ".contiguous()"),
    "complex": (np.zeros(3, complex), "ringcomm has no type complex128"),
    "foreign bytes": (np.zeros(3, ">f4"), "bytes are in foreign order"),
    "foreign bytes in an interface": (Interface(np.zeros(3, ">i4")), "no type >i4"),
    "a structure": (np.zeros(3, "i4,f4"), "ringcomm has no type"),
    "objects": (np.array([None, 1]), "ringcomm has no type object"),
    "an odd format": (memoryview(np.zeros(3, "S3")), "no type for the format '3s'"),
    "text": ("text", "this str cannot be used as a buffer: it has none of"),
    "a list": ([1, 2], "numpy.asarray"),
    "None": (None, "this NoneType cannot"),
    "a tensor elsewhere": (Tensor(np.zeros(3), device="xla"), "it lies on xla"),
    "a tensor without data": (Tensor(np.zeros(3), device="meta"), "has a shape but no data"),
    "a sparse tensor": (Sparse(np.zeros(3)), "it is sparse (torch.sparse_csr), not one block"),
    "a view of a conjugate": (Tensor(np.zeros(3), negative=True), ".resolve_neg()"),
    "a CUDA tensor": (Tensor(np.zeros(3), device="cuda"), "works on the CPU; make the communicator with Config(device=0)"),
    "a CUDA array": (CudaArray(), "lies on CUDA device 0, and rank 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(one, name):
    given, why = REFUSED[name]
    with pytest.raises(ringcomm.RingArgumentError) as caught:
        one.all_reduce(given)
    assert why in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.result == ringcomm.Result.INVALID_ARGUMENT
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", ["bytes", "numpy, read-only", "old dlpack"])
def test_results_are_not_written_to_what_is_read_only(one, name):
    before = bytes(floats().tobytes())
    with pytest.raises(ringcomm.RingArgumentError, match="read-only"):
        one.all_reduce(SOURCES[name])
    assert floats().tobytes() == before


def test_buffers_that_do_not_go_together(ranks):
    one = ranks(1)[0]
    wrong = [
        (lambda: one.all_reduce(np.zeros(3), np.zeros(4)), "4 elements, and send has 3"),
        (
            lambda: one.all_reduce(np.zeros(3), np.zeros(3, "f4")),
            "send is float64 and recv is float32",
        ),
        (
            lambda: one.all_gather(np.zeros(3), np.zeros(2)),
            "3 elements, and the block of recv has 2",
        ),
        (lambda: one.broadcast(np.zeros(3), np.zeros(2)), "it has 2 elements, and send has 3"),
        (lambda: one.reduce(np.zeros(3), np.zeros(2)), "it has 2 elements, and send has 3"),
        (lambda: one.all_to_all(np.zeros(3), np.zeros(2)), "it has 2 elements, and send has 3"),
        (
            lambda: one.all_gather_v(np.zeros(3), np.zeros(9), [2]),
            "3 elements, and the count of this rank has 2",
        ),
        (lambda: one.all_gather_v(np.zeros(3), np.zeros(2), [3]), "reach to element 3"),
        (
            lambda: one.all_gather_v(np.zeros(3), np.zeros(9), [3, 4]),
            "2 counts and 2 displacements for 1",
        ),
        (lambda: one.all_gather_v(np.zeros(3), np.zeros(9), [-1]), "not negative"),
        (lambda: one.gather_v(np.zeros(3), np.zeros(3)), "the root gives counts"),
        (lambda: one.scatter_object([1, 2]), "scatters 1 objects"),
    ]
    for call, why in wrong:
        with pytest.raises(ringcomm.RingArgumentError) as caught:
            call()
        assert why in str(caught.value), str(caught.value)
    two = ranks(2)[0]
    with pytest.raises(ringcomm.RingArgumentError, match="5 elements do not divide among 2 ranks"):
        two.reduce_scatter(np.zeros(5))


def test_pairs_of_tensors(one):
    def of(*arguments, **more):
        return Tensor(*arguments, dtype="torch.float32", **more)

    send, recv = of(floats()), of(np.zeros(6, "f4"))
    for _ in range(2):  # the first meets the type, the second knows it
        one.all_reduce(send, recv)
        assert recv.array.tolist() == send.array.tolist()
        send.array += 1
    wide = np.zeros(12, "f4")
    for given, why in {
        of(wide): "12 elements, and send has 6",
        of(wide[::2]): ".contiguous()",
        of(floats(), negative=True): ".resolve_neg()",
        of(floats(), device="xla"): "it lies on xla",
        Tensor(np.zeros(6, "f8"), dtype="torch.float64"): "send is float32 and recv is float64",
    }.items():
        with pytest.raises(ringcomm.RingArgumentError) as caught:
            one.all_reduce(send, given)
        assert why in str(caught.value)
    assert not wide.any()
    with pytest.raises(ringcomm.RingArgumentError, match="contiguous"):
        one.all_reduce(of(wide[::2]), recv)


def test_memory_that_processes_share(one):
    memory = ringcomm.Memory(4096)
    numbers = np.asarray(memory).view(np.float32)
    numbers[:] = 2
    assert len(memory) == 4096 and memory.view("f")[3] == 2
    one.all_reduce(numbers)
    view = memory.view("B")
    del memory, numbers
    assert bytes(view[:4]) == np.float32(2).tobytes()


def test_what_others_say_of_the_interpreters_functions(one, monkeypatch):
    """ctypes keeps the types of `pythonapi`'s attributes for everybody in the process."""
    for name in ("PyObject_GetBuffer", "PyBuffer_Release", "PyCapsule_GetPointer"):
        monkeypatch.setattr(getattr(ctypes.pythonapi, name), "argtypes", [ctypes.c_int] * 3)
    got = bytearray(4)
    one.all_gather(b"word", got)
    assert got == b"word"
    assert dlpack._pointer(np.ones(3).__dlpack__(), b"dltensor")
    assert dlpack._pointer is not ctypes.pythonapi.PyCapsule_GetPointer


def private_pages():
    return mmap.mmap(-1, 65536, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def test_registered_buffers(one):
    with private_pages() as pages:
        with one.register(pages):
            one.all_reduce(pages)
    with pytest.raises(ringcomm.RingArgumentError, match="whole pages"):
        one.register(np.zeros(3))


@pytest.mark.parametrize("end", ["close", "destroy", "abort"])
def test_registered_buffers_stay_alive(one, end):
    """Until the library has been told to forget them: it has their addresses."""
    pages = private_pages()
    kept = weakref.ref(pages)
    registration = one.register(pages)
    if end != "close":
        del registration
    del pages
    gc.collect()
    assert kept() is not None
    registration.close() if end == "close" else getattr(one, end)()
    gc.collect()
    assert kept() is None


def test_a_registration_that_cannot_be_taken_back(one, monkeypatch):
    pages = private_pages()
    kept = weakref.ref(pages)
    registration = one.register(pages)
    del pages
    with monkeypatch.context() as patch:
        patch.setattr(lib, "ringCommDeregister", lambda comm, handle: 3)
        with pytest.raises(ringcomm.RingError):
            registration.close()
    gc.collect()
    assert kept() is not None


@pytest.mark.parametrize("ending", ["raise KeyError('a defect')", "pass"], ids=["failed", "ended"])
def test_memory_is_there_to_the_end_of_the_program(tmp_path, ending):
    """Calls on it are under way when the interpreter ends."""
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, ringcomm\n"
        "comms = ringcomm.Communicator.all(2)\n"
        "arrays = [np.asarray(ringcomm.Memory(32 << 20)).view('f') for _ in comms]\n"
        "for _ in range(20):\n"
        "    for comm, array in zip(comms, arrays):\n"
        "        comm.all_reduce(array, async_op=True)\n"
        f"{ending}\n"
    )
    words = [sys.executable, str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (0 if ending == "pass" else 1), (done.returncode, done.stderr)


@pytest.mark.parametrize("first", ["host", "device"])
def test_a_type_that_lies_now_here_now_there(first):
    """As JAX's arrays, which have the interface of the place where each is, in either order."""

    class Placed:
        def __init__(self, where):
            self.where, self.values = where, floats()

        def __getattr__(self, name):
            interface = {"host": "__array_interface__", "device": "__cuda_array_interface__"}
            if name == interface[self.where]:
                source = self.values if self.where == "host" else CudaArray
                return getattr(source, name)
            raise AttributeError(name)

    second = {"host": "device", "device": "host"}[first]
    for where in (first, second, first, second, second):
        buffer = Placed(where)
        address, count, _, device, owner = buffers.source(buffer)
        assert owner is buffer
        if where == "host":
            assert (address, count, device) == (buffer.values.ctypes.data, 6, buffers.CPU)
        else:
            assert (address, count, device) == (4096, 4, 0)
    assert Placed not in buffers.readers
