"""On which device a rank is, and whose memory its calls take then."""

import driver
import numpy as np
import pytest
from in_threads import on_threads

import ringcomm
from ringcomm import Communicator, Config
from ringcomm.horovod import job


def alone(config=None):
    """A job of one rank."""
    return ringcomm.init(nranks=1, config=config)


@pytest.mark.parametrize("device", [None, -1, 0, "last"])
def test_the_first_of_a_process(device, devices):
    """The library finds the driver by itself, or leaves it alone."""
    device = devices - 1 if device == "last" else device
    wanted = -1 if device is None else device
    assert ringcomm.spawn(_first, 1, config=Config(device=device)) == [wanted]


def _first(comm):
    with open("/proc/self/maps") as maps:
        assert ("cuda.so" in maps.read()) == (comm.device >= 0)
    array = driver.Array(np.ones(3), max(comm.device, 0))
    if comm.device < 0:
        with pytest.raises(ringcomm.RingArgumentError) as told:
            comm.all_reduce(array)
        assert "lies on CUDA device 0" in str(told.value)
        assert "make the communicator with Config(device=0)" in str(told.value)
        # What it is told to do helps, beside the communicator that is there.
        with alone(Config(device=0)) as other:
            other.all_reduce(array)
    else:
        comm.all_reduce(array)
    return comm.device


def test_what_is_current_is_taken_unless_the_config_says(devices):
    last = devices - 1
    with driver.current(last):
        for config, wanted in [
            (None, last),
            (Config(timeout_ms=1000), last),
            (Config(device=0), 0),
            (Config(device=-1), -1),
        ]:
            with alone(config) as comm:
                assert comm.device == wanted
                assert comm.all_gather_object("an object") == ["an object"]
                host = np.ones(4)
                comm.all_reduce(host)
    with alone() as comm:
        assert comm.device == -1


def test_the_variable_of_a_host_loses_to_the_config(monkeypatch):
    monkeypatch.setenv("RINGCOMM_CUDA", "0")
    with driver.current(0), alone() as host, alone(Config(device=0)) as device:
        assert (host.device, device.device) == (-1, 0)
        with device.split(0, config=Config(timeout_ms=1000)) as child:
            assert child.device == 0


def test_horovod_begins_beside_a_current_device():
    with driver.current(0):
        job.init()
        try:
            assert (job.rank(), job.size(), job.job().comm.device) == (0, 1, -1)
        finally:
            job.shutdown()


@pytest.mark.parametrize("config", [None, Config(timeout_ms=30_000), Config(device=0)], ids=str)
def test_all_takes_devices_and_a_config(config, devices):
    places = [devices - 1, -1, 0]
    for given, wanted in [(places, places), (None, [-1 if config != Config(device=0) else 0] * 3)]:
        with driver.current(0):
            comms = Communicator.all(3, given, config)
        assert [comm.device for comm in comms] == wanted
        on_threads(comms, lambda comm: comm.destroy())
    with pytest.raises(ringcomm.RingArgumentError, match="2 devices for 3 ranks"):
        Communicator.all(3, [0, 0], config)


def test_children_stay_with_their_parent_unless_they_say(ranks, devices):
    last = devices - 1
    cases = [(last, None), (last, Config(spins=0)), (-1, Config(device=-1)), (0, Config(device=0))]

    def work(comm):
        # On a thread where no device is current.
        for wanted, config in cases:
            with comm.split(0, config=config) as child:
                assert child.device == wanted, config
            with comm.shrink([], config=config) as left:
                assert left.device == wanted, config

    on_threads(ranks(2, [last, last]), work)


def test_a_device_that_is_not_there(devices):
    with pytest.raises(ringcomm.RingArgumentError, match=f"no CUDA device {devices}: this process"):
        alone(Config(device=devices))
    with pytest.raises(ringcomm.RingArgumentError, match="config.device is -2"):
        alone(Config(device=-2))


def test_memory_of_another_device_is_refused(devices):
    with alone(Config(device=0)) as comm:
        array = driver.Array(np.zeros(3), devices - 1)
        array.device.id = 1
        with pytest.raises(ringcomm.RingArgumentError) as told:
            comm.all_reduce(array)
        said = "it lies on CUDA device 1, and rank 0 of this communicator works on CUDA device 0"
        assert said in str(told.value) and "Config(device=1)" in str(told.value)
