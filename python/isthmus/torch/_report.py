"""The report of the paths that the collectives of this process used."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TextIO

from rich.table import Table

from .._console import SafeConsole
from . import _extension


@dataclass(frozen=True)
class Row:
    """One path that calls of this process used.

    group: name of the process group.
    device: "cpu" or "cuda:0".
    collective: name in the collective table.
    path: "backend:algorithm", or "torch:gloo" or "torch:nccl" for calls of PyTorch's own backend.
    reason: the rule that selected the path, or the reason of the fallback.
    calls: number of calls.
    bytes: sum of this rank's own bytes over these calls.
    seconds: host time in these calls, without the creation of communicators. For CPU tensors, it ends when
        the data has arrived and includes the wait for slower ranks. For devices, it ends when the work is on
        the stream. None for calls of PyTorch's own backend.
    """

    group: str
    device: str
    collective: str
    path: str
    reason: str
    calls: int
    bytes: int
    seconds: float | None

    @property
    def is_torch_fallback(self) -> bool:
        """True if these calls used PyTorch's own backend."""
        return self.path.startswith("torch:")


def report() -> list[Row]:
    """Returns the paths used since the start or the last reset. Calls are counted when they start."""
    rows = [Row(**row) for row in _extension.report_rows()]
    return [Row(**row.__dict__ | {"seconds": None}) if row.is_torch_fallback else row for row in rows]


def reset_report() -> None:
    """Resets all counts to 0."""
    _extension.reset_report()


def print_report(file: TextIO | None = None) -> None:
    """Prints the report as a table for all groups together, to standard error by default."""
    rows = report()
    own_calls = sum(row.calls for row in rows if not row.is_torch_fallback)
    console = SafeConsole(file=file or sys.stderr, width=110)
    console.print(f"isthmus: {own_calls} of {sum(row.calls for row in rows)} calls of this rank ran on Isthmus")
    table = Table(
        "device", "collective", "path", "calls", "MB", "host ms", "us per call", box=None, pad_edge=False
    )
    for column in table.columns[3:]:
        column.justify = "right"
    for key in sorted({(row.device, row.collective, row.path) for row in rows}):
        matching = [row for row in rows if (row.device, row.collective, row.path) == key]
        calls, seconds = sum(row.calls for row in matching), sum(row.seconds or 0 for row in matching)
        is_timed = not matching[0].is_torch_fallback
        table.add_row(
            *key,
            str(calls),
            f"{sum(row.bytes for row in matching) / 1e6:.3f}",
            f"{seconds * 1e3:.2f}" if is_timed else "-",
            f"{seconds / calls * 1e6:.1f}" if is_timed else "-",
        )
    if rows:
        console.print(table)
    for reason in sorted(
        {f"{row.collective} by {row.path}: {row.reason}" for row in rows if row.is_torch_fallback}
    ):
        console.print(reason)
