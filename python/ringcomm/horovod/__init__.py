"""Horovod's interface on ringcomm, for programs that were written for Horovod.

    import ringcomm.horovod.torch as hvd         # was: import horovod.torch as hvd

What such a program calls is under Horovod's names in `ringcomm.horovod.torch`,
`ringcomm.horovod.tensorflow` and `ringcomm.horovod.tensorflow.keras`, and means the same.
Calls are made in the same order on every rank: ringcomm does not wait for a name to come up
everywhere, and says so where ranks disagree.
"""
