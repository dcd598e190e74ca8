"""Record format of all measurements (docs/internals/benchmarks.md), with validation.

`isthmus bench`, `isthmus demo`, `make gpu-check` and all benchmarks write a `Report`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class TimeUs(BaseModel):
    """Time in microseconds: statistics over samples of the maximum over ranks."""

    model_config = ConfigDict(extra="forbid")

    min: float = Field(ge=0)
    median: float = Field(ge=0)
    max: float = Field(ge=0)

    @model_validator(mode="after")
    def _validate_order(self) -> TimeUs:
        if not self.min <= self.median <= self.max:
            raise ValueError(f"min {self.min} <= median {self.median} <= max {self.max} does not hold")
        return self


class Record(BaseModel):
    """One measurement. Additional fields (m, k, n, view, step_ms, ...) are preserved."""

    model_config = ConfigDict(extra="allow")

    collective: str
    dtype: str
    op: str | None = None
    bytes: int = Field(ge=0, description="size as defined by nccl-tests; allgather: per rank")
    ranks: int = Field(ge=1)
    provider: str = Field(min_length=1)
    backend: str = ""
    reason: str = ""
    mode: str = "host"
    time_us: TimeUs
    algbw_gbs: float = Field(ge=0)
    busbw_gbs: float = Field(ge=0)
    wrong: int | None = Field(default=None, ge=0, description="number of wrong elements; None: not checked")

    @property
    def problem(self) -> str:
        """Problem of an application, such as "128 x 128 x 128, 26 neighbors", or ""."""
        extra = self.model_extra or {}
        size = extra.get("size", ())
        parts = [" x ".join(str(side) for side in size if side != 1) if isinstance(size, list) else ""]
        parts.append("weak scaling" if extra.get("scaling") == "weak" else "")
        parts.append(str(extra.get("decomposition", "")))
        parts.append(f"{extra['neighbors']} neighbors" if "neighbors" in extra else "")
        parts.append("by alltoallv" if extra.get("exchange") == "alltoallv" else "")
        parts.append("no overlap" if extra.get("overlap") == "no" else "")
        parts.append(str(extra.get("potential", "")))
        parts.append(f"radius {extra['radius']}" if "radius" in extra else "")
        return ", ".join(part for part in parts if part)

    @property
    def point(self) -> tuple[str, str, str | None, int, int, str]:
        """The measured point, without the path."""
        return (self.collective, self.dtype, self.op, self.bytes, self.ranks, self.problem)

    @property
    def path(self) -> tuple[str, str]:
        """The measured path: provider and mode."""
        return (self.provider, self.mode)


class Machine(BaseModel):
    """The machine of a measurement. `name` is cpu4, h200x2, ..."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1)
    cpu: str
    cores: int = Field(ge=1)
    gpus: list[str] = Field(default_factory=list)


class Report(BaseModel):
    """A file of records."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    format: Literal[1] = Field(default=1, alias="schema")
    date: datetime
    commit: str
    command: str
    machine: Machine
    versions: dict[str, str]
    records: list[Record]

    @classmethod
    def load(cls, path: Path | str) -> Report:
        """Reads and validates a file. Raises ValueError with the file and the first invalid field."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except ValidationError as failure:
            first_error = failure.errors()[0]
            location = ".".join(str(part) for part in first_error["loc"]) or "document"
            raise ValueError(f"{path}: {location}: {first_error['msg']}") from None

    def save(self, path: Path | str) -> None:
        """Writes the file and creates its folder."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.to_json() + "\n")

    def to_json(self) -> str:
        """Returns the text of the file. Unset fields are omitted."""
        return self.model_dump_json(by_alias=True, exclude_none=True, indent=1)

    def to_compact_json(self) -> str:
        """Returns the text of the file with one record per line."""
        head = self.model_dump_json(by_alias=True, exclude_none=True, exclude={"records"})
        lines = ",\n".join(
            record.model_dump_json(exclude_none=True, exclude_unset=True) for record in self.records
        )
        return f'{head[:-1]},"records":[\n{lines}\n]}}'


def utc_now() -> datetime:
    """Returns the current time without fractions of a second."""
    return datetime.now(timezone.utc).replace(microsecond=0)


def merge_rounds(rounds: Iterable[Iterable[Record]]) -> list[Record]:
    """Merges records of the same path and point: median of the medians, minimum and maximum over all rounds.

    Bandwidths are scaled to the merged median. The numbers of wrong elements are added. `round_medians_us`
    contains the median of each round. The records are in order of first appearance.
    """
    groups: dict[tuple, list[Record]] = {}
    for records in rounds:
        for record in records:
            groups.setdefault((record.path, record.point), []).append(record)
    return [_merge_group(group) for group in groups.values()]


def _merge_group(group: list[Record]) -> Record:
    medians = [record.time_us.median for record in group]
    median = statistics.median(medians)
    base = group[0]
    scale = base.time_us.median / median if median else 1.0
    checked = [record.wrong for record in group if record.wrong is not None]
    return base.model_copy(
        update={
            "time_us": TimeUs(
                min=min(record.time_us.min for record in group),
                median=median,
                max=max(record.time_us.max for record in group),
            ),
            "algbw_gbs": base.algbw_gbs * scale,
            "busbw_gbs": base.busbw_gbs * scale,
            "wrong": sum(checked) if checked else None,
            "round_medians_us": medians,
        }
    )


def best_peers(records: Iterable[Record], own_prefix: str = "isthmus") -> dict[tuple, Record]:
    """Returns the fastest record per point of all providers whose name does not start with `own_prefix`."""
    best: dict[tuple, Record] = {}
    for record in records:
        if record.provider.startswith(own_prefix):
            continue
        current_best = best.get(record.point)
        if current_best is None or record.time_us.median < current_best.time_us.median:
            best[record.point] = record
    return best


def report_from(
    records: list[Record], *, command: str, commit: str, machine: dict[str, Any], versions: dict[str, str]
) -> Report:
    """Returns a report with the current date."""
    return Report(
        schema=1,
        date=utc_now(),
        commit=commit,
        command=command,
        machine=Machine.model_validate(machine),
        versions=versions,
        records=records,
    )
