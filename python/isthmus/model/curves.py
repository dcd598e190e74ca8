"""Time of one path as a function of bytes and ranks, fitted to measured points.

A curve consists of segments, one per protocol that the path uses. Within a segment, the time of n bytes
on p ranks is

    latency + gap (p - 1) + w n inverse_bandwidth + w p n contention

w is the wire share of the collective: the bytes that a rank must send per byte of the record's size. w n is
thus the traffic of one rank, and w p n is the traffic of all ranks, which share memory bandwidth. All
coefficients are at least 0. Records with one number of ranks cannot separate the terms. The second and the
fourth term are then 0.

For numbers of ranks that were measured, the time is multiplied by a correction: the ratio of the measured time
to that of the segment, interpolated between the measured sizes.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..table import COLLECTIVES, has_rank_blocks

_MIN_SEGMENT_SIZES = 2
# Relative error below which another segment is not worth its parameters: about the noise between repetitions.
_NOISE = 0.03


class Point(NamedTuple):
    """One measured time."""

    bytes: int
    ranks: int
    us: float


def wire_share(collective: str, ranks: int) -> float:
    """Returns the bytes that a rank must send per byte of the size. Other names than collectives are copies."""
    row = COLLECTIVES.get(collective)
    if row is None:
        return 1.0
    others = (ranks - 1) / ranks
    if has_rank_blocks(collective) or "COUNTS" in (row.send_extent, row.recv_extent):
        return others
    if row.send_extent != row.recv_extent:
        return ranks - 1.0  # the size is the bytes per rank
    return 2 * others if row.send_ranks == row.recv_ranks == "ALL" and row.reduces else 1.0


@dataclass(frozen=True)
class Terms:
    """Coefficients of one segment: microseconds, and microseconds per byte."""

    latency: float = 0.0
    gap: float = 0.0
    inverse_bandwidth: float = 0.0
    contention: float = 0.0

    def latency_us(self, ranks: int) -> float:
        """The part of the time that does not depend on the size."""
        return self.latency + self.gap * (ranks - 1)

    def transfer_us(self, size: float, ranks: int, share: float) -> float:
        """The part of the time that is proportional to the size."""
        return share * size * (self.inverse_bandwidth + ranks * self.contention)


@dataclass(frozen=True)
class Segment:
    """A range of sizes, both ends included, with its terms."""

    first: int
    last: int
    terms: Terms


Corrections = tuple[tuple[int, tuple[tuple[int, float], ...]], ...]  # by ranks: bytes and ratio, ascending


@dataclass(frozen=True)
class Curve:
    """The fitted time of one path of one collective."""

    collective: str
    ranks: tuple[int, ...]  # that were measured
    segments: tuple[Segment, ...]
    corrections: Corrections = ()

    def split_us(self, size: float, ranks: int) -> tuple[float, float]:
        """Returns the latency and the transfer time. Their sum is the predicted time."""
        factor = self._correction(size, ranks)
        latency, transfer = self._split_by_segments(size, ranks)
        return latency * factor, transfer * factor

    def _correction(self, size: float, ranks: int) -> float:
        """Interpolates on logarithmic axes. Sizes outside of the measured ones use the nearest one."""
        points = dict(self.corrections).get(ranks)
        if points is None:
            return 1.0
        sizes, ratios = zip(*points, strict=True)
        return math.exp(float(np.interp(math.log(size), np.log(sizes), np.log(ratios))))

    def _split_by_segments(self, size: float, ranks: int) -> tuple[float, float]:
        """Returns the latency and the transfer time without the correction.

        A size outside of all segments uses the nearest one. Between two segments, the time is interpolated on
        logarithmic axes, because the record does not show at which size the protocol changes.
        """
        share = wire_share(self.collective, ranks)

        def at(segment: Segment, point: float) -> tuple[float, float]:
            return segment.terms.latency_us(ranks), segment.terms.transfer_us(point, ranks, share)

        following = next((index for index, each in enumerate(self.segments) if size <= each.last), None)
        if following is None:
            return at(self.segments[-1], size)
        after = self.segments[following]
        if following == 0 or size >= after.first:
            return at(after, size)
        before = self.segments[following - 1]
        weight = math.log(size / before.last) / math.log(after.first / before.last)
        left, right = at(before, before.last), at(after, after.first)
        total = math.exp((1 - weight) * math.log(sum(left)) + weight * math.log(sum(right)))
        latency_part = (1 - weight) * left[0] / sum(left) + weight * right[0] / sum(right)
        return total * latency_part, total * (1 - latency_part)

    def time_us(self, size: float, ranks: int) -> float:
        """Returns the predicted time in microseconds."""
        return sum(self.split_us(size, ranks))

    def to_json(self) -> dict[str, Any]:
        """Returns the curve as JSON data."""
        corrections = {
            str(ranks): {str(size): ratio for size, ratio in points} for ranks, points in self.corrections
        }
        return asdict(self) | {"corrections": corrections}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Curve:
        """Returns the curve of `to_json`."""
        segments = (Segment(each["first"], each["last"], Terms(**each["terms"])) for each in data["segments"])
        corrections = (
            (int(ranks), tuple((int(size), ratio) for size, ratio in points.items()))
            for ranks, points in data["corrections"].items()
        )
        return cls(data["collective"], tuple(data["ranks"]), tuple(segments), tuple(corrections))


def fit_curve(collective: str, points: Iterable[Point]) -> Curve:
    """Fits a curve. Minimizes the squared relative error, with a penalty for each segment (BIC).

    Raises ValueError if there is no point, or if a time is not positive.
    """
    measured = sorted(points)
    if not measured or any(point.us <= 0 or point.bytes <= 0 for point in measured):
        raise ValueError(f"{collective}: points must not be empty, and their bytes and times must be positive")
    sizes = sorted({point.bytes for point in measured})
    has_many_ranks = len({point.ranks for point in measured}) > 1
    rows = np.array([_features(collective, point, has_many_ranks) for point in measured])
    index_of_size = np.searchsorted(sizes, [point.bytes for point in measured])
    starts = np.searchsorted(index_of_size, range(len(sizes) + 1))
    ranges = [
        (first, last)
        for first in range(len(sizes))
        for last in range(first + 1, len(sizes) + 1)
        if last - first >= min(_MIN_SEGMENT_SIZES, len(sizes))
    ]
    fits = {(first, last): _fit_terms(rows[starts[first] : starts[last]]) for first, last in ranges}
    best = _best_division(fits, len(sizes), len(measured))
    segments = (
        Segment(sizes[first], sizes[last - 1], Terms(*map(float, fits[first, last][1]))) for first, last in best
    )
    ranks = tuple(sorted({point.ranks for point in measured}))
    curve = Curve(collective, ranks, tuple(segments))
    return replace(curve, corrections=tuple((each, _corrections(curve, measured, each)) for each in ranks))


def _corrections(curve: Curve, points: Iterable[Point], ranks: int) -> tuple[tuple[int, float], ...]:
    """Returns the ratios of the measured times to those of the curve. Equal points share their mean ratio."""
    ratios: dict[int, list[float]] = defaultdict(list)
    for point in points:
        if point.ranks == ranks:
            ratios[point.bytes].append(point.us / curve.time_us(point.bytes, ranks))
    return tuple((size, sum(values) / len(values)) for size, values in sorted(ratios.items()))


def _features(collective: str, point: Point, has_many_ranks: bool) -> list[float]:
    """Returns the factors of the terms divided by the measured time, so that their weighted sum should be 1."""
    traffic = wire_share(collective, point.ranks) * point.bytes
    factors = [1.0, point.ranks - 1.0, traffic, traffic * point.ranks]
    if not has_many_ranks:
        factors[1] = factors[3] = 0.0
    return [factor / point.us for factor in factors]


def _fit_terms(rows: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the squared error and the terms of non-negative least squares.

    With four terms, trying every subset of non-zero terms is exact and simple.
    """
    scale = rows.max(axis=0)
    used = np.flatnonzero(scale)
    best = (math.inf, np.zeros(rows.shape[1]))
    for count in range(len(used), 0, -1):
        for subset in map(list, itertools.combinations(used, count)):
            columns = rows[:, subset] / scale[subset]
            solution = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)[0]
            error = float(np.square(columns @ solution - 1).sum())
            if solution.min() >= 0 and error < best[0] - 1e-12:
                terms = np.zeros(rows.shape[1])
                terms[subset] = solution / scale[subset]
                best = (error, terms)
        if count == len(used) and math.isfinite(best[0]):
            break  # the unconstrained optimum is feasible
    return best


def _best_division(
    fits: dict[tuple[int, int], tuple[float, np.ndarray]], size_count: int, point_count: int
) -> Sequence[tuple[int, int]]:
    """Returns the ranges of the segments, by dynamic programming over the number of segments."""
    best_score = math.inf
    best: tuple[tuple[int, int], ...] = ()
    ends: dict[int, tuple[float, tuple[tuple[int, int], ...]]] = {0: (0.0, ())}
    for _ in range(size_count):
        extended: dict[int, tuple[float, tuple[tuple[int, int], ...]]] = {}
        for (first, last), (error, _terms) in fits.items():
            if first in ends:
                total = ends[first][0] + error
                if total < extended.get(last, (math.inf,))[0]:
                    extended[last] = (total, (*ends[first][1], (first, last)))
        if size_count in extended:
            error, division = extended[size_count]
            parameters = sum(1 + np.count_nonzero(fits[each][1]) for each in division)
            score = point_count * math.log(error / point_count + _NOISE**2) + parameters * math.log(point_count)
            if score < best_score:
                best_score, best = score, division
        ends = extended
    return best
