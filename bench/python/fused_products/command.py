"""`isthmus bench allgather_gemm` and `gemm_reduce_scatter`: views of a product, overlap, and torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from isthmus import machine
from isthmus.cli.console import BAD_ARGUMENT, FAILED, CommandError, note, out, write_output
from isthmus.cli.measure import measured_variables
from isthmus.cli.timeline import draw_timeline
from isthmus.records import Record, Report, report_from
from isthmus.table import datatype

from . import BenchError, Job, figures, run

_VIEWS = {
    "compute_only": "compute only: one product",
    "compute_chunked": "compute only: products of the plan",
    "communication_only": "communication only: by chunks",
    "collective_only": "communication only: the collective",
    "sequential": "sequential",
    "pipelined": "pipelined",
    "fused": "fused (chosen by the model)",
    "torch_sequential": "torch: sequential",
    "torch_async_tp": "torch: fused operator",
}


@dataclass(frozen=True)
class Request:
    """The options of `isthmus bench`, by name."""

    kind: str
    ranks: int
    m: int
    k: int
    n: int
    dtype: str
    output: str
    device: str
    chunks: int
    peers: bool
    trace: str
    plot: str
    json_file: str
    command: str
    timeout: float


def bench_fused(request: Request) -> None:
    """Measures one shape and prints its table. Raises CommandError if an element is wrong."""
    result = _measure(request)
    shape = result["shapes"][0]
    report = _report(request, shape, result["versions"])
    if request.json_file:
        write_output(request.json_file, report.to_json())
    if request.trace:
        _write_trace(request.trace, shape["trace"])
    if request.plot:
        title = (
            f"{request.kind}, {request.m} x {request.k} x {request.n} {request.dtype}, {request.ranks} ranks"
        )
        draw_timeline(shape["trace"], request.plot, title)
    if request.json_file != "-":
        out.print(table_of(shape, request.output))
        for line in summary_of(shape):
            out.print(line)
    if result["failed"]:
        raise CommandError(result["failed"], FAILED)
    if wrong := figures.wrong(shape):
        raise CommandError(f"{wrong} elements are wrong", FAILED)


def _measure(request: Request) -> dict[str, Any]:
    _check(request)
    job = Job(
        shapes=[(request.m, request.k, request.n)],
        kind=request.kind,
        platform=request.device,
        dtype=request.dtype,
        output=request.output,
        chunks=request.chunks,
        peers=request.peers,
        traced=(request.m, request.k, request.n) if request.trace or request.plot else None,
    )
    try:
        return run(job, request.ranks, request.timeout, note)
    except BenchError as failure:
        raise CommandError(str(failure), FAILED) from None


def _check(request: Request) -> None:
    for name in (request.dtype, request.output):
        if datatype(name).name not in figures.ITEM_BYTES:
            raise CommandError(
                f"datatype {name} is not supported; use one of {', '.join(figures.ITEM_BYTES)}", BAD_ARGUMENT
            )
    if request.output not in (request.dtype, "float32"):
        raise CommandError(
            f"--output {request.output}: must be float32 or the input type {request.dtype}", BAD_ARGUMENT
        )
    if request.device not in ("host", "cuda"):
        raise CommandError(f"--device {request.device} is unknown; use host or cuda", BAD_ARGUMENT)
    for name, value in (("m", request.m), ("k", request.k if request.kind == "gemm_reduce_scatter" else 0)):
        if value % request.ranks:
            raise CommandError(
                f"--{name} {value} must be a multiple of the {request.ranks} ranks", BAD_ARGUMENT
            )


def table_of(shape: dict[str, Any], output: str) -> Table:
    """A table with one row for each view."""
    times = shape["times_us"]
    product, sequential = times["compute_only"]["median"], times["sequential"]["median"]
    table = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        title=f"{shape['m']} x {shape['k']} x {shape['n']}, {output} out",
    )
    for name in ("view", "us", "min", "max", "TFLOPS", "% of pure GEMM", "vs sequential", "hidden"):
        table.add_column(name, justify="left" if name == "view" else "right")
    for view, title in _VIEWS.items():
        if view not in times:
            continue
        time = times[view]
        cells = [title, *(f"{time[key]:.1f}" for key in ("median", "min", "max"))]
        whole = view not in figures.COMMUNICATION_VIEWS
        share = f"{100 * product / time['median']:.1f}"
        cells += [f"{figures.tflops(shape, view):.3g}", share] if whole else ["", ""]
        pipelines = view in figures.PIPELINES
        cells.append(f"{sequential / time['median']:.2f}x" if pipelines or view == "torch_sequential" else "")
        cells.append(f"{100 * figures.overlap_efficiency(shape, view):.0f} %" if pipelines else "")
        table.add_row(*cells)
    return table


def summary_of(shape: dict[str, Any]) -> list[str]:
    """Lines with the decision of the model and the verification."""
    info, chunked = shape["info"], shape["pipelined_info"]
    lines = [
        figures.summarize(shape),
        f"the model selects {info['mode']}: {info['reason']} ({info['model']})",
        f"pipelined: {chunked['chunks']} chunk(s) per remote shard, products of "
        + ", ".join(str(group["rows"]) for group in chunked["groups"])
        + " rows",
        f"verified against float64, every element: wrong before {shape['wrong_before']}, "
        f"after {shape['wrong_after']}, with late ranks {shape['wrong_late']}",
    ]
    return lines + [f"note: {text}" for text in chunked["notes"]]


def _report(request: Request, shape: dict[str, Any], versions: dict[str, str]) -> Report:
    return report_from(
        [
            Record(**record)
            for record in figures.records(shape, request.ranks, request.dtype, request.output, request.device)
        ],
        command=request.command,
        commit=measured_variables()["ISTHMUS_BENCH_COMMIT"],
        machine=machine.describe(),
        versions=machine.versions() | versions,
    )


def _write_trace(target: str, events: list[dict[str, Any]]) -> None:
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n")
