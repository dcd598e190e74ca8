"""Lets ranks share a GPU if there are fewer GPUs than ranks. Use it to check results, not to measure times.

NCCL refuses two ranks on one GPU, so NCCL_HOSTID gives each rank its own host name. The backends have an option
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
    """Makes the rank's device current. Must be called in the rank's process before anything else uses CUDA."""
    if is_needed(ranks):
        os.environ.update(SHARED_GPU | {"NCCL_HOSTID": f"rank{rank}"})
    torch.cuda.set_device(rank % torch.cuda.device_count())


def under_torchrun(ranks: int, isolated: bool = False) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments between those of torchrun and the program, and the variables, for sharing GPUs.

    `isolated`: if there are enough GPUs, the process of a rank sees only its own GPU, as with Ray.
    """
    if is_needed(ranks):
        return ["--no-python", "sh", "-c", 'NCCL_HOSTID=rank$RANK exec "$@"', "sh"], SHARED_GPU
    own = "CUDA_VISIBLE_DEVICES=$LOCAL_RANK " if isolated else ""
    return ["--no-python", "sh", "-c", f'{own}exec "$@"', "sh"], {}
