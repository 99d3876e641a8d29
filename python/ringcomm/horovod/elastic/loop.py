"""`run`: a function that is called again when ranks have gone or come, from its state."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

from ...errors import RingError, RingUsageError
from ..exceptions import HorovodInternalError, HostsUpdatedInterrupt
from ..requests import internal
from . import members

#: One error so often, though nobody has died, is the program's own.
MOST_AGAIN = 3

#: What turns a framework's errors into Horovod's: called with an error, it may raise another.
Translator = Callable[[BaseException], None]


class _Errors:
    """Which errors there have been, to tell when going on is of no use."""

    def __init__(self) -> None:
        self._last, self._again = "", 0

    def saw(self, error: HorovodInternalError) -> None:
        """Raise the error if the same has come again and again."""
        self._again = self._again + 1 if str(error) == self._last else 1
        self._last = str(error)
        if self._again >= MOST_AGAIN:
            raise error

    def someone_died(self) -> None:
        """The error was somebody's death."""
        self._last, self._again = "", 0


def run_fn(
    func: Callable[..., Any],
    reset: Optional[Callable[[], None]] = None,
    translate: Optional[Translator] = None,
) -> Callable[..., Any]:
    """The function as `run` makes it; `reset` is called in addition when the job is another."""

    def attempt(state: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return func(state, *args, **kwargs)
        except Exception as error:
            if translate is not None:
                translate(error)
            if isinstance(error, RingError) and not isinstance(error, RingUsageError):
                # Of layers that call the library by themselves.
                raise internal(error) from error
            raise

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        errors = _Errors()
        changed = broken = undo = skip_sync = False
        while True:
            try:
                if changed:
                    change = members.reset(broken)
                    if change.died:
                        errors.someone_died()
                    # Whoever has come meanwhile has yet to get the state.
                    skip_sync = skip_sync and not change.grown
                    broken = False
                    if undo:
                        state.restore()
                    undo = False
                    if reset is not None:
                        reset()
                    state.on_reset()
                    changed = False
                members.state_is_there()
                if not skip_sync:
                    state.sync()
                members.synced()
                result = attempt(state, *args, **kwargs)
                members.over()
                return result
            except HorovodInternalError as error:
                errors.saw(error)
                changed = broken = undo = True
                skip_sync = False
            except HostsUpdatedInterrupt as news:
                changed, skip_sync = True, news.skip_sync

    return wrapper


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the function that trains: its first argument is a `State`.

    Every rank calls it, a newcomer when it has joined; nobody makes operations before. The state
    is synchronized first. Where a rank dies, the others go back to what they have committed, and
    where ranks come or go, they keep what they have; then the function is called again.
    """
    return run_fn(func)
