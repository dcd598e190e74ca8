"""What the measurements in Python share: figures of samples and files of records
(docs/benchmarks.md). Standard library only."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def time_us(samples: Iterable[float]) -> dict[str, float]:
    """What a record says of its samples."""
    values = list(samples)
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def write_records(path: Path | str, records: list[dict[str, Any]], versions: dict[str, str]) -> None:
    """A file that scripts/gpu_check completes with what only it knows (date, commit, machine)."""
    content = {"versions": versions, "records": records}
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
