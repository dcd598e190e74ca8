"""Groups: operations that start and progress together, possibly on several communicators of a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from . import _isthmus


class _GroupState(threading.local):
    """Per thread, as the C ABI's groups are. The calls keep their arrays alive until they have run."""

    def __init__(self) -> None:
        self.depth = 0
        self.pending: list[Callable[[], None]] = []


_thread_state = _GroupState()


def run_or_defer(operation: Callable[[], None]) -> None:
    """Runs `call`, or keeps it for the end of the calling thread's group."""
    if _thread_state.depth:
        _thread_state.pending.append(operation)
    else:
        operation()


@contextmanager
def group() -> Iterator[None]:
    """Starts the operations of its block together when the block ends.

    That is how one thread drives several ranks, and how `send` and `recv` are paired without deadlock.
    Groups nest; the outermost end starts the work and, on the host platform, returns when it is done.
    If any operation is invalid, the end raises its error and none starts; the same holds when the
    block itself raises.
    """
    _thread_state.depth += 1
    try:
        yield
    except BaseException:
        # The operations never reach the core: the other ranks would wait for the ones not yet made.
        _thread_state.pending.clear()
        raise
    finally:
        _thread_state.depth -= 1
    if _thread_state.depth == 0:
        pending, _thread_state.pending = _thread_state.pending, []
        _run(pending)


def _run(pending: list[Callable[[], None]]) -> None:
    _isthmus.group_start()
    try:
        for operation in pending:
            operation()
    except BaseException:
        with suppress(Exception):  # the end reports the same failure; it must run to close the group
            _isthmus.group_end()
        raise
    _isthmus.group_end()
