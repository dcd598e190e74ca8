"""Plot of one run: copies and products over time, one row per rank and track."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..layout import import_optional

_COLORS = {"compute": "#D55E00", "copy": "#0072B2", "stage": "#999999"}


def draw_timeline(events: list[dict[str, Any]], target: Path | str, title: str) -> None:
    """Writes a plot of Chrome trace events. The file extension selects PNG, SVG or PDF."""
    import_optional("matplotlib").use("Agg")  # works without a display
    pyplot = import_optional("matplotlib.pyplot")
    patch = import_optional("matplotlib.patches").Patch
    run_events = [event for event in events if event["ph"] == "X"]
    rows = sorted({(event["pid"], event["tid"], event["cat"]) for event in run_events})
    begin = min(event["ts"] for event in run_events)
    span = max(event["ts"] + event["dur"] for event in run_events) - begin
    figure, axes = pyplot.subplots(figsize=(12, 0.9 + 0.5 * len(rows)), layout="constrained")
    for index, (rank, track, _) in enumerate(rows):
        row_events = [event for event in run_events if (event["pid"], event["tid"]) == (rank, track)]
        axes.broken_barh(
            [(event["ts"] - begin, event["dur"]) for event in row_events],
            (index - 0.4, 0.8),
            facecolors=[_COLORS[event["cat"]] for event in row_events],
            edgecolor="white",
            linewidth=0.8,
        )
        for event in row_events:
            if event["dur"] > 0.1 * span:  # about as wide as its name
                center = event["ts"] - begin + event["dur"] / 2
                axes.text(center, index, event["name"], ha="center", va="center", color="white", fontsize=8)
    axes.set_yticks(range(len(rows)), [f"rank {rank} {name}" for rank, _, name in rows])
    axes.invert_yaxis()
    axes.set_xlabel("us")
    axes.set_title(title)
    categories = list(dict.fromkeys(name for _, _, name in rows))
    figure.legend(
        handles=[patch(color=_COLORS[name], label=name) for name in categories],
        loc="outside lower center",
        ncols=len(categories),
        frameon=False,
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130)
    pyplot.close(figure)
