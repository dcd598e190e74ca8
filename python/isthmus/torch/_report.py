"""What the collectives of this process really took."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.table import Table

from . import _extension


@dataclass(frozen=True)
class Row:
    """One path that was taken.

    group: name of the process group; device: "cpu" or "cuda:0"; collective: a name of THE TABLE; path:
    "backend:algorithm", or "torch:gloo" and "torch:nccl" for what went to PyTorch's own backend; reason: the
    rule that chose it, or why it fell back; calls, and the sum of this rank's own bytes over them; seconds: of
    the host in these calls, from the meeting of the ranks on. For CPU tensors that is until the data are there,
    the wait for slower ranks included; for devices until the work is on the stream; None for what PyTorch did.
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
        """Whether it went to PyTorch's own backend."""
        return self.path.startswith("torch:")


def report() -> list[Row]:
    """Every path that this process has taken since the start or the last reset. Counted when a call starts."""
    rows = [Row(**row) for row in _extension.report_rows()]
    return [Row(**row.__dict__ | {"seconds": None}) if row.is_torch_fallback else row for row in rows]


def reset_report() -> None:
    """Sets all counts to 0."""
    _extension.reset_report()


def print_report(file: TextIO | None = None) -> None:
    """The report as a table, all groups together, on standard error by default."""
    rows = report()
    own_calls = sum(row.calls for row in rows if not row.is_torch_fallback)
    console = Console(file=file or sys.stderr, width=110, highlight=False)
    console.print(f"isthmus: {own_calls} of {sum(row.calls for row in rows)} calls of this rank took Isthmus' paths")
    table = Table(
        "device", "collective", "path", "calls", "MB", "host ms", "us a call", box=None, pad_edge=False
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
    for reason in sorted({f"{row.collective} by {row.path}: {row.reason}" for row in rows if row.is_torch_fallback}):
        console.print(reason, markup=False)
