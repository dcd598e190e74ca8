"""`isthmus simulate training`: predicts a recorded training step on other nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from rich.table import Table

from ..model import training
from ..model.plans import Cluster, Plan
from ..model.training import COMPUTE, Prediction, Step
from ..records import Report
from ..sizes import format_size, format_us
from .console import BAD_ARGUMENT, CommandError, out, print_json

DescribeInputs = Callable[[list[Plan]], dict[str, list[str]]]


def run(
    cluster: Cluster, file: str, chunk_limits: list[int], describe_inputs: DescribeInputs, as_json: bool
) -> None:
    """Predicts and prints the steps of a file, with their check on the ranks that recorded them."""
    documents = []
    for step in _load(file):
        try:
            prediction = training.predict(step, cluster, chunk_limits)
            check = training.predict(step, replace(cluster, nodes=1, ranks_per_node=step.ranks), chunk_limits)
        except ValueError as failure:
            raise CommandError(f"--trace {file}: {failure}", BAD_ARGUMENT) from None
        inputs = describe_inputs(list(prediction.plans.values()))
        if as_json:
            documents.append(_document(step, cluster, prediction, check, inputs))
        else:
            _print(step, cluster, prediction, check, inputs)
    if as_json:
        print_json({"nodes": cluster.nodes, "ranks_per_node": cluster.ranks_per_node, "steps": documents})


def _load(file: str) -> list[Step]:
    try:
        steps = training.steps_of(Report.load(file).records)
    except OSError as failure:
        raise CommandError(f"--trace {file}: {failure.strerror}", BAD_ARGUMENT) from None
    except ValueError as failure:
        raise CommandError(f"--trace {failure}", BAD_ARGUMENT) from None
    if not steps:
        raise CommandError(
            f"--trace {file}: the file contains no operations; record it with bench/gpu/torch_step_trace.py",
            BAD_ARGUMENT,
        )
    return steps


def _ms(us: float) -> str:
    return f"{us / 1e3:.2f}"


def _checks(step: Step, check: Prediction) -> dict[str, float]:
    """The time of the recorded step: predicted from its recorded times, and from the model."""
    return {"recorded times": training.replay_us(step), "model": check.step_us}


def _print(
    step: Step, cluster: Cluster, prediction: Prediction, check: Prediction, inputs: dict[str, list[str]]
) -> None:
    nodes = f"{cluster.nodes} nodes x {cluster.ranks_per_node} ranks"
    out.print(f"{step.name}: predicted step on {nodes}, in milliseconds", soft_wrap=True)
    table = Table("", "calls", "time", "exposed", box=None, pad_edge=False)
    for kind, share in prediction.shares.items():
        table.add_row(kind, str(share.calls), _ms(share.time_us), _ms(share.exposed_us))
    table.add_row("step", "", "", _ms(prediction.step_us))
    out.print(table)
    for (kind, size), plan in prediction.plans.items():
        chunk = f", chunks of {format_size(plan.chunk_bytes)}" if plan.chunk_bytes else ""
        text = (
            f"plan: {kind}, {format_size(size)} in the trace: {plan.name}{chunk}, {format_us(plan.time_us)} us"
        )
        out.print(text, style="dim", soft_wrap=True)
    for name, us in _checks(step, check).items():
        out.print(
            f"check: measured step on {step.ranks} ranks {_ms(step.measured_us)} ms, from {name} {_ms(us)} ms "
            f"({us / step.measured_us - 1:+.1%})",
            style="dim",
            soft_wrap=True,
        )
    for kind, lines in inputs.items():
        for line in lines:
            out.print(f"{kind}: {line}", style="dim", soft_wrap=True)
    out.print(
        f"assumed: {COMPUTE} takes the recorded time, and collectives run one after another",
        style="dim",
        soft_wrap=True,
    )
    out.print()


def _document(
    step: Step, cluster: Cluster, prediction: Prediction, check: Prediction, inputs: dict[str, list[str]]
) -> dict[str, Any]:
    return {
        "name": step.name,
        "step_us": prediction.step_us,
        "shares": {kind: asdict(share) for kind, share in prediction.shares.items()},
        "plans": [
            {"collective": kind, "recorded_bytes": size, "name": plan.name, "chunk_bytes": plan.chunk_bytes}
            | {"time_us": plan.time_us}
            for (kind, size), plan in prediction.plans.items()
        ],
        "check": {"ranks": step.ranks, "measured_us": step.measured_us, "predicted_us": _checks(step, check)},
        "inputs": inputs,
    }
