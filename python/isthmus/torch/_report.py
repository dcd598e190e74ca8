"""What the collectives of this process really took."""

from __future__ import annotations

from dataclasses import dataclass

from . import _extension


@dataclass(frozen=True)
class Row:
    """One path that was taken.

    group: name of the process group; device: "cpu" or "cuda:0"; collective: a name of THE TABLE; path:
    "backend:algorithm", or "torch:gloo" and "torch:nccl" for what went to PyTorch's own backend; reason: the
    rule that chose it, or why it fell back; calls, and the sum of this rank's own bytes over them.
    """

    group: str
    device: str
    collective: str
    path: str
    reason: str
    calls: int
    bytes: int


def report() -> list[Row]:
    """Every path that this process has taken since the start or the last reset. Counted when a call starts."""
    return [Row(**row) for row in _extension.report_rows()]


def reset_report() -> None:
    """Sets all counts to 0."""
    _extension.reset_report()
