#!/usr/bin/env python3
"""Unchanged scripts over Isthmus beside PyTorch's own backends: check_unchanged.py OUT.json [RANKS] [DEVICE].

Each script of tests/python/torch/unchanged runs under torchrun twice, as it is and by -m isthmus.torch: same
losses, and nearly all calls on Isthmus' paths. Those whose framework is not installed are skipped.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any

import sharing
from unchanged_scripts import finish, judge, train

NEEDS = {"ddp": "torch", "fsdp2": "torch", "zero": "deepspeed", "accelerated": "accelerate"}
TAKE_THEIR_OWN_GPU = ("zero", "accelerated")  # that of the local rank, in the framework's own code
LEFT_TO_TORCH = 1  # the bitwise reduction of ddp.py


def compare(script: str, ranks: int, device: str) -> dict[str, Any]:
    if importlib.util.find_spec(NEEDS[script]) is None:
        return {"script": script, "skipped": f"no {NEEDS[script]}", "problem": ""}
    if device == "cuda" and sharing.is_needed(ranks) and script in TAKE_THEIR_OWN_GPU:
        return {"script": script, "skipped": "ranks that share a GPU", "problem": ""}
    try:
        theirs, _ = train(script, ranks, [], {"DEVICE": device})
        ours, said = train(script, ranks, ["-m", "isthmus.torch", "--report"], {"DEVICE": device})
    except RuntimeError as failure:
        return {"script": script, "problem": str(failure)}
    counted = re.search(r"isthmus: (\d+) of (\d+) calls", said)
    problem = ""
    if counted is None or int(counted[2]) - int(counted[1]) > LEFT_TO_TORCH or not int(counted[1]):
        problem = f"the report says: {said[-2000:]}"
    difference, wrong = judge(ours, theirs)
    table = said[counted.start() :].splitlines() if counted else []
    return {"script": script, "difference": difference, "report": table, "problem": wrong or problem}


def main() -> None:
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    device = sys.argv[3] if len(sys.argv) > 3 else "cuda"
    finish((compare(script, ranks, device) for script in NEEDS), sys.argv[1])


if __name__ == "__main__":
    main()
