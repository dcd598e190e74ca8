"""Common parts of the Python benchmarks: statistics of samples and record files (docs/internals/benchmarks.md).
Standard library only."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def time_us(samples: Iterable[float]) -> dict[str, float]:
    """The summary of samples in a record."""
    values = list(samples)
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def quartiles(values: list[float]) -> list[float]:
    """The first and the third quartile."""
    cuts = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return [round(cuts[0], 2), round(cuts[2], 2)]


def write_records(path: Path | str, records: list[dict[str, Any]], versions: dict[str, str]) -> None:
    """Writes a record file; scripts/gpu_check adds date, commit and machine."""
    content = {"versions": versions, "records": records}
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
