"""Plans of a collective over several nodes: flat and hierarchical, with their predicted times.

The hierarchical plan follows src/backends/hierarchical: the phases of docs/internals/hierarchical.md, equal
shards, the sizes of chunks in device/staging_pipeline.cpp, and the two threads of pipeline.cpp.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..records import Record
from . import network
from .curves import Curve, Point, fit_curve
from .lines import backend_name, is_modeled
from .network import Cost, Network

ALLREDUCE, ALLGATHER, REDUCE_SCATTER, ALLTOALL = COLLECTIVES = (
    "allreduce",
    "allgather",
    "reduce_scatter",
    "alltoall",
)
MIN_CHUNK_BYTES = 1 << 20  # with smaller chunks, `hierarchical` does not divide a message
CHUNK_BYTES = tuple(1 << shift for shift in range(20, 27))
PARTS = ("intra-node latency", "intra-node bandwidth", "copies", "inter-node latency", "inter-node bandwidth")
_MODES = {"cuda": "graph", "host": "host"}
_COPY_LINES = {"link down": "copy to host", "link up": "copy to device"}


class MissingCurveError(ValueError):
    """The records have no points for a phase of a plan."""


@dataclass(frozen=True)
class Machine:
    """Fitted curves of one node, by backend and collective. Copies between host and device are `copy ...`."""

    name: str
    platform: str
    records: tuple[str, ...]
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)

    def phase(self, backend: str, collective: str, ranks: int, size: float) -> Cost:
        """Cost of a phase within the node. Raises MissingCurveError."""
        if ranks == 1 or size <= 0:
            return Cost()
        return Cost(*self.curve(backend, collective).split_us(size, ranks))

    def curve(self, backend: str, collective: str) -> Curve:
        """Returns the curve of a collective. Raises MissingCurveError."""
        curve = self.curves.get((backend, collective))
        if curve is None:
            raise MissingCurveError(f"the records of {self.name} have no {collective} of {backend}")
        return curve

    def copy(self, direction: str, size: float) -> Cost:
        """Cost of a copy between the memory of a device and of the host. Hosts need none."""
        if self.platform == "host":
            return Cost()
        return Cost(*self.curve("cuda", f"copy {direction}").split_us(size, 2))

    def to_json(self) -> dict[str, Any]:
        """Returns the machine as JSON data."""
        curves = [
            {"backend": backend, "phase": phase} | curve.to_json()
            for (backend, phase), curve in self.curves.items()
        ]
        return {"name": self.name, "platform": self.platform, "records": list(self.records), "curves": curves}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Machine:
        """Returns the machine of `to_json`."""
        curves = {(each["backend"], each["phase"]): Curve.from_json(each) for each in data["curves"]}
        return cls(data["name"], data["platform"], tuple(data["records"]), curves)


def fit_machine(name: str, platform: str, sources: Iterable[str], records: Iterable[Record]) -> Machine:
    """Fits the curves of a node from the records of Isthmus and of the libraries that its backends use."""
    points: dict[tuple[str, str], dict[tuple[int, int], float]] = defaultdict(dict)
    for record in records:
        backend = backend_name(record).partition(":")[0]
        if record.collective == "copy" and record.backend in _COPY_LINES and record.time_us.median > 0:
            key = ("cuda", _COPY_LINES[record.backend])
        elif is_modeled(record) and record.mode == _MODES[platform] and _is_plain(record, backend):
            key = (backend, record.collective)
        else:
            continue
        # The fastest algorithm of the backend, if there are several.
        where = (record.bytes, record.ranks)
        points[key][where] = min(record.time_us.median, points[key].get(where, float("inf")))
    curves = {
        key: fit_curve(
            "copy" if key[1].startswith("copy") else key[1], [Point(*where, us) for where, us in group.items()]
        )
        for key, group in sorted(points.items())
    }
    return Machine(name, platform, tuple(sources), curves)


def _is_plain(record: Record, backend: str) -> bool:
    extra = record.model_extra or {}
    is_plain_call = record.dtype in ("float32", "uint8") and record.op in (None, "sum")
    is_plain_memory = not extra.get("in_place", False) and extra.get("place") != "in_place"
    return (
        is_plain_call and is_plain_memory and "hosts" not in extra and record.provider in ("isthmus", backend)
    )


def built_in_machine(platform: str) -> Machine:
    """Returns the machine whose curves are part of the package. scripts/cost_model.py writes them."""
    data = json.loads(Path(__file__).with_name("machines.json").read_text())
    return Machine.from_json(data[platform])


@dataclass(frozen=True)
class Cluster:
    """Equal nodes, and how Isthmus uses them."""

    machine: Machine
    nodes: int
    ranks_per_node: int
    network: Network
    intra_node: str  # backend
    inter_node: str = "ucx"  # or mpi

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class Plan:
    """A way to run one call. `parts` are the times of PARTS. Overlap makes their sum larger than the time."""

    name: str
    time_us: float
    parts: dict[str, float]
    chunk_bytes: int | None = None  # the limit, if it divides the message

    @property
    def overlap_us(self) -> float:
        """Time that overlap hides."""
        return sum(self.parts.values()) - self.time_us


def simulate(
    cluster: Cluster, collective: str, size: int, chunk_limits: Iterable[int] = CHUNK_BYTES
) -> tuple[list[Plan], list[str]]:
    """Returns all plans, fastest first, and the reasons why other plans cannot be predicted."""
    plans: list[Plan] = []
    reasons: list[str] = []
    for candidates in (
        _flat_plans(cluster, collective, size),
        _hierarchical_plans(cluster, collective, size, chunk_limits),
    ):
        try:
            plans += candidates
        except MissingCurveError as missing:
            reasons.append(str(missing))
    return sorted(plans, key=lambda plan: plan.time_us), list(dict.fromkeys(reasons))


def _plan(name: str, intra: Cost, inter: Cost, copies: float = 0.0) -> Plan:
    parts = dict(zip(PARTS, (*intra, copies, *inter), strict=True))
    return Plan(name, sum(parts.values()), parts)


def _flat_plans(cluster: Cluster, collective: str, size: int) -> Iterator[Plan]:
    machine, nodes, ranks = cluster.machine, cluster.nodes, cluster.ranks_per_node
    if nodes == 1:
        yield _plan(
            f"flat {cluster.intra_node}", machine.phase(cluster.intra_node, collective, ranks, size), Cost()
        )
    elif machine.platform == "host":
        yield _plan("flat ucx", Cost(), _flat_ucx(cluster, collective, size))
    elif collective == ALLTOALL:
        yield _plan("flat nccl", Cost(), network.direct_blocks(cluster.network, nodes, ranks, size))
    else:
        # A ring or tree is as fast as its slowest link.
        intra_gbs = bus_bandwidth(machine, "nccl", collective, ranks)
        inter_gbs = cluster.network.bytes_per_us / 1e3
        is_allreduce = collective == ALLREDUCE
        total = size * cluster.ranks if collective == ALLGATHER else size
        for algorithm in ("ring", "tree") if is_allreduce else ("ring",):
            rounds = 2 if is_allreduce else 1
            intra, inter = network.best_nccl(algorithm, nodes, ranks, total, min(intra_gbs, inter_gbs), rounds)
            if intra_gbs < inter_gbs:
                intra, inter = Cost(intra.latency, inter.transfer), Cost(inter.latency)
            yield _plan(f"flat nccl {algorithm}", intra, inter)


def _flat_ucx(cluster: Cluster, collective: str, size: int) -> Cost:
    where = (cluster.network, cluster.nodes, cluster.ranks_per_node, size)
    if collective == ALLREDUCE:
        return network.ucx_allreduce(*where)
    return network.ucx_gather(*where) if collective == ALLGATHER else network.direct_blocks(*where)


def bus_bandwidth(machine: Machine, backend: str, collective: str, ranks: int) -> float:
    """Returns the bus bandwidth of large messages within a node in GB/s; infinite for one rank."""
    if ranks == 1:
        return float("inf")
    terms = machine.curve(backend, collective).segments[-1].terms
    return 1 / max(terms.transfer_us(1e3, ranks, 1.0), 1e-12)


def _hierarchical_plans(
    cluster: Cluster, collective: str, size: int, chunk_limits: Iterable[int]
) -> Iterator[Plan]:
    if cluster.nodes == 1 or cluster.ranks_per_node == 1:
        return
    if cluster.machine.platform != "host" and collective in (ALLGATHER, ALLTOALL):
        return  # data movement between devices goes through the host; see docs/internals/cost_model.md
    if collective == ALLTOALL:
        intra = cluster.machine.phase(
            cluster.intra_node, collective, cluster.ranks_per_node, size / cluster.nodes
        )
        inter = network.direct_blocks(cluster.network, cluster.nodes, cluster.ranks_per_node, size)
        yield _plan("hierarchical", intra, inter)
        return
    total = size * cluster.ranks if collective == ALLGATHER else size
    limit_by_step: dict[int, int] = {}
    for limit in chunk_limits:
        limit_by_step.setdefault(min(limit, max(MIN_CHUNK_BYTES, total // 4)), limit)
    # The plans with one leader need other curves, which may be missing. They therefore come last.
    for leaders in (cluster.ranks_per_node, 1) if collective == ALLREDUCE else (cluster.ranks_per_node,):
        name = "hierarchical:single_leader" if leaders == 1 else "hierarchical"
        for step, limit in limit_by_step.items():
            chunk_limit = limit if total > step else None
            yield _run_in_chunks(cluster, collective, total, step, leaders, name, chunk_limit)


@dataclass(frozen=True)
class _Stages:
    """Costs of one chunk."""

    gather: Cost
    fetch: float  # copy to the host, part of the first stage
    exchange: Cost
    upload: float  # copy to the device, part of the last stage
    scatter: Cost


def _stages(cluster: Cluster, collective: str, chunk: float, leaders: int) -> _Stages:
    """Returns the costs of a chunk with `chunk` bytes in total."""
    machine, ranks, nodes = cluster.machine, cluster.ranks_per_node, cluster.nodes

    def phase(name: str, size: float) -> Cost:
        return machine.phase(cluster.intra_node, name, ranks, size)

    link = cluster.network
    per_leader = Network(link.bytes_per_us / leaders, link.latency_us, link.overhead_us)  # they share the links
    shard = chunk / leaders
    if collective == ALLGATHER:  # the blocks of all ranks are `chunk` bytes
        block = chunk / cluster.ranks
        exchange = network.ucx_gather(per_leader, nodes, 1, block)
        return _Stages(Cost(), 0.0, exchange, 0.0, phase(ALLGATHER, nodes * block))
    if collective == REDUCE_SCATTER:
        exchange = network.direct_blocks(per_leader, nodes, 1, shard)
        copy = machine.copy("to host", shard).total, machine.copy("to device", shard / nodes).total
        return _Stages(phase(REDUCE_SCATTER, chunk), copy[0], exchange, copy[1], Cost())
    if cluster.inter_node == "mpi":
        exchange = network.mpi_allreduce(per_leader, nodes, shard)
    else:
        exchange = network.ucx_allreduce(per_leader, nodes, 1, shard)
    if leaders > 1:
        gather, scatter = phase(REDUCE_SCATTER, chunk), phase(ALLGATHER, shard)
    elif machine.platform == "host":
        gather, scatter = phase("reduce", chunk), phase("broadcast", chunk)
    else:
        gather, scatter = phase(ALLREDUCE, chunk), phase("broadcast", chunk)
    return _Stages(
        gather, machine.copy("to host", shard).total, exchange, machine.copy("to device", shard).total, scatter
    )


def _run_in_chunks(
    cluster: Cluster, collective: str, total: int, step: int, leaders: int, name: str, chunk_limit: int | None
) -> Plan:
    chunks = [step] * (total // step) + ([total % step] if total % step else [])
    by_size = {chunk: _stages(cluster, collective, chunk, leaders) for chunk in set(chunks)}
    stages = [by_size[chunk] for chunk in chunks]
    parts = dict.fromkeys(PARTS, 0.0)
    for each in stages:
        costs = (
            each.gather.latency + each.scatter.latency,
            each.gather.transfer + each.scatter.transfer,
            each.fetch + each.upload,
            *each.exchange,
        )
        for part, cost in zip(PARTS, costs, strict=True):
            parts[part] += cost
    time_us = pipeline_us(
        [each.gather.total + each.fetch for each in stages],
        [each.exchange.total for each in stages],
        [each.upload + each.scatter.total for each in stages],
    )
    return Plan(name, time_us, parts, chunk_limit)


def pipeline_us(gather: list[float], exchange: list[float], scatter: list[float]) -> float:
    """Returns the time of a call whose chunks go through three stages on two threads.

    One thread gathers chunk i, then scatters chunk i-1 once it has been exchanged. The other one exchanges.
    """
    intra_end = exchange_end = 0.0
    previous_exchange_end = 0.0
    for index, (gather_us, exchange_us) in enumerate(zip(gather, exchange, strict=True)):
        intra_end += gather_us
        previous_exchange_end, exchange_end = exchange_end, max(exchange_end, intra_end) + exchange_us
        if index > 0:
            intra_end = max(intra_end, previous_exchange_end) + scatter[index - 1]
    return max(intra_end, exchange_end) + scatter[-1]
