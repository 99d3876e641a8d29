"""How a unique id goes through torch's store: sealed, since whoever reads the store could join by it.

The key comes from the job's secret (`RINGCOMM_SECRET`), else from a group of all ranks that has met
already, else from a Diffie-Hellman exchange through the store. Who only reads the store cannot join
in any case; who also writes there can take a rank's place in an exchange, but not where the ranks
share a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import weakref
from typing import Any, Dict, Optional

from .._native import Result
from ..communicator import Communicator
from ..errors import RingUsageError

#: Least characters of a secret, and characters from which one is not stretched: as in the library.
LEAST, STRONG = 16, 32
STRETCHES = 600_000

#: The 2048-bit group of RFC 3526, whose generator is 2.
PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A0879"
    "8E3404DDEF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B"
    "0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA4836"
    "1C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804"
    "F1746C08CA18217C32905E462E36CE3BE39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6"
    "955817183995497CEA956AE515D2261898FA051015728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)
PUBLIC_BYTES = 256

NONCE_BYTES, _TAG = 16, 32


def nonce() -> bytes:
    """Bytes that nobody has drawn before."""
    return secrets.token_bytes(NONCE_BYTES)


def _mac(key: bytes, *parts: bytes) -> bytes:
    """The authenticator of parts, each preceded by its length."""
    text = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hmac.new(key, text, hashlib.sha256).digest()


def _masked(key: bytes, drawn: bytes, text: bytes) -> bytes:
    blocks = (len(text) + 31) // 32
    stream = b"".join(_mac(key, b"mask", drawn, bytes([block])) for block in range(blocks))
    return bytes(one ^ other for one, other in zip(text, stream))


def seal(key: bytes, place: str, text: bytes) -> bytes:
    """This text for the holders of the key, to be opened at this place of the store only."""
    drawn = nonce()
    hidden = _masked(key, drawn, text)
    return drawn + hidden + _mac(key, b"tag", place.encode(), drawn, hidden)


def unseal(key: bytes, place: str, sealed: bytes) -> Optional[bytes]:
    """The text; None: it was sealed with another key, at another place, or has been changed."""
    drawn, hidden, tag = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:-_TAG], sealed[-_TAG:]
    if not hmac.compare_digest(tag, _mac(key, b"tag", place.encode(), drawn, hidden)):
        return None
    return _masked(key, drawn, hidden)


class Exchange:
    """One rank's part in Diffie-Hellman exchanges. A process makes one for all of its groups, since
    its numbers take long to compute."""

    _own: Optional[Exchange] = None

    def __init__(self) -> None:
        #: What it shares with others, by their public values.
        self._shared: Dict[bytes, bytes] = {}
        self._private = int.from_bytes(secrets.token_bytes(32), "little")
        self.public = pow(2, self._private, PRIME).to_bytes(PUBLIC_BYTES, "big")

    def key(self, theirs: bytes, *nonces: bytes) -> Optional[bytes]:
        """The key that this rank shares with the rank of this public value, for the exchange in
        which both have drawn these nonces; None: it is none."""
        shared = self._shared.get(theirs)
        if shared is None:
            public = int.from_bytes(theirs, "big")
            if len(theirs) != PUBLIC_BYTES or not 1 < public < PRIME - 1:
                return None
            shared = pow(public, self._private, PRIME).to_bytes(PUBLIC_BYTES, "big")
            self._shared[theirs] = shared
        ends = sorted((self.public, theirs))
        return _mac(shared, b"ringcomm torch exchange", *ends, *nonces)

    @classmethod
    def of_process(cls) -> Exchange:
        """The one of this process; a forked child makes its own."""
        if cls._own is None:
            cls._own = cls()
        return cls._own

    @classmethod
    def _forget(cls) -> None:
        cls._own = None


os.register_at_fork(after_in_child=Exchange._forget)


def _refused(why: str) -> RingUsageError:
    return RingUsageError(why, Result.INVALID_USAGE)


def _read(path: str) -> str:
    """A secret's file, if nobody else could have read or written it."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise _refused(f"RINGCOMM_SECRET_FILE={path} is refused: it is no regular file")
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise _refused(
                    f"RINGCOMM_SECRET_FILE={path} is refused: others may know it; it has to be "
                    "yours and of mode 0600, with a new secret in it"
                )
            return file.read(4096)
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(f"RINGCOMM_SECRET_FILE={path} is refused: {error}") from error


def of_environment() -> Optional[bytes]:
    """The key of the job's secret, if it has one."""
    text, path = os.environ.get("RINGCOMM_SECRET"), os.environ.get("RINGCOMM_SECRET_FILE")
    if text is None:
        text = None if path is None else _read(path)
    if text is None:
        return None
    secret = text.strip()
    if len(secret) < LEAST:
        raise _refused(
            f"the secret of the job has {len(secret)} characters; give at least {LEAST}: "
            "`openssl rand -hex 32` makes a good one"
        )
    if _environment.text != secret:
        _environment.text, _environment.key = secret, _derived(secret)
    return _environment.key


def _derived(secret: str) -> bytes:
    label = b"ringcomm torch store"
    if len(secret) < STRONG:
        return hashlib.pbkdf2_hmac("sha256", secret.encode(), label, STRETCHES)
    return _mac(secret.encode(), label)


class _Environment:
    """What was derived last: stretching takes a moment."""

    text: Optional[str] = None
    key: Optional[bytes] = None


_environment = _Environment()


class GroupKey:
    """The key that the ranks of a group share once they have met, and their communicator."""

    def __init__(self, store: Any, key: bytes, communicator: Communicator) -> None:
        #: Kept, so that no other store has its identity meanwhile.
        self.origin = _base(store)
        self.key, self.communicator = key, communicator

    def is_kept(self) -> bool:
        """Whether further groups are sealed with this key: it is of the group of all ranks."""
        return _worlds.get(id(self.origin)) is self

    def forget(self) -> None:
        """The group has ended: its ranks may meet anew in the same store."""
        if self.is_kept():
            del _worlds[id(self.origin)]


def _base(store: Any) -> Any:
    return getattr(store, "_underlying_non_prefix_store", store)


#: The keys of groups of all ranks, by the identity of their store. Groups keep them.
_worlds: "weakref.WeakValueDictionary[int, GroupKey]" = weakref.WeakValueDictionary()


def key_for_first_meeting(store: Any) -> Optional[bytes]:
    """What all ranks of a new group share before they meet; None: nothing."""
    world = group_of_all(store)
    return of_environment() or (None if world is None else world.key)


def group_of_all(store: Any) -> Optional[GroupKey]:
    """What is kept of the group of all ranks that use this store."""
    return _worlds.get(id(_base(store)))


def keep_for_new_groups(key: GroupKey) -> None:
    """All ranks that use this store have met: further groups are sealed with their key."""
    _worlds[id(key.origin)] = key
