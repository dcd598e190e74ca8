"""The error for an unknown name: allowed names and the closest one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(label: str, value: object, allowed: Iterable[str]) -> str:
    """Returns "LABEL VALUE is unknown; allowed: ...", and the name that was probably meant."""
    names = list(allowed)
    nearest = _nearest(str(value), names)
    suggestion = f'; did you mean "{nearest}"?' if nearest else ""
    return f"{label} {value!r} is unknown; allowed: {', '.join(names)}{suggestion}"


def _nearest(text: str, names: list[str]) -> str:
    matches = difflib.get_close_matches(text, names, n=1)
    abbreviated = [name for name in names if len(text) > 1 and _is_abbreviation(text, name)]
    return next(iter(matches + abbreviated), "")


def _is_abbreviation(text: str, name: str) -> bool:
    """True if the letters of `text` appear in `name` in this order, as in "f32" or "bcast"."""
    letters = iter(name)
    return all(letter in letters for letter in text)
