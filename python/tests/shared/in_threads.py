"""Ranks as threads of one process, for most tests; those of real processes are in `ranks`."""

import threading

import pytest

import ringcomm

#: Long enough for a machine that does ten other things; a test that waits for it is about to fail.
PATIENCE_MS = 60_000


def on_threads(comms, function):
    """Call `function(comm)` for every rank on its thread; their results, or the first error."""
    results, errors = [None] * len(comms), [None] * len(comms)

    def run(index):
        try:
            results[index] = function(comms[index])
        except BaseException as error:
            errors[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(comms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return results


def outcomes(comms, function):
    """The same, with every rank's error in place of its result."""

    def run(comm):
        try:
            return function(comm)
        except Exception as error:
            return error

    return on_threads(comms, run)


@pytest.fixture
def ranks():
    """`ranks(n)` makes a communicator of n ranks in this process; all end with the test."""
    made = []

    def make(nranks, devices=None, **settings):
        settings.setdefault("timeout_ms", PATIENCE_MS)
        # A short limit is one for calls.
        settings.setdefault("init_timeout_ms", PATIENCE_MS)
        config = ringcomm.Config(**settings)
        comms = ringcomm.Communicator.all(nranks, devices, config)
        made.extend(comms)
        return comms

    yield make
    for comm in made:
        try:
            comm.abort()
        except ringcomm.RingError:
            pass


@pytest.fixture
def one(ranks):
    """A communicator of one rank."""
    return ranks(1)[0]
