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


def under_torchrun(ranks: int, isolated: bool = False) -> tuple[list[str], dict[str, str]]:
    """What stands between torchrun's words and a program's, and the variables, for the same. `isolated`: the
    process of a rank sees no GPU but its own, as under Ray, where there are enough of them."""
    if is_needed(ranks):
        return ["--no-python", "sh", "-c", 'NCCL_HOSTID=rank$RANK exec "$@"', "sh"], SHARED_GPU
    own = "CUDA_VISIBLE_DEVICES=$LOCAL_RANK " if isolated else ""
    return ["--no-python", "sh", "-c", f'{own}exec "$@"', "sh"], {}
