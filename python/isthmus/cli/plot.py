"""Pictures of reports: latency and bandwidth over size, one line per path."""

from __future__ import annotations

from pathlib import Path

from ..records import Record
from ..sizes import format_size

# Colour-blind safe (Okabe and Ito); Isthmus' own paths first, warm, drawn above the others.
_OWN = ("#D55E00", "#CC79A7", "#E69F00", "#8C2D04", "#7A0177")
_OTHERS = ("#0072B2", "#009E73", "#56B4E9", "#666666", "#AAAAAA", "#000000")
_MARKERS = "osD^vP*X"


def path_name(record: Record) -> str:
    """A path as pictures and tables call it: provider, and its mode where it is not the plain one."""
    return record.provider if record.mode == "host" else f"{record.provider} {record.mode}"


def draw(records: list[Record], target: Path | str, title: str) -> None:
    """Writes a picture (PNG, SVG or PDF, by the name) of one collective, dtype and op."""
    import matplotlib

    matplotlib.use("Agg")  # no display is needed
    from matplotlib import pyplot

    lines = _lines(records)
    with pyplot.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (latency, bandwidth) = pyplot.subplots(1, 2, figsize=(12.5, 5.2), layout="constrained")
        own = others = 0
        for name, points in lines.items():
            is_own = points[0].provider == "isthmus"
            color = _OWN[own % len(_OWN)] if is_own else _OTHERS[others % len(_OTHERS)]
            style = {
                "color": color,
                "marker": _MARKERS[(own if is_own else others) % len(_MARKERS)],
                "markersize": 4.5,
                "linewidth": 2.2 if is_own else 1.4,
                "linestyle": "-" if is_own else "--",
                "zorder": 3 if is_own else 2,
            }
            own, others = own + is_own, others + (not is_own)
            sizes = [point.bytes for point in points]
            latency.plot(sizes, [point.time_us.median for point in points], label=name, **style)
            if is_own:
                low = [point.time_us.min for point in points]
                latency.fill_between(sizes, low, [p.time_us.median for p in points], color=color, alpha=0.12)
            bandwidth.plot(sizes, [point.busbw_gbs for point in points], label=name, **style)
        _decorate(latency, records, "time of one call, us (median)", "Latency: lower is better")
        _decorate(bandwidth, records, "bus bandwidth, GB/s", "Bandwidth: higher is better")
        latency.legend(frameon=False, loc="upper left")
        figure.suptitle(title, fontweight="bold")
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=140)
        pyplot.close(figure)


def _lines(records: list[Record]) -> dict[str, list[Record]]:
    lines: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.provider != "isthmus", record.bytes)):
        if record.bytes:
            lines.setdefault(path_name(record), []).append(record)
    return lines


def _decorate(axes, records: list[Record], ylabel: str, title: str) -> None:
    sizes = sorted({record.bytes for record in records if record.bytes})
    shown = sizes[:: max(1, len(sizes) // 8)]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(shown, [format_size(size) for size in shown])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True, which="major", alpha=0.25)
    axes.set_xlabel("bytes")
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=11)
