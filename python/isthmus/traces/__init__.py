"""Traces of a job (ISTHMUS_TRACE): reading, matching, clock alignment, timeline and summary."""

from __future__ import annotations

from .files import TraceError
from .merge import MergedTrace, merge
from .output import summarize, write_timeline

__all__ = ["MergedTrace", "TraceError", "merge", "summarize", "write_timeline"]
