"""Analysis of measurement records: groups, ratios to peers, and regret of the selection."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .records import Record, best_peers


@dataclass(frozen=True)
class Ratio:
    """Ratio of two times at one point."""

    value: float
    record: Record


@dataclass(frozen=True)
class RecordGroup:
    """Records of one plot. They differ only in size and in the path that was measured."""

    collective: str
    dtype: str
    op: str | None
    ranks: int
    problem: str
    records: list[Record]

    @property
    def title(self) -> str:
        """Title such as "allreduce, float32, sum, 4 ranks"."""
        ranks = f"{self.ranks} rank{'' if self.ranks == 1 else 's'}"
        parts = (self.collective, self.problem, self.dtype, self.op, ranks)
        return ", ".join(part for part in parts if part)

    @property
    def commands(self) -> list[str]:
        """Distinct commands that are stored in the records."""
        commands = [str((record.model_extra or {}).get("command", "")) for record in self.records]
        return [command for command in dict.fromkeys(commands) if command]

    @property
    def sizes(self) -> list[int]:
        """Sizes in bytes, ascending."""
        return sorted({record.bytes for record in self.records})


def group_records(records: Iterable[Record]) -> list[RecordGroup]:
    """Groups the records of each plot, in order of first appearance."""
    records_by_key: dict[tuple, list[Record]] = {}
    for record in records:
        key = (record.collective, record.dtype, record.op, record.ranks, record.problem)
        records_by_key.setdefault(key, []).append(record)
    return [RecordGroup(*key, records=group) for key, group in records_by_key.items()]


def speedup(record: Record, peer: Record | None) -> float | None:
    """Returns the time of the peer divided by the time of the record. Returns None if there is no peer
    or no time."""
    if peer is None or not record.time_us.median:
        return None
    return peer.time_us.median / record.time_us.median


def speedups(records: Iterable[Record]) -> list[Ratio]:
    """Returns the speedup over the best peer for each Isthmus record. A value above 1 means that
    Isthmus is faster."""
    all_records = list(records)
    best = best_peers(all_records)
    own_records = [record for record in all_records if record.provider == "isthmus"]
    ratios = [(speedup(record, best.get(record.point)), record) for record in own_records]
    return [Ratio(value, record) for value, record in ratios if value is not None]


def regrets(records: Iterable[Record]) -> list[Ratio]:
    """Returns the time of the selected path divided by the fastest time at the same point and mode.

    A value of 1 means that no path was faster. Points with only one path are omitted.
    """
    records_by_key: dict[tuple, list[Record]] = defaultdict(list)
    for record in records:
        if record.time_us.median:
            records_by_key[(record.point, record.mode)].append(record)
    ratios = []
    for point in records_by_key.values():
        selected = [record for record in point if record.provider == "isthmus" and "rule" in record.reason]
        fastest = min(record.time_us.median for record in point)
        if len(point) > 1:
            ratios += [Ratio(record.time_us.median / fastest, record) for record in selected]
    return ratios


def median_of(ratios: Iterable[Ratio]) -> float | None:
    """Returns the median of the ratios, or None for an empty sequence."""
    values = [ratio.value for ratio in ratios]
    return statistics.median(values) if values else None
