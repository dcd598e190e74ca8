"""Measurements of `isthmus tune`: settings, candidates, and the execution of plans."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from .._names import unknown_name
from ..records import Record, merge_rounds
from ..sizes import format_size, format_us
from ..table import whole_elements
from . import gpus
from .bench_server import BenchServer
from .console import BAD_ARGUMENT, NOT_AVAILABLE, CommandError, note, notes, progress
from .measure import Sweep
from .profile import DTYPE, PLATFORMS, Setting
from .tune_journal import Entry, Journal
from .tune_plan import BASELINE, Batch, Plan, run_plans

# Names in records and tables of the selection without a profile, and with the profile of the machine.
BASELINE_NAME = "rules"
PROFILE_NAME = "profile"

# Suffix of algorithms that send a smaller datatype. They are no candidates: a profile must not change results.
_INEXACT_SUFFIX = "_bf16"

# Limit of the buffers of a rank, because input, output and verification take longer than the calls.
_MAX_BYTES = 64 << 20

# Minimum number of calls of a point in one round.
_MIN_SAMPLES = 3

# Measurements of regret: one call per round from the first size on, no verification above the second. The runs
# that wrote the profile have verified larger sizes.
_SINGLE_CALL_BYTES = 4 << 20
_MAX_VERIFIED_BYTES = 1 << 20

# The speed of the machine changed if the times of the baseline differ by more than this factor between rounds
# at more than this share of the points.
_DRIFT, _MAX_DRIFTING = 1.5, 0.1

MeasureBatch = Callable[[Batch, Callable[[], None]], Entry]
Measurement = Callable[[], AbstractContextManager[MeasureBatch]]


def find_settings(platforms: str, ranks: str) -> list[Setting]:
    """Returns the settings for lists of platforms and numbers of ranks. Empty: all that this machine has.

    On devices, each rank needs its own device. If the platforms are not named, larger numbers of ranks are
    measured only on the host.
    """
    names = [name for name in platforms.split(",") if name]
    for name in names:
        if name not in PLATFORMS:
            raise CommandError(unknown_name("--platform", name, PLATFORMS), BAD_ARGUMENT)
    counts = _numbers(ranks)
    devices, reason = gpus.devices() if names != ["host"] else ([], "")
    platform = devices[0].partition(":")[0] if devices else ""
    for name in names:
        if name not in ("host", platform):
            raise CommandError(f"--platform {name}: {reason or f'the devices are {platform}'}", NOT_AVAILABLE)
        if name == platform and counts and max(counts) > len(devices):
            raise CommandError(
                f"--ranks {max(counts)}: there are {len(devices)} {platform} devices", BAD_ARGUMENT
            )
    limits = {"host": max(2, len(os.sched_getaffinity(0))), platform: len(devices)}
    return [
        Setting(name, count)
        for name in names or [each for each in ("host", platform) if each]
        for count in counts or _powers_of_two(limits[name])
        if name == "host" or count <= limits[name]
    ]


def _numbers(text: str) -> list[int]:
    words = [word for word in text.split(",") if word]
    if not all(word.isdecimal() and int(word) >= 2 for word in words):
        raise CommandError(
            f"--ranks {text!r} is not a list of numbers of at least 2, such as 2,8,16", BAD_ARGUMENT
        )
    return list(dict.fromkeys(map(int, words)))


def _powers_of_two(limit: int) -> list[int]:
    """Returns 2, 4, 8, ..., and the limit."""
    return sorted({limit, *(1 << exponent for exponent in range(1, limit.bit_length()))} - {0, 1})


def find_candidates(server: BenchServer, backends: Sequence[str], requested: Sequence[str]) -> list[str]:
    """Returns the requested candidates that are available on the ranks of a server. Default: all candidates.

    A candidate is a backend, which chooses its algorithm, or backend:algorithm.
    """
    # A communicator creates only backends that a rule names.
    described = server.info("; ".join(f"use={name}" for name in backends))["backends"]
    names, available = [], []
    for backend in described:
        exact = [name for name in backend["algorithms"] if not name.endswith(_INEXACT_SUFFIX)]
        own = [backend["name"], *(f"{backend['name']}:{name}" for name in exact)]
        names += own
        available += own if backend["state"] == "available" else []
    for name in requested:
        if name not in names:
            raise CommandError(unknown_name("--candidates", name, names), BAD_ARGUMENT)
    return [name for name in requested or available if name in available]


def split_by_placement(candidates: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divides candidates into those that follow a change of the cores' placement and those that do not.

    If a hypervisor moves the cores, another kind of stores becomes the faster one. An `_adaptive` algorithm
    then changes to it, and the other variants of the algorithm do not.
    """
    adaptive = {name.removesuffix("_adaptive") for name in candidates if name.endswith("_adaptive")}
    fixed = {f"{name}{suffix}" for name in adaptive for suffix in ("", "_streamed", "_per_reader")}
    return [name for name in candidates if name not in fixed], [name for name in candidates if name in fixed]


def make_plan(
    name: str,
    candidates: list[str],
    grid: list[int],
    steps: list[int],
    ranks: int,
    rounds: int,
    *,
    is_dense: bool = False,
    kept: Sequence[str] = (),
) -> Plan:
    """Returns the plan of a collective. Sizes are those of whole elements, as in the records."""
    blocks = ranks if name == "allgather" else 1  # its size counts one rank
    sizes, steps = (
        [
            whole_elements(name, size, DTYPE, ranks)
            for size in each
            if size * blocks <= _MAX_BYTES or size == min(grid)
        ]
        for each in (grid, steps)
    )
    return Plan(name, candidates, sizes, steps, rounds, is_dense=is_dense, kept=kept)


@contextmanager
def measurement(
    setting: Setting,
    min_time: float,
    profile: str,
    verified: set[tuple[str, str, int]],
    *,
    is_regret: bool = False,
    in_graph: bool = False,
) -> Iterator[MeasureBatch]:
    """Returns the function that measures a batch. The ranks start with the first batch.

    Results are verified when a candidate is measured at a size for the first time, which `verified` records.
    Verification takes as long as the measurement.
    """
    with BenchServer(setting) as server:

        def run(batch: Batch, point_done: Callable[[], None]) -> Entry:
            arguments = {BASELINE: [], PROFILE_NAME: ["--profile", profile]}.get(
                batch.candidate, ["--backend", batch.candidate]
            )
            name = batch.candidate or BASELINE_NAME
            points = {(batch.collective, batch.candidate, size) for size in batch.sizes}
            check = not points <= verified
            samples = _MIN_SAMPLES
            if is_regret:
                check &= max(batch.sizes) <= _MAX_VERIFIED_BYTES
                samples = 1 if min(batch.sizes) >= _SINGLE_CALL_BYTES else samples
            options = ["--provider", name, "--min-samples", str(samples), *(["--graph"] if in_graph else [])]
            sweep = Sweep(batch.collective, batch.sizes, dtype=DTYPE, check=check, min_time_s=min_time)
            report, _ = server.measure(sweep, [*arguments, *options], point_done)
            verified.update(points)
            wrong = [record for record in report.records if record.wrong]
            if wrong:
                raise CommandError(
                    f"{name} returned wrong results for {batch.collective} of {wrong[0].bytes} bytes"
                )
            return Entry(batch, report.records)

        yield run


@dataclass
class TuningRun:
    """The execution of the plans of one setting. Every finished batch is in the journal."""

    setting: Setting
    plans: list[Plan]
    journal: Journal
    measurement: Measurement
    clock: Callable[[], float] = time.monotonic
    in_graph: bool = False
    entries: list[Entry] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The setting and the mode, for messages."""
        return f"{self.setting}, graphs" if self.in_graph else str(self.setting)

    def replay(self) -> None:
        """Continues the run of the journal, if there is one."""
        entries, obstacle = self.journal.load()
        if obstacle:
            note(f"the measurements in {self.journal.path} are discarded: {obstacle}")
        if entries:
            note(
                f"continuing an earlier run with {len(entries)} measurements from {self.journal.path} "
                "(--restart discards them)"
            )
        self.entries += entries
        plans = {plan.collective: plan for plan in self.plans}
        for entry in entries:
            if plan := plans.get(entry.batch.collective):
                plan.add(entry.batch, entry.times, entry.paths)

    def measure(self, limit_s: float, rounds: int | None = None) -> None:
        """Measures until the first rounds (None: all) are complete or the time limit expires."""
        start, collective = self.clock(), ""
        with progress() as display:
            which = f", round {rounds}" if rounds else ""
            task = display.add_task("", total=math.ceil(limit_s))

            def advance() -> None:
                display.update(task, completed=min(int(self.clock() - start), math.ceil(limit_s)))

            def run(batch: Batch) -> tuple[dict[int, float], dict[int, str]]:
                nonlocal collective
                place, count = f"{self.name}{which}, {batch.collective}", len(self.entries)
                if collective != batch.collective and not notes.is_terminal:
                    note(f"{place}: {count} measurements so far")
                collective = batch.collective
                name = batch.candidate or BASELINE_NAME
                display.update(task, description=f"{place}: {name}; {count} measurements; seconds")
                entry = self._measure_batch(batch, advance)
                self.journal.append(entry)
                self.entries.append(entry)
                return entry.times, entry.paths

            try:
                with self.measurement() as self._measure_batch:
                    run_plans(self.plans, run, start + limit_s, self.clock, rounds)
            except KeyboardInterrupt:
                finished, _ = self.journal.load()  # may contain one more than self.entries
                note(
                    f"interrupted after {len(finished)} measurements, which are in {self.journal.path}; "
                    "run the same command again to continue"
                )
                raise

    def is_complete(self, rounds: int | None = None) -> bool:
        """True if nothing of the first rounds (None: all) is left to measure."""
        return not any(plan.next_batch(rounds) for plan in self.plans)

    def finish(self) -> dict[str, list[str]]:
        """Returns what was not measured, by collective. If nothing is missing, deletes the journal."""
        omissions = {plan.collective: plan.omissions() for plan in self.plans if plan.next_batch()}
        if not omissions:
            self.journal.remove()
        return omissions

    def merged_records(self, collective: str) -> list[Record]:
        """Returns the records of a collective, merged over the rounds."""
        return merge_rounds(entry.records for entry in self.entries if entry.batch.collective == collective)

    def path_records(self) -> list[Record]:
        """Returns one record for each path and point, merged over all candidates that selected the path.

        All paths get one time per round, because the speed of the machine can change between the rounds.
        `selected_by` lists the candidates BASELINE_NAME and PROFILE_NAME if they are among them.
        """
        by_round: dict[int, list[Record]] = defaultdict(list)
        round_of: Counter[tuple] = Counter()  # of the next record of a candidate at a point
        selected_by: dict[tuple, set[str]] = defaultdict(set)
        for entry in self.entries:
            for record in entry.records:
                candidate = (record.provider, record.point)
                by_round[round_of[candidate]].append(record.model_copy(update={"provider": record.backend}))
                round_of[candidate] += 1
                if record.provider in (BASELINE_NAME, PROFILE_NAME):
                    selected_by[record.backend, record.point].add(record.provider)
        return [
            _compact(record, sorted(selected_by[record.backend, record.point]))
            for record in merge_rounds(merge_rounds([records]) for records in by_round.values())
        ]


def drift_reason(runs: Iterable[TuningRun]) -> str:
    """Returns why the times of the runs are unreliable if the baseline changed between the rounds, or ""."""
    points = [
        (longest / shortest, f"{run.name}, {plan.collective} of {format_size(size)} bytes", shortest, longest)
        for run in runs
        for plan in run.plans
        for size, (shortest, longest) in plan.baseline_extremes().items()
        if longest < math.inf
    ]
    changed = [point for point in points if point[0] > _DRIFT]
    if len(changed) <= _MAX_DRIFTING * len(points):
        return ""
    _, name, shortest, longest = max(changed)
    return (
        "The speed of the machine changed during the run: the times of the built-in rules differ by more than "
        f"{_DRIFT}x between rounds at {len(changed)} of {len(points)} points "
        f"({name}: {format_us(shortest)} to {format_us(longest)} us). Another run can give other rules."
    )


def _compact(record: Record, selected_by: list[str]) -> Record:
    """Returns the record without the fields that neither the cost model nor a plot of regret needs."""

    def rounded(value: float) -> float:
        return float(f"{value:.4g}")

    time = {name: rounded(value) for name, value in record.time_us.model_dump().items()}
    return Record(
        collective=record.collective,
        dtype=record.dtype,
        op=record.op,
        bytes=record.bytes,
        ranks=record.ranks,
        provider="isthmus",
        backend=record.backend,
        mode=record.mode,
        time_us=time,
        algbw_gbs=rounded(record.algbw_gbs),
        busbw_gbs=rounded(record.busbw_gbs),
        wrong=record.wrong,
        round_medians_us=[rounded(value) for value in record.round_medians_us],
        **({"selected_by": selected_by} if selected_by else {}),
    )


def measure_all(runs: Sequence[TuningRun], limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Measures until all runs are complete or the time limit expires.

    Each round of all runs ends before the next one starts, with new processes, so that the rounds of a point
    are spread over the whole time. In a round, each run gets an equal share of the remaining time. Time that a
    run does not use is shared by the others.
    """
    end = clock() + limit_s
    last = max((plan.rounds for run in runs for plan in run.plans), default=0)
    for rounds in range(1, last + 1):
        while (unfinished := [run for run in runs if not run.is_complete(rounds)]) and clock() < end:
            for index, run in enumerate(unfinished):
                run.measure((end - clock()) / (len(unfinished) - index), rounds)
