"""DDP, FSDP2 and the like of tests/python/torch/unchanged under torchrun: what check_unchanged.py and
check_nccl_preload.py do alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import sharing

SCRIPTS = Path(__file__).resolve().parents[2] / "python/torch/unchanged"
LIMIT_S = 90
TOLERANCE = 1e-4  # sums of floats in another order

Losses = list[list[float]]  # by rank


def train(
    script: str, ranks: int, before: list[str], variables: dict[str, str], isolated: bool = False
) -> tuple[Losses, str]:
    """Losses, and what was printed. `before` stands between Python and the script's file."""
    on_gpus = variables["DEVICE"] == "cuda"
    each, shared = sharing.under_torchrun(ranks, isolated) if on_gpus else (["--no-python"], {})
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [*launcher, *each, sys.executable, *before, str(SCRIPTS / f"{script}.py"), folder],
            env=os.environ | shared | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"{script} {' '.join(before)} ended with {done.returncode}: {done.stdout[-3000:]}"
            )
        results = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
    return [result["losses"] for result in results], done.stdout


def judge(ours: Losses, theirs: Losses) -> tuple[float, str]:
    """The largest relative difference, and what is wrong with the losses or ""."""
    difference = max(
        abs(mine - other) / abs(other)
        for pair in zip(ours, theirs, strict=True)
        for mine, other in zip(*pair, strict=True)
    )
    wrong = not difference <= TOLERANCE or ours[0][-1] >= ours[0][0]
    return difference, f"losses differ by {difference}: {ours} and {theirs}" if wrong else ""


def finish(results: list[dict[str, Any]], out: str) -> None:
    """Prints and writes them; ends the program with 1 where one has a problem."""
    for result in results:
        print(json.dumps(result), flush=True)
    Path(out).write_text(json.dumps(results, indent=1) + "\n")
    if any(result["problem"] for result in results):
        raise SystemExit(1)
