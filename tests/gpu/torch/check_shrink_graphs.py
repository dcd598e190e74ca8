#!/usr/bin/env python3
"""Captured graphs after the loss of a rank: check_shrink_graphs.py OUT.json [RANKS].

The last rank is killed. A graph of the survivors' own work must stay valid. A graph with collectives must be
refused after the members have changed, and can be captured again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import sharing
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import isthmus.torch

LIMIT_S = 60


def capture(work: object) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()  # type: ignore[operator]
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
    dist.barrier()
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


def run(size: int, backend: str) -> dict[str, object]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=run_rank, args=(rank, size, folder, backend)) for rank in range(size)]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join(LIMIT_S)
        codes = [each.exitcode for each in ranks]
        for each in ranks:
            each.kill()
            each.join()
    expected = [0] * (size - 1) + [-signal.SIGKILL]
    return {"path": backend, "codes": codes, "problem": "" if codes == expected else f"expected {expected}"}


def main() -> None:
    size = int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count()
    results = [run(size, backend) for backend in ("nccl", "p2p")]
    for result in results:
        print(json.dumps(result), flush=True)
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
    if any(result["problem"] for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
