#!/usr/bin/env python3
"""A training run on GPUs loses a rank and goes on with the others: check_shrink.py OUT.json [RANKS].

examples/elastic/train.py, over NCCL, where the last rank is lost, and over peer memory, where rank 0 is: with
two ranks one goes on alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import sharing
import torch
import torch.multiprocessing as multiprocessing

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples/elastic"))
import train

LIMIT_S = 60  # for all ranks, set-up, the timeout and a library's own abort included
STEPS = 40


def play(number: int, options: argparse.Namespace, folder: str, wanted: str) -> None:
    os.environ["ISTHMUS_RULE"] = f"collective=allreduce platform=cuda use={wanted}"
    sharing.enter(number, options.ranks)
    with Path(folder, f"said.{number}").open("w", buffering=1) as said, redirect_stdout(said):
        train.train(number, options, f"{folder}/store")


def problem_of(codes: list[int | None], lost: int, texts: list[str]) -> str:
    size = len(codes)
    wanted = [-signal.SIGKILL if rank == lost else 0 for rank in range(size)]
    if codes != wanted:
        return f"exit codes {codes}, not {wanted} (None: still running after {LIMIT_S} s)"
    first = texts[0 if lost != 0 else 1]
    said = re.search(rf"^{size - 1} ranks, loss ([\d.]+) -> ([\d.]+)$", first, re.M)
    if said is None or float(said[2]) > float(said[1]) / 2:
        return f"the survivors did not go on: {first[-500:]!r}"
    if re.search(r"^rank \d+, step \d+: ", first, re.M) is None:
        return "nobody was told of the loss"
    return ""


def run(size: int, lost: int, wanted: str) -> dict[str, Any]:
    options = argparse.Namespace(ranks=size, steps=STEPS, lose=lost, at=10, timeout=8.0, device="cuda")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=play, args=(number, options, folder, wanted)) for number in range(size)]
        for rank in ranks:
            rank.start()
        end = time.monotonic() + LIMIT_S
        for rank in ranks:
            rank.join(max(0.0, end - time.monotonic()))
        codes = [rank.exitcode for rank in ranks]
        for rank in ranks:
            rank.kill()
            rank.join()
        texts = [Path(folder, f"said.{number}") for number in range(size)]
        said = [text.read_text() if text.exists() else "" for text in texts]
    return {"path": wanted, "lost": lost, "said": said, "problem": problem_of(codes, lost, said)}


def main() -> None:
    size = int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count()
    results = [run(size, size - 1, "nccl"), run(size, 0, "p2p")]
    for result in results:
        print(json.dumps(result), flush=True)
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
    if any(result["problem"] for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
