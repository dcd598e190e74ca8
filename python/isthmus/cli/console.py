"""What the commands share: output, one-line errors and progress."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

FAILED, BAD_ARGUMENT, NOT_AVAILABLE = 1, 2, 3

# Results go to standard output; progress, notes and errors to standard error, so that output can be piped.
out = Console(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "140")), highlight=False)
notes = Console(stderr=True, highlight=False)


class CommandError(Exception):
    """Ends the command with one line on standard error and an exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def note(text: str) -> None:
    """One line about what is going on."""
    notes.print(text, style="dim", markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output, without colour or wrapping."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def write_output(target: str, text: str) -> None:
    """To a file, or to standard output for "-"."""
    if target == "-":
        sys.stdout.write(text + "\n")
        return
    path = Path(target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    except OSError as failure:
        raise CommandError(f"cannot write {target}: {failure.strerror}", BAD_ARGUMENT) from None


def progress() -> Progress:
    """A progress display on standard error; plain when that is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=notes,
        transient=True,
    )
