"""Groups: operations that start and progress together, on one or more communicators of a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from . import _isthmus


class _GroupState(threading.local):
    """Group of one thread, as in the C ABI. Pending operations keep their arrays alive until they run."""

    def __init__(self) -> None:
        self.depth = 0
        self.pending: list[Callable[[], None]] = []


_thread_state = _GroupState()


def run_or_defer(operation: Callable[[], None]) -> None:
    """Runs `operation`, or defers it to the end of the calling thread's group."""
    if _thread_state.depth:
        _thread_state.pending.append(operation)
    else:
        operation()


def run_outside_group(operation: Callable[[], Any]) -> Any:
    """Runs an operation that cannot be part of a group. In a group, the core rejects it."""
    if _thread_state.depth:
        _run([operation])
    return operation()


@contextmanager
def group() -> Iterator[None]:
    """Starts all operations of the block together when the block ends.

    Use a group to drive several ranks from one thread, and to pair `send` and `recv` without deadlock.

    Ordering:
        Groups nest. The end of the outermost group starts the operations.
    Blocking:
        On the host platform, the outermost end returns when the operations are complete.
    Errors:
        If an operation is invalid, the end raises its error and no operation starts. If the block raises, no
        operation starts.
    """
    _thread_state.depth += 1
    try:
        yield
    except BaseException:
        # Do not start a partial group: the other ranks would wait for its missing operations.
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
        with suppress(Exception):  # required to close the group; reports the same failure
            _isthmus.group_end()
        raise
    _isthmus.group_end()
