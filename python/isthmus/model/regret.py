"""Regret of selection rules: the time of the path that a rule selects, divided by the time of the fastest path.

Only points at which a record has several paths of Isthmus can show it. The vendor library of a backend counts
as this backend, because the backend only forwards the call.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ..records import Record
from .accuracy import held_back_sizes
from .curves import Curve, Point, fit_curve
from .lines import backend_name, is_modeled, variant_of

THRESHOLD_BYTES = 64 << 10  # of the SuCL paper
# The regret of paths that a record of `isthmus tune --regret` lacks at a size. They take more than this
# multiple of the fastest time at neighboring sizes.
MISSING_REGRET = 2.0


class Call(NamedTuple):
    """Fields that are equal at all points of a group."""

    collective: str
    dtype: str
    op: str | None
    mode: str
    ranks: int
    variant: str


Times = dict[int, dict[str, float]]  # by bytes and path

# Values of the field `selected_by` of `isthmus tune --regret`: the selection without and with the profile.
RULES, PROFILE = "rules", "profile"


class Selections(NamedTuple):
    """A call of a record of `isthmus tune --regret`: the times of all paths, and the selected path by bytes."""

    times: Times
    rules: dict[int, str]
    profile: dict[int, str]


class Loss(NamedTuple):
    """A point at which another path is faster than that of the profile."""

    name: str
    size: int
    selected: str
    us: float
    faster: str
    faster_us: float

    @property
    def ratio(self) -> float:
        """The time of the selected path, divided by that of the other path."""
        return self.us / self.faster_us


def competing_paths(records: Iterable[Record], *, keep_algorithms: bool = False) -> dict[Call, Times]:
    """Returns the calls for which a record has at least two paths, with all their times.

    Drops the algorithm if a backend has one per size, because the backend then chose it.
    """
    groups: dict[Call, dict[int, list[tuple[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        path = backend_name(record)
        if is_modeled(record) and record.provider in ("isthmus", path):
            call = Call(
                record.collective, record.dtype, record.op, record.mode, record.ranks, variant_of(record)
            )
            groups[call][record.bytes].append((path, record.time_us.median))
    name_paths = _full_names if keep_algorithms else _short_names
    calls = {call: name_paths(points) for call, points in groups.items()}
    return {
        call: {size: paths for size, paths in times.items() if len(paths) > 1}
        for call, times in calls.items()
        if any(len(paths) > 1 for paths in times.values())
    }


def _full_names(points: dict[int, list[tuple[str, float]]]) -> Times:
    return {size: dict(paths) for size, paths in points.items()}


def _short_names(points: dict[int, list[tuple[str, float]]]) -> Times:
    names = {path for paths in points.values() for path, _ in paths}
    counts = [[name.partition(":")[0] for name, _ in paths] for paths in points.values()]
    is_full = {name: any(backends.count(name.partition(":")[0]) > 1 for backends in counts) for name in names}
    return {
        size: {path if is_full[path] else path.partition(":")[0]: us for path, us in paths}
        for size, paths in points.items()
    }


def call_of(record: Record) -> Call:
    """Returns what the paths of a record have in common."""
    return Call(record.collective, record.dtype, record.op, record.mode, record.ranks, variant_of(record))


def selections(records: Iterable[Record]) -> dict[Call, Selections]:
    """Returns the calls of a record of `isthmus tune --regret`."""
    result: dict[Call, Selections] = {}
    for record in records:
        if not is_modeled(record):
            continue
        call = call_of(record)
        selected = result.setdefault(call, Selections({}, {}, {}))
        selected.times.setdefault(record.bytes, {})[record.backend] = record.time_us.median
        for name in (record.model_extra or {}).get("selected_by", ()):
            (selected.rules if name == RULES else selected.profile)[record.bytes] = record.backend
    return {
        call: Selections(dict(sorted(selected.times.items())), selected.rules, selected.profile)
        for call, selected in result.items()
    }


def losses(name: str, selected: Selections, other: Mapping[int, str]) -> list[Loss]:
    """Compares the paths of the profile with other paths, at the sizes that have both."""
    return [
        Loss(name, size, path, paths[path], other[size], paths[other[size]])
        for size, paths in selected.times.items()
        if (path := selected.profile.get(size)) in paths and other.get(size) in paths
    ]


def selected_regrets(times: Times, selected: Mapping[int, str]) -> dict[int, float]:
    """Returns the regret by size, for sizes at which a path was selected."""
    return regrets(times, selected.get, [size for size in times if size in selected])


def regrets(
    times: Times, choose: Callable[[int], str | None], sizes: Iterable[int] | None = None
) -> dict[int, float]:
    """Returns the regret by size, for sizes at which the record has the chosen path."""
    return {
        size: times[size][path] / min(times[size].values())
        for size in (times if sizes is None else sizes)
        if (path := choose(size)) in times[size]
    }


def threshold_regrets(times: Times, missing: float = math.inf) -> dict[int, float]:
    """Regrets by size of one threshold at 64 KiB, with the best pair of paths below and from the threshold.

    `missing` is the regret at sizes at which the record lacks the path.
    """
    paths = sorted({path for by_path in times.values() for path in by_path})

    def best_path(sizes: list[int]) -> dict[int, float]:
        candidates = [
            dict.fromkeys(sizes, missing) | regrets(times, lambda _, path=path: path, sizes) for path in paths
        ]
        return min(candidates, key=lambda each: sum(each.values()))

    return best_path([size for size in times if size < THRESHOLD_BYTES]) | best_path(
        [size for size in times if size >= THRESHOLD_BYTES]
    )


def model_regrets(call: Call, times: Times) -> dict[int, float]:
    """Regrets at the held-back sizes if the model, fitted to the other sizes, chooses the path."""
    held_back = held_back_sizes(Point(size, call.ranks, 1.0) for size in times)
    points: dict[str, list[Point]] = defaultdict(list)
    for size, by_path in times.items():
        for path, us in by_path.items():
            if size not in held_back:
                points[path].append(Point(size, call.ranks, us))
    curves: dict[str, Curve] = {path: fit_curve(call.collective, group) for path, group in points.items()}
    predicted = {
        size: {path: curves[path].time_us(size, call.ranks) for path in times[size] if path in curves}
        for size in held_back
    }
    return regrets(times, lambda size: min(predicted[size], key=predicted[size].__getitem__), sorted(held_back))
