"""Plots of reports: latency and bandwidth over size on log axes, one line per path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..layout import import_optional
from ..records import Record
from ..sizes import format_size
from . import svg

# Color-blind safe palette (Okabe and Ito). Isthmus paths have warm colors and solid lines, and are
# drawn on top.
_OWN_COLORS = {
    "sycl_usm": "#D55E00",
    "sycl_buffer": "#E69F00",
    "host": "#8C2D04",
    "host_usm": "#CC79A7",
    "shared_heap": "#CC79A7",
    "graph": "#D55E00",
    "in_place": "#E69F00",
    "stream": "#8C2D04",
    "bf16_wire": "#CC79A7",
    "torch": "#D55E00",
}
_PEER_COLORS = {
    "listing1": "#0072B2",
    "mpich": "#56B4E9",
    "openmpi": "#009E73",
    "impi": "#666666",
    "nccl": "#0072B2",
    "nccl_symmetric": "#56B4E9",
    "torch_one_shot": "#009E73",
    "torch_two_shot": "#666666",
    "gloo": "#0072B2",
}
_FALLBACK_COLORS = ("#000000", "#AAAAAA", "#7A0177", "#F0E442")
_MODE_LABELS = {
    "shared_heap": "heap",
    "host_usm": "C API on USM",
    "sycl_usm": "SYCL USM",
    "sycl_usm_task": "SYCL USM, host tasks",
    "sycl_buffer": "SYCL buffer",
}
_PROVIDER_LABELS = {
    "isthmus": "Isthmus",
    "listing1": "Listing 1",
    "mpich": "MPICH",
    "openmpi": "Open MPI",
    "impi": "Intel MPI",
}
_MARKERS = "osD^vP*X"
SHARE = "communication_share"  # share of a step; a field of application records
_TITLES = {"time": "Time of one call (lower is better)", "bandwidth": "Bus bandwidth (higher is better)"}


def path_name(record: Record) -> str:
    """Returns the name of a path for tables: provider and, unless it is the default, mode."""
    if record.mode == "host" or record.provider == "listing1":
        return record.provider
    return f"{record.provider} {_MODE_LABELS.get(record.mode, record.mode)}"


def _label(record: Record) -> str:
    """Returns the name of a path for legends."""
    name = _PROVIDER_LABELS.get(record.provider, record.provider)
    if record.provider != "isthmus":
        return name
    return f"{name}, {_MODE_LABELS.get(record.mode, 'C API' if record.mode == 'host' else record.mode)}"


def draw(records: list[Record], target: Path | str, title: str) -> None:
    """Writes a plot of one collective: latency and bandwidth. The file extension selects PNG, SVG or PDF."""
    with _pyplot() as pyplot:
        figure, (latency, bandwidth) = pyplot.subplots(1, 2, figsize=(12.5, 5.4), layout="constrained")
        _draw_pair(records, latency, bandwidth)
        _finish(pyplot, figure, latency, target, title)


def draw_all(records: list[Record], target: Path | str, title: str) -> None:
    """Writes a plot of several collectives: a large plot of allreduce (or of the first collective) and small
    plots of the others."""
    names = list(dict.fromkeys(record.collective for record in records if record.bytes))
    main_collective = "allreduce" if "allreduce" in names else names[0]
    others = [name for name in names if name != main_collective]
    columns = 4
    rows = -(-len(others) // columns)
    with _pyplot() as pyplot:
        figure = pyplot.figure(figsize=(14, 6 + 2.7 * rows), layout="constrained")
        grid = figure.add_gridspec(rows + 2, columns)
        latency = figure.add_subplot(grid[0:2, 0:2])
        bandwidth = figure.add_subplot(grid[0:2, 2:4])
        _draw_pair([record for record in records if record.collective == main_collective], latency, bandwidth)
        latency.set_title(f"{main_collective}: time of one call (lower is better)")
        bandwidth.set_title(f"{main_collective}: bus bandwidth (higher is better)")
        for index, name in enumerate(others):
            axes = figure.add_subplot(grid[2 + index // columns, index % columns])
            shown_records = [record for record in records if record.collective == name]
            _draw_lines(axes, shown_records, lambda record: record.time_us.median, small=True)
            _decorate(axes, shown_records, "us" if index % columns == 0 else "", ticks=4)
            axes.set_title(name, fontsize=10)
        _finish(pyplot, figure, latency, target, title)


def draw_predictions(
    panels: list[tuple[str, Callable[[int], str], list[svg.Series]]], target: Path | str, title: str
) -> None:
    """Writes predicted times in microseconds. A panel has a title, the format of its x axis, and its lines.

    The last panel has all lines, so the legend shows it.
    """
    with _pyplot() as pyplot:
        figure, axes_of_panels = pyplot.subplots(1, len(panels), figsize=(12.5, 5.4), layout="constrained")
        for axes, (panel_title, format_x, series) in zip(axes_of_panels, panels, strict=True):
            for index, line in enumerate(series):
                style = {"color": line.color, "linestyle": "--" if line.is_dashed else "-"}
                axes.plot(*zip(*line.values, strict=True), label=line.label, marker=_MARKERS[index], **style)
            _set_scales(axes, sorted({x for line in series for x, _ in line.values}), format_x, "us", ticks=8)
            axes.set_title(panel_title)
        _finish(pyplot, figure, axes_of_panels[-1], target, title)


# Replacements of colors that are hard to see on a dark page.
_PAGE_COLORS = {"#000000": "currentColor", "#8C2D04": "#B3541E", "#666666": "#8A8A8A"}


def collective_svg(records: list[Record], quantity: str) -> str:
    """Returns the SVG of one collective for a page. `quantity` is "time" or "bandwidth".

    The plot of the bandwidth has no legend: it follows that of the times, which has the same lines.
    """
    is_time = quantity == "time"
    series = [
        svg.Series(
            label=_label(points[0]),
            color=_PAGE_COLORS.get(color, color),
            values=[(point.bytes, point.time_us.median if is_time else point.busbw_gbs) for point in points],
            is_dashed=not is_own,
        )
        for points, color, is_own in _lines(records)
    ]
    unit = "us" if is_time else "GB/s"
    return svg.line_chart(_TITLES[quantity], unit, series, format_size, has_legend=is_time)


def steps_svg(records: list[Record]) -> str:
    """Returns the SVG of an application for a page: one bar per path, with the share of communication."""
    labels = [f"{_label(record)}, {format_size(record.bytes)}" for record in records]
    steps = [record.time_us.median for record in records]
    communication = [step * getattr(record, SHARE) for step, record in zip(steps, records, strict=True)]
    computation = [step - part for step, part in zip(steps, communication, strict=True)]
    return svg.bar_chart(
        "Time of one step (lower is better)",
        "us",
        labels,
        [
            svg.Series("communication", "#D55E00", list(enumerate(communication))),
            svg.Series("computation", "#56B4E9", list(enumerate(computation))),
        ],
    )


def _lines(records: list[Record]) -> Iterator[tuple[list[Record], str, bool]]:
    """Yields each line of a plot: its points by size, its color, and whether it is a path of Isthmus."""
    lines: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda record: record.bytes):
        if record.bytes:
            lines.setdefault(record.path, []).append(record)
    fallback_colors = iter(_FALLBACK_COLORS * len(lines))
    for (provider, mode), points in lines.items():
        is_own = provider == "isthmus"
        color = _OWN_COLORS.get(mode) if is_own else _PEER_COLORS.get(provider)
        yield points, color or next(fallback_colors), is_own


@contextmanager
def _pyplot() -> Iterator[Any]:
    import_optional("matplotlib").use("Agg")  # works without a display
    pyplot = import_optional("matplotlib.pyplot")
    with pyplot.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        yield pyplot


def _draw_pair(records: list[Record], latency: Any, bandwidth: Any) -> None:
    _draw_lines(latency, records, lambda record: record.time_us.median, small=False)
    _draw_lines(bandwidth, records, lambda record: record.busbw_gbs, small=False)
    _decorate(latency, records, "us, median of the maximum over ranks", ticks=8)
    _decorate(bandwidth, records, "GB/s", ticks=8)
    latency.set_title(_TITLES["time"])
    bandwidth.set_title(_TITLES["bandwidth"])


def _draw_lines(axes: Any, records: list[Record], value: Any, *, small: bool) -> None:
    for index, (points, color, is_own) in enumerate(_lines(records)):
        axes.plot(
            [point.bytes for point in points],
            [value(point) for point in points],
            label=_label(points[0]),
            color=color,
            marker=None if small else _MARKERS[index % len(_MARKERS)],
            markersize=4.5,
            linewidth=(1.6 if small else 2.0) if is_own else (1.1 if small else 1.4),
            linestyle="-" if is_own else "--",
            zorder=3 if is_own else 2,
        )


def _decorate(axes: Any, records: list[Record], ylabel: str, *, ticks: int) -> None:
    _set_scales(
        axes, sorted({record.bytes for record in records if record.bytes}), format_size, ylabel, ticks=ticks
    )


def _set_scales(axes: Any, xs: list[int], format_x: Callable[[int], str], ylabel: str, *, ticks: int) -> None:
    shown_xs = xs[:: max(1, -(-len(xs) // ticks))]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xticks(shown_xs, [format_x(x) for x in shown_xs])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True, which="major", alpha=0.25)
    axes.set_ylabel(ylabel)


def _finish(pyplot: Any, figure: Any, legend_axes: Any, target: Path | str, title: str) -> None:
    handles, labels = legend_axes.get_legend_handles_labels()
    figure.suptitle(title, fontweight="bold", fontsize=13)
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130)
    pyplot.close(figure)
