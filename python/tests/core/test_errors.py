"""What goes wrong ends in one sentence that names who and what; attributes say the same."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import ranks as processes
from conftest import on_threads, outcomes

import ringcomm
from ringcomm import _native, errors


def python(text, **env):
    """Run a program with these variables; a value of None takes one away."""
    merged = {**os.environ, **{name: value for name, value in env.items() if value is not None}}
    for name, value in env.items():
        if value is None:
            merged.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env=merged,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def last_line(text, **env):
    """The last line that a program leaves on standard error, and its status."""
    process = python(text, **env)
    _, said = process.communicate(timeout=120)
    return said.strip().splitlines()[-1], process.returncode


def test_ranks_that_disagree(ranks):
    disagreements = [
        lambda comm: comm.all_reduce(np.zeros(8 + comm.rank)),
        lambda comm: comm.all_reduce(np.zeros(8, ["f4", "f8"][comm.rank])),
        lambda comm: comm.all_reduce(np.zeros(8), op=[ringcomm.SUM, ringcomm.MAX][comm.rank]),
        # Each of them is a root that has sent all it has to: the next call tells.
        lambda comm: (comm.broadcast(np.zeros(8), root=comm.rank), comm.barrier()),
        lambda comm: comm.barrier() if comm.rank else comm.all_reduce(np.zeros(8)),
    ]
    for call in disagreements:
        found = outcomes(ranks(2), call)
        assert all(isinstance(error, ringcomm.RingError) for error in found), found
        error = next(error for error in found if isinstance(error, ringcomm.RingUsageError))
        assert "ranks disagree: rank" in str(error) and "\n" not in str(error)
        assert {error.rank, error.peer} == {0, 1} and error.sequence == 0
        assert error.operation.split("(")[0] in ("AllReduce", "Broadcast", "Barrier")


def test_a_rank_that_does_not_come(ranks):
    comms = ranks(3, timeout_ms=1500)
    found = outcomes(comms[:2], lambda comm: comm.all_reduce(np.zeros(8, np.float32)))
    error = next(error for error in found if isinstance(error, ringcomm.RingTimeoutError))
    assert isinstance(error, TimeoutError) and error.result == ringcomm.Result.TIMEOUT
    assert error.peer == 2 and error.operation.startswith("AllReduce(count=8, type=float, op=sum")
    for comm in comms[:2]:
        assert comm.error().peer == 2
    with pytest.raises(ringcomm.RingError, match="2"):
        comms[0].barrier()


def test_a_rank_that_was_killed_is_named_on_every_other_one(tmp_path):
    with pytest.raises(ringcomm.SpawnError) as caught:
        ringcomm.spawn(processes.die, 4, (str(tmp_path), 2))
    assert caught.value.rank == 2 and "killed by SIGKILL" in str(caught.value)
    assert set(caught.value.failures) == {0, 1, 2, 3}
    for rank in (0, 1, 3):
        facts = json.loads((tmp_path / str(rank)).read_text())
        assert facts["kind"] == "RingRemoteError"
        assert (facts["rank"], facts["peer"], facts["sequence"]) == (rank, 2, 1)
        assert facts["operation"].startswith("AllReduce(count=8")
        assert "rank 2" in facts["text"] and "died" in facts["text"] and "\n" not in facts["text"]
        assert facts["left"] == 3


def test_abort(ranks):
    comms = ranks(2)

    def work(comm):
        if comm.rank == 1:
            comm.abort()
            return None
        comm.barrier()

    first, second = outcomes(comms, work)
    assert isinstance(first, ringcomm.RingRemoteError) and first.peer == 1 and second is None
    assert comms[1].handle is None
    comms[1].abort()
    with pytest.raises(ringcomm.RingArgumentError, match="NULL"):
        comms[1].barrier()


def test_a_program_that_ends_by_an_exception_does_not_wait(tmp_path):
    """Its call under way would wait for ten minutes for a rank that never calls."""
    text = """
import ringcomm
comms = ringcomm.Communicator.all(2, config=ringcomm.Config(timeout_ms=600_000))
handle = comms[0].barrier(async_op=True)
assert not handle.wait(0.01)
raise KeyError("the end")
"""
    assert last_line(text) == ("KeyError: 'the end'", 1)


def test_leaving_by_an_exception_aborts(ranks):
    def work(comm):
        with comm:
            if comm.rank == 1:
                raise KeyError("a defect")
            comm.barrier()

    first, second = outcomes(ranks(2), work)
    assert isinstance(first, ringcomm.RingRemoteError) and isinstance(second, KeyError)
    assert "the communicator of rank 1 was aborted" in str(first)


def test_a_forked_child_is_told(ranks):
    comm = ranks(1)[0]
    comm.barrier()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            comm.barrier()
            os.write(writer, b"no error")
        except ringcomm.RingError as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    os.waitpid(child, 0)
    assert text.startswith("Ring") and "fork" in text and "\n" not in text, text
    comm.barrier()


def test_a_missing_library():
    line, status = last_line("import ringcomm", RINGCOMM_LIBRARY="/nowhere/libringcomm.so")
    assert status == 1
    assert line.startswith("ImportError: RINGCOMM_LIBRARY names /nowhere/libringcomm.so")
    assert "pip install" in line


def test_a_library_without_a_folder(tmp_path, monkeypatch):
    """It is looked for in one place: here, and not in the system's folders."""
    (tmp_path / "libhere.so").symlink_to(_native.library_path())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RINGCOMM_LIBRARY", "libhere.so")
    assert _native.library_path() == str(tmp_path / "libhere.so")
    assert _native.load().ringGetVersion


def test_another_library(tmp_path):
    other = tmp_path / "libringcomm.so"
    other.write_bytes(b"not a library")
    line, _ = last_line("import ringcomm", RINGCOMM_LIBRARY=str(other))
    assert line.startswith("ImportError: ") and "is not a libringcomm.so that loads here" in line
    source = tmp_path / "old.c"
    for code, release in ((90000, "9.0"), (200, "0.2"), (0, "0.0"), (10000, "1.0")):
        source.write_text(f"int ringGetVersion(int *version) {{ *version = {code}; return 0; }}")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", other, source], check=True)
        line, _ = last_line("import ringcomm", RINGCOMM_LIBRARY=str(other))
        assert f"is release {release}, and this package needs 0.1: reinstall with" in line
    source.write_text("int ringGetVersion(int *version) { *version = 100; return 0; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", other, source], check=True)
    line, _ = last_line("import ringcomm", RINGCOMM_LIBRARY=str(other))
    assert "has no ring" in line and "pip install" in line


def test_releases_that_suit():
    """Before 1.0 the same one; from then on also what came later."""
    suits = _native.suits
    assert suits((0, 1), (0, 1)) and not suits((0, 2), (0, 1)) and not suits((1, 1), (0, 1))
    assert suits((1, 2), (1, 2)) and suits((1, 3), (1, 2)) and not suits((1, 1), (1, 2))
    assert not suits((2, 2), (1, 2)) and not suits((0, 2), (1, 2))


def test_a_missing_launcher():
    none = {
        name: None for name in os.environ if name.startswith(("RINGCOMM_R", "RINGCOMM_N", "PMI"))
    }
    line, status = last_line("import ringcomm; ringcomm.init()", **none)
    assert status == 1
    assert "nothing says which rank this is" in line and "ringrun" in line


def test_a_missing_secret():
    """The address is another host's, by all that is known here (it is kept for documentation)."""
    text = "import ringcomm; ringcomm.init('tcp://192.0.2.1:4567', 2, 1)"
    line, status = last_line(text, RINGCOMM_SECRET=None, RINGCOMM_SECRET_FILE=None)
    assert status == 1
    assert line.startswith("ringcomm.errors.RingUsageError: ")
    assert "set RINGCOMM_SECRET to the same text on every rank" in line


def test_a_bad_argument_of_every_kind(ranks):
    one = ranks(1)[0]
    wrong = [
        lambda: one.broadcast(np.zeros(1), root=1),
        lambda: one.send(np.zeros(1), 5),
        lambda: one.split(-7),
        lambda: one.all_reduce(np.zeros(1), op=99),
        lambda: ringcomm.Communicator.init(2, 7, ringcomm.get_unique_id()),
        lambda: ringcomm.Communicator.init(1, 0, bytes(128)),
        lambda: ringcomm.Communicator.init(1, 0, b"short"),
        lambda: ringcomm.Communicator.all(0),
        lambda: ringcomm.Communicator.all(2, devices=[-1]),
        lambda: ringcomm.init("nonsense://x", 1, 0),
        lambda: ringcomm.init(nranks=1, config=ringcomm.Config(nsocks=99)),
    ]
    for call in wrong:
        with pytest.raises(ValueError) as caught:
            call()
        assert "\n" not in str(caught.value)
    one.barrier()


SENTENCES = {
    "rank 2 (host node7, pid 5) died: rank 0 cannot go on in AllReduce(count=8, type=f32, op=sum) "
    "#12; shrink": (0, 2, "AllReduce(count=8, type=f32, op=sum)", 12),
    "rank 2 (pid 5) died: rank 0 cannot go on; shrink": (0, 2, None, None),
    "rank 2 (host b, pid 5) died or cannot be reached: rank 0 cannot go on in Barrier() #3; rank 1 "
    "was refused at 10.0.0.2:20001; if": (0, 2, "Barrier()", 3),
    "rank 2 (pid 5) died or cannot be reached: rank 0 cannot go on; rank 0 had": (0, 2, None, None),
    "rank 1 failed and rank 0 cannot go on in Barrier() #3: rank 2 (pid 9) died: rank 1 cannot go "
    "on in Barrier() #3; shrink": (0, 2, "Barrier()", 3),
    "rank 1 failed and rank 0 cannot go on in Barrier() #3: timeout: rank 1 waited 5 ms for rank 0 "
    "(pid 9) in Barrier() #3; x": (0, 1, "Barrier()", 3),
    "rank 1 failed and rank 0 cannot go on: the communicator of rank 1 was aborted": (
        0, 1, None, None),
    "timeout: rank 1 waited 300 ms for rank 3 (pid 4) in Send/Recv(2 messages) #7; rank 3": (
        1, 3, "Send/Recv(2 messages)", 7),
    "invalid usage: rank 0 expected message #64 of 64 bytes from rank 1 but got #64 of 72 bytes": (
        0, 1, None, None),
    "ranks disagree: rank 0 called AllReduce(count=1) #0 but rank 1 called Barrier() #0; every": (
        0, 1, "AllReduce(count=1)", 0),
    "ranks disagree: rank 1 called Recv(count=8, type=float, peer=0) #3 but rank 0 (host node7, pid "
    "5) called Send(count=8, type=int32, peer=1) #3; every": (
        1, 0, "Recv(count=8, type=float, peer=0)", 3),
    "rank 1 (host node7, pid 5) failed and rank 0 cannot go on in Send/Recv(1 messages) #1: ranks "
    "disagree: rank 1 called Recv(count=8, type=float, peer=0) #3 but rank 0 (host node8, pid 6) "
    "called Send(count=8, type=int32, peer=1) #3; every": (0, 1, "Send/Recv(1 messages)", 1),
    "the connection to rank 4 broke in Send(count=3, peer=4) #9: reset": (
        None, 4, "Send(count=3, peer=4)", 9),
    "the connection of rank 2 to rank 4 (host node7, pid 5) broke in Barrier() #9: reset": (
        2, 4, "Barrier()", 9),
    "timeout: rank 1 waited 5 ms for rank 0 (host node7, pid 9) in the rendezvous; it came": (
        1, 0, None, None),
    "something else": (None, None, None, None),
}  # fmt: skip


@pytest.mark.parametrize("text", SENTENCES)
def test_facts_of_sentences(text):
    facts = errors.facts_of(text)
    assert (facts.rank, facts.peer, facts.operation, facts.sequence) == SENTENCES[text]


def test_missing_ranks():
    error = _native.failure(8, "after 5 ms only 1 of 3 ranks had arrived; missing: [1, 2]; start")
    assert isinstance(error, ringcomm.RingTimeoutError) and error.missing == [1, 2]
    text = "ranks [0, 1] count as one host, and after 5 ms only 1 of them had met there; missing: [1];"
    assert _native.failure(8, text).missing == [1]
    cut = "after 5 ms only 1 of 9 ranks had arrived; missing: [1, 2] and 6 more; start"
    assert _native.failure(8, cut).missing == [1, 2]


JOIN = """
import json, sys, ringcomm
try:
    ringcomm.init(*json.loads(sys.argv[1]))
except ringcomm.RingError as error:
    facts = {name: getattr(error, name) for name in ("rank", "peer", "missing")}
    print(json.dumps({"kind": type(error).__name__, "text": str(error), **facts}))
"""


#: This and the next are where the ranks of these tests meet. The tests run under two Pythons at a
#: time, and the kernel gives no connection a port below 32,768.
PORT = 10_000 + os.getpid() * 2 % 20_000


def joining(rank, nranks, arguments=(), **env):
    """A rank that says what it was told; no launcher around this test has a part in it."""
    of_launchers = ("RINGCOMM_", "PMI", "OMPI")
    merged = {
        name: value
        for name, value in os.environ.items()
        if name == "RINGCOMM_LIBRARY" or not name.startswith(of_launchers)
    }
    merged.update(RANK=str(rank), WORLD_SIZE=str(nranks), MASTER_ADDR="127.0.0.1")
    merged.update(MASTER_PORT=str(PORT), RINGCOMM_JOB=f"joining {os.getpid()}", **env)
    return subprocess.Popen(
        [sys.executable, "-c", JOIN, json.dumps(list(arguments))],
        env=merged,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(process):
    """What a rank was told."""
    said, _ = process.communicate(timeout=120)
    return json.loads(said)


@pytest.mark.parametrize("how", ["machine", "file", "network"])
def test_ranks_that_never_start(how, tmp_path):
    arguments, env, missing = (), {"RINGCOMM_TIMEOUT_MS": "500"}, [0, 2]
    if how == "file":
        arguments, missing = [f"file://{tmp_path}/meet"], [0]
    if how == "network":
        # Rank 0 knows who has come.
        arguments, missing = [f"tcp://127.0.0.1:{PORT + 1}"], [0]
        env.update(RINGCOMM_SECRET="a secret of this test alone", RINGCOMM_HOSTID="x")
    facts = told(joining(1, 3, arguments, **env))
    assert facts["kind"] == "RingTimeoutError" and facts["missing"] == missing, facts
    facts = told(joining(0, 3, arguments, **env))
    assert facts["kind"] == "RingTimeoutError" and facts["missing"] == [1, 2], facts


def test_a_rank_that_stops_while_ranks_meet():
    """Rank 0, to which rank 1 has come, is stopped while both wait for a third."""
    for _ in range(5):
        first = joining(0, 3, RINGCOMM_TIMEOUT_MS="60000")
        try:
            while _sockets(first.pid) < 1:
                time.sleep(0.01)
            second = joining(1, 3, RINGCOMM_TIMEOUT_MS="4000")
            while _sockets(first.pid) < 2:
                time.sleep(0.01)
            # What the two say to each other takes less.
            time.sleep(0.5)
            os.kill(first.pid, signal.SIGSTOP)
            facts = told(second)
        finally:
            first.kill()
            first.communicate()
        if "in the rendezvous" in facts["text"]:
            break
    assert facts["kind"] == "RingTimeoutError" and facts["peer"] == 0, facts
    assert facts["rank"] == 1 and "stopped answering" in facts["text"], facts


def _sockets(pid):
    """How many sockets a process has."""
    folder, count = f"/proc/{pid}/fd", 0
    for name in os.listdir(folder):
        try:
            count += os.readlink(f"{folder}/{name}").startswith("socket:")
        except FileNotFoundError:
            pass
    return count


def test_a_rank_that_is_late_while_the_communicator_is_made(tmp_path):
    """Rank 0 reads a tuning file that is a pipe when it has met rank 1."""
    profile = tmp_path / "profile"
    os.mkfifo(profile)
    first = joining(0, 2, RINGCOMM_TIMEOUT_MS="60000", RINGCOMM_TUNING_FILE=str(profile))
    facts = told(joining(1, 2, RINGCOMM_TIMEOUT_MS="3000"))
    profile.write_text("nothing")
    first.communicate(timeout=120)
    assert "while the communicator was made" in facts["text"], facts
    assert (facts["kind"], facts["rank"], facts["peer"]) == ("RingTimeoutError", 1, 0), facts


def test_errors_travel_between_processes():
    for text in SENTENCES:
        for result in (2, 3, 4, 5, 6, 8, 64):
            error = _native.failure(result, text, 9)
            copy = pickle.loads(pickle.dumps(error))
            assert type(copy) is type(error) and copy.__dict__ == error.__dict__
            assert str(copy) == str(error) == text and copy.rank == 9


def test_a_wait_can_be_interrupted(ranks):
    """Nobody comes for ten minutes, and Ctrl-C ends the wait before."""
    comms = ranks(2, timeout_ms=600_000)
    handle = comms[0].barrier(async_op=True)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            handle.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not handle.done()
    comms[1].barrier()
    assert handle.wait()


def test_on_threads_tells_errors(ranks):
    with pytest.raises(ZeroDivisionError):
        on_threads(ranks(1), lambda comm: 1 // 0)


CTRL_C = """
import signal, time, numpy as np, ringcomm
# A shell may start what runs behind it with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
comms = ringcomm.Communicator.all(2, config=ringcomm.Config(timeout_ms=60000))
started, ones = time.monotonic(), np.ones(4)
try:
    print("ready", flush=True)
    comms[0].all_reduce(ones)
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - started < 10, flush=True)
"""


def test_ctrl_c_ends_a_call_that_waits():
    process = python(CTRL_C)
    assert process.stdout.readline() == "ready\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=120)
    assert said == "interrupted True\n", complaint


ALONE = """
import numpy, ringcomm
for comm in ringcomm.Communicator.all(2):
    comm.all_reduce(numpy.ones(10, numpy.float32))
"""


def test_a_loop_over_ranks_without_a_group_is_told_before_the_deadline():
    """No thread of the package's own is taken for one that might make the other rank's call."""
    said, status = last_line(ALONE, OPENBLAS_NUM_THREADS="1", RINGCOMM_TIMEOUT_MS="60000")
    assert status == 1 and "no other thread that could call that" in said, said
