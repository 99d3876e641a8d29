"""Horovod's timeline: when each operation was negotiated and done, as JSON trace events.

Open the file in chrome://tracing or ui.perfetto.dev: each operation has a row.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Dict, Optional, TextIO


class Timeline:
    """A file of trace events; each method does nothing while there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: Optional[TextIO] = None
        self._rows: Dict[str, int] = {}
        self._start_ns = 0
        self._mark_cycles = False
        #: Whether there is a file.
        self.on = False

    def start(self, path: str, mark_cycles: bool) -> None:
        """Write to this file from now on, in place of another."""
        self.stop()
        with self._lock:
            self._file = open(path, "w", encoding="utf-8")
            self._rows, self._mark_cycles = {}, mark_cycles
            self._start_ns = time.monotonic_ns()
            since = time.time_ns() // 1000
            self._file.write("[\n")
            self._write({
                "name": "process_name", "ph": "M", "pid": 0,
                "args": {"name": "ringcomm", "start_time_since_epoch_in_micros": since},
            }, first=True)  # fmt: skip
            self.on = True

    def stop(self) -> None:
        """Complete the file, and write no more."""
        with self._lock:
            file, self._file, self.on = self._file, None, False
            if file is not None:
                file.write("\n]\n")
                file.close()

    def begin(self, name: str, activity: str) -> None:
        """An operation's row: this begins."""
        self._event(name, {"ph": "B", "name": activity})

    def end(self, name: str) -> None:
        """An operation's row: what began last ends."""
        self._event(name, {"ph": "E"})

    def cycle(self) -> None:
        """Ranks are about to compare what they have asked for."""
        if self._mark_cycles:
            self._event(None, {"ph": "i", "name": "CYCLE_START", "s": "g"})

    def _event(self, row: Optional[str], event: Dict[str, Any]) -> None:
        with self._lock:
            if self._file is None:
                return
            if row is not None and row not in self._rows:
                self._rows[row] = len(self._rows) + 1
                # Process names are the rows' names, as Horovod has them.
                self._write({
                    "name": "process_name", "ph": "M", "pid": self._rows[row],
                    "args": {"name": row},
                })  # fmt: skip
            event["pid"] = self._rows[row] if row is not None else 0
            event["ts"] = (time.monotonic_ns() - self._start_ns) // 1000
            self._write(event)

    def _write(self, event: Dict[str, Any], first: bool = False) -> None:
        assert self._file is not None
        self._file.write(("" if first else ",\n") + json.dumps(event))
        # Horovod's readers look at the file while the program runs.
        self._file.flush()
