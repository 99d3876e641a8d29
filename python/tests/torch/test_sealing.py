"""The unique id in torch's store: who reads it there cannot join."""

import os
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run

import ringcomm
from ringcomm.torch import meet, sealing

SECRET = "0123456789abcdef0123456789abcdef"
SOON = timedelta(seconds=20)


def pi(bits):
    """Pi times two to so many bits, by Machin's formula."""
    one = 1 << (bits + 64)

    def arctan_of_inverse(x):
        term = total = one // x
        for n in range(3, 2 * bits, 2):
            term //= -x * x
            total += term // n
        return total

    return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239)) >> 64


def test_the_prime_is_that_of_rfc_3526():
    assert sealing.PRIME == 2**2048 - 2**1984 - 1 + 2**64 * (pi(1918) + 124476)


def test_what_is_sealed_opens_with_its_key_in_its_place_only():
    sealed = sealing.seal(b"key", "place", b"a text that has more than one block of the mask")
    assert sealing.unseal(b"key", "place", sealed).startswith(b"a text that has")
    assert sealing.unseal(b"other", "place", sealed) is None
    assert sealing.unseal(b"key", "elsewhere", sealed) is None
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        assert sealing.unseal(b"key", "place", bytes(changed)) is None
    assert sealing.unseal(b"key", "place", b"") is None
    assert sealed != sealing.seal(b"key", "place", b"a text that has more than one block of the mask")


def test_an_exchange_gives_both_ends_one_key_and_refuses_what_gives_it_away():
    one, other, third = sealing.Exchange(), sealing.Exchange(), sealing.Exchange()
    assert one.key(other.public) == other.key(one.public) != one.key(third.public)
    assert one.key(other.public, b"1", b"2") == other.key(one.public, b"1", b"2")
    assert len({one.key(other.public, *nonces) for nonces in [(), (b"1", b"2"), (b"12", b"")]}) == 3
    for weak in (0, 1, sealing.PRIME - 1, sealing.PRIME):
        assert one.key(weak.to_bytes(sealing.PUBLIC_BYTES, "big")) is None
    assert one.key(b"short") is None


def test_a_process_has_one_exchange_and_a_forked_child_another():
    own, other = sealing.Exchange.of_process(), sealing.Exchange()
    assert sealing.Exchange.of_process() is own
    key, own._private = own.key(other.public), None
    assert own.key(other.public) == key, "computed once"
    child = os.fork()
    if child == 0:
        os._exit(sealing.Exchange.of_process().public == own.public)
    assert os.waitpid(child, 0)[1] == 0
    # Not without its number.
    sealing.Exchange._forget()


def test_where_the_secret_comes_from(monkeypatch, tmp_path):
    monkeypatch.delenv("RINGCOMM_SECRET", raising=False)
    monkeypatch.delenv("RINGCOMM_SECRET_FILE", raising=False)
    assert sealing.of_environment() is None
    monkeypatch.setenv("RINGCOMM_SECRET", SECRET)
    strong = sealing.of_environment()
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    monkeypatch.delenv("RINGCOMM_SECRET")
    monkeypatch.setenv("RINGCOMM_SECRET_FILE", str(file))
    file.chmod(0o644)
    with pytest.raises(ringcomm.RingUsageError, match="others may know it"):
        sealing.of_environment()
    file.chmod(0o600)
    assert sealing.of_environment() == strong
    file.write_text("15 characters..")
    with pytest.raises(ringcomm.RingUsageError, match="has 15 characters"):
        sealing.of_environment()
    file.unlink()
    with pytest.raises(ringcomm.RingUsageError, match="No such file"):
        sealing.of_environment()
    monkeypatch.setenv("RINGCOMM_SECRET", SECRET[:16])
    assert sealing.of_environment() not in (None, strong)


class Watched:
    """A store that remembers all that was ever written into it."""

    def __init__(self, store):
        self._store, self.written = store, []

    def set(self, key, value):
        self.written.append(bytes(value))
        self._store.set(key, value)

    def __getattr__(self, name):
        return getattr(self._store, name)


def on_ranks(count, function):
    """`function(rank)` on a thread for each rank; their results, or errors."""
    results = [None] * count

    def one(rank):
        try:
            results[rank] = function(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=one, args=[rank]) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("secret", [SECRET, None])
def test_no_id_lies_open_in_the_store(monkeypatch, secret):
    monkeypatch.delenv("RINGCOMM_SECRET_FILE", raising=False)
    if secret is None:
        monkeypatch.delenv("RINGCOMM_SECRET", raising=False)
    else:
        monkeypatch.setenv("RINGCOMM_SECRET", secret)
    drawn, draw = [], ringcomm.get_unique_id
    monkeypatch.setattr(meet, "get_unique_id", lambda: drawn.append(draw()) or drawn[-1])
    store = Watched(dist.HashStore())
    made = on_ranks(3, lambda rank: meet.join_first(store, "key", rank, 3, SOON))
    assert [one.rank for one in made] == [0, 1, 2]
    written = b"|".join(store.written)
    assert len(drawn) == 1 and written
    # Its secret is bytes 12 to 44.
    assert bytes(drawn[0])[12:44] not in written and b"ringcomm" not in written
    for one in made:
        one.abort()
    assert store.num_keys() <= 1, "the ranks have taken away what they left"


def test_ranks_of_other_secrets_are_told(monkeypatch):
    keys = iter([b"one", b"other"])
    lock = threading.Lock()

    def key(_):
        with lock:
            return next(keys)

    monkeypatch.setattr(meet, "key_for_first_meeting", key)
    store, short = dist.HashStore(), timedelta(seconds=2)
    results = on_ranks(2, lambda rank: meet.join_first(store, "key", rank, 2, short))
    texts = "|".join(str(error) for error in results)
    assert "the same RINGCOMM_SECRET, or none" in texts, texts


def test_a_rank_that_does_not_come_is_named(monkeypatch):
    monkeypatch.delenv("RINGCOMM_SECRET", raising=False)
    monkeypatch.delenv("RINGCOMM_SECRET_FILE", raising=False)
    empty, short = dist.HashStore(), timedelta(milliseconds=300)
    with pytest.raises(ringcomm.RingTimeoutError, match="no word of ranks 1, 2 in") as caught:
        meet.join_first(empty, "key", 0, 3, short)
    assert caught.value.peer == 1
    with pytest.raises(ringcomm.RingTimeoutError, match="no word of rank 0") as caught:
        meet.join_first(empty, "key", 1, 3, short)
    assert caught.value.peer == 0


def further_groups(rank):
    """They exchange nothing any more: what all ranks share serves them, until the group has ended."""
    exchanged, of_process = [], sealing.Exchange.of_process
    sealing.Exchange.of_process = lambda: exchanged.append(0) or of_process()
    pair = dist.new_group([0, 1])
    if rank < 2:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=pair)
        assert tensor.item() == 2
        work = dist.isend(tensor, 1 - rank, pair)
        dist.recv(tensor, 1 - rank, pair)
        work.wait()
    assert not exchanged
    base = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    # In the same store, of ranks that know nothing of each other but what it says.
    again = dist.PrefixStore("again", base)
    dist.init_process_group("ringcomm", store=again, rank=rank, world_size=3, timeout=SOON)
    assert len(exchanged) == (0 if "RINGCOMM_SECRET" in os.environ else 1)


def test_further_groups_are_sealed_with_the_key_of_the_first(monkeypatch):
    monkeypatch.delenv("RINGCOMM_SECRET", raising=False)
    run(3, further_groups)
    monkeypatch.setenv("RINGCOMM_SECRET", SECRET)
    run(3, further_groups)
