"""Time of a training step on other nodes, from the operations of a recorded step.

A recorded step is a record with the field `operations` (bench/gpu/torch_step_trace.py). An operation starts
when the host has enqueued it, and the previous one of its stream and those in `after` have ended. The ranks
share one communicator, so a collective also starts after the previous collective.

Compute takes the recorded time on any number of ranks: each rank keeps its batch. Collectives keep the bytes of
all ranks together, so with more ranks each one gathers from smaller shards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ..records import Record
from .plans import ALLGATHER, COLLECTIVES, Cluster, Plan, simulate

COMPUTE = "compute"
HOST = "until the host has enqueued"


class Operation(BaseModel):
    """Work of one stream. `bytes`: the size of a collective, as in records.

    `issue_us`: when the host enqueues it, since the start of the step.
    """

    kind: str
    stream: int = Field(ge=0)
    us: float = Field(ge=0)
    bytes: int = Field(default=0, ge=0)
    after: tuple[int, ...] = ()
    issue_us: float = Field(default=0.0, ge=0)

    @property
    def is_collective(self) -> bool:
        return self.kind != COMPUTE


@dataclass(frozen=True)
class Step:
    """A recorded step. `measured_us` is its time without recording."""

    name: str
    ranks: int
    measured_us: float
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Interval:
    """When an operation runs. `cause`: the operation whose end starts it, or None if the host does."""

    start_us: float
    end_us: float
    cause: int | None

    @property
    def us(self) -> float:
        return self.end_us - self.start_us


@dataclass(frozen=True)
class Share:
    """Operations of one kind: their number, total time, and the part of it that delays the step."""

    calls: int
    time_us: float
    exposed_us: float


@dataclass(frozen=True)
class Prediction:
    """The time of a step, its shares by kind, and the plans of its collectives by kind and bytes."""

    step_us: float
    shares: dict[str, Share]
    plans: dict[tuple[str, int], Plan]


def steps_of(records: Sequence[Record]) -> list[Step]:
    """Returns the recorded steps. Raises ValueError if an operation is invalid."""
    steps = []
    for record in records:
        extra = record.model_extra or {}
        if "operations" not in extra:
            continue
        try:
            operations = TypeAdapter(tuple[Operation, ...]).validate_python(extra["operations"])
        except ValidationError as failure:
            error = failure.errors()[0]
            raise ValueError(f"operations {'.'.join(map(str, error['loc']))}: {error['msg']}") from None
        for index, operation in enumerate(operations):
            if any(not 0 <= each < index for each in operation.after):
                raise ValueError(f"operation {index} waits for {operation.after}, which are not all before it")
        if operations:
            name = str(extra.get("model", record.collective))
            steps.append(Step(name, record.ranks, record.time_us.median, operations))
    return steps


def schedule(
    operations: Sequence[Operation], time_us: Callable[[Operation], float], *, in_order: bool = True
) -> list[Interval]:
    """Returns when each operation runs. With `in_order`, a collective waits for the previous collective."""
    intervals: list[Interval] = []
    last: dict[int | str, int] = {}  # by stream
    for index, operation in enumerate(operations):
        before = [*operation.after, *(last[key] for key in (operation.stream,) if key in last)]
        if in_order and operation.is_collective and "collective" in last:
            before.append(last["collective"])
        cause = max(before, key=lambda each: intervals[each].end_us, default=None)
        if cause is not None and intervals[cause].end_us < operation.issue_us:
            cause = None
        start_us = operation.issue_us if cause is None else intervals[cause].end_us
        intervals.append(Interval(start_us, start_us + time_us(operation), cause))
        last[operation.stream] = index
        if operation.is_collective:
            last["collective"] = index
    return intervals


def step_time_us(intervals: Sequence[Interval]) -> float:
    """Returns when the last operation ends."""
    return max(interval.end_us for interval in intervals)


def shares_of(operations: Sequence[Operation], intervals: Sequence[Interval]) -> dict[str, Share]:
    """Returns the shares by kind. Their exposed times add up to the time of the step.

    Exposed is the time of the operations on the critical path: the last one to end, the one that starts it, and
    so on. If the host starts one of them, the time before counts as HOST.
    """
    exposed: dict[str, float] = defaultdict(float)
    current: int | None = max(range(len(intervals)), key=lambda index: intervals[index].end_us)
    while current is not None:
        exposed[operations[current].kind] += intervals[current].us
        if intervals[current].cause is None:
            exposed[HOST] = intervals[current].start_us
        current = intervals[current].cause
    groups: dict[str, list[float]] = defaultdict(list)
    for operation, interval in zip(operations, intervals, strict=True):
        groups[operation.kind].append(interval.us)
    shares = {kind: Share(len(times), sum(times), exposed[kind]) for kind, times in groups.items()}
    return shares | ({HOST: Share(0, exposed[HOST], exposed[HOST])} if exposed[HOST] else {})


def replay_us(step: Step) -> float:
    """Returns the time of the step with the recorded times, in which collectives wait for each other."""
    return step_time_us(schedule(step.operations, lambda operation: operation.us, in_order=False))


def predict(step: Step, cluster: Cluster, chunk_limits: Sequence[int]) -> Prediction:
    """Predicts the step on a cluster, each collective with its fastest plan.

    Raises ValueError if a collective has no plan.
    """
    chosen: dict[tuple[str, int], Plan] = {}

    def time_us(operation: Operation) -> float:
        if not operation.is_collective:
            return operation.us
        if cluster.ranks == 1:
            return 0.0
        key = (operation.kind, operation.bytes)
        if key not in chosen:
            if operation.kind not in COLLECTIVES:
                raise ValueError(f"{operation.kind} cannot be predicted; supported: {', '.join(COLLECTIVES)}")
            size = operation.bytes
            if operation.kind == ALLGATHER:  # its size is that of one shard
                size = max(1, round(size * step.ranks / cluster.ranks))
            found, reasons = simulate(cluster, operation.kind, size, chunk_limits)
            if not found:
                raise ValueError(f"{operation.kind}: no plan can be predicted: {'; '.join(reasons)}")
            chosen[key] = found[0]
        return chosen[key].time_us

    intervals = schedule(step.operations, time_us)
    return Prediction(step_time_us(intervals), shares_of(step.operations, intervals), chosen)
