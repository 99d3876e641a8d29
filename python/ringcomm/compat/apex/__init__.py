"""`ringcomm.apex` under apex's name; see `ringcomm.compat`."""

from ringcomm.compat.aliases import stand_for as _stand_for

_stand_for(__name__, "ringcomm.apex")
from ringcomm.apex import amp, parallel, optimizers  # noqa: E402, F401
