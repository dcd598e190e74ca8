"""Merges the traces of all ranks: matched calls, aligned clocks and stragglers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._isthmus import diagnose
from .files import LIMIT_NS, ROWS, Record, TraceError, list_traces, read_record

# Error bound of the times in a file. They are inexact because the rate of the processor's counter is only
# known from a few clock samples.
_CLOCK_ERROR_NS = 1000
_UNBOUNDED_NS = LIMIT_NS << 1


@dataclass
class Machine:
    """All processes of one boot share a monotonic clock."""

    name: str
    boot: str
    offset_ns: int = 0  # has been added to its times; they now use the first machine's clock
    uncertainty_ns: int = 0  # plus or minus
    alignment_source: str = "its own clock"


@dataclass
class Rank:
    """One rank of a communicator, with sums over its matched collectives.

    The host does not wait in calls on streams, so such calls add almost nothing to the sums.
    """

    record: Record
    machine: int = 0
    state: str = "ended"
    last_arrivals: int = 0  # number of collectives in which the rank arrived last
    others_waited_ns: float = 0  # sum over the other ranks
    waited_ns: float = 0


@dataclass
class MatchedCalls:
    """The collectives that all traces of a communicator contain."""

    index: np.ndarray  # [rank, call]: position in the calls of the rank
    last: np.ndarray  # index of the rank that started last
    delay_ns: np.ndarray  # between the first and the last start
    waited_ns: np.ndarray  # sum over the other ranks


@dataclass
class Communicator:
    ranks: list[Rank]  # in rank order
    matched: MatchedCalls | None = None
    mismatched_calls: int = 0  # collectives whose calls differ between ranks
    state: str = "ended"  # or "running", "died", or "unknown" for ranks of another machine
    sentence: str = ""  # diagnosis, unless the state is "ended"

    @property
    def token(self) -> str:
        return self.ranks[0].record.communicator

    @property
    def size(self) -> int:
        return self.ranks[0].record.size


@dataclass
class MergedTrace:
    machines: list[Machine] = field(default_factory=list)
    communicators: list[Communicator] = field(default_factory=list)  # oldest first
    skipped_files: list[str] = field(default_factory=list)  # with the reasons


def merge(folder: Path) -> MergedTrace:
    """Reads and merges all traces of a folder. Raises TraceError if none can be read."""
    trace = MergedTrace()
    trace.communicators = _read_all(folder, trace.skipped_files)
    if not trace.communicators:
        problems = f" that can be read: {', '.join(trace.skipped_files)}" if trace.skipped_files else ""
        raise TraceError(
            f"{folder} contains no trace{problems}; set ISTHMUS_TRACE=FOLDER in the environment of a job to "
            "record traces"
        )
    trace.communicators.sort(key=lambda each: each.ranks[0].record.created_ns)
    machine_of: dict[str, int] = {}
    matches = []
    for communicator in trace.communicators:
        communicator.ranks.sort(key=lambda rank: rank.record.rank)
        for rank in communicator.ranks:
            rank.machine = machine_of.setdefault(rank.record.boot, len(machine_of))
            if rank.machine == len(trace.machines):
                trace.machines.append(Machine(rank.record.machine, rank.record.boot))
        matches.append(_match(communicator))
    _align(trace, matches)
    for communicator, index in zip(trace.communicators, matches, strict=True):
        communicator.matched = _compute_waits(communicator, index)
    _diagnose_end(trace, folder)
    return trace


def _read_all(folder: Path, skipped_files: list[str]) -> list[Communicator]:
    """Reads all files. Skips copies of a rank's file, and files with the same token but another size."""
    by_token: dict[str, Communicator] = {}
    for path in list_traces(folder):
        try:
            record = read_record(path)
        except TraceError as problem:
            skipped_files.append(f"{path}: {problem}")
            continue
        communicator = by_token.setdefault(record.communicator, Communicator([]))
        others = [rank.record for rank in communicator.ranks]
        if any(other.size != record.size or other.rank == record.rank for other in others):
            skipped_files.append(f"{path}: another trace has the same rank or a different number of ranks")
        else:
            communicator.ranks.append(Rank(record))
    return list(by_token.values())


# ---- matching --------------------------------------------------------------------------------------------


def _table(predicate: Any) -> np.ndarray:
    """Evaluates a predicate for each row of the collective table, and False for set-up steps."""
    values = np.zeros(256, bool)
    values[: len(ROWS)] = [bool(predicate(row)) for row in ROWS]
    return values


_MOVES_DATA = _table(lambda row: row.send_extent != "NOTHING" or row.recv_extent != "NOTHING")
_REDUCES = _table(lambda row: row.reduces)
_HAS_ROOT = _table(lambda row: row.peer == "ROOT")
_HAS_EQUAL_COUNT = _table(lambda row: row.has_equal_count)
_IS_COLLECTIVE = _table(lambda row: True)
# Collectives that no rank can leave before all ranks have started them: a barrier, and collectives in which
# every result depends on all ranks.
_IS_BARRIER = _table(lambda row: row.send_extent == row.recv_extent == "NOTHING" and row.peer == "NONE")
_DEPENDS_ON_ALL = _table(
    lambda row: row.send_ranks == row.recv_ranks == "ALL" and row.has_equal_count and row.peer == "NONE"
)


def _match(communicator: Communicator) -> np.ndarray:
    """Matches collectives by number. Returns their positions in the calls of each rank."""
    records = [rank.record for rank in communicator.ranks]
    if len(records) < 2:
        return np.zeros((len(records), 0), np.intp)
    positions = [np.flatnonzero(~record.calls.is_message()) for record in records]
    numbers = [record.calls.number[each] for record, each in zip(records, positions, strict=True)]
    common = numbers[0]
    for other in numbers[1:]:
        common = np.intersect1d(common, other)
    index = np.array(
        [
            each[_first_positions(own_numbers, common)]
            for own_numbers, each in zip(numbers, positions, strict=True)
        ],
        np.intp,
    ).reshape(len(records), -1)
    path_ids: dict[str, int] = {}
    keys = [_keys_of(record, own, path_ids) for record, own in zip(records, index, strict=True)]
    is_equal = np.logical_and.reduce([(key == keys[0]).all(axis=0) for key in keys])
    communicator.mismatched_calls = int(np.count_nonzero(~is_equal))
    return index[:, is_equal]


def _first_positions(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    unique, first = np.unique(numbers, return_index=True)
    return first[np.searchsorted(unique, wanted)]


def _keys_of(record: Record, index: np.ndarray, path_ids: dict[str, int]) -> np.ndarray:
    """Returns the arguments that all ranks must pass, one per row. Arguments that a call does not use are 0."""
    calls = record.calls
    collective = calls.collective[index].astype(np.intp)
    paths = np.array([path_ids.setdefault(path, len(path_ids)) for path in record.paths])
    is_collective = _IS_COLLECTIVE[collective]
    return np.array(
        [
            collective,
            calls.is_check[index],
            np.where(_MOVES_DATA[collective], calls.datatype[index], 0),
            np.where(_REDUCES[collective], calls.op[index], 0),
            np.where(_HAS_ROOT[collective], calls.root[index], 0),
            np.where(_HAS_EQUAL_COUNT[collective] | ~is_collective, calls.count[index], 0).view(np.int64),
            np.where(is_collective, paths[calls.path[index]], 0),
        ],
        np.int64,
    )


def _times_of(communicator: Communicator, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns begin and end of the matched calls: [rank, call]."""
    calls = [rank.record.calls for rank in communicator.ranks]
    begin = np.array([each.begin_ns[own] for each, own in zip(calls, index, strict=True)])
    end = np.array([each.end_ns[own] for each, own in zip(calls, index, strict=True)])
    return begin, end


def _compute_waits(communicator: Communicator, index: np.ndarray) -> MatchedCalls:
    count = index.shape[1]
    if count == 0:
        return MatchedCalls(index, np.zeros(0, np.intp), np.zeros(0), np.zeros(0))
    begin, end = _times_of(communicator, index)
    last, last_begin = begin.argmax(axis=0), begin.max(axis=0)
    wait_end = np.where(end == 0, last_begin, np.minimum(end, last_begin))
    waits = np.maximum(0, wait_end - begin).astype(np.float64)  # sums of integers could overflow
    matched = MatchedCalls(index, last, last_begin - begin.min(axis=0), waits.sum(axis=0))
    arrivals = np.bincount(last, minlength=len(index))
    others_waited = np.bincount(last, weights=matched.waited_ns, minlength=len(index))
    for rank, own_waits, own_arrivals, others in zip(
        communicator.ranks, waits, arrivals, others_waited, strict=True
    ):
        rank.waited_ns, rank.last_arrivals, rank.others_waited_ns = (
            float(own_waits.sum()),
            int(own_arrivals),
            float(others),
        )
    return matched


# ---- clocks ----------------------------------------------------------------------------------------------


def _align(trace: MergedTrace, matches: list[np.ndarray]) -> None:
    """Converts all times to the first machine's clock.

    The real-time clocks give a first offset. Collectives that no rank can leave before all have entered then
    bound the remaining error.
    """
    reference = _first_record_on(trace, 0)
    for machine in range(1, len(trace.machines)):
        own, target = _first_record_on(trace, machine), trace.machines[machine]
        shift_ns = (own.realtime_ns - own.monotonic_ns) - (reference.realtime_ns - reference.monotonic_ns)
        _shift_clock(trace, machine, shift_ns)
        target.alignment_source = "the real-time clocks"
        lower, upper = _offset_bounds(trace, matches, machine)
        if lower <= -_UNBOUNDED_NS or upper >= _UNBOUNDED_NS:
            continue
        # If the clocks drift apart, no offset fits all calls, and `lower` can exceed `upper`.
        half_width = abs(upper - lower) // 2
        _shift_clock(trace, machine, -(min(lower, upper) + half_width))
        target.alignment_source = "the ends of collectives"
        target.uncertainty_ns = half_width + _CLOCK_ERROR_NS


def _shift_clock(trace: MergedTrace, machine: int, shift_ns: int) -> None:
    for communicator in trace.communicators:
        for rank in communicator.ranks:
            if rank.machine == machine:
                rank.record.shift_clock(shift_ns)
    trace.machines[machine].offset_ns += shift_ns


def _first_record_on(trace: MergedTrace, machine: int) -> Record:
    ranks = (rank for communicator in trace.communicators for rank in communicator.ranks)
    return next(rank.record for rank in ranks if rank.machine == machine)


def _offset_bounds(trace: MergedTrace, matches: list[np.ndarray], machine: int) -> tuple[int, int]:
    """Returns bounds of the offset between the clocks of a machine and of the first machine."""
    lower, upper = -_UNBOUNDED_NS, _UNBOUNDED_NS
    for communicator, index in zip(trace.communicators, matches, strict=True):
        machines = np.array([rank.machine for rank in communicator.ranks])
        if index.shape[1] == 0 or not (machines == 0).any() or not (machines == machine).any():
            continue
        begin, end = _times_of(communicator, index)
        is_bound = np.array(
            [_synchronizes_all(rank.record, own) for rank, own in zip(communicator.ranks, index, strict=True)]
        )
        begin, end = np.where(is_bound, begin, -_UNBOUNDED_NS), np.where(is_bound, end, _UNBOUNDED_NS)
        reference_begin, own_begin = (begin[machines == each].max(axis=0) for each in (0, machine))
        reference_end, own_end = (end[machines == each].min(axis=0) for each in (0, machine))
        is_known = (reference_begin > -_UNBOUNDED_NS) & (own_begin > -_UNBOUNDED_NS)
        if is_known.any():
            lower = max(lower, int((own_begin - reference_end)[is_known].max()))
            upper = min(upper, int((own_end - reference_begin)[is_known].min()))
    return lower, upper


def _synchronizes_all(record: Record, index: np.ndarray) -> np.ndarray:
    """True for calls that no rank can leave before all ranks have started them.

    False for calls that may still run on a stream, because their end is unknown.
    """
    calls = record.calls
    collective = calls.collective[index].astype(np.intp)
    depends_on_all = _DEPENDS_ON_ALL[collective] & (calls.count[index] > 0)
    return (_IS_BARRIER[collective] | depends_on_all) & ~calls.is_check[index] & calls.has_ended[index]


# ---- final state -----------------------------------------------------------------------------------------


def _diagnose_end(trace: MergedTrace, folder: Path) -> None:
    """Sets the states, and the sentences of `isthmus doctor` for communicators that have not ended."""
    if all(rank.record.is_closed for communicator in trace.communicators for rank in communicator.ranks):
        return
    jobs = json.loads(diagnose(0, "", str(folder)))["jobs"]
    found = {each["communicator"]: each for job in jobs for each in job["communicators"]}
    for communicator in trace.communicators:
        diagnosis = found.get(communicator.token, {"sentence": "", "ranks": []})
        processes = {rank["rank"]: rank["process"] for rank in diagnosis["ranks"]}
        for rank in communicator.ranks:
            if not rank.record.is_closed:
                process = processes.get(rank.record.rank, "unknown")
                rank.state = {"unknown": "unknown", "exited": "died"}.get(process, "running")
        states = {rank.state for rank in communicator.ranks}
        communicator.state = next(each for each in ("died", "unknown", "running", "ended") if each in states)
        communicator.sentence = "" if communicator.state == "ended" else diagnosis["sentence"]
