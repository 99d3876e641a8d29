"""`ringcomm.horovod.torch.elastic`: ranks are killed, and others join, while the rest trains on."""

import signal

import pytest
import torch
import torch._dynamo  # Optimizers load it; each rank would, otherwise.
from torch import nn

import ringcomm.horovod.torch as hvd
from elastic_ranks import Ranks, ask, die, wait_for
from ringcomm.horovod.elastic import meeting

SAMPLES, BATCH, EPOCHS, RATE = 48, 2, 2, 0.1


def model_of():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def data():
    torch.manual_seed(4)
    return torch.randn(SAMPLES, 6, dtype=torch.float64)


def weights(model):
    return torch.cat([one.detach().flatten() for one in model.parameters()])


class Training:
    """A loop as Horovod's documentation has it; `kill` says where slot 1 dies, `hold` in which step
    rank 0 waits for a newcomer, and `act` is called in every step."""

    def __init__(self, slot, kill=None, hold=None, act=None):
        self.slot, self.hold, self.act, self.at = slot, hold, act, 3
        self.kill = kill if slot == 1 else None
        hvd.init(process_sets=[hvd.ProcessSet([0, 1])])
        self.model, self.x = model_of(), data()
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), RATE, momentum=0.9),
            self.model.named_parameters(),
        )
        self.sampler = hvd.elastic.ElasticSampler(self.x)
        self.state = hvd.elastic.TorchState(
            self.model, self.optimizer, sampler=self.sampler, step=0, log=[]
        )
        if self.kill == "in sync":
            self.state._handlers["model"].sync = die
        self.resets = []
        self.state.register_reset_callbacks([lambda: self.resets.append(hvd.size())])
        self.calls = 0

    def run(self):
        hvd.elastic.run(Training.train)(self.state, self)
        assert all(one.grad is not None for one in self.model.parameters())
        return {
            "rank": hvd.rank(), "size": hvd.size(), "weights": weights(self.model),
            "log": self.state.log, "resets": self.resets, "calls": self.calls,
        }  # fmt: skip

    @staticmethod
    def train(state, self):
        self.calls += 1
        while self.sampler.epoch < EPOCHS:
            mine = list(self.sampler)
            for number, first in enumerate(range(0, len(mine), BATCH)):
                self.step(number, mine[first : first + BATCH])
            self.sampler.set_epoch(self.sampler.epoch + 1)

    def step(self, number, batch):
        state = self.state
        dying = self.kill if state.step == self.at else None
        if dying == "in backward":
            next(self.model.parameters()).register_hook(lambda gradient: die())
        self.optimizer.zero_grad()
        self.model(self.x[batch]).square().mean().backward()
        if dying == "before the step":
            die()
        self.optimizer.step()
        state.log.append((state.step, hvd.size(), sorted(sum(hvd.allgather_object(batch), []))))
        state.step += 1
        self.sampler.record_batch(number, len(batch))
        if dying == "in commit":
            state.save()
            die()
        if state.step == self.hold and hvd.rank() == 0:
            ask()
        if self.act is not None:
            self.act(self)
        state.commit()


def alone(log):
    """One process that makes the steps of the log: with each the samples of all ranks at once."""
    model, x = model_of(), data()
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for _, _, samples in log:
        optimizer.zero_grad()
        model(x[samples]).square().mean().backward()
        optimizer.step()
    return weights(model)


def trained(slot, *arguments):
    try:
        return Training(slot, *arguments).run()
    finally:
        hvd.shutdown()


def all_once(log, size=SAMPLES):
    """In each epoch every sample is in a step of the log, and only padding is there twice."""
    done = [sample for _, _, samples in log for sample in samples]
    each = len(done) // EPOCHS
    for epoch in range(EPOCHS):
        assert set(done[epoch * each : (epoch + 1) * each]) == set(range(size))


@pytest.mark.parametrize("where", ["in backward", "before the step", "in commit"])
def test_the_others_go_on_when_a_rank_is_killed(tmp_path, where):
    found, ends = Ranks(tmp_path, 3, trained, where).results()
    assert ends == {0: 0, 1: -signal.SIGKILL, 2: 0}, found
    first, other = found[0], found[2]
    # The lowest of those that are left is rank 0; nobody was started again.
    assert [(one["rank"], one["size"], one["calls"]) for one in (first, other)] == [
        (0, 2, 2), (1, 2, 2)
    ]  # fmt: skip
    assert first["resets"] == other["resets"] == [2]
    assert first["log"] == other["log"]
    steps = [(step, size) for step, size, _ in first["log"]]
    last = 4 if where == "in commit" else 3
    assert [size for _, size in steps[:last]] == [3] * last and steps[last][1] == 2
    assert [step for step, _ in steps] == list(range(len(steps)))
    assert torch.equal(first["weights"], other["weights"])
    check(first)


def check(one):
    """Its weights are those of one process, and its epochs are whole."""
    torch.testing.assert_close(one["weights"], alone(one["log"]), rtol=0, atol=1e-12)
    all_once(one["log"])


def test_the_others_go_on_when_a_rank_is_killed_in_sync(tmp_path):
    found, ends = Ranks(tmp_path, 3, trained, "in sync").results()
    assert ends == {0: 0, 1: -signal.SIGKILL, 2: 0}, found
    assert {size for _, size, _ in found[0]["log"]} == {2}
    assert found[0]["log"] == found[2]["log"] and found[0]["calls"] == 1
    check(found[0])


def test_a_newcomer_comes_at_the_next_commit(tmp_path):
    ranks = Ranks(tmp_path, 3, trained, "in backward", 6)
    ranks.add_when_asked(3)
    found, ends = ranks.results()
    assert ends == {0: 0, 1: -signal.SIGKILL, 2: 0, 3: 0}, found
    assert [found[slot]["rank"] for slot in (0, 2, 3)] == [0, 1, 2]
    assert [found[slot]["calls"] for slot in (0, 2, 3)] == [3, 3, 1]
    assert found[0]["resets"] == found[2]["resets"] == [2, 3] and found[3]["resets"] == []
    assert found[0]["log"] == found[2]["log"] == found[3]["log"]
    sizes = [size for _, size, _ in found[0]["log"]]
    # It has come at the commit of step 6.
    assert sizes == [3] * 3 + [2] * 3 + [3] * (len(sizes) - 6) and len(sizes) > 8
    for slot in (2, 3):
        assert torch.equal(found[0]["weights"], found[slot]["weights"])
    check(found[0])


def test_a_spare_takes_the_place_of_the_dead_at_once(tmp_path):
    ranks = Ranks(tmp_path, 3, trained, "in backward", RINGCOMM_MAX_NP="3")
    ranks.add(3)
    ranks.add(4)
    found, ends = ranks.results()
    # The second spare was not needed, and was sent home.
    assert ends == {0: 0, 1: -signal.SIGKILL, 2: 0, 3: 0, 4: 0}, found
    spare = 3 if found[3] is not None else 4
    assert found[7 - spare] is None
    assert {size for _, size, _ in found[0]["log"]} <= {2, 3}
    assert found[0]["log"] == found[spare]["log"]
    assert torch.equal(found[0]["weights"], found[spare]["weights"])
    check(found[0])


def test_too_few_ranks_are_told(tmp_path):
    few = {"RINGCOMM_MIN_NP": "3", "HOROVOD_ELASTIC_TIMEOUT": "0.2"}
    found, ends = Ranks(tmp_path, 3, trained, "in backward", **few).results()
    assert ends == {0: 1, 1: -signal.SIGKILL, 2: 1}
    for slot in (0, 2):
        assert "2 ranks are left of an elastic job of at least 3 (RINGCOMM_MIN_NP" in found[slot]
        assert "nobody has come within HOROVOD_ELASTIC_TIMEOUT (0.2 s)" in found[slot]


def test_fewer_than_the_least_ranks_wait_for_a_newcomer(tmp_path):
    ranks = Ranks(tmp_path, 3, trained, "in backward", RINGCOMM_MIN_NP="3")
    ranks.processes[1].join()
    ranks.add(3)
    found, ends = ranks.results()
    assert ends == {0: 0, 1: -signal.SIGKILL, 2: 0, 3: 0}, found
    assert {size for _, size, _ in found[0]["log"]} == {3} and found[0]["resets"] == [3]
    check(found[0])


def silent(slot):
    """A newcomer that is let in, and does not come."""
    meeting.here()._hold(meeting.here()._path("waiting", "0"))
    wait_for(lambda: meeting.here()._names("ticket"))
    wait_for(lambda: not meeting.here()._names("ticket"))
    wait_for(lambda: "over" in meeting.here()._names("job"))


def any_body(slot, *arguments):
    meeting.MOST_JOIN_MS = 1000
    return silent(slot) if slot == 3 else trained(slot, *arguments)


def test_who_does_not_come_is_not_waited_for_again_and_again(tmp_path):
    ranks = Ranks(tmp_path, 2, any_body, None, 2)
    ranks.add_when_asked(3)
    found, ends = ranks.results()
    assert ends == {0: 0, 1: 0, 3: 0}, found
    assert {size for _, size, _ in found[0]["log"]} == {2}
    # Each try is an interruption, and the state is as it was.
    assert found[0]["resets"] == [2, 2] and found[0]["log"] == found[1]["log"]
    check(found[0])


def sends_home(self):
    """In step 4 the launcher names the rank that it calls 1."""
    if self.state.step == 4 and self.slot == 0:
        open(meeting.here()._path("leave", "1"), "w").close()
    self.state.sync = self.must_not_sync


def sent_home(slot):
    training = Training(slot, act=sends_home)
    training.must_not_sync = lambda: pytest.fail("skip_sync")
    try:
        return training.run()
    finally:
        hvd.shutdown()


def test_a_rank_is_sent_home_and_the_others_need_no_sync(tmp_path):
    found, ends = Ranks(tmp_path, 3, sent_home).results()
    assert ends == {0: 0, 1: 0, 2: 0}, found
    assert found[1] is None and found[0]["resets"] == found[2]["resets"] == [2]
    sizes = [size for _, size, _ in found[0]["log"]]
    assert sizes[:4] == [3] * 4 and set(sizes[4:]) == {2}
    assert torch.equal(found[0]["weights"], found[2]["weights"])
    check(found[0])


def sets_again(slot):
    low, high = hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])
    hvd.init(process_sets=[low, high])
    own = hvd.allreduce(torch.tensor(1.0), op=hvd.Sum, process_set=low) if low.included() else 0
    assert own == (2 if hvd.rank() < 2 else 0)
    state = hvd.elastic.ObjectState(turns=[], deep={"a": [1]})
    sums = []

    @hvd.elastic.run
    def train(state):
        while len(state.turns) < 4:
            if len(state.turns) == 2 and slot == 0:
                die()
            state.deep["a"][0] += 1
            hvd.barrier()
            if len(state.turns) == 1:
                state.turns.append("lost")
                state.turns.pop()
            state.turns.append(hvd.size())
            state.commit()
        sums.append(hvd.allreduce(torch.tensor(1.0), op=hvd.Sum, process_set=low).item())

    train(state)
    assert low.ranks == [0, 1] and low.included() and low.process_set_id == 1
    with pytest.raises(ValueError, match="not registered"):
        high.size()
    hvd.shutdown()
    return state.turns, state.deep, sums


def test_process_sets_of_init_are_made_again_where_they_fit(tmp_path):
    found, ends = Ranks(tmp_path, 3, sets_again).results()
    assert ends == {0: -signal.SIGKILL, 1: 0, 2: 0}, found
    # What was changed in place since the commit is undone.
    assert found[1] == found[2] == ([3, 3, 2, 2], {"a": [5]}, [2.0])


def wrong_again(slot):
    hvd.init()
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(state.step)
        hvd.allreduce(torch.ones(2 + slot), name="it")

    with pytest.raises(hvd.HorovodInternalError, match="'allreduce.it' is not the same"):
        train(hvd.elastic.ObjectState(step=0))
    hvd.shutdown()
    return calls


def test_a_mistake_of_the_program_is_not_repeated_for_ever(tmp_path):
    found, ends = Ranks(tmp_path, 2, wrong_again).results()
    assert found == {0: [0, 0, 0], 1: [0, 0, 0]}, ends


def once_wrong(slot):
    """One rank of two gets an error in the middle of its step: all go back, and go on."""
    hvd.init()
    model, x = model_of(), data()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), RATE, momentum=0.9), model.named_parameters()
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    state = hvd.elastic.TorchState(model, optimizer, schedule=schedule, step=0)
    failed, rates = [], []

    @hvd.elastic.run
    def train(state):
        while state.step < 4:
            optimizer.zero_grad()
            model(x[8 * state.step + 4 * slot :][:4]).square().mean().backward()
            if state.step == 2 and not failed:
                failed.append(True)
                with torch.no_grad():
                    model[0].weight.add_(1)
                schedule.step()
                if slot == 1:
                    raise hvd.HorovodInternalError("a step that has failed here")
            optimizer.step()
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
            state.step += 1
            state.commit()

    train(state)
    assert state.schedule is schedule and schedule.optimizer.param_groups is optimizer.param_groups
    hvd.shutdown()
    return weights(model), rates


def test_an_error_in_the_middle_of_a_step_is_undone(tmp_path):
    found, ends = Ranks(tmp_path, 2, once_wrong).results()
    assert ends == {0: 0, 1: 0}, found
    model, x = model_of(), data()
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        model(x[8 * step :][:8]).square().mean().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] /= 2
    for slot in (0, 1):
        torch.testing.assert_close(found[slot][0], weights(model), rtol=0, atol=1e-12)
        assert found[slot][1] == [RATE / 2**n for n in (1, 2, 3, 4)]


def test_a_sampler_shares_what_is_left(monkeypatch):
    from ringcomm.horovod.torch.elastic import sampler as module

    def samplers(size, state=None, samples=21):
        made = []
        for rank in range(size):
            monkeypatch.setattr(module, "size", lambda: size)
            monkeypatch.setattr(module, "rank", lambda rank=rank: rank)
            made.append(module.ElasticSampler(range(samples), seed=5))
            if state is not None:
                made[-1].load_state_dict(state)
        return made

    first = samplers(4)
    done = [list(one)[:4] for one in first]
    for one in first:
        one.record_batch(0, 2)
        one.record_batch(1, 2)
    done = [sample for one in done for sample in one]
    assert len(set(done)) == 16 and first[0].get_indices(1, 2) == list(first[0])[2:4]
    left = samplers(3, first[2].state_dict())
    rest = [list(one) for one in left]
    assert [len(one) for one in left] == [len(one) for one in rest] == [2, 2, 2]
    # Every sample that is left once; one again, so that all have as many.
    assert {sample for one in rest for sample in one} == set(range(21)) - set(done)
    # The last of them has the patched rank, which is its own.
    assert left[2].epoch == 0 and len(left[2].remaining_indices) == 5
    left[2].set_epoch(1)
    assert left[2].epoch == 1 and left[2].remaining_indices != samplers(3)[2].remaining_indices
    assert sorted(left[2].remaining_indices) == list(range(21))
    assert [list(one) for one in samplers(5, samples=2)][2:4] == [
        list(one) for one in samplers(5, samples=2)
    ][:2]


def test_a_state_asks_all_whether_hosts_have_changed():
    state = hvd.elastic.ObjectState(lambda one: one, lambda: 1, a=[1])
    state.a.append(2)
    state.commit()
    state.a.append(3)
    state.restore()
    assert state.a == [1, 2]
    for update, skip in ((1, True), (2, False), (3, False)):
        state.on_hosts_updated(update, update)
        with pytest.raises(hvd.elastic.HostsUpdatedInterrupt) as raised:
            state.commit()
        assert raised.value.skip_sync is skip
    state.commit()
    with pytest.raises(NotImplementedError, match="State has to define save"):
        hvd.elastic.State(lambda one: one, lambda: 1).commit()


def dies_as_it_comes(slot, *arguments):
    if slot == 3:
        from ringcomm.horovod import job

        job._place = die
    return trained(slot, *arguments)


def test_a_newcomer_may_die_as_it_comes(tmp_path):
    ranks = Ranks(tmp_path, 2, dies_as_it_comes, None, 2)
    ranks.add_when_asked(3)
    found, ends = ranks.results()
    assert ends == {0: 0, 1: 0, 3: -signal.SIGKILL}, found
    assert {size for _, size, _ in found[0]["log"]} == {2}
    assert found[0]["log"] == found[1]["log"]
    check(found[0])
