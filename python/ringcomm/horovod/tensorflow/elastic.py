"""Where programs look for Horovod's elastic training: it says what takes its place."""

from ..job import missing

raise ImportError(str(missing("ringcomm.horovod.tensorflow", "elastic")))
