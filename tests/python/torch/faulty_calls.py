"""Calls of a process group with a fault on one rank, as in rank_program.py."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rank_program import FAULTY_RANK


def make_calls(fault: str, ready_folder: str, device: str = "cpu") -> None:
    """Runs calls with a fault. Every rank creates a file in the folder `ready_folder` before the fault."""
    wrong = dist.get_rank() == FAULTY_RANK

    def ones(elements: int = 1024, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(elements, dtype=dtype, device=device)

    for _ in range(3):
        dist.all_reduce(ones())
    if device != "cpu":
        torch.cuda.synchronize()
    (Path(ready_folder) / str(dist.get_rank())).touch()
    if wrong and fault in ("die", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if fault == "die" else signal.SIGSTOP)
    if wrong and fault == "slow":
        time.sleep(60)
    if wrong and fault in ("skip", "reorder"):
        dist.broadcast(ones(), 0)
        if fault == "skip":
            time.sleep(60)
        dist.all_reduce(ones())
    elements = 512 if wrong and fault == "count" else 1024
    dist.all_reduce(ones(elements, torch.int32 if wrong and fault == "dtype" else torch.float32))
    dist.broadcast(ones(), 1 if wrong and fault == "root" else 0)
