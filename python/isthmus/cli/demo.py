"""`isthmus demo` (used by `make run`): runs the SYCL job for all collectives, with tables and a plot."""

from __future__ import annotations

import json
import os
import statistics
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from .. import launch, layout, machine
from .._console import styled
from ..records import Record, Report
from ..sizes import format_size, format_us
from . import options
from .bench import reasons_of
from .console import FAILED, CommandError, note, out, print_json, print_warning, progress
from .measure import main_error_line, measured_variables, stream_lines
from .options import COUNT, flag, option
from .plot import draw_all

USM, BUFFER, HOST = ("isthmus", "sycl_usm"), ("isthmus", "sycl_buffer"), ("isthmus", "host")
LISTING1 = ("listing1", "sycl_buffer")


@click.command()
@option("--ranks", "-n", type=COUNT, help="Number of ranks. Default: one per core, 2 to 4.")
@options.sizes
@option("--collectives", default="", help="List of collectives. Empty: all.")
@flag("--quick", help="Measure a few sizes up to 1 MiB with few samples.")
@option("--out", "folder", type=Path, default="out/run", help="Folder for results.json and results.png.")
@flag("--json", "as_json", help="Print the report instead of the tables.")
def demo(ranks: int | None, sizes: str, collectives: str, quick: bool, folder: Path, as_json: bool) -> None:
    """Verifies and measures all collectives on SYCL USM and buffers with several ranks (in a checkout).

    The job also measures Listing 1 of the paper (MPI through a host_accessor) and MPI on host pointers.
    """
    ranks = ranks or max(2, min(4, len(os.sched_getaffinity(0))))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.json"
    file.unlink(missing_ok=True)
    program = layout.program("sycl_collectives")  # before MPI: an installed package has no such program
    launcher = launch.launcher("mpich")
    command = [*launcher.command(ranks), str(program)]
    command += ["--progress", "json", "--out", str(file)]
    command += ["--quick"] if quick else ["--sizes", sizes]
    command += ["--collectives", collectives] if collectives else []
    if not as_json:
        for line in introduction(ranks, folder):
            out.print(line, soft_wrap=True)
    with machine.OtherLoad() as load:
        _run(command, launch.environment(launcher, ranks) | measured_variables(), is_printed=not as_json)
    report = Report.load(file)
    picture = folder / "results.png"
    draw_all(report.records, picture, f"Isthmus: {ranks} ranks on SYCL, {report.machine.cpu}")
    if as_json:
        print_json(json.loads(report.to_json()))
    else:
        out.print()
        for sentence in summary(report.records):
            out.print(sentence, soft_wrap=True)
        print_warning(machine.unreliable_reason(ranks, load.cores))
        out.print()
        out.print(f"Records: {file}", soft_wrap=True)
        out.print(f"Picture: {picture}", soft_wrap=True)
    wrong = sum(record.wrong or 0 for record in report.records)
    if wrong:
        raise CommandError(f"{wrong} elements are wrong", FAILED)


def introduction(ranks: int, folder: Path) -> list[str]:
    """Returns three lines that describe the output."""
    return [
        f"A SYCL program with {ranks} ranks calls all collectives of Isthmus on USM and on buffers.",
        "It also measures Listing 1 (MPI through a host_accessor, as in current SYCL programs) and MPI.",
        f"All results are verified. Times are those of the slowest rank. Records and plot: {folder}.",
        "",
    ]


def _run(command: list[str], environment: dict[str, str], *, is_printed: bool) -> None:
    """Runs the job and prints the table of each collective when it is complete."""
    current_records: list[Record] = []
    with progress() as progress_display, closing(stream_lines(command, environment)) as lines:
        task = progress_display.add_task("starting (the first run compiles the kernels)", total=None)
        while True:
            try:
                event = _event(next(lines))
            except StopIteration as end:
                code, error_lines = end.value
                break
            if event["event"] == "start":
                progress_display.update(task, total=event["cells"])
                note(_job_description(event))
            elif event["event"] in ("cell", "skipped"):
                label = f"{event['collective']} {format_size(event['bytes'])}"
                progress_display.update(task, completed=event["done"], description=label)
            if event["event"] == "skipped":
                note(f"{event['collective']} of {format_size(event['bytes'])} bytes skipped: {event['reason']}")
            if event["event"] == "left_out":
                note(
                    f"{event['collective']}: {event['provider']} ({event['mode']}) is skipped above "
                    f"{format_size(event['bytes'])} bytes, because a call took {event['seconds']:.2f} s"
                )
            if event["event"] == "cell":
                records = [Record.model_validate(record) for record in event["records"]]
                if current_records and current_records[0].collective != event["collective"]:
                    _print_collective(current_records, is_printed)
                    current_records = []
                current_records += records
    if current_records:
        _print_collective(current_records, is_printed)
    if code not in (0, 2):  # 2: wrong results, which are reported below
        raise CommandError(f"the SYCL job failed with exit code {code}: {main_error_line(error_lines, code)}")


def _event(line: str) -> dict[str, Any]:
    """Parses one line of the job. Other output, e.g. of a library, is printed as a note."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    if isinstance(event, dict) and "event" in event:
        return event
    note(line.rstrip())
    return {"event": "output"}


def _job_description(event: dict[str, Any]) -> str:
    reason = event.get("sycl", {}).get("reason", "")
    cores = len(os.sched_getaffinity(0))
    return (
        f"{event['ranks']} ranks on {event['device']} ({cores} cores); kernels by {event['kernels']}"
        f"{'; calls: ' + reason if reason else ''}"
    )


def _print_collective(records: list[Record], is_printed: bool) -> None:
    if is_printed:
        out.print(table_of(records))
        for reason in reasons_of([record for record in records if record.path == USM]):
            out.print(f"  {reason}")
        out.print()


def table_of(records: list[Record]) -> Table:
    """Returns the table of one collective: one row per size, with all times for USM and medians for
    the other paths."""
    table = Table(
        title=f"{records[0].collective}, float32, us (max over ranks)",
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
    )
    plain_provider = next(
        (record.provider for record in records if record.provider not in ("isthmus", "listing1")), "mpi"
    )
    headings = ("bytes", "USM min", "median", "max", "algbw GB/s", "busbw GB/s", "buffer", "C API", "Listing 1")
    for heading in (*headings, plain_provider, "vs Listing 1", "vs " + plain_provider):
        table.add_column(heading, justify="right")
    table.add_column("verified")
    for size in dict.fromkeys(record.bytes for record in records):
        table.add_row(
            *_row({record.path: record for record in records if record.bytes == size}, (plain_provider, "host"))
        )
    return table


def _row(paths: dict[tuple[str, str], Record], plain_provider: tuple[str, str]) -> list[str | Text]:
    own = paths[USM]
    time = own.time_us
    wrong = sum(record.wrong or 0 for record in paths.values())

    def median(path: tuple[str, str]) -> str:
        return format_us(paths[path].time_us.median) if path in paths else ""

    def ratio(path: tuple[str, str]) -> str | Text:
        if path not in paths or not time.median:
            return ""
        value = paths[path].time_us.median / time.median
        return styled(f"{value:.2f}x", "green" if value >= 1 else "red")

    return [
        format_size(own.bytes),
        *(format_us(value) for value in (time.min, time.median, time.max)),
        f"{own.algbw_gbs:.3f}",
        f"{own.busbw_gbs:.3f}",
        *(median(path) for path in (BUFFER, HOST, LISTING1, plain_provider)),
        ratio(LISTING1),
        ratio(plain_provider),
        styled("yes", "green") if wrong == 0 else styled(f"{wrong} wrong", "red"),
    ]


def summary(records: list[Record]) -> list[str]:
    """Returns sentences that summarize the tables."""
    by_point: dict[tuple, dict[tuple[str, str], Record]] = {}
    for record in records:
        by_point.setdefault(record.point, {})[record.path] = record
    points = [point for point in by_point.values() if USM in point and LISTING1 in point and point[USM].bytes]
    sentences = []
    if points:
        ratios = {id(point): point[LISTING1].time_us.median / point[USM].time_us.median for point in points}
        faster_points = [point for point in points if ratios[id(point)] >= 1]
        sentences.append(
            f"Isthmus on USM is faster than Listing 1 at {len(faster_points)} of {len(points)} points, "
            f"median ratio {statistics.median(ratios.values()):.2f}x."
        )
        large_points = [point for point in points if point[USM].bytes >= 1 << 20]
        if large_points:
            median_ratio = statistics.median(ratios[id(point)] for point in large_points)
            slowest = min(large_points, key=lambda point: ratios[id(point)])
            sentences[-1] += (
                f" From 1 MiB the median ratio is {median_ratio:.2f}x, the lowest {ratios[id(slowest)]:.2f}x "
                f"({slowest[USM].collective}, {format_size(slowest[USM].bytes)})."
            )
        slower_collectives = sorted({point[USM].collective for point in points if ratios[id(point)] < 1})
        if slower_collectives:
            sentences.append(f"It is slower than Listing 1 for some sizes of: {', '.join(slower_collectives)}.")
        sentences += _largest_allreduce(points)
    sentences.append(_selection_sentence(records))
    checked = sum(record.wrong is not None for record in records)
    wrong = sum(record.wrong or 0 for record in records)
    sentences.append(f"{checked} of {len(records)} measurements were verified; {wrong} elements are wrong.")
    return sentences


def _largest_allreduce(points: list[dict[tuple[str, str], Record]]) -> list[str]:
    allreduce_points = [point for point in points if point[USM].collective == "allreduce"]
    if not allreduce_points:
        return []
    point = max(allreduce_points, key=lambda point: point[USM].bytes)
    own, other = point[USM], point[LISTING1]
    return [
        f"An allreduce of {format_size(own.bytes)} takes {format_us(own.time_us.median)} us on USM and "
        f"{format_us(other.time_us.median)} us with Listing 1."
    ]


def _selection_sentence(records: list[Record]) -> str:
    counts: dict[str, int] = {}
    sources: dict[str, None] = {}
    for record in records:
        if record.path == USM:
            counts[record.backend] = counts.get(record.backend, 0) + 1
            sources[record.reason.rpartition("(")[2].rstrip(")")] = None
    backend_counts = ", ".join(f"{count} used {backend}" for backend, count in counts.items())
    return (
        f"Of {sum(counts.values())} calls on USM, {backend_counts}. The rules are from: {', '.join(sources)}."
    )
