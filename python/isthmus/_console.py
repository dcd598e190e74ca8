"""Output to terminals: escapes text from other programs, folders and variables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text


def printable(text: str) -> str:
    r"""Escapes control, format and undecodable characters (ESC, newlines, ...) as \x1b, \n, ...

    Names of folders, processes and jobs can contain any characters. Without this, they could forge lines of
    output or control the terminal.
    """
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8 (os.fsdecode)
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


class SafeConsole(Console):
    """Console that prints every str as one line of plain text: see `printable`. Markup has no effect.

    Use `styled` for style, and `lines` for several lines.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def styled(text: str, style: str) -> Text:
    """Returns text for a cell or a line in a style, e.g. "bold red"."""
    return Text(printable(text), style)


def lines(*texts: str) -> Text:
    """Returns a text of several lines, e.g. for the head of a column."""
    return Text("\n".join(map(printable, texts)))
