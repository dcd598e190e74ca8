"""`isthmus simulate`: predicts a collective or a training step on several nodes from a cost model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Column, Table

from .._names import unknown_name
from ..model import plans
from ..model.network import Network
from ..model.plans import PARTS, Cluster, Machine, Plan
from ..records import Report
from ..sizes import format_size, format_us, parse_sizes
from . import options, plot, simulate_training
from .console import BAD_ARGUMENT, CommandError, out, print_json
from .options import COUNT, flag, option
from .svg import Series

TRAINING = "training"
_BIT_RATE_SHIFT = {"M": 1e6, "G": 1e9, "T": 1e12}
_PLATFORMS = ("cuda", "host")
_INTRA_NODE = {"cuda": "nccl", "host": "shm"}
_INTER_NODE = ("ucx", "mpi")
_COLORS = ("#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#009E73")


@click.command()
@click.argument("collective")
@click.argument("sizes", default="1K:1G")
@option("--nodes", type=COUNT, default=2, help="Number of nodes.")
@option("--gpus", "--ranks-per-node", "gpus", type=COUNT, default=8, help="Number of ranks per node.")
@option("--platform", default="cuda", help="cuda, or host for ranks without a GPU.")
@option("--network", default="400G", help="Bit rate of one network interface: 400G.")
@option("--nics", type=click.IntRange(0), default=0, help="Interfaces per node. 0: one per GPU; host: one.")
@option("--efficiency", default=0.95, help="Share of the bit rate that payload can use.")
@option("--latency", default=5.0, help="Latency of a message between nodes in microseconds.")
@option("--overhead", default=1.0, help="Time to post one message in microseconds.")
@option("--intra-node", default="", help="Backend within a node. Default: nccl for cuda, shm for host.")
@option("--inter-node", default="ucx", help="Backend of hierarchical between nodes: ucx or mpi.")
@option("--chunk-bytes", default="1M:64M", help="Values of chunk_bytes to try: a range or a list.")
@option("--record", type=Path, multiple=True, help="File of records, repeatable. Default: built-in curves.")
@option("--trace", metavar="FILE", default="", help="Record of a step (bench/gpu/torch_step_trace.py).")
@flag("--all", "all_plans", help="Print all plans, not only the best.")
@options.json
@option("--plot", "plot_file", metavar="FILE", default="", help="Plot over bytes and nodes (PNG, SVG or PDF).")
def simulate(
    collective: str,
    sizes: str,
    nodes: int,
    gpus: int,
    platform: str,
    network: str,
    nics: int,
    efficiency: float,
    latency: float,
    overhead: float,
    intra_node: str,
    inter_node: str,
    chunk_bytes: str,
    record: tuple[Path, ...],
    trace: str,
    all_plans: bool,
    as_json: bool,
    plot_file: str,
) -> None:
    """Predicts time, best plan and cost of each part for a collective on several nodes. Runs nothing.

    SIZES is FIRST:LAST (doubling) or a list of sizes in bytes. The default is 1K:1G.

    The intra-node part comes from curves fitted to records. The network is a model of its options.

    With `training --trace FILE`, predicts the step of the trace, and shows where its time goes.
    """
    _require_one_of("COLLECTIVE", collective, (*plans.COLLECTIVES, TRAINING))
    if (collective == TRAINING) != bool(trace):
        raise CommandError(
            f"{TRAINING} requires --trace FILE" if not trace else f"--trace requires {TRAINING}", BAD_ARGUMENT
        )
    _require_one_of("--platform", platform, _PLATFORMS)
    _require_one_of("--inter-node", inter_node, _INTER_NODE)
    size_list = _parse_positive_sizes("SIZES", sizes)
    chunk_limits = _parse_positive_sizes("--chunk-bytes", chunk_bytes)
    interfaces = nics or (gpus if platform == "cuda" else 1)
    link = Network(
        bytes_per_us=_parse_bit_rate(network) / 8e6 * interfaces * _share("--efficiency", efficiency),
        latency_us=_not_negative("--latency", latency),
        overhead_us=_not_negative("--overhead", overhead),
    )
    machine = _load_machine(platform, record)
    intra = intra_node or _INTRA_NODE[platform]
    backends = sorted({backend for backend, phase in machine.curves if not phase.startswith("copy")})
    _require_one_of("--intra-node", intra, backends, hint="; the records have no other backend")
    cluster = Cluster(machine, nodes, gpus, link, intra, inter_node)
    links = f"{interfaces} x {network}bit/s per node"
    if trace:
        if plot_file:
            raise CommandError(f"--plot does not support {TRAINING}; remove it", BAD_ARGUMENT)
        simulate_training.run(
            cluster, trace, chunk_limits, partial(_inputs, cluster, links, efficiency), as_json
        )
        return
    results = {size: plans.simulate(cluster, collective, size, chunk_limits) for size in size_list}
    omitted = sorted({reason for _, reasons in results.values() for reason in reasons})
    if not any(found for found, _ in results.values()):
        raise CommandError(f"{collective}: no plan can be predicted: {'; '.join(omitted)}", BAD_ARGUMENT)
    # JSON and plots contain all plans.
    shown = None if all_plans or as_json or plot_file else 1
    printed = [plan for found, _ in results.values() for plan in found[:shown]]
    inputs = _inputs(cluster, links, efficiency, printed)
    if plot_file:
        _draw(cluster, collective, size_list, chunk_limits, plot_file)
    if as_json:
        print_json(_document(cluster, collective, inputs, omitted, results))
        return
    out.print(_table(cluster, collective, results, all_plans))
    for kind, lines in inputs.items():
        for line in lines:
            out.print(f"{kind}: {line}", style="dim", soft_wrap=True)
    for reason in omitted:
        out.print(f"omitted plan: {reason}", style="dim", soft_wrap=True)


def _require_one_of(argument: str, value: str, names: Iterable[str], hint: str = "") -> None:
    if value not in names:
        raise CommandError(unknown_name(argument, value, list(names)) + hint, BAD_ARGUMENT)


def _parse_positive_sizes(argument: str, text: str) -> list[int]:
    try:
        values = parse_sizes(text)
    except ValueError as failure:
        raise CommandError(f"{argument}: {failure}", BAD_ARGUMENT) from None
    if min(values) < 1:
        raise CommandError(f"{argument} {text!r} must be at least 1; remove 0", BAD_ARGUMENT)
    return values


def _parse_bit_rate(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MGT])", text)
    rate = float(match[1]) * _BIT_RATE_SHIFT[match[2]] if match else 0.0
    if rate <= 0:
        raise CommandError(
            f"--network {text!r} must be a bit rate above 0; pass a number with M, G or T, e.g. 400G",
            BAD_ARGUMENT,
        )
    return rate


def _share(argument: str, value: float) -> float:
    if not 0 < value <= 1:
        raise CommandError(f"{argument} {value:g} must be above 0 and at most 1; pass e.g. 0.95", BAD_ARGUMENT)
    return value


def _not_negative(argument: str, value: float) -> float:
    if not 0 <= value < float("inf"):
        raise CommandError(f"{argument} {value:g} must be at least 0 and finite; pass e.g. 5", BAD_ARGUMENT)
    return value


def _load_machine(platform: str, files: Sequence[Path]) -> Machine:
    if not files:
        return plans.built_in_machine(platform)
    try:
        reports = [Report.load(file) for file in files]
    except OSError as failure:
        raise CommandError(
            f"--record {failure.filename}: {failure.strerror}; pass a file of isthmus bench --json",
            BAD_ARGUMENT,
        ) from None
    facts = reports[0].machine
    name = (facts.gpus[0] if facts.gpus else facts.cpu) if platform == "cuda" else facts.cpu
    records = [each for report in reports for each in report.records]
    machine = plans.fit_machine(name, platform, [file.name for file in files], records)
    if not machine.curves:
        names = ", ".join(map(str, files))
        raise CommandError(
            f"--record {names} must contain calls of Isthmus on platform {platform}; "
            "pass another record or --platform",
            BAD_ARGUMENT,
        )
    return machine


def _inputs(cluster: Cluster, links: str, efficiency: float, printed: list[Plan]) -> dict[str, list[str]]:
    return _describe_inputs(cluster, _measured_backends(cluster, printed), links, efficiency)


def _measured_backends(cluster: Cluster, printed: list[Plan]) -> dict[str, list[int]]:
    """Returns the backends whose curves the plans use, with the measured numbers of ranks."""
    names = {plan.name for plan in printed}
    if cluster.nodes > 1:
        names.discard("flat nccl")  # predicted by the network alone
    backends = {cluster.intra_node if name.startswith("hierarchical") else name.split(" ")[1] for name in names}
    curves = cluster.machine.curves.items()
    ranks = {
        backend: sorted({count for (each, _), curve in curves if each == backend for count in curve.ranks})
        for backend in sorted(backends)
    }
    return {backend: counts for backend, counts in ranks.items() if counts}  # ucx has no curves


def _describe_inputs(
    cluster: Cluster, ranks: dict[str, list[int]], links: str, efficiency: float
) -> dict[str, list[str]]:
    machine, link = cluster.machine, cluster.network
    where = f"{machine.name}, in CUDA graphs" if machine.platform == "cuda" else machine.name
    measured = [
        f"{backend} with {', '.join(map(str, counts))} ranks on {where}: {', '.join(machine.records)}"
        for backend, counts in ranks.items()
    ]
    assumed = [
        f"network: {links}, {efficiency:g} of it for payload, {link.latency_us:g} us latency, "
        f"{link.overhead_us:g} us per message",
        "no contention between nodes; reductions between nodes and waits of the host cost no time",
    ]
    extrapolated = [counts for counts in ranks.values() if cluster.ranks_per_node not in [1, *counts]]
    for text in {", ".join(map(str, counts)): None for counts in extrapolated}:
        assumed.insert(0, f"{cluster.ranks_per_node} ranks per node: extrapolated from {text}")
    if machine.platform == "cuda" and cluster.nodes > 1:
        assumed.append("flat nccl ring and tree: latencies from NCCL's own model, not from --latency")
    if machine.platform == "host" and cluster.nodes > 1:
        assumed.append("flat ucx: traffic and reductions within a node cost no time")
    return {"measured": measured, "assumed": assumed}


def _parts(plan: Plan) -> list[str]:
    return [format_us(plan.parts[part]) if plan.parts[part] else "" for part in PARTS]


def _table(
    cluster: Cluster, collective: str, results: dict[int, tuple[list[Plan], list[str]]], all_plans: bool
) -> Table:
    title = (
        f"{collective}, {cluster.nodes} nodes x {cluster.ranks_per_node} ranks: predicted time in microseconds"
    )
    table = Table("bytes", Column("plan", no_wrap=True), "chunk", "time", *PARTS, "overlap", title=title)
    table.box, table.pad_edge = None, False
    for size, (found, _) in results.items():
        for index, plan in enumerate(found if all_plans else found[:1]):
            table.add_row(
                format_size(size) if index == 0 else "",
                plan.name,
                format_size(plan.chunk_bytes) if plan.chunk_bytes else "",
                format_us(plan.time_us),
                *_parts(plan),
                f"-{format_us(plan.overlap_us)}" if plan.overlap_us > 0.005 else "",
            )
    return table


def _document(
    cluster: Cluster,
    collective: str,
    inputs: dict[str, list[str]],
    omitted: list[str],
    results: dict[int, tuple[list[Plan], list[str]]],
) -> dict[str, Any]:
    return {
        "collective": collective,
        "nodes": cluster.nodes,
        "ranks_per_node": cluster.ranks_per_node,
        "inputs": inputs,
        "omitted": omitted,
        "results": [
            {
                "bytes": size,
                "plans": [
                    {
                        "name": plan.name,
                        "chunk_bytes": plan.chunk_bytes,
                        "time_us": plan.time_us,
                        "parts_us": plan.parts,
                        "overlap_us": plan.overlap_us,
                    }
                    for plan in found
                ],
            }
            for size, (found, _) in results.items()
        ],
    }


def _draw(cluster: Cluster, collective: str, sizes: list[int], chunk_limits: list[int], target: str) -> None:
    """Writes the time of each kind of plan over bytes, and over nodes at the largest size."""
    largest = max(sizes)
    node_counts = sorted({1 << power for power in range(cluster.nodes.bit_length())} | {cluster.nodes})

    colors: dict[str, str] = {}

    def lines(points: list[tuple[int, Cluster, int]]) -> list[Series]:
        values: dict[str, dict[int, float]] = {}
        for x, each, size in points:
            for plan in plans.simulate(each, collective, size, chunk_limits)[0]:
                values.setdefault(plan.name, {}).setdefault(x, plan.time_us)  # the best chunk size comes first
        for name in sorted(values, reverse=True):
            colors.setdefault(name, _COLORS[len(colors) % len(_COLORS)])
        return [
            Series(name, color, sorted(values[name].items()), is_dashed=name.startswith("flat"))
            for name, color in colors.items()
            if name in values
        ]

    over_bytes = lines([(size, cluster, size) for size in sizes])
    over_nodes = lines([(count, replace(cluster, nodes=count), largest) for count in node_counts])
    panels: list[tuple[str, Callable[[int], str], list[Series]]] = [
        (f"Time over bytes, {cluster.nodes} nodes", format_size, over_bytes),
        (f"Time over nodes, {format_size(largest)} bytes", str, over_nodes),
    ]
    title = f"{collective}, {cluster.ranks_per_node} ranks per node: predicted time"
    plot.draw_predictions(panels, target, title)
