#!/usr/bin/env python3
"""Unchanged scripts over NCCL, with and without its preloaded library: check_nccl_preload.py OUT LIB [RANKS].

DDP and FSDP2 of tests/python/torch/unchanged run under torchrun twice: same losses, calls on Isthmus' paths.
DDP once more with processes that see no GPU but their own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from unchanged_scripts import Losses, finish, judge, train


def train_over_nccl(script: str, ranks: int, isolated: bool, variables: dict[str, str]) -> tuple[Losses, str]:
    return train(script, ranks, [], {"DEVICE": "cuda", "NCCL_NVLS_ENABLE": "0"} | variables, isolated)


def compare(script: str, ranks: int, library: str, isolated: bool) -> dict[str, Any]:
    preloaded = {"LD_PRELOAD": library, "ISTHMUS_NCCL_REPORT": "1"}
    try:
        theirs, _ = train_over_nccl(script, ranks, isolated, {})
        ours, said = train_over_nccl(script, ranks, isolated, preloaded)
    except RuntimeError as failure:
        return {"script": script, "problem": str(failure)}
    taken = re.findall(r"^ +(nccl\w+) +((?:p2p|copy_engine)\S*) +(\d+)", said, re.MULTILINE)
    problem = "" if taken else f"no call was taken: {said[-2000:]}"
    difference, wrong = judge(ours, theirs)
    report = [line for line in said.splitlines() if re.match(r" +nccl|isthmus: nccl", line)]
    return {
        "script": script,
        "isolated": isolated,
        "difference": difference,
        "report": report,
        "problem": wrong or problem,
    }


def main() -> None:
    library = str(Path(sys.argv[2]).resolve())
    ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    jobs = (("ddp", False), ("fsdp2", False), ("ddp", True))
    finish((compare(script, ranks, library, isolated) for script, isolated in jobs), sys.argv[1])


if __name__ == "__main__":
    main()
