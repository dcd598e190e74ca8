"""Error of the model on points that the fit did not see.

Two divisions, both fixed before any fit:

- sizes: of the sizes of a line in ascending order, every third one, starting with the second, is held back;
- ranks: each number of ranks is held back in turn, if its records have at least two.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..records import Record
from .curves import Point, fit_curve
from .lines import Line, lines_of

_MIN_SIZES = 3


@dataclass(frozen=True)
class Prediction:
    """A held-back point, and its predicted time."""

    line: Line
    point: Point
    predicted_us: float

    @property
    def error(self) -> float:
        """Relative error, without sign."""
        return abs(self.predicted_us / self.point.us - 1)


@dataclass(frozen=True)
class ErrorSummary:
    """Errors of the held-back points of one record."""

    lines: int
    points: int
    median: float
    p90: float


def held_back_sizes(points: Iterable[Point]) -> frozenset[int]:
    """Returns the sizes that are held back."""
    return frozenset(sorted({point.bytes for point in points})[1::3])


def predict_sizes(records: Iterable[Record]) -> list[Prediction]:
    """Fits each line without its held-back sizes, and predicts these."""
    predictions: list[Prediction] = []
    for line, points in lines_of(records).items():
        if len({point.bytes for point in points}) >= _MIN_SIZES:
            held_back = held_back_sizes(points)
            predictions += _predict(line, points, [point for point in points if point.bytes in held_back])
    return predictions


def interpolate_sizes(records: Iterable[Record]) -> list[Prediction]:
    """Predicts the held-back sizes without a model: by a straight line through two neighboring sizes.

    Numbers of ranks with fewer than two other sizes are omitted.
    """
    predictions: list[Prediction] = []
    for line, points in lines_of(records).items():
        held_back = held_back_sizes(points)
        for ranks in {point.ranks for point in points}:
            times = {point.bytes: point.us for point in points if point.ranks == ranks}
            known = sorted(set(times) - held_back)
            for size in sorted(set(times) & held_back) if len(known) > 1 else ():
                end = min(max(bisect.bisect(known, size), 1), len(known) - 1)
                first, last = known[end - 1], known[end]
                slope = (times[last] - times[first]) / (last - first)
                point = Point(size, ranks, times[size])
                predictions.append(Prediction(line, point, times[first] + slope * (size - first)))
    return predictions


def predict_ranks(records: Iterable[Record]) -> list[Prediction]:
    """Fits each line without one of its numbers of ranks, and predicts this number, for each number."""
    predictions: list[Prediction] = []
    for line, points in lines_of(records).items():
        rank_counts = sorted({point.ranks for point in points})
        for ranks in rank_counts if len(rank_counts) > 1 else ():
            predictions += _predict(line, points, [point for point in points if point.ranks == ranks])
    return predictions


def _predict(line: Line, points: list[Point], held_back: list[Point]) -> Iterator[Prediction]:
    curve = fit_curve(line.collective, set(points) - set(held_back))
    return (Prediction(line, point, curve.time_us(point.bytes, point.ranks)) for point in held_back)


def summarize(predictions: Iterable[Prediction]) -> ErrorSummary | None:
    """Returns the errors' median and 90th percentile, or None if there are no predictions."""
    items = list(predictions)
    if not items:
        return None
    median, p90 = np.quantile([each.error for each in items], [0.5, 0.9])
    return ErrorSummary(len({each.line for each in items}), len(items), float(median), float(p90))
