#!/usr/bin/env python3
"""Unchanged scripts over NCCL, with and without its preloaded library: check_nccl_preload.py OUT LIB [RANKS].

DDP and FSDP2 of tests/python/torch/unchanged run under torchrun twice: same losses, calls on Isthmus' paths.
With fewer GPUs than ranks NCCL is told that each rank has a host of its own, since it refuses two ranks on one
GPU; p2p refuses them, too, unless it was built without that check: for results, not for times.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "python/torch/unchanged"
LIMIT_S = 90
TOLERANCE = 1e-4  # sums of floats in another order


def train(script: str, ranks: int, variables: dict[str, str]) -> tuple[list[list[float]], str]:
    """Losses by rank, and what was printed."""
    own_hosts = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"} if torch.cuda.device_count() < ranks else {}
    each = f'NCCL_HOSTID={"$RANK" if own_hosts else ""} exec "$@"'
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        program = [sys.executable, str(SCRIPTS / f"{script}.py"), folder]
        done = subprocess.run(
            [*launcher, "--no-python", "sh", "-c", each, "sh", *program],
            env=os.environ | {"DEVICE": "cuda", "NCCL_NVLS_ENABLE": "0"} | own_hosts | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{script} ended with {done.returncode}: {done.stdout[-3000:]}")
        results = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
    return [result["losses"] for result in results], done.stdout


def compare(script: str, ranks: int, library: str) -> dict[str, Any]:
    try:
        theirs, _ = train(script, ranks, {})
        ours, said = train(script, ranks, {"LD_PRELOAD": library, "ISTHMUS_NCCL_REPORT": "1"})
    except (RuntimeError, subprocess.TimeoutExpired) as failure:
        return {"script": script, "problem": str(failure)}
    taken = re.findall(r"^ +(nccl\w+) +((?:p2p|copy_engine)\S*) +(\d+)", said, re.MULTILINE)
    difference = max(
        abs(mine - other) / abs(other)
        for pair in zip(ours, theirs, strict=True)
        for mine, other in zip(*pair, strict=True)
    )
    problem = "" if taken else f"no call was taken: {said[-2000:]}"
    if not difference <= TOLERANCE or ours[0][-1] >= ours[0][0]:
        problem = f"losses differ by {difference}: {ours} and {theirs}"
    report = [line for line in said.splitlines() if re.match(r" +nccl|isthmus: nccl", line)]
    return {"script": script, "difference": difference, "report": report, "problem": problem}


def main() -> None:
    library = str(Path(sys.argv[2]).resolve())
    ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    results = [compare(script, ranks, library) for script in ("ddp", "fsdp2")]
    for result in results:
        print(json.dumps(result), flush=True)
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
    if any(result["problem"] for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
