"""Small static SVG plots. Uses only the standard library, so that scripts can load this file alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

_WIDTH, _LEFT, _RIGHT, _TOP = 620, 74, 22, 30
_PLOT_HEIGHT, _LEGEND_LINE = 300, 20
_LEGEND_COLUMNS = 3
# The style sheet of a page sets the color and the font of its plots. A file of its own has a white background.
_ALONE = (
    f'xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" fill="#1f2328" '
    'font-family="system-ui, sans-serif" font-size="12" '
)


@dataclass(frozen=True)
class Series:
    """One line of a plot, or one part of all bars."""

    label: str
    color: str
    values: Sequence[tuple[float, float]]  # (x, y); for bars, y is the length
    is_dashed: bool = False
    has_points: bool = False  # points without a line


def line_chart(
    title: str,
    unit: str,
    series: Sequence[Series],
    format_x: Callable[[int], str],
    *,
    alone: bool = False,
    has_legend: bool = True,
) -> str:
    """Returns a plot with logarithmic axes. Values that are not positive are omitted."""
    visible = [
        [(math.log10(x), math.log10(y)) for x, y in sorted(line.values) if x > 0 and y > 0] for line in series
    ]
    points = [point for line in visible for point in line] or [(0.0, 0.0)]
    xs, ys = sorted({x for x, _ in points}), [y for _, y in points]
    low, high = math.floor(min(ys)), max(math.ceil(max(ys)), math.floor(min(ys)) + 1)
    width, bottom = _WIDTH - _LEFT - _RIGHT, _TOP + _PLOT_HEIGHT

    def place_x(x: float) -> float:
        return _LEFT + width * (x - xs[0]) / ((xs[-1] - xs[0]) or 1)

    def place_y(y: float) -> float:
        return bottom - _PLOT_HEIGHT * (y - low) / (high - low)

    parts = [_text(_LEFT + width / 2, 16, title, "middle", 14), _text(4, 16, unit)]
    grid, x_labels, y_labels = "", "", ""
    for power in range(low, high + 1):
        grid += f"M{_LEFT} {place_y(power):.0f}h{width}"
        y_labels += _text(_LEFT - 6, place_y(power) + 4, _power(power))
    for x in xs[:: -(-len(xs) // 6)]:
        grid += f"M{place_x(x):.0f} {bottom}v4"
        x_labels += _text(place_x(x), bottom + 18, format_x(round(10**x)))
    parts.append(f'<path d="{grid}" stroke="#888" stroke-opacity=".4"/>')
    parts.append(f'<g text-anchor="end">{y_labels}</g><g text-anchor="middle">{x_labels}</g>')
    paths = []
    for line, placed in zip(series, visible, strict=True):
        places = [(round(place_x(x)), round(place_y(y))) for x, y in placed]
        path = "".join(f"M{x} {y}h0" for x, y in places) if line.has_points else _polyline(places)
        paths.append(path if placed else "")
    if not has_legend:
        return _document(parts + _grouped(series, paths, [""] * len(series)), bottom + 28, title, alone)
    legend, texts = _legend(series, bottom + 28)
    parts += _grouped(series, paths, legend) + texts
    return _document(parts, bottom + 28 + _legend_height(series), title, alone)


def bar_chart(title: str, unit: str, labels: Sequence[str], series: Sequence[Series]) -> str:
    """Returns horizontal bars, one per label. Each series adds a part to each bar."""
    left, step = 230, 26
    width, bottom = _WIDTH - left - _RIGHT, _TOP + step * len(labels)
    totals = [sum(part.values[index][1] for part in series) for index in range(len(labels))]
    scale = width / (max(totals, default=0) or 1)
    parts = [_text(_WIDTH / 2, 16, title, "middle", 14)]
    for index, label in enumerate(labels):
        y, x = _TOP + step * index, float(left)
        parts.append(_text(left - 8, y + 16, label, "end"))
        for part in series:
            length = part.values[index][1] * scale
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 3}" width="{length:.1f}" height="{step - 8}" fill="{part.color}"/>'
            )
            x += length
        parts.append(_text(min(x + 4, _WIDTH - 4), y + 16, f"{totals[index]:.4g} {unit}"))
    legend, texts = _legend(series, bottom + 10)
    parts += _grouped(series, [""] * len(series), legend) + texts
    return _document(parts, bottom + 10 + _legend_height(series), title, alone=False)


def _power(exponent: int) -> str:
    return f"{10**exponent:,}" if exponent >= 0 else f"{10**exponent:g}"


def _text(x: float, y: float, text: str, anchor: str = "", size: int = 0) -> str:
    position = f' text-anchor="{anchor}"' if anchor else ""
    font = f' font-size="{size}"' if size else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{position}{font}>{escape(text)}</text>'


def _polyline(places: Sequence[tuple[int, int]]) -> str:
    """Returns a path with relative coordinates, which are shorter. A minus sign also separates numbers."""
    steps = ((x - before_x, y - before_y) for (before_x, before_y), (x, y) in pairwise(places))
    path = " ".join(f"{x} {y}" for x, y in steps if (x, y) != (0, 0)).replace(" -", "-")
    return f"M{places[0][0]} {places[0][1]}l{path or '0 0'}" if len(places) > 1 else ""


def _shape(line: Series) -> str:
    if line.has_points:
        return 'stroke-width="5" stroke-linecap="round" stroke-opacity=".5"'
    return 'stroke-width="1.5" stroke-dasharray="5 3"' if line.is_dashed else 'stroke-width="2.5"'


def _grouped(series: Sequence[Series], paths: Sequence[str], legend: Sequence[str]) -> list[str]:
    """Returns the lines and their samples in the legend. Lines of the same shape share its attributes."""
    groups: dict[str, str] = {}
    for line, path, sample in zip(series, paths, legend, strict=True):
        drawn = f'<path d="{path}{sample}" stroke="{line.color}"/>'
        groups[_shape(line)] = groups.get(_shape(line), "") + drawn
    return [f'<g fill="none" {shape}>{drawn}</g>' for shape, drawn in groups.items()]


def _legend_height(series: Sequence[Series]) -> int:
    return 8 + _LEGEND_LINE * -(-len(series) // _LEGEND_COLUMNS)


def _legend(series: Sequence[Series], top: float) -> tuple[list[str], list[str]]:
    """Returns the path of the sample and the text of each line."""
    samples, texts = [], []
    for index, line in enumerate(series):
        x = _LEFT + (_WIDTH - _LEFT) / _LEGEND_COLUMNS * (index % _LEGEND_COLUMNS)
        y = top + 12 + _LEGEND_LINE * (index // _LEGEND_COLUMNS)
        samples.append(f"M{x:.0f} {y:.0f}h24")
        texts.append(_text(x + 30, y + 4, line.label))
    return samples, texts


def _document(parts: Sequence[str], height: float, title: str, alone: bool) -> str:
    background = f'<rect width="{_WIDTH}" height="{height:.0f}" fill="#ffffff"/>' if alone else ""
    return (
        f'<svg {_ALONE if alone else ""}viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">'
        f"{background}{''.join(parts)}</svg>"
    )
