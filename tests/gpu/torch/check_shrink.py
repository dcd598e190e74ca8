#!/usr/bin/env python3
"""A training run on GPUs loses a rank and continues with the others: check_shrink.py OUT.json [RANKS].

Runs examples/elastic/train.py with NCCL, losing the last rank, and with p2p, losing rank 0. With two ranks, a
single rank continues.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import ranks
import sharing
import torch

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples/elastic"))
import train

LIMIT_S = 60  # for all ranks, including setup, the timeout and a library's own abort
STEPS = 40


def run_rank(number: int, options: argparse.Namespace, folder: str, backend: str) -> None:
    os.environ["ISTHMUS_RULE"] = f"collective=allreduce platform=cuda use={backend}"
    sharing.enter(number, options.ranks)
    with Path(folder, f"output.{number}").open("w", buffering=1) as output, redirect_stdout(output):
        train.train(number, options, f"{folder}/store")


def problem_of(codes: list[int | None], lost: int, texts: list[str]) -> str:
    size = len(codes)
    expected = [-signal.SIGKILL if rank == lost else 0 for rank in range(size)]
    if codes != expected:
        return f"exit codes {codes}, not {expected} (None: still running after {LIMIT_S} s)"
    first = texts[0 if lost != 0 else 1]
    losses = re.search(rf"^{size - 1} ranks, loss ([\d.]+) -> ([\d.]+)$", first, re.M)
    if losses is None or float(losses[2]) > float(losses[1]) / 2:
        return f"the survivors did not continue: {first[-500:]!r}"
    if re.search(r"^rank \d+, step \d+: ", first, re.M) is None:
        return "no rank reported the lost rank"
    return ""


def run(size: int, lost: int, backend: str) -> dict[str, Any]:
    options = argparse.Namespace(ranks=size, steps=STEPS, lose=lost, at=10, timeout=8.0, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(rank, options, folder, backend) for rank in range(size)]
        codes = ranks.run_with_losses(run_rank, arguments, LIMIT_S)
        texts = [Path(folder, f"output.{number}") for number in range(size)]
        output = [text.read_text() if text.exists() else "" for text in texts]
    return {"path": backend, "lost": lost, "output": output, "problem": problem_of(codes, lost, output)}


def main() -> None:
    size = int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count()
    ranks.write_results([run(size, size - 1, "nccl"), run(size, 0, "p2p")], Path(sys.argv[1]))


if __name__ == "__main__":
    main()
