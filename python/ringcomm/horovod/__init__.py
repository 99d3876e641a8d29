"""Horovod's interface on ringcomm, for programs that were written for Horovod.

    import ringcomm.horovod.torch as hvd         # was: import horovod.torch as hvd

What such a program calls is under Horovod's names in `ringcomm.horovod.torch`,
`ringcomm.horovod.tensorflow` and `ringcomm.horovod.tensorflow.keras`, and means the same: tensors
are known by name, and ranks submit them in any order. `ringrun --compat` gives a program that
nobody edits these modules under Horovod's own names.
"""

from .run import run

#: The version of Horovod whose interface this is.
__version__ = "0.28.1"
