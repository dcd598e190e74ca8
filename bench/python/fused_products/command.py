"""`isthmus bench allgather_gemm` and `gemm_reduce_scatter`: the views of a fused product, what was hidden, and
torch beside it."""

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
    "compute_chunked": "compute only: the plan's products",
    "communication_only": "communication only: by chunks",
    "collective_only": "communication only: the collective",
    "sequential": "sequential",
    "pipelined": "pipelined",
    "fused": "by the model",
    "torch_sequential": "torch: one after the other",
    "torch_async_tp": "torch: its fused operator",
}


@dataclass(frozen=True)
class Request:
    """What the command line asked for: the options of `isthmus bench` by their names."""

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


def bench_fused(asked: Request) -> None:
    """Measures one shape and prints its table. Raises CommandError when an element is wrong."""
    result = _measure(asked)
    shape = result["shapes"][0]
    report = _report(asked, shape, result["versions"])
    if asked.json_file:
        write_output(asked.json_file, report.to_json())
    if asked.trace:
        _write_trace(asked.trace, shape["trace"])
    if asked.plot:
        title = f"{asked.kind}, {asked.m} x {asked.k} x {asked.n} {asked.dtype}, {asked.ranks} ranks"
        draw_timeline(shape["trace"], asked.plot, title)
    if asked.json_file != "-":
        out.print(table_of(shape, asked.output))
        for line in summary_of(shape):
            out.print(line, markup=False)
    if result["failed"]:
        raise CommandError(result["failed"], FAILED)
    if wrong := figures.wrong(shape):
        raise CommandError(f"{wrong} elements are wrong", FAILED)


def _measure(asked: Request) -> dict[str, Any]:
    _check(asked)
    job = Job(
        shapes=[(asked.m, asked.k, asked.n)],
        kind=asked.kind,
        platform=asked.device,
        dtype=asked.dtype,
        output=asked.output,
        chunks=asked.chunks,
        peers=asked.peers,
        traced=(asked.m, asked.k, asked.n) if asked.trace or asked.plot else None,
    )
    try:
        return run(job, asked.ranks, asked.timeout, note)
    except BenchError as failure:
        raise CommandError(str(failure), FAILED) from None


def _check(asked: Request) -> None:
    for name in (asked.dtype, asked.output):
        if datatype(name).name not in figures.ITEM_BYTES:
            raise CommandError(
                f"{name} is not supported; allowed: {', '.join(figures.ITEM_BYTES)}", BAD_ARGUMENT
            )
    if asked.output not in (asked.dtype, "float32"):
        raise CommandError(
            f"--output is float32 or the input's {asked.dtype}, not {asked.output}", BAD_ARGUMENT
        )
    if asked.device not in ("host", "cuda"):
        raise CommandError(f"--device {asked.device} is unknown; allowed: host, cuda", BAD_ARGUMENT)
    for name, value in (("m", asked.m), ("k", asked.k if asked.kind == "gemm_reduce_scatter" else 0)):
        if value % asked.ranks:
            raise CommandError(f"--{name} {value} must be a multiple of the {asked.ranks} ranks", BAD_ARGUMENT)


def table_of(shape: dict[str, Any], output: str) -> Table:
    """One row for each view."""
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
        whole = view not in figures.MOVES
        share = f"{100 * product / time['median']:.1f}"
        cells += [f"{figures.tflops(shape, view):.3g}", share] if whole else ["", ""]
        pipelines = view in figures.PIPELINES
        cells.append(f"{sequential / time['median']:.2f}x" if pipelines or view == "torch_sequential" else "")
        cells.append(f"{100 * figures.overlap_efficiency(shape, view):.0f} %" if pipelines else "")
        table.add_row(*cells)
    return table


def summary_of(shape: dict[str, Any]) -> list[str]:
    """Why the model chose what it did, and what was verified."""
    info, chunked = shape["info"], shape["pipelined_info"]
    lines = [
        figures.verdict(shape),
        f"the model takes {info['mode']}: {info['reason']} ({info['model']})",
        f"pipelined: {chunked['chunks']} chunk(s) for each remote shard, products of "
        + ", ".join(str(group["rows"]) for group in chunked["groups"])
        + " rows",
        f"verified against float64, every element: wrong before {shape['wrong_before']}, "
        f"after {shape['wrong_after']}, with late ranks {shape['wrong_late']}",
    ]
    return lines + [f"note: {text}" for text in chunked["notes"]]


def _report(asked: Request, shape: dict[str, Any], versions: dict[str, str]) -> Report:
    return report_from(
        [
            Record(**record)
            for record in figures.records(shape, asked.ranks, asked.dtype, asked.output, asked.device)
        ],
        command=asked.command,
        commit=measured_variables()["ISTHMUS_BENCH_COMMIT"],
        machine=machine.describe(),
        versions=machine.versions() | versions,
    )


def _write_trace(target: str, events: list[dict[str, Any]]) -> None:
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n")
