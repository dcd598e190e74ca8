"""Shared by all commands: output, one-line errors and progress."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .._console import SafeConsole, printable

FAILED, BAD_ARGUMENT, NOT_AVAILABLE = 1, 2, 3

# Results go to standard output. Progress, notes and errors go to standard error, so that output can be piped.
out = SafeConsole(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "140")))
notes = SafeConsole(stderr=True)


class CommandError(Exception):
    """Ends the command with one line on standard error and an exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def note(text: str) -> None:
    """Prints one line on standard error."""
    notes.print(text, style="dim", soft_wrap=True)


def counted(count: int, noun: str) -> str:
    """Returns "1 rank" or "2 ranks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def print_warning(text: str) -> None:
    """Prints a warning about the results on standard output, so that it stays with them. "" prints nothing."""
    if text:
        out.print(text, style="yellow", soft_wrap=True)


def command_line() -> str:
    """Returns the command line of this process, for reports."""
    return printable(shlex.join(["isthmus", *sys.argv[1:]]))


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output, without color or line breaks."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def write_output(target: str, text: str) -> None:
    """Writes text to a file, or to standard output for "-"."""
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
    """Returns a progress display on standard error. Shows nothing if standard error is not a terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    )
