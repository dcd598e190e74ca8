#!/usr/bin/env python3
"""Runs unchanged scripts on NCCL, with and without the preload library: check_nccl_preload.py OUT LIB [RANKS].

DDP and FSDP2 of tests/python/torch/unchanged run twice under torchrun. The losses must be equal, and calls must
use paths of Isthmus. DDP also runs with processes that see only their own GPU.
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
        ours, output = train_over_nccl(script, ranks, isolated, preloaded)
    except RuntimeError as failure:
        return {"script": script, "problem": str(failure)}
    used = re.findall(r"^ +(nccl\w+) +((?:p2p|copy_engine)\S*) +(\d+)", output, re.MULTILINE)
    problem = "" if used else f"no call used Isthmus: {output[-2000:]}"
    difference, wrong = judge(ours, theirs)
    report = [line for line in output.splitlines() if re.match(r" +nccl|isthmus: nccl", line)]
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
