"""Content of the page of `isthmus report`. The template is page.html.j2."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..analysis import Ratio, RecordGroup, group_records, median_of, regrets, speedup, speedups
from ..layout import import_optional
from ..records import Record, Report, best_peers, utc_now
from ..sizes import format_size, format_us
from .bench import reasons_of
from .plot import SHARE, collective_svg, path_name, steps_svg

MIN_SIZES = 4  # required for a plot; a table shows fewer points better
MAX_PATHS = 7  # in a plot; the table contains all
MIN_SHOWN_REGRET = 1.05  # smaller values are not listed
HOST_MODES = {"host", "shared_heap", "c", "mpi", "python"}


@dataclass(frozen=True)
class Source:
    """A file of records."""

    name: str
    report: Report


def page(sources: Iterable[Source], unreadable: dict[str, str], command: str) -> str:
    """Returns the HTML text, which is self-contained."""
    jinja2 = import_optional("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        sections=[_section(source) for source in sources],
        unreadable=list(unreadable.values()),
        command=command,
        version=__version__,
        date=f"{utc_now():%Y-%m-%d %H:%M} UTC",
    )


def _section(source: Source) -> dict[str, Any]:
    records = source.report.records
    return {
        "name": source.name,
        "report": source.report,
        "versions": ", ".join(f"{name} {version}" for name, version in source.report.versions.items()),
        "summary": _summary(records),
        "groups": [_group(group) for group in group_records(records)],
    }


def _summary(records: list[Record]) -> dict[str, str]:
    checked = [record.wrong for record in records if record.wrong is not None]
    speedup_ratios = speedups(records)
    regret_ratios = regrets(records)
    return {
        "records": str(len(records)),
        "wrong": f"{sum(checked)} in {len(checked)} checked records" if checked else "not checked",
        "speedup": _describe_ratios(speedup_ratios, min) if speedup_ratios else "no peer",
        "regret": _describe_ratios(regret_ratios, max) if regret_ratios else "no other path",
    }


def _describe_ratios(ratios: list[Ratio], select_worst: Any) -> str:
    worst = select_worst(ratios, key=lambda ratio: ratio.value)
    record = worst.record
    return (
        f"median {median_of(ratios):.2f} of {len(ratios)} points, worst {worst.value:.2f} "
        f"({path_name(record)}, {record.collective}, {format_size(record.bytes)})"
    )


def _group(group: RecordGroup) -> dict[str, Any]:
    return {
        "title": group.title,
        "commands": group.commands,
        "pictures": _pictures(group),
        "table": _table(group),
        "reasons": reasons_of(group.records),
        "regrets": [
            f"{format_size(ratio.record.bytes)}: {ratio.record.backend}, {ratio.value:.2f} times the best time"
            for ratio in regrets(group.records)
            if ratio.value > MIN_SHOWN_REGRET
        ],
    }


def _pictures(group: RecordGroup) -> list[str]:
    if all(hasattr(record, SHARE) for record in group.records):
        return [steps_svg(group.records)]
    paths = {record.path for record in group.records}
    if len(group.sizes) < MIN_SIZES or group.sizes[0] == 0 or len(paths) > MAX_PATHS:
        return []
    pictures = [collective_svg(group.records, "time")]
    # A single rank has no bandwidth. On hosts, it shows nothing that the times do not show.
    if any(record.busbw_gbs and record.mode not in HOST_MODES for record in group.records):
        pictures.append(collective_svg(group.records, "bandwidth"))
    return pictures


def _table(group: RecordGroup) -> dict[str, Any]:
    """Returns the headings and the rows. Each cell consists of its text and "good", "bad" or ""."""
    records_by_cell = _cells(group)
    columns = list(dict.fromkeys(column for column, _ in records_by_cell))
    best = best_peers(group.records)
    rows = []
    for size in group.sizes:
        cells = [(format_size(size), "")]
        for column in columns:
            record = records_by_cell.get((column, size))
            cells.append((format_us(record.time_us.median), "") if record else ("", ""))
            if column[0].startswith("isthmus") and best:
                cells.append(_ratio(record, best.get(record.point) if record else None))
        rows.append(cells)
    headings = ["bytes"]
    for column in columns:
        headings.append(" ".join(part for part in column if part) + ", us")
        if column[0].startswith("isthmus") and best:
            headings.append("speedup over best peer")
    return {"headings": headings, "rows": rows}


def _cells(group: RecordGroup) -> dict[tuple[tuple[str, str], int], Record]:
    """Returns the record of each column and size. A column is a path, and its backend if the file contains
    several backends for the same path and size."""
    backends: dict[tuple, set[str]] = {}
    for record in group.records:
        backends.setdefault((record.path, record.bytes), set()).add(record.backend)
    return {
        (
            (path_name(record), record.backend if len(backends[record.path, record.bytes]) > 1 else ""),
            record.bytes,
        ): record
        for record in group.records
    }


def _ratio(record: Record | None, peer: Record | None) -> tuple[str, str]:
    ratio = speedup(record, peer) if record else None
    return ("", "") if ratio is None else (f"{ratio:.2f}", "good" if ratio >= 1 else "bad")
