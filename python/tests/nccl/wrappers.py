"""vLLM's and SGLang's wrappers of NCCL as they are in their wheels, without the rest of them.

The few modules that the wrappers import are stand-ins here: `torch` with its types and operations, whose
types are NumPy's, and what the packages say about platform, environment and log.
"""

import ctypes
import enum
import importlib
import logging
import os
import sys
import types

import ml_dtypes
import numpy as np

#: By the name of a client: the folder of its wheel's files, and the wrapper among them.
CLIENTS = {
    "vllm": ("vllm", "vllm.distributed.device_communicators.pynccl_wrapper"),
    "sglang": ("sglang", "sglang.srt.distributed.device_communicators.pynccl_wrapper"),
    "sglang-diffusion": (
        "sglang", "sglang.multimodal_gen.runtime.distributed.device_communicators.pynccl_wrapper"),
}
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
#: The types that all of these wrappers know.
TYPES = [np.dtype(name) for name in ("int8", "uint8", "int32", "int64", "float16", "float32", "float64")]
TYPES.append(np.dtype(ml_dtypes.bfloat16))


class ReduceOp(enum.Enum):
    """The operations of `torch.distributed`."""

    SUM, AVG, PRODUCT, MIN, MAX = range(5)


class _Logger(logging.Logger):
    """As vLLM's, whose calls may ask to be told once only."""

    debug_once, info_once, warning_once = logging.Logger.debug, logging.Logger.info, logging.Logger.warning


def _module(name, **members):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(members)
    return made


def _stand_in_for_torch():
    types_by_name = {str(dtype): dtype for dtype in TYPES}
    torch = _module("torch", dtype=np.dtype, device=str, Tensor=np.ndarray, **types_by_name)
    torch.version = types.SimpleNamespace(cuda="12.8", hip=None)
    torch.distributed = _module("torch.distributed", ReduceOp=ReduceOp, ProcessGroup=object)


def load(client):
    """The wrapper's module. It finds the library by the name that the client gives it."""
    folder, name = CLIENTS[client]
    _stand_in_for_torch()
    _module("vllm.envs", VLLM_NCCL_SO_PATH=os.environ.get("VLLM_NCCL_SO_PATH"), VLLM_USE_NCCL_SYMM_MEM=True)
    _module("vllm.logger", init_logger=_Logger)
    platform = types.SimpleNamespace(fp8_dtype=lambda: FP8, is_rocm=lambda: False)
    _module("vllm.platforms", current_platform=platform)
    _module("sglang.multimodal_gen.envs", SGLANG_DIFFUSION_NCCL_SO_PATH=None)
    _module("sglang.multimodal_gen.runtime.utils.logging_utils", init_logger=_Logger)
    sys.path.insert(0, os.path.join(os.environ["NCCL_CLIENTS"], folder))
    return importlib.import_module(name)


class Bound:
    """A wrapper with its library, which keeps count of the functions that were called."""

    def __init__(self, client, so_file=None):
        self.module = load(client)
        self.nccl = self.module.NCCLLibrary(so_file)
        self.called = set()
        self.nccl._funcs = {name: self._counted(name, call) for name, call in self.nccl._funcs.items()}
        # Of some wrappers only the library itself has this.
        self.nccl.lib.ncclGetLastError.argtypes = [ctypes.c_void_p]
        self.nccl.lib.ncclGetLastError.restype = ctypes.c_char_p

    def _counted(self, name, call):
        def counted(*arguments):
            self.called.add(name)
            return call(*arguments)
        return counted

    def types(self):
        """Every type that the wrapper maps to one of NCCL's."""
        return [*TYPES, FP8] if hasattr(self.module.ncclDataTypeEnum, "ncclFloat8e4m3") else TYPES

    def of(self, dtype):
        """The wrapper's number of a type."""
        return self.module.ncclDataTypeEnum.from_torch(dtype)

    def operation(self, name):
        """The wrapper's number of an operation."""
        return self.module.ncclRedOpTypeEnum.from_torch(ReduceOp[name])

    def join(self, place):
        """A communicator of all ranks."""
        data = place.share(lambda: bytes(self.nccl.ncclGetUniqueId().internal))
        if hasattr(self.nccl, "unique_id_from_bytes"):
            unique_id = self.nccl.unique_id_from_bytes(data)
        else:
            unique_id = self.module.ncclUniqueId.from_buffer_copy(data)
        return self.nccl.ncclCommInitRank(place.nranks, unique_id, place.rank)

    def last_error(self, comm):
        """The text of the communicator's last error."""
        return self.nccl.lib.ncclGetLastError(comm).decode()


def address(array):
    """Where an array's memory is, as the clients say it of a tensor."""
    return ctypes.c_void_p(array.ctypes.data)
