#!/usr/bin/env python3
"""Unchanged scripts over Isthmus beside PyTorch's own backends: check_unchanged.py OUT.json [RANKS] [DEVICE].

Each script of tests/python/torch/unchanged runs under torchrun twice, as it is and by -m isthmus.torch: same
losses, and nearly all calls on Isthmus' paths. Those whose framework is not installed are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "python/torch/unchanged"
NEEDS = {"ddp": "torch", "fsdp2": "torch", "zero": "deepspeed", "accelerated": "accelerate"}
LIMIT_S = 90
TOLERANCE = 1e-4  # sums of floats in another order
LEFT_TO_TORCH = 1  # the bitwise reduction of ddp.py


def train(script: str, ranks: int, device: str, before: list[str]) -> tuple[list[list[float]], str]:
    """Losses by rank, and what was printed."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [*launcher, *before, str(SCRIPTS / f"{script}.py"), folder],
            env=os.environ | {"DEVICE": device},
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


def compare(script: str, ranks: int, device: str) -> dict[str, Any]:
    if importlib.util.find_spec(NEEDS[script]) is None:
        return {"script": script, "skipped": f"no {NEEDS[script]}", "problem": ""}
    try:
        theirs, _ = train(script, ranks, device, [])
        ours, said = train(script, ranks, device, ["-m", "isthmus.torch", "--report"])
    except (RuntimeError, subprocess.TimeoutExpired) as failure:
        return {"script": script, "problem": str(failure)}
    counted = re.search(r"isthmus: (\d+) of (\d+) calls", said)
    problem = ""
    if counted is None or int(counted[2]) - int(counted[1]) > LEFT_TO_TORCH or not int(counted[1]):
        problem = f"the report says: {said[-2000:]}"
    difference = max(
        abs(mine - other) / abs(other)
        for pair in zip(ours, theirs, strict=True)
        for mine, other in zip(*pair, strict=True)
    )
    if not difference <= TOLERANCE or ours[0][-1] >= ours[0][0]:
        problem = f"losses differ by {difference}: {ours} and {theirs}"
    table = said[counted.start() :].splitlines() if counted else []
    return {"script": script, "difference": difference, "report": table, "problem": problem}


def main() -> None:
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    device = sys.argv[3] if len(sys.argv) > 3 else "cuda"
    results = [compare(script, ranks, device) for script in NEEDS]
    for result in results:
        print(json.dumps(result), flush=True)
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
    if any(result["problem"] for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
