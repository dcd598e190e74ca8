"""The one exception type of the package."""

from __future__ import annotations

from functools import partial
from typing import Any


class Error(RuntimeError):
    """A failed call of the core.

    Attributes:
        code: the `Status` of the C ABI, e.g. `Status.invalid_argument`.
        collective: the spelling in THE TABLE, or None when no collective was involved.
        rank: the rank that reports, or -1.
        backend: the backend that failed, or "".
        native_code: the native library's own code or errno; 0 when there is none.
        location: file:line in the source of Isthmus.
        hint: what to do about it; may be "".
        ranks: the culprits, as far as the reporting rank knew them when it raised, 16 at most; () is nobody.

    Culprits ended, are stopped, or did not answer. Their numbers are those of the communicator that was
    called, of a split or a shrink the parent's.
    """

    def __init__(
        self,
        message: str,
        *,
        code: Any,
        collective: str | None = None,
        rank: int = -1,
        backend: str = "",
        native_code: int = 0,
        location: str = "",
        hint: str = "",
        ranks: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
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
        # Exceptions are rebuilt from their positional arguments alone. All else is state, notes among it.
        return partial(Error, self.message, code=self.code), (), self.__dict__

    def __str__(self) -> str:
        details = [f"rank {self.rank}"] if self.rank >= 0 else []
        if self.backend:
            details.append(f"backend {self.backend}")
        if self.native_code:
            details.append(f"native code {self.native_code}")
        text = self.message + (f" ({', '.join(details)})" if details else "")
        return f"{text}; {self.hint}" if self.hint else text
