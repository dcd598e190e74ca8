"""Measurement plan of `isthmus tune`: what to measure next, and which candidate to use for which sizes.

A plan depends only on its samples, so a run that was interrupted continues after its journal has been replayed.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from ..sizes import format_size

# The selection without a profile. It is measured like a candidate.
BASELINE = ""

# The largest regret that a profile should have. Smaller differences are noise.
THRESHOLD = 1.03

# A candidate needs this share of wins by the threshold, over all rounds of two neighboring sizes: with three
# rounds, one of the six may be disturbed.
_MIN_WINS = 5 / 6

# After the first round, only candidates are measured that take at most this multiple of the fastest time.
_CONTENDER_FACTOR = 2.0


@dataclass(frozen=True)
class Batch:
    """One run of a measurement program."""

    collective: str
    candidate: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """The candidate for a range of sizes.

    The range ends before `end`, the smallest larger size with another choice or without a measurement (None:
    there is no such size).
    `times` are the times of the baseline and of the candidate by measured size.
    `replaced` are the paths that the baseline selects at these sizes.
    """

    candidate: str
    first: int
    end: int | None
    times: dict[int, tuple[float, float]]
    replaced: tuple[str, ...] = ()

    @property
    def speedups(self) -> tuple[float, float]:
        """The lowest and the highest speedup over the baseline."""
        values = [baseline / time for baseline, time in self.times.values()]
        return min(values), max(values)

    @property
    def needs_mpi(self) -> bool:
        """True if only programs with MPI can follow the choice."""
        return _needs_mpi(self.candidate)


def half_steps(first: int, last: int) -> list[int]:
    """Returns first, last, and 2^k and 1.5 * 2^k between them. These sizes divide into equal aligned blocks."""
    steps = {first, last}
    for exponent in range(last.bit_length()):
        steps |= {size for size in (2 << exponent, 3 << exponent) if first < size < last}
    return sorted(steps)


def _needs_mpi(candidate: str) -> bool:
    return candidate.partition(":")[0] == "mpi"


class Plan:
    """The plan of one collective.

    1. All candidates are measured at the sizes of the grid. The candidates of one size follow each other,
       because the speed of a machine can change, for example if a hypervisor moves its cores.
    2. Further rounds measure the contenders: the baseline, and candidates that are not far from the fastest.
    3. Between two neighboring sizes with different choices, with or without MPI, the middle of `steps` is
       measured, until no step is left between them or the choice of the smaller size is within the threshold at
       the larger size.

    With `is_dense`, the contenders are measured at all steps instead, and only one candidate of each path. The
    candidates in `kept` are always contenders.
    """

    def __init__(
        self,
        collective: str,
        candidates: Iterable[str],
        grid: Iterable[int],
        steps: Iterable[int],
        rounds: int,
        *,
        is_dense: bool = False,
        kept: Iterable[str] = (),
    ) -> None:
        self.collective = collective
        self._is_dense = is_dense
        self._kept = {BASELINE, *kept}
        self._candidates = tuple(dict.fromkeys((BASELINE, *kept, *candidates)))
        self._grid = sorted(set(grid))
        self._steps = sorted({*steps, *self._grid})
        self._rounds = rounds
        self._samples: dict[tuple[str, int], list[float]] = {}
        self._paths: dict[tuple[str, int], str] = {}

    def add(
        self, batch: Batch, times: dict[int, float], paths: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """Adds the results of a batch. A size without a time is not supported by the candidate.

        `paths` are the selected paths. Candidates that select the same path share their samples, so that noise
        cannot distinguish them.
        """
        for size in batch.sizes:
            self._samples.setdefault((batch.candidate, size), []).append(times.get(size, math.inf))
            if size in paths:
                self._paths[batch.candidate, size] = paths[size]

    @property
    def rounds(self) -> int:
        """The number of measurements of each point."""
        return self._rounds

    def next_batch(self, rounds: int | None = None) -> Batch | None:
        """Returns the next measurement of the first rounds (None: all), or None if they are complete."""
        limit = self._rounds if rounds is None else min(rounds, self._rounds)
        if self._is_dense:
            return self._first_missing(self._grid, 1) or self._first_missing(self._steps, limit)
        started = [size for size in self._steps if (BASELINE, size) in self._samples or size in self._grid]
        return self._first_missing(started, limit) or self._first_missing(
            sorted({interval[-1] for interval in self._open_intervals()}), limit
        )

    def times(self, size: int) -> dict[str, float]:
        """Returns the median time of each candidate that was measured at that size and supports it."""
        measured = [candidate for candidate in self._candidates if (candidate, size) in self._samples]
        samples: dict[str, list[float]] = defaultdict(list)
        for candidate in measured:
            samples[self._path(candidate, size)] += self._samples[candidate, size]
        medians = {candidate: statistics.median(samples[self._path(candidate, size)]) for candidate in measured}
        return {candidate: time for candidate, time in medians.items() if time < math.inf}

    def _path(self, candidate: str, size: int) -> str:
        """Returns the selected path, or the name of the candidate if the path is unknown."""
        return self._paths.get((candidate, size), candidate)

    def baseline_path(self, size: int) -> str:
        """Returns the path that the baseline selects, or "" if it is unknown."""
        return self._path(BASELINE, size)

    def baseline_extremes(self) -> dict[int, tuple[float, float]]:
        """Returns the shortest and the longest time of the baseline by size, for sizes with several rounds."""
        rounds = {size: self._samples.get((BASELINE, size), ()) for size in self._steps}
        return {size: (min(times), max(times)) for size, times in rounds.items() if len(times) > 1}

    def chosen(self, *, with_mpi: bool = True) -> dict[int, str]:
        """Returns the choice for each measured size, in ascending order.

        The baseline is preferred, then the choice of the previous size, if they are within the threshold. Every
        choice is faster than the baseline by at least the threshold, and faster in most rounds.
        """
        current, result = BASELINE, {}
        for size in self._measured_sizes():
            times = self.times(size)
            times = {
                name: time
                for name, time in times.items()
                if self._is_mostly_faster(name, size) and (with_mpi or not _needs_mpi(name))
            }
            limit = THRESHOLD * min(times.values(), default=math.inf)
            baseline = times.get(BASELINE, math.inf)
            if baseline <= limit:
                current = BASELINE
            elif times.get(current, math.inf) > min(limit, baseline / THRESHOLD):
                current = min(times, key=times.__getitem__)
            result[size] = current
        return result

    def _speedups(self, candidate: str, size: int) -> list[float]:
        """Returns the speedup over the baseline in each round.

        If the speed of the machine changes between rounds, medians alone can be misleading.
        """
        rounds = zip(self._samples[candidate, size], self._samples[BASELINE, size], strict=False)
        return [baseline / time for time, baseline in rounds]

    def _is_mostly_faster(self, candidate: str, size: int) -> bool:
        """True for the baseline, and for candidates that are faster than the baseline in most rounds."""
        is_faster = [speedup > 1 for speedup in self._speedups(candidate, size)]
        return candidate == BASELINE or 2 * sum(is_faster) > len(is_faster)

    def choices(self) -> list[Choice]:
        """Returns the ranges of sizes for which a candidate replaces the baseline.

        The ranges of MPI are the last ones, because the last rule is the strongest. Programs without MPI use
        the ranges before them.
        """
        with_mpi = [choice for choice in self._ranges(self.chosen()) if choice.needs_mpi]
        return self._ranges(self.chosen(with_mpi=False)) + with_mpi

    def _ranges(self, chosen: dict[int, str]) -> list[Choice]:
        """Returns the ranges of the confirmed choices."""
        chosen = self._confirmed(chosen) | dict.fromkeys(self.not_measured(), BASELINE)
        sizes = sorted(chosen)
        starts = [i for i in range(len(sizes)) if i == 0 or chosen[sizes[i]] != chosen[sizes[i - 1]]]
        result = []
        for start, end in pairwise([*starts, len(sizes)]):
            candidate, covered = chosen[sizes[start]], sizes[start:end]
            if candidate == BASELINE:
                continue
            times = {size: self.times(size) for size in covered}
            result.append(
                Choice(
                    candidate,
                    sizes[start] if start else 0,
                    sizes[end] if end < len(sizes) else None,
                    {size: (each.get(BASELINE, math.inf), each[candidate]) for size, each in times.items()},
                    tuple(filter(None, dict.fromkeys(map(self.baseline_path, covered)))),
                )
            )
        return result

    def _confirmed(self, chosen: dict[int, str]) -> dict[int, str]:
        """Returns the choices, and the baseline where two neighboring sizes do not confirm another choice.

        A single measurement does not replace the baseline unless the plan has only one round.
        """
        result = dict.fromkeys(chosen, BASELINE)
        sizes = list(chosen)
        for pair in pairwise(sizes) if len(sizes) > 1 else [sizes]:
            candidates = {chosen[size] for size in pair}
            candidate = min(candidates, default=BASELINE)
            if len(candidates) > 1 or candidate == BASELINE:
                continue
            speedups = [self._speedups(candidate, size) for size in pair]
            wins = [speedup >= THRESHOLD for each in speedups for speedup in each]
            is_repeated = min(map(len, speedups)) >= min(2, self._rounds)
            if is_repeated and sum(wins) >= _MIN_WINS * len(wins):
                result |= dict.fromkeys(pair, candidate)
        return result

    def not_measured(self) -> list[int]:
        """Returns the sizes of the grid at which not all candidates were measured."""
        return [
            size for size in self._grid if not all(self._is_measured(name, size) for name in self._candidates)
        ]

    def _is_measured(self, candidate: str, size: int) -> bool:
        """True if the candidate was measured, or another one that selected its path."""
        return (candidate, size) in self._samples or any(
            self._paths.get((name, size)) == candidate for name in self._candidates
        )

    def is_started(self) -> bool:
        """True if all candidates were measured at a size of the grid."""
        return self.not_measured() != self._grid

    def unsupported(self) -> list[str]:
        """Returns the candidates that were measured and support no size."""
        samples = {
            name: [s for (each, _), s in self._samples.items() if each == name] for name in self._candidates
        }
        return [name for name, each in samples.items() if each and all(min(s) == math.inf for s in each)]

    def omissions(self) -> list[str]:
        """Returns one line for each part of the plan that was not measured."""
        absent = self.not_measured()
        lines = [f"not measured: {', '.join(map(format_size, absent))}"] if absent else []
        if not absent and self._first_missing(self._grid, self._rounds):
            lines.append(f"fewer than {self._rounds} rounds")
        lines += [
            f"no measurement between {format_size(lower)} ({before or 'baseline'}) "
            f"and {format_size(upper)} ({after or 'baseline'})"
            for (lower, before), (upper, after), _ in self._open_intervals()
        ]
        return lines or (["fewer rounds between the sizes of the grid"] if self.next_batch() else [])

    def _first_missing(self, sizes: Sequence[int], rounds: int) -> Batch | None:
        """Returns the first batch in order of rounds and sizes. The order of the candidates alternates."""
        for completed in range(rounds):
            candidates = self._candidates if completed % 2 == 0 else tuple(reversed(self._candidates))
            for size in sizes:
                contenders = candidates if completed == 0 and size in self._grid else self._contenders(size)
                if self._is_dense:
                    contenders = self._one_of_each_path(contenders, size)
                for candidate in candidates:
                    if candidate in contenders and len(self._samples.get((candidate, size), ())) <= completed:
                        return Batch(self.collective, candidate, (size,))
        return None

    def _one_of_each_path(self, candidates: Iterable[str], size: int) -> set[str]:
        """Returns the first candidate of each path. An unmeasured candidate has the path of its name."""
        by_path: dict[str, str] = {}
        for candidate in self._candidates:
            if candidate in candidates:
                by_path.setdefault(self._path(candidate, size), candidate)
        return set(by_path.values())

    def _contenders(self, size: int) -> set[str]:
        """Returns the kept candidates, and those that are not far from the fastest at enclosing grid sizes."""
        lower = [grid_size for grid_size in self._grid if grid_size <= size][-1:]
        upper = [grid_size for grid_size in self._grid if grid_size >= size][:1]
        result = set(self._kept)
        for grid_size in lower + upper:
            # The fastest sample, so that a disturbed later sample does not exclude a candidate.
            fastest: dict[str, float] = {}
            for candidate in self._candidates:
                if samples := self._samples.get((candidate, grid_size)):
                    path = self._path(candidate, grid_size)
                    fastest[path] = min(*samples, fastest.get(path, math.inf))
            limit = _CONTENDER_FACTOR * min(fastest.values(), default=math.inf)
            result |= {
                candidate
                for candidate in self._candidates
                if fastest.get(self._path(candidate, grid_size), math.inf) <= limit < math.inf
            }
        return result

    def _measured_sizes(self) -> list[int]:
        """Returns the sizes at which all contenders were measured. On the grid, these are all candidates."""
        return [
            size
            for size in self._steps
            if all(
                self._is_measured(name, size)
                for name in (self._candidates if size in self._grid else self._contenders(size))
            )
            and self.times(size)
        ]

    def _open_intervals(self) -> Iterator[tuple[tuple[int, str], tuple[int, str], int]]:
        """Yields neighboring sizes with their choices if the difference matters, and the step in the middle."""
        intervals = {
            interval: None
            for with_mpi in (True, False)
            for interval in pairwise(self.chosen(with_mpi=with_mpi).items())
        }
        for (lower, before), (upper, after) in intervals:
            times = self.times(upper)
            if before == after or times.get(before, math.inf) <= THRESHOLD * times.get(after, math.inf):
                continue
            between = [size for size in self._steps if lower < size < upper]
            if between:
                yield (lower, before), (upper, after), between[len(between) // 2]


def run_plans(
    plans: Sequence[Plan],
    measure: Callable[[Batch], tuple[dict[int, float], dict[int, str]]],
    end_time: float,
    clock: Callable[[], float],
    rounds: int | None = None,
) -> None:
    """Measures until the first rounds (None: all) of all plans are complete or the clock reaches `end_time`.

    Each plan gets an equal share of the remaining time. Time that a plan does not use is shared by the others.
    """
    while unfinished := [plan for plan in plans if plan.next_batch(rounds)]:
        for index, plan in enumerate(unfinished):
            now = clock()
            if now >= end_time:
                return
            deadline = now + (end_time - now) / (len(unfinished) - index)
            while clock() < deadline and (batch := plan.next_batch(rounds)):
                plan.add(batch, *measure(batch))
