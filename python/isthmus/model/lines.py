"""Lines of a record file: the points that one curve describes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ..records import Record
from ..table import COLLECTIVES
from .curves import Point

# Fields of a record that change neither the call nor its memory.
_DESCRIPTIVE_FIELDS = {
    "bare_launch_us",
    "command",
    "copies_per_call",
    "host_overhead_us",
    "kernels_per_call",
    "link_gbits",
    "over_c_api_us",
    "over_wire",
    "placement",
    "repeat_us",
    "round_medians_us",
    "run_delay_us",
    "samples",
    "selected_by",
    "wire_us",
}
# Records with one of these fields measure something else than one call: a step of a program, an allocation.
_FOREIGN_FIELDS = {"largest", "load", "m", "model", "run", "size", "test", "view"}
_FORMER_NAMES = {"host": "shm", "islands": "hierarchical"}  # backends that were renamed


class Line(NamedTuple):
    """One path of one collective.

    `backend` is empty if the record has one path per point: the selected one. In records of `isthmus tune`, it
    has no algorithm, and the line has the fastest algorithm at each point.
    """

    collective: str
    dtype: str
    op: str | None
    provider: str
    mode: str
    backend: str
    variant: str  # other fields, such as "in_place=True"


def backend_name(record: Record) -> str:
    """Returns backend[:algorithm], with the current name of the backend; for a peer, the provider."""
    backend, colon, algorithm = (record.backend or record.provider).partition(":")
    return _FORMER_NAMES.get(backend, backend) + colon + algorithm


def is_modeled(record: Record) -> bool:
    """True if the record is one call of a collective with several ranks and at least one byte."""
    row = COLLECTIVES.get(record.collective)
    is_call = row is not None and row.peer != "PEER" and record.ranks > 1 and record.bytes > 0
    return is_call and record.time_us.median > 0 and not _FOREIGN_FIELDS & set(record.model_extra or {})


def variant_of(record: Record) -> str:
    """Returns the fields that distinguish calls or memory, in addition to the standard ones."""
    extra = record.model_extra or {}
    return ", ".join(f"{name}={extra[name]}" for name in sorted(set(extra) - _DESCRIPTIVE_FIELDS))


def is_tuned(record: Record) -> bool:
    """True for the paths in a record of `isthmus tune` that the rules or the profile select."""
    return "selected_by" in (record.model_extra or {})


def lines_of(records: Iterable[Record]) -> dict[Line, list[Point]]:
    """Groups the points by line. Paths are separated by backend if the record has several per point."""
    groups: dict[Line, list[Record]] = defaultdict(list)
    for record in records:
        if is_modeled(record):
            fields = (record.collective, record.dtype, record.op, record.provider, record.mode)
            groups[Line(*fields, backend="", variant=variant_of(record))].append(record)
    lines: dict[Line, list[Point]] = defaultdict(list)
    for line, group in groups.items():
        if any(map(is_tuned, group)):
            for name, points in _fastest_algorithms(group).items():
                lines[line._replace(backend=name)] += points
            continue
        has_duplicates = len({(record.bytes, record.ranks) for record in group}) < len(group)
        for record in group:
            name = backend_name(record) if has_duplicates else ""
            point = Point(record.bytes, record.ranks, record.time_us.median)
            lines[line._replace(backend=name)].append(point)
    return dict(lines)


def _fastest_algorithms(records: Iterable[Record]) -> dict[str, list[Point]]:
    """Returns the points by backend."""
    times: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for record in records:
        points, place = times[backend_name(record).partition(":")[0]], (record.bytes, record.ranks)
        points[place] = min(record.time_us.median, points.get(place, record.time_us.median))
    return {backend: [Point(*place, us) for place, us in points.items()] for backend, points in times.items()}
