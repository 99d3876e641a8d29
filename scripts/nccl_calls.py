"""NCCL's own interface through ctypes: of ringcomm's library in its place, whatever that file is called."""
import ctypes
import time

SUCCESS, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS, TIMEOUT = 0, 3, 4, 5, 6, 7, 8
INT32, INT64, FLOAT32 = 2, 4, 7
SUM, PROD, MAX, MIN, AVG = range(5)
ON_DEVICE, IMMEDIATE = 0, 1
NO_COLOR, SHRINK_ABORT, COLLECTIVE_WINDOW = -1, 1, 1
# How often one asks of what goes on in the background.
REST_SECONDS = 1e-3


class UniqueId(ctypes.Structure):
    """What ranks meet by, which goes by value."""
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Config(ctypes.Structure):
    """A configuration as NCCL 2.14 had it, which all later ones take."""
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int)]


_P, _I, _N = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_OUT = ctypes.POINTER(_P)
_PLACE = ctypes.POINTER(_I)
_CALL = (_I, _P, _P)
ARGUMENTS = {
    "ncclGetVersion": (_PLACE,), "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRank": (_OUT, _I, UniqueId, _I),
    "ncclCommInitRankConfig": (_OUT, _I, UniqueId, _I, ctypes.POINTER(Config)),
    "ncclCommInitAll": (_OUT, _I, _PLACE), "ncclCommSplit": (_P, _I, _I, _OUT, _P),
    "ncclCommShrink": (_P, _PLACE, _I, _OUT, _P, _I),
    "ncclCommFinalize": (_P,), "ncclCommDestroy": (_P,), "ncclCommAbort": (_P,),
    "ncclCommGetAsyncError": (_P, _PLACE), "ncclCommCount": (_P, _PLACE), "ncclCommUserRank": (_P, _PLACE),
    "ncclCommCuDevice": (_P, _PLACE),
    "ncclAllReduce": (_P, _P, _N, _I, *_CALL), "ncclReduce": (_P, _P, _N, _I, _I, *_CALL),
    "ncclReduceScatter": (_P, _P, _N, _I, *_CALL), "ncclAllGather": (_P, _P, _N, *_CALL),
    "ncclAlltoAll": (_P, _P, _N, *_CALL), "ncclBroadcast": (_P, _P, _N, _I, *_CALL), "ncclBcast": (_P, _N, _I, *_CALL),
    "ncclGather": (_P, _P, _N, _I, *_CALL), "ncclScatter": (_P, _P, _N, _I, *_CALL),
    "ncclSend": (_P, _N, _I, *_CALL), "ncclRecv": (_P, _N, _I, *_CALL),
    "ncclRedOpCreatePreMulSum": (_PLACE, _P, _I, _I, _P), "ncclRedOpDestroy": (_I, _P),
    "ncclGroupStart": (), "ncclGroupEnd": (),
    "ncclMemAlloc": (_OUT, _N), "ncclMemFree": (_P,),
    "ncclCommRegister": (_P, _P, _N, _OUT), "ncclCommDeregister": (_P, _P),
    "ncclCommWindowRegister": (_P, _P, _N, _OUT, _I), "ncclCommWindowDeregister": (_P, _P),
}


class NcclError(Exception):
    """A call that has failed: its code, and the library's text."""

    def __init__(self, function, code, text):
        super().__init__(f"{function}: {code}: {text}")
        self.code, self.text = code, text


class Nccl:
    """The functions of the library at a path. Those that fail raise, but for what is in progress."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        for name, arguments in ARGUMENTS.items():
            getattr(self.library, name).argtypes = arguments
        self.library.ncclGetLastError.argtypes = (_P,)
        self.library.ncclGetLastError.restype = ctypes.c_char_p

    def __getattr__(self, name):
        """`nccl.AllReduce(...)` is `ncclAllReduce`, and answers whether that is through."""
        function = f"nccl{name}"

        def call(*arguments):
            code = getattr(self.library, function)(*arguments)
            if code not in (SUCCESS, IN_PROGRESS):
                raise NcclError(function, code, self.library.ncclGetLastError(None).decode())
            return code == SUCCESS
        return call

    def number(self, name, *arguments):
        """What a function writes to a place of an int."""
        place = _I(-7)
        getattr(self, name)(*arguments, ctypes.byref(place))
        return place.value

    def pointer(self, name, *arguments):
        """What a function writes to a place of a pointer that comes first."""
        place = _P()
        getattr(self, name)(ctypes.byref(place), *arguments)
        return place.value

    def unique_id(self):
        made = UniqueId()
        self.GetUniqueId(ctypes.byref(made))
        return made

    def init_all(self, devices):
        """All ranks of a communicator, on these devices."""
        made = (_P * len(devices))()
        self.CommInitAll(made, len(devices), (_I * len(devices))(*devices))
        return list(made)

    def begin(self, nranks, unique_id, rank):
        """A rank that does not block, and may not be there yet."""
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, 0)
        return self.pointer("CommInitRankConfig", nranks, unique_id, rank, ctypes.byref(config))

    def split(self, comms, colors, keys=None):
        """What one thread's ranks are divided into; None for a rank that takes no part."""
        made = [_P() for _ in comms]
        with self.group():
            for at, comm in enumerate(comms):
                self.CommSplit(comm, colors[at], keys[at] if keys else at, ctypes.byref(made[at]), None)
        return [one.value for one in made]

    def shrink(self, comm, excluded, flags=0):
        """What is left of a communicator without these ranks."""
        made = _P()
        self.CommShrink(comm, (_I * len(excluded))(*excluded), len(excluded), ctypes.byref(made), None, flags)
        return made.value

    def state(self, comm):
        """What has become of a communicator so far: a code."""
        return self.number("CommGetAsyncError", comm)

    def finish(self, comm, seconds=60):
        """Ask until nothing is in progress; what has become of it."""
        end = time.monotonic() + seconds
        while (state := self.state(comm)) == IN_PROGRESS:
            if time.monotonic() > end:
                raise NcclError("ncclCommGetAsyncError", state, f"in progress for {seconds} s")
            time.sleep(REST_SECONDS)
        return state

    def group(self):
        return Group(self)


class Group:
    """Calls between `ncclGroupStart` and `ncclGroupEnd`."""

    def __init__(self, nccl):
        self.nccl = nccl

    def __enter__(self):
        self.nccl.GroupStart()

    def __exit__(self, kind, *_):
        if kind is None:
            self.nccl.GroupEnd()
        else:
            # What has failed inside is told, not that the group has.
            self.nccl.library.ncclGroupEnd()
