#!/usr/bin/env python3
"""Captured graphs after the loss of a rank: check_shrink_graphs.py OUT.json [RANKS].

The last rank is killed. A graph of the survivors' own work must stay valid. A graph with collectives must be
refused after the members have changed, and can be captured again.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import ranks
import sharing
import torch
import torch.distributed as dist

import isthmus.torch

LIMIT_S = 60


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def check(rank: int, size: int) -> None:
    data, doubled = torch.ones(1024, device="cuda"), torch.zeros(1024, device="cuda")
    dist.all_reduce(data.clone())  # creates the communicator
    torch.cuda.synchronize()
    own_work = capture(lambda: torch.mul(data, 2, out=doubled))
    collective = capture(lambda: dist.all_reduce(data))
    collective.replay()
    torch.cuda.synchronize()
    assert torch.all(data == size), data
    try:
        dist.barrier()
    finally:  # the barrier throws if another rank has called shrink() already, which aborts the communicator
        if rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    isthmus.torch.shrink()
    data.fill_(3)
    own_work.replay()
    torch.cuda.synchronize()
    assert torch.all(doubled == 6), doubled
    try:
        collective.replay()
        raise SystemExit("a graph of the lost group was replayed")
    except RuntimeError as error:
        assert "capture the graph again" in str(error), error
    dist.all_reduce(data.clone())
    collective = capture(lambda: dist.all_reduce(data))
    collective.replay()
    torch.cuda.synchronize()
    assert torch.all(data == 3 * (size - 1)), data
    del collective, own_work
    dist.destroy_process_group()


def run_rank(rank: int, size: int, folder: str, backend: str) -> None:
    os.environ["ISTHMUS_RULE"] = f"collective=allreduce platform=cuda use={backend}"
    sharing.enter(rank, size)
    dist.init_process_group(
        "cpu:isthmus,cuda:isthmus",
        store=dist.FileStore(f"{folder}/store", size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=20),
    )
    check(rank, size)


def run(size: int, backend: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(rank, size, folder, backend) for rank in range(size)]
        codes = ranks.run_with_losses(run_rank, arguments, LIMIT_S)
    expected = [0] * (size - 1) + [-signal.SIGKILL]
    return {"path": backend, "codes": codes, "problem": "" if codes == expected else f"expected {expected}"}


def main() -> None:
    size = int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count()
    ranks.write_results([run(size, backend) for backend in ("nccl", "p2p")], Path(sys.argv[1]))


if __name__ == "__main__":
    main()
