"""The command `isthmus`. Exit codes: 0 fine, 1 failed or wrong, 2 bad arguments, 3 not available here."""

from __future__ import annotations

from .app import main

__all__ = ["main"]
