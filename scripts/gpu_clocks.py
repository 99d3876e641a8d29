"""The clocks of a GPU while steps are timed, and what held them down, as nvidia-smi says."""
import contextlib
import datetime
import statistics
import subprocess
import threading

FIELDS = ["timestamp", "clocks.sm", "clocks.mem", "clocks_event_reasons.active", "power.draw", "temperature.gpu"]
PERIOD_MS = 500
# The bits of the field of reasons, by NVML's names (nvmlClocksEventReason...).
REASONS = {0x1: "idle", 0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
           0x20: "thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake", 0x100: "display clocks"}
# Those under which a time says less of the code than of the machine.
SLOW = {"power cap", "hardware slowdown", "thermal slowdown", "hardware thermal slowdown", "power brake"}


def number(text):
    """A field as a number; None where the driver does not know it."""
    with contextlib.suppress(ValueError):
        return float(text)
    return None


def parsed(line):
    """When a line of nvidia-smi's was taken, by the machine's clock, and what it says; None if it is none."""
    fields = [field.strip() for field in line.split(",")]
    try:
        at = datetime.datetime.strptime(fields[0], "%Y/%m/%d %H:%M:%S.%f").timestamp()
        reasons = int(fields[3], 16)
    except (ValueError, IndexError):
        return None
    return at, dict(zip(FIELDS[1:], map(number, fields[1:]))) | {FIELDS[3]: reasons}


class Clocks:
    """Samples from its beginning to its end; none where there is no nvidia-smi."""

    def __init__(self):
        words = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits",
                 f"--loop-ms={PERIOD_MS}"]
        # What it says that is no sample: why there are none.
        self.samples, self.others, self.process = [], [], None
        try:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=subprocess.STDOUT, text=True)
            threading.Thread(target=self.listen, daemon=True).start()
        except OSError as reason:
            self.others.append(f"nvidia-smi: {reason}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()

    def listen(self):
        for line in self.process.stdout:
            if sample := parsed(line):
                self.samples.append(sample)
            elif len(self.others) < 5:
                self.others.append(line.strip())

    def between(self, begin, end):
        """What was seen in a while of the machine's clock, or why nothing was."""
        seen = [sample for at, sample in list(self.samples) if begin <= at <= end]
        if not seen:
            return {"samples": 0, "why": "; ".join(self.others) or "no sample"}

        def spread(field):
            values = [sample[field] for sample in seen if sample[field] is not None]
            return [min(values), statistics.median(values), max(values)] if values else None
        bits = 0
        for sample in seen:
            bits |= sample[FIELDS[3]]
        return {"samples": len(seen), "sm_mhz": spread("clocks.sm"), "memory_mhz": spread("clocks.mem"),
                "watts": spread("power.draw"), "celsius": spread("temperature.gpu"),
                "reasons": [name for bit, name in REASONS.items() if bits & bit]}


def slowed(clocks):
    """The reasons for which a step's times are in doubt."""
    return [reason for reason in (clocks or {}).get("reasons", []) if reason in SLOW]
