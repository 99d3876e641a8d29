#!/usr/bin/env python3
"""What the parts of a call cost on a GPU: gpu-costs.py FATBIN HOST.so [--fused RANKS]

One JSON object a line: `cost` names the part, `us` are microseconds of one. Calls of the driver are timed on
the processor, less the time of a C function that does nothing with the same arguments; all else by the device's
events or its timer.
These figures decide which barrier of ranks, which fence and which word a kernel should use. `--fused RANKS`
launches the fused kernel for so many ranks a few times, and nothing else, for a profiler to look at.
"""
import ctypes
import importlib.machinery
import importlib.util
import json
import statistics
import struct
import sys
import time
from pathlib import Path

from gpu_driver import Device, Host, NoDevice

# What the kernel `ringcomm_costs` times (kernels/costs.cu).
FENCE, LOAD, ROUND_TRIP, TIMER = 1, 2, 3, 4
# Of a launch; a device that is none has threads that take turns on a few processors.
TIMES = {FENCE: 2000, LOAD: 2000, ROUND_TRIP: 2000, TIMER: 200_000}
FEW = 20
# Calls that are timed together, fewer than a driver takes before it makes the caller wait (about 1,000
# entries), and how often: the median counts.
CALLS, ROUNDS = 100, 5
# How long a stream is held, so that what it is given meanwhile runs without waiting for the processor.
HELD_NS = 5_000_000
# What the driver says of an event that has not passed.
NOT_READY = 600
# Bytes of each rank where a profiler looks: with two ranks past the cache of any device.
PROFILED_BYTES, PROFILED_LAUNCHES = 64 << 20, 3
FLAG_BYTES = 128
SCOPE = "one GPU"


def tell(cost, us, **more):
    print(json.dumps({"cost": cost, "us": round(us, 4), **more, "scope": SCOPE}), flush=True)


def on_processor(calls):
    """Microseconds of one round of calls, each a function and its arguments, on the processor."""
    begun = time.perf_counter()
    for _ in range(CALLS):
        for function, arguments in calls:
            function(*arguments)
    return (time.perf_counter() - begun) * 1e6 / CALLS


class Costs:
    def __init__(self, device):
        self.device, self.driver = device, device.driver
        self.other = ctypes.c_void_p()
        device.call("cuStreamCreate", ctypes.byref(self.other), 1)
        self.events = [self.event() for _ in range(2)]
        self.flags = device.zeros(2 * FLAG_BYTES)
        self.result = device.zeros(32)
        self.pinned = device.pinned(4096)
        device.synchronize()
        self.is_fake = device.multiprocessors <= 8

    def event(self):
        event, untimed = ctypes.c_void_p(), 2
        self.device.call("cuEventCreate", ctypes.byref(event), untimed)
        return event

    def delay(self, nanoseconds, cooperative=False):
        self.device.launch("ringcomm_delay", struct.pack("Q", nanoseconds), 1, threads=1, cooperative=cooperative)

    # ---- calls of the driver ----

    def driver_calls(self):
        """Everything that a collective asks the driver for, and some that it might: by name, functions and their
        arguments, which are made once."""
        driver, stream, event = self.driver, self.device.stream, self.events[0]
        context, popped, status, number = (kind() for kind in (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int,
                                                               ctypes.c_uint64))
        self.device.call("cuCtxGetCurrent", ctypes.byref(context))
        # Memory's type, number, start and bytes.
        asked = (ctypes.c_int * 4)(2, 7, 19, 18)
        self.answers = [ctypes.c_uint64() for _ in asked]
        places = (ctypes.c_void_p * 4)(*(ctypes.addressof(one) for one in self.answers))
        memory, word = ctypes.c_uint64(self.flags), ctypes.c_uint64(self.pinned)
        there, bytes_ = ctypes.c_uint64(self.flags + FLAG_BYTES), ctypes.c_size_t(64)
        # Its first launch loads it, which a capture forbids.
        self.delay(0)
        nanoseconds = ctypes.c_uint64(0)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(nanoseconds))
        self.kept = [nanoseconds, parameters, places, asked]
        shape = [self.device.functions["ringcomm_delay"], 1, 1, 1, 1, 1, 1, 0, stream, parameters]
        replay = self.device.graph(lambda: self.delay(0), 1)
        return {
            "enter and leave a context": [(driver.cuCtxPushCurrent_v2, [context]),
                                          (driver.cuCtxPopCurrent_v2, [ctypes.byref(popped)])],
            "ask for four attributes of a pointer": [(driver.cuPointerGetAttributes, [4, asked, places, memory])],
            "ask whether a stream is captured": [(driver.cuStreamGetCaptureInfo_v2, [
                stream, ctypes.byref(status), ctypes.byref(number), None, None, None])],
            "record an event": [(driver.cuEventRecord, [event, stream])],
            "ask whether an event has passed": [(driver.cuEventQuery, [event])],
            "let a stream wait for an event": [(driver.cuStreamWaitEvent, [self.other, event, 0])],
            "let a stream write a word": [(driver.cuStreamWriteValue32_v2, [stream, word, 1, 0])],
            "let a stream wait for a word": [(driver.cuStreamWaitValue32_v2, [stream, word, 1, 0])],
            "copy 64 bytes on the device": [(driver.cuMemcpyAsync, [memory, there, bytes_, stream])],
            "launch a kernel": [(driver.cuLaunchKernel, [*shape, None])],
            "launch a cooperative kernel": [(driver.cuLaunchCooperativeKernel, shape)],
            "launch a graph of one kernel": [(driver.cuGraphLaunch, [replay, stream])],
        }

    def on_the_processor(self):
        # Takes what it is given, and reads one number of it.
        empty = ctypes.CDLL(None).abs
        for name, calls in self.driver_calls().items():
            rounds, less = [], []
            for _ in range(ROUNDS):
                rounds.append(on_processor(calls))
                self.device.synchronize()
                self.device.call("cuStreamSynchronize", self.other)
                less.append(on_processor([(empty, [0, *arguments[1:]]) for _, arguments in calls]))
            wrong = [code for function, arguments in calls
                     if (code := function(*arguments)) not in (0, NOT_READY)]
            if wrong:
                raise OSError(f"{name}: CUDA error {wrong[0]}")
            self.device.synchronize()
            took, empty_us = statistics.median(rounds), statistics.median(less)
            tell(name, max(took - empty_us, 0), clock="processor", empty_us=round(empty_us, 4))

    # ---- streams ----

    def in_streams(self):
        """What a stream adds between two kernels: nothing, another stream's event, a word that it waits for."""
        call, device = self.device.call, self.device
        word = ctypes.c_uint64(self.pinned + 64)
        counted = [0]

        def launches():
            self.delay(0)
            self.delay(0)

        def by_events():
            self.delay(0)
            call("cuEventRecord", self.events[0], device.stream)
            call("cuStreamWaitEvent", self.other, self.events[0], 0)
            call("cuEventRecord", self.events[1], self.other)
            call("cuStreamWaitEvent", device.stream, self.events[1], 0)
            self.delay(0)

        def by_words():
            counted[0] += 1
            self.delay(0)
            call("cuStreamWriteValue32_v2", device.stream, word, counted[0], 0)
            call("cuStreamWaitValue32_v2", device.stream, word, counted[0], 0)
            self.delay(0)

        def held(work):
            """The stream is held first, so that its timed part has been given before it begins."""
            self.delay(HELD_NS)
            return device.timed(work, CALLS)
        alone = statistics.median(held(launches) for _ in range(ROUNDS)) / 2
        tell("a kernel after another in a stream", alone, clock="device")
        for name, work in [("two events and waits between streams", by_events),
                           ("a word written and waited for in a stream", by_words)]:
            tell(name, max(statistics.median(held(work) for _ in range(ROUNDS)) - 2 * alone, 0), clock="device")

    # ---- in a kernel ----

    def launched(self, what, flags, blocks=1):
        """Nanoseconds of one, by the kernel's own timer; what else it says."""
        times = FEW if self.is_fake and what != TIMER else TIMES[what]
        self.device.fill(self.flags, 0, 2 * FLAG_BYTES)
        self.device.launch("ringcomm_costs", struct.pack("QQII", flags, self.result, what, times), blocks,
                           threads=1, cooperative=blocks > 1)
        took, least, steps = struct.unpack("3Q", self.device.read(self.result, 24))
        return took / times, least, steps

    def in_kernels(self):
        for name, what, flags, blocks in [
                ("a store and a system fence, in a kernel", FENCE, self.flags, 1),
                ("two loads of the device's memory, one after the other", LOAD, self.flags, 1),
                ("two loads of pinned host memory, one after the other", LOAD, self.pinned + 1024, 1),
                ("a flag and its answer between two blocks", ROUND_TRIP, self.flags, 2),
                ("a flag and its answer through pinned host memory", ROUND_TRIP, self.pinned + 2048, 2)]:
            rounds = []
            for _ in range(ROUNDS):
                ctypes.memset(self.pinned + 1024, 0, 2048)
                rounds.append(self.launched(what, flags, blocks)[0])
            if min(rounds) == 0:
                raise RuntimeError(f"{name}: the other block did not come")
            tell(name, statistics.median(rounds) / 1e3, clock="kernel")
        took, least, steps = self.launched(TIMER, self.flags)
        tell("a step of the timer", least / 1e3, clock="kernel", steps=steps, reading_us=took / 1e3)


def fused(device, layout, nranks):
    """Launches for a profiler."""
    path = str(Path(__file__).resolve().parent / "gpu-ranks.py")
    loader = importlib.machinery.SourceFileLoader("gpu_ranks", path)
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(script)
    size = PROFILED_BYTES if device.multiprocessors > 8 else 4096
    launch = script.fused(script.Ranks(device, layout, nranks, size))
    for _ in range(PROFILED_LAUNCHES):
        launch()
    device.synchronize()
    print(f"launched: {PROFILED_LAUNCHES} times the fused kernel of {nranks} ranks, {size} bytes each")


def main():
    fatbin, library, *rest = sys.argv[1:]
    try:
        device = Device(fatbin)
    except NoDevice as reason:
        print(f"skipped: no device ({reason})")
        return 0
    if rest:
        fused(device, Host(library).layout, int(rest[1]))
        return 0
    costs = Costs(device)
    print(json.dumps({"device": device.name}), flush=True)
    costs.on_the_processor()
    costs.in_streams()
    costs.in_kernels()
    return 0


if __name__ == "__main__":
    sys.exit(main())
