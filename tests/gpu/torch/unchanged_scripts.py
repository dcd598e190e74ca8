"""Runs the scripts of tests/python/torch/unchanged (DDP, FSDP2, ...) under torchrun.

Shared by check_unchanged.py and check_nccl_preload.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sharing
from children import NO_END, run_with_children

SCRIPTS = Path(__file__).resolve().parents[2] / "python/torch/unchanged"
LIMIT_S = 90
TOLERANCE = 1e-4  # floats are summed in a different order

Losses = list[list[float]]  # by rank


def train(
    script: str, ranks: int, before: list[str], variables: dict[str, str], isolated: bool = False
) -> tuple[Losses, str]:
    """Returns the losses and the output. `before`: arguments between Python and the script's file name."""
    on_gpus = variables["DEVICE"] == "cuda"
    each, shared = sharing.under_torchrun(ranks, isolated) if on_gpus else (["--no-python"], {})
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [*launcher, *each, sys.executable, *before, str(SCRIPTS / f"{script}.py"), folder]
        code, output = run_with_children(command, shared | variables, LIMIT_S)
        if code:
            why = f"did not end within {LIMIT_S} s" if code == NO_END else f"ended with {code}"
            raise RuntimeError(f"{script} {' '.join(before)} {why} ({variables}): {output[-3000:]}")
        results = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
    return [result["losses"] for result in results], output


def judge(ours: Losses, theirs: Losses) -> tuple[float, str]:
    """Returns the largest relative difference, and the problem with the losses or ""."""
    difference = max(
        abs(mine - other) / abs(other)
        for pair in zip(ours, theirs, strict=True)
        for mine, other in zip(*pair, strict=True)
    )
    wrong = not difference <= TOLERANCE or ours[0][-1] >= ours[0][0]
    return difference, f"losses differ by {difference}: {ours} and {theirs}" if wrong else ""


def finish(results: Iterable[dict[str, Any]], out: str) -> None:
    """Prints each result when it is available and writes all of them. Exits with 1 if one has a problem."""
    known = []
    begin = time.monotonic()
    for result in results:
        known.append(result | {"seconds": round(time.monotonic() - begin, 1)})
        print(json.dumps(known[-1]), flush=True)
        begin = time.monotonic()
    Path(out).write_text(json.dumps(known, indent=1) + "\n")
    if any(result["problem"] for result in known):
        raise SystemExit(1)
