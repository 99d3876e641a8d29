"""Run a function as every rank of one communicator, each in a thread of this process."""

import threading

import ringcomm


def run(nranks, function):
    """`[function(comm) for comm in ranks]`, all at once; the first error is raised."""
    comms = ringcomm.Communicator.all(nranks)
    answers, errors = [None] * nranks, []

    def body(comm):
        try:
            answers[comm.rank] = function(comm)
        except BaseException as error:
            errors.append(error)
            comm.abort()

    threads = [threading.Thread(target=body, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    for comm in comms:
        comm.destroy()
    return answers
