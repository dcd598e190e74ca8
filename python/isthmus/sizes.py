"""Conversion of byte sizes to and from text, as used in configuration files and benchmark programs."""

from __future__ import annotations

import re

_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30}


def parse_size(text: str) -> int:
    """Converts "8", "4K", "128M" or "1G" (powers of 1024) to bytes. Raises ValueError."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    if not match:
        raise ValueError(f"size {text!r} must be bytes, e.g. 8, 4K, 128M or 1G")
    return int(match[1]) << _SHIFT[match[2]]


def parse_sizes(text: str) -> list[int]:
    """Converts a range "8:128M" (doubling) or a list "8,1K,1M" to bytes. Raises ValueError."""
    if ":" in text:
        first, _, last = text.partition(":")
        size, end, sizes = parse_size(first), parse_size(last), []
        while 0 < size <= end:
            sizes.append(size)
            size *= 2
    else:
        sizes = [parse_size(item) for item in text.split(",")]
    if not sizes:
        raise ValueError(f"sizes {text!r} contain no size; pass FIRST:LAST or a list")
    return sizes


def format_size(size: int) -> str:
    """Returns the shortest text that parse_size converts back to `size`."""
    for unit in ("G", "M", "K"):
        if size and size % (1 << _SHIFT[unit]) == 0:
            return f"{size >> _SHIFT[unit]}{unit}"
    return str(size)


def format_us(value: float) -> str:
    """Formats microseconds with three or four significant digits."""
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}"
