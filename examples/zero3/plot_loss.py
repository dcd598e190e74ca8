#!/usr/bin/env python3
"""Plots the losses of two runs and their difference: plot_loss.py off.json on.json loss.png."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def plot(first: Path, second: Path, picture: Path) -> float:
    """Writes the picture; returns the largest difference between the losses of a step."""
    off, on = (json.loads(path.read_text()) for path in (first, second))
    steps = min(len(off["losses"]), len(on["losses"]))
    differences = [abs(a - b) for a, b in zip(off["losses"], on["losses"], strict=False)]
    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 5), height_ratios=(3, 1), layout="constrained"
    )
    above.plot(off["losses"], label=first.stem, linewidth=3, alpha=0.5)
    above.plot(on["losses"], label=second.stem, linewidth=1)
    above.set(ylabel="loss", title=f"{off['framework']}, {off['model']}, {off['ranks']} ranks, {steps} steps")
    above.legend()
    below.plot(differences)
    below.set(xlabel="step", ylabel="|difference|")
    figure.savefig(picture, dpi=120)
    return max(differences)


if __name__ == "__main__":
    print(f"largest difference: {plot(*map(Path, sys.argv[1:4]))}")
