"""`ringcomm.horovod` under Horovod's name; see `ringcomm.compat`."""

from ringcomm.compat.aliases import stand_for as _stand_for

_real = _stand_for(__name__, "ringcomm.horovod")
__version__ = _real.__version__
run = _real.run
