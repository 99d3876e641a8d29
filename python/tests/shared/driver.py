"""A CUDA driver's devices, memory and streams, through ctypes: of `tests/fakecuda`, or a real one.

Device memory here is what CuPy's arrays and Numba's are to the package: an object with
`__cuda_array_interface__`. The driver without a GPU lets no thread of the program touch it.
"""

import ctypes
import functools
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

_P, _N, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_OUT = ctypes.POINTER(ctypes.c_void_p)
_TYPES = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGetCount": (ctypes.POINTER(_I),),
    "cuDevicePrimaryCtxRetain": (_OUT, _I),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_OUT,),
    "cuMemAlloc_v2": (_OUT, _N),
    "cuMemFree_v2": (_P,),
    "cuMemcpyAsync": (_P, _P, _N, _P),
    "cuStreamCreate": (_OUT, ctypes.c_uint),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuEventCreate": (_OUT, ctypes.c_uint),
    "cuEventRecord": (_P, _P),
    "cuEventQuery": (_P,),
    "cuStreamWaitEvent": (_P, _P, ctypes.c_uint),
}
#: What `cuEventQuery` answers until the event has passed.
NOT_READY = 600
#: A stream that does not wait for the default stream, as torch's and CuPy's own.
NON_BLOCKING = 1


@functools.cache
def _driver():
    """Loaded by the first who needs it: until then the process does not use CUDA."""
    library = ctypes.CDLL("libcuda.so.1")
    for name, arguments in _TYPES.items():
        getattr(library, name).argtypes = arguments
    assert library.cuInit(0) == 0
    return library


def _call(name, *arguments):
    code = getattr(_driver(), name)(*arguments)
    assert code == 0, f"{name} answered {code}"


def _new(name, *arguments):
    made = ctypes.c_void_p()
    _call(name, ctypes.byref(made), *arguments)
    return made.value


def count():
    """How many devices there are."""
    found = _I()
    _call("cuDeviceGetCount", ctypes.byref(found))
    return found.value


@contextmanager
def current(ordinal):
    """This device is the thread's current one, as after `torch.cuda.set_device`."""
    _call("cuCtxPushCurrent_v2", _new("cuDevicePrimaryCtxRetain", ordinal))
    try:
        yield
    finally:
        _new("cuCtxPopCurrent_v2")


def _destroy(device, stream):
    with current(device):
        _driver().cuStreamDestroy_v2(stream)


class Stream:
    """A stream of a device, as CuPy's."""

    def __init__(self, device=0, ptr=None):
        self.device, self.ptr = device, ptr
        if ptr is None:
            with current(device):
                self.ptr = _new("cuStreamCreate", NON_BLOCKING)
            weakref.finalize(self, _destroy, device, self.ptr)

    def synchronize(self):
        """Wait for all that was given to it."""
        with current(self.device):
            _call("cuStreamSynchronize", self.ptr)

    def wait_event(self, event):
        """What is given to it from now on comes after an event."""
        with current(self.device):
            _call("cuStreamWaitEvent", self.ptr, event.made, 0)

    @contextmanager
    def held(self):
        """Nothing that is given to it begins before this ends."""
        with current(self.device):
            _call("fakecuda_hold", ctypes.c_void_p(self.ptr))
        try:
            yield
        finally:
            _driver().fakecuda_release()


def default_stream(device=0):
    """The stream of calls that name none."""
    return Stream(device, 0)


class Event:
    """A moment of a stream, made by its device when it comes to that, as torch's."""

    def record(self, stream):
        """The moment when the stream is past all that it was given so far."""
        self.device = stream.device
        with current(self.device):
            self.made = _new("cuEventCreate", 0)
            _call("cuEventRecord", self.made, stream.ptr)

    def query(self):
        """Whether that moment is past."""
        with current(self.device):
            code = _driver().cuEventQuery(self.made)
        assert code in (0, NOT_READY), code
        return code == 0


#: What arrays have. To free it may wait for every stream, also for one whose call waits for what
#: the rank that frees does next.
_taken = []


def free_all():
    """Free the memory of all arrays, when no rank makes calls any more."""
    while _taken:
        device, address = _taken.pop()
        with current(device):
            _call("cuMemFree_v2", address)


@functools.cache
def _copies(device):
    """A stream of copies from and to a device, which waits for no other."""
    return Stream(device)


class _Device:
    def __init__(self, ordinal):
        self.id = ordinal


class Array:
    """A copy of a NumPy array in the memory of a device."""

    def __init__(self, values, device=0):
        values = np.ascontiguousarray(values)
        self.shape, self.dtype, self.device = values.shape, values.dtype, _Device(device)
        with current(device):
            self.address = _new("cuMemAlloc_v2", max(values.nbytes, 1))
        _taken.append((device, self.address))
        self._copy(self.address, values.ctypes.data, values.nbytes)

    def _copy(self, to, source, nbytes):
        stream = _copies(self.device.id)
        with current(self.device.id):
            _call("cuMemcpyAsync", to, source, nbytes, stream.ptr)
        stream.synchronize()

    def get(self):
        """What is there, once a stream that knows nothing of others is past a copy of it."""
        values = np.empty(self.shape, self.dtype)
        self._copy(values.ctypes.data, self.address, values.nbytes)
        return values

    @property
    def __cuda_array_interface__(self):
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
        }


@pytest.fixture(scope="session", autouse=True)
def devices():
    """How many there are. Without a driver every test fails: nothing is skipped."""
    return count()


@pytest.fixture(autouse=True)
def memory():
    """What a test has taken of the devices' memory goes when its ranks have."""
    yield
    free_all()
