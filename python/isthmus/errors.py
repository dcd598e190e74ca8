"""The exception type of the package."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._isthmus import Status


_LOSS_CODES = ("remote", "timeout", "aborted")
_was_raised: set[str] = set()


def ranks_were_lost() -> bool:
    """Returns whether a call of this process has failed because of other ranks."""
    return not _was_raised.isdisjoint(_LOSS_CODES)


class Error(RuntimeError):
    """A failed call of the core.

    Attributes:
        code: the `Status` of the C ABI, e.g. `Status.invalid_argument`.
        collective: the name in the collective table, or None if no collective was involved.
        rank: the rank that reports the error, or -1.
        backend: the backend that failed, or "".
        native_code: the error code of the native library or errno, or 0.
        location: `FILE:LINE` in the source code of Isthmus.
        hint: how to fix the problem, or "".
        ranks: the failed ranks that the reporting rank knew of when it raised the error, at most 16. Can be ().

    A failed rank has exited, is stopped, or is unresponsive. The numbers refer to the communicator that was
    called. For a split or shrink, they refer to the parent communicator.
    """

    def __init__(
        self,
        message: str,
        *,
        code: Status,
        collective: str | None = None,
        rank: int = -1,
        backend: str = "",
        native_code: int = 0,
        location: str = "",
        hint: str = "",
        ranks: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        _was_raised.add(code.name)
        self.message = message
        self.code = code
        self.collective = collective
        self.rank = rank
        self.backend = backend
        self.native_code = native_code
        self.location = location
        self.hint = hint
        self.ranks = ranks

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are rebuilt from their positional arguments only. Everything else, including
        # notes, is state.
        return partial(Error, self.message, code=self.code), (), self.__dict__

    def __str__(self) -> str:
        details = [f"rank {self.rank}"] if self.rank >= 0 else []
        if self.backend:
            details.append(f"backend {self.backend}")
        if self.native_code:
            details.append(f"native code {self.native_code}")
        text = self.message + (f" ({', '.join(details)})" if details else "")
        return f"{text}; {self.hint}" if self.hint else text
