"""Work partition for ranks of different speed."""

from __future__ import annotations

from collections.abc import Sequence

from . import _isthmus


def partition(speeds: Sequence[float], count: int, granularity: int = 1) -> tuple[list[int], list[int]]:
    """Returns counts and displacements of `count` elements in proportion to `speeds`, one per rank.

    The result can be passed to `reduce_scatterv`, `allgatherv` and `scatterv`. It uses the largest remainder
    method, so the sum is exact. Each share is a multiple of `granularity` elements. The last nonempty share
    also gets the remaining elements. A rank with speed 0 gets no elements.

    All ranks must pass the same speeds, so exchange measured speeds first.

    Errors:
        Raises `isthmus.Error` if `speeds` is empty, a speed is negative, infinite or NaN, all speeds are 0, or
        `granularity` is 0.
    """
    return _isthmus.partition([float(speed) for speed in speeds], count, granularity)
