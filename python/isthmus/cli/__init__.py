"""The command `isthmus`. Exit codes: 0 success, 1 failure, 2 invalid arguments, 3 not available."""

from __future__ import annotations

from .app import main

__all__ = ["main"]
