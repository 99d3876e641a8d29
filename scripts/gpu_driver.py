"""The CUDA driver and the kernels compiled for the host, through ctypes, for scripts that test kernels alone."""
import ctypes
import struct

# DataType and ReduceOp in src/types.rs: number, bytes, suffix of the kernels.
TYPES = {"int8": (0, 1, "w1"), "uint8": (1, 1, "w1"), "int32": (2, 4, "w4"), "uint32": (3, 4, "w4"),
         "int64": (4, 8, "w8"), "uint64": (5, 8, "w8"), "half": (6, 2, "f16"), "float": (7, 4, "f32"),
         "double": (8, 8, "f64"), "bfloat16": (9, 2, "bf16"), "f8e4m3": (10, 1, "e4m3"),
         "f8e5m2": (11, 1, "e5m2"), "int16": (64, 2, "w2"), "uint16": (65, 2, "w2"), "bool": (66, 1, "w1")}
FLOATS = {"half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"}
SUM, PROD, MAX, MIN, AVG, BAND, BOR, BXOR, PREMULSUM = 0, 1, 2, 3, 4, 64, 65, 66, 67


def operations(name):
    """Those that a type has."""
    ops = [SUM, PROD, MAX, MIN] + ([] if name == "bool" else [AVG, PREMULSUM])
    return ops + ([] if name in FLOATS else [BAND, BOR, BXOR])


class Field(ctypes.Structure):
    _fields_ = [("structure", ctypes.c_char_p), ("field", ctypes.c_char_p),
                ("offset", ctypes.c_size_t), ("bytes", ctypes.c_size_t)]


class Host:
    """The kernels compiled for the host, and the layout of their arguments."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        count = ctypes.c_size_t.in_dll(self.library, "ringcomm_host_layout_count").value
        table = (Field * count).in_dll(self.library, "ringcomm_host_layout")
        self.layout = {(row.structure.decode(), row.field.decode()): (row.offset, row.bytes) for row in table}

    def launch(self, symbol, args):
        code = self.library.ringcomm_host_launch(symbol.encode(), 3, 1, 1, args, ctypes.c_size_t(len(args)))
        if code != 0:
            raise OSError(f"{symbol}: {code}")


class Block:
    """Structures of kernels/abi.h one after the other, filled field by field."""

    def __init__(self, layout, structure, count=1):
        self.layout, self.structure = layout, structure
        self.size = layout[structure, ""][1]
        self.bytes = bytearray(self.size * count)

    def put(self, path, form, *values, index=0):
        """`path` is `field`, or `field structure.field ...` into what lies within."""
        at, structure = index * self.size, self.structure
        for part in path.split():
            structure, field = part.split(".") if "." in part else (structure, part)
            at += self.layout[structure, field][0]
        struct.pack_into("<" + form, self.bytes, at, *values)


class NoDevice(OSError):
    """There is no driver, or it has no device."""


class Device:
    """The first device, with a stream."""

    # The driver's code where it finds no device.
    NONE = 100

    # The driver's numbers of attributes.
    MULTIPROCESSORS = 16

    def __init__(self, fatbin=None):
        """Without kernels there is nothing to launch."""
        try:
            self.driver = ctypes.CDLL("libcuda.so.1")
        except OSError as reason:
            raise NoDevice(str(reason)) from reason
        device, context, self.module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        if self.driver.cuInit(0) == self.NONE:
            raise NoDevice(f"cuInit: CUDA error {self.NONE}")
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)
        if fatbin:
            with open(fatbin, "rb") as file:
                self.image = file.read()
            self.call("cuModuleLoadData", ctypes.byref(self.module), self.image)
        self.stream = self.new_stream()
        self.functions, self.kept = {}, []
        number = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(number), self.MULTIPROCESSORS, device)
        self.multiprocessors = number.value
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 127, device)
        self.name = name.value.decode()

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            raise OSError(f"{name}: CUDA error {code}")

    def new_stream(self):
        """Another stream; it stays."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 0)
        return stream

    def allocate(self, size):
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
        self.kept.append(memory.value)
        return memory.value

    def free_all(self):
        self.synchronize()
        for memory in self.kept:
            self.call("cuMemFree_v2", ctypes.c_uint64(memory))
        self.kept = []

    def pinned(self, size):
        """Zeros in host memory that kernels read and write; it stays."""
        place = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(place), ctypes.c_size_t(size), 0)
        ctypes.memset(place, 0, size)
        return place.value

    def zeros(self, size):
        memory = self.allocate(size)
        self.fill(memory, 0, size)
        return memory

    def table(self, content):
        """Bytes in the device's memory."""
        content = bytes(content)
        memory = self.allocate(len(content))
        self.write(memory, content)
        return memory

    def fill(self, target, value, size):
        self.call("cuMemsetD8Async", ctypes.c_uint64(target), ctypes.c_ubyte(value), ctypes.c_size_t(size),
                  self.stream)

    def copy(self, target, source, size):
        """The driver sees by the addresses which of them is the host's."""
        self.call("cuMemcpyAsync", ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size),
                  self.stream)

    def write(self, target, content):
        kept = ctypes.create_string_buffer(content, len(content))
        self.copy(target, ctypes.addressof(kept), len(content))
        self.synchronize()

    def read(self, source, size):
        kept = ctypes.create_string_buffer(size)
        self.copy(ctypes.addressof(kept), source, size)
        self.synchronize()
        return kept.raw

    def synchronize(self, *streams):
        """Wait for these streams, or for its own."""
        for stream in streams or [self.stream]:
            self.call("cuStreamSynchronize", stream)

    def launch(self, symbol, args, blocks, rows=1, threads=512, cooperative=False):
        if symbol not in self.functions:
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), self.module, symbol.encode())
            self.functions[symbol] = function
        buffer = ctypes.create_string_buffer(bytes(args), len(args))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
        shape = [self.functions[symbol], blocks, rows, 1, threads, 1, 1, 0, self.stream, parameters]
        if cooperative:
            self.call("cuLaunchCooperativeKernel", *shape)
        else:
            self.call("cuLaunchKernel", *shape, None)

    def timed(self, work, times):
        """Microseconds of one of so many, by the device's events."""
        events = [ctypes.c_void_p() for _ in range(2)]
        for event in events:
            self.call("cuEventCreate", ctypes.byref(event), 0)
        self.call("cuEventRecord", events[0], self.stream)
        for _ in range(times):
            work()
        self.call("cuEventRecord", events[1], self.stream)
        self.synchronize()
        elapsed = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(elapsed), *events)
        for event in events:
            self.call("cuEventDestroy_v2", event)
        return elapsed.value * 1e3 / times

    def captured(self, work, times):
        """What replays so many of `work` from a graph."""
        replay = self.graph(work, times)
        return lambda: self.call("cuGraphLaunch", replay, self.stream)

    def graph(self, work, times):
        """A graph of so many of `work`, ready to launch; it stays."""
        graph, replay, relaxed = ctypes.c_void_p(), ctypes.c_void_p(), 2
        self.call("cuStreamBeginCapture_v2", self.stream, relaxed)
        try:
            for _ in range(times):
                work()
        finally:
            self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(replay), graph, ctypes.c_uint64(0))
        return replay
