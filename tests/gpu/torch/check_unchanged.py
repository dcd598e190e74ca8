#!/usr/bin/env python3
"""Compares unchanged scripts on Isthmus and on PyTorch backends: check_unchanged.py OUT.json [RANKS] [DEVICE].

Each script of tests/python/torch/unchanged runs twice under torchrun, unmodified and with -m isthmus.torch. The
losses must be equal, and nearly all calls must use paths of Isthmus. Scripts whose framework is not installed
are skipped.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any

import sharing
from unchanged_scripts import finish, judge, train

NEEDS = {"ddp": "torch", "fsdp2": "torch", "zero": "deepspeed", "accelerated": "accelerate"}
SELECT_THEIR_OWN_GPU = ("zero", "accelerated")  # the framework selects the GPU of the local rank
MAX_TORCH_CALLS = 1  # the bitwise reduction of ddp.py


def compare(script: str, ranks: int, device: str) -> dict[str, Any]:
    if importlib.util.find_spec(NEEDS[script]) is None:
        return {"script": script, "skipped": f"no {NEEDS[script]}", "problem": ""}
    if device == "cuda" and sharing.is_needed(ranks) and script in SELECT_THEIR_OWN_GPU:
        return {"script": script, "skipped": "ranks share a GPU", "problem": ""}
    try:
        theirs, _ = train(script, ranks, [], {"DEVICE": device})
        ours, output = train(script, ranks, ["-m", "isthmus.torch", "--report"], {"DEVICE": device})
    except RuntimeError as failure:
        return {"script": script, "problem": str(failure)}
    counted = re.search(r"isthmus: (\d+) of (\d+) calls", output)
    problem = ""
    if counted is None or int(counted[2]) - int(counted[1]) > MAX_TORCH_CALLS or not int(counted[1]):
        problem = f"the report says: {output[-2000:]}"
    difference, wrong = judge(ours, theirs)
    table = output[counted.start() :].splitlines() if counted else []
    return {"script": script, "difference": difference, "report": table, "problem": wrong or problem}


def main() -> None:
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    device = sys.argv[3] if len(sys.argv) > 3 else "cuda"
    finish((compare(script, ranks, device) for script in NEEDS), sys.argv[1])


if __name__ == "__main__":
    main()
