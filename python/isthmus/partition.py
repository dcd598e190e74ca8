"""Shares by speed, for ranks that are not equally fast."""

from __future__ import annotations

from collections.abc import Sequence

from . import _isthmus


def partition(speeds: Sequence[float], count: int, granularity: int = 1) -> tuple[list[int], list[int]]:
    """Counts and displacements of `count` elements in proportion to measured `speeds`, one for each rank.

    What `reduce_scatterv`, `allgatherv` and `scatterv` take: largest remainders, so the sum is exact.
    Shares are whole granules of `granularity` elements; the last that is not empty also has what fills
    none. A speed of 0 gets nothing. Equal speeds on all ranks give equal shares: exchange measured ones
    first. `isthmus.Error`: no speeds, one that is negative, infinite or no number, all of them 0, a
    granularity of 0.
    """
    return _isthmus.partition([float(speed) for speed in speeds], count, granularity)
