"""Ranks that share a GPU where there are fewer GPUs than ranks: for results, not for times.

NCCL refuses two ranks on one GPU, so it is told that each has a host of its own; the backends have an option
for it (scripts/gpu_topics.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[3] / "scripts"))
from gpu_topics import SHARED_GPU


def is_needed(ranks: int) -> bool:
    return torch.cuda.device_count() < ranks


def enter(rank: int, ranks: int) -> None:
    """In the process of one rank, before anything is made there: its device becomes the current one."""
    if is_needed(ranks):
        os.environ.update(SHARED_GPU | {"NCCL_HOSTID": f"rank{rank}"})
    torch.cuda.set_device(rank % torch.cuda.device_count())


def under_torchrun(ranks: int) -> tuple[list[str], dict[str, str]]:
    """What stands between torchrun's words and a program's, and the variables, for the same."""
    host = "NCCL_HOSTID=rank$RANK " if is_needed(ranks) else ""
    return ["--no-python", "sh", "-c", f'{host}exec "$@"', "sh"], SHARED_GPU if is_needed(ranks) else {}
