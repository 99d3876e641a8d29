"""Ctrl-C while the main thread waits in a call.

Python raises KeyboardInterrupt only when the call has returned, which may be at its deadline. So a thread is woken by the
signal; where the main thread still stands in the same call of this package a moment later, it aborts the communicators.
The call then fails, and Python raises KeyboardInterrupt in its place.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any, Optional, Tuple

# What a call that is about to return may take, in two parts.
MOMENT_S = 0.15

# The thread's: as in src/communicator/health/self_deadlock.rs.
NAME = "ringcomm ctrl-c"

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_live: "weakref.WeakSet[Any]" = weakref.WeakSet()
_lock = threading.Lock()
_installed = False


def watch(communicator: Any) -> None:
    """Abort it where Ctrl-C finds the main thread in a call."""
    with _lock:
        _live.add(communicator)
    _install()


def _install() -> None:
    """Start the thread, where Python's own handler is the program's and nobody else is woken by signals."""
    global _installed
    main = threading.main_thread()
    if _installed or threading.current_thread() is not main:
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        os.close(reads)
        os.close(writes)
        return
    _installed = True
    threading.Thread(target=_serve, args=(reads, main.ident), name=NAME, daemon=True).start()


def _serve(reads: int, main: Optional[int]) -> None:
    # Python names only its own object before 3.14. By the kernel's name the library knows that it makes no calls;
    # without /proc it does not ask.
    with contextlib.suppress(OSError):
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w", encoding="ascii") as comm:
            comm.write(NAME)
    while True:
        came = os.read(reads, 64)
        if not came:
            return
        if signal.SIGINT not in came or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            continue
        if _is_stuck(main):
            with _lock:
                communicators = list(_live)
            for communicator in communicators:
                try:
                    communicator.abort()
                except Exception:  # pylint: disable=broad-except
                    pass  # it has ended, or its own error is what the call raises


def _place(main: Optional[int]) -> Optional[Tuple[Any, int]]:
    """Where the main thread is in a function of this package: its frame, which is kept and so stays itself."""
    frame = sys._current_frames().get(main or 0)
    if frame is None or not frame.f_code.co_filename.startswith(_HERE):
        return None
    return frame, frame.f_lasti


def _is_stuck(main: Optional[int]) -> bool:
    time.sleep(MOMENT_S)
    place = _place(main)
    time.sleep(MOMENT_S)
    later = _place(main)
    return place is not None and later is not None and place[0] is later[0] and place[1] == later[1]


def _in_child() -> None:
    """A forked child has neither the thread nor a pipe of its own."""
    global _installed, _lock
    if _installed:
        _installed, _lock = False, threading.Lock()
        _live.clear()
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_in_child)
