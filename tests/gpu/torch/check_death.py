#!/usr/bin/env python3
"""Kills a rank of a torch.distributed job on GPUs: check_death.py OUT.json [RANKS].

The last rank dies less than a second after a call of all ranks. The other ranks enqueue one more call and wait
in torch.cuda.synchronize(). It must return soon after the group's timeout, and the next call must report the
failure. The check runs with NCCL, and with p2p if it is built.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import sharing
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

TIMEOUT_S = 8
LIMIT_S = 45  # for one rank, including setup, the timeout and a library's own abort
PATHS = ("nccl", "p2p")


def run_rank(rank: int, size: int, store: str, backend: str, answer: Connection) -> None:
    """Runs one rank. Sends the duration of synchronize() and the error of the next call."""
    os.environ["ISTHMUS_RULE"] = f"collective=allreduce platform=cuda use={backend}"
    sharing.enter(rank, size)
    import isthmus.torch

    dist.init_process_group(
        "cpu:isthmus,cuda:isthmus", store, timeout=timedelta(seconds=TIMEOUT_S), rank=rank, world_size=size
    )
    data = torch.ones(1 << 16, device="cuda")
    dist.all_reduce(data)
    torch.cuda.synchronize()
    used = {row.path.split(":")[0] for row in isthmus.torch.report() if row.device != "cpu"}
    if backend not in used:
        answer.send({"skipped": f"all_reduce took {', '.join(sorted(used))}"})
        dist.destroy_process_group()
        return
    time.sleep(1.5)  # so that the next call gets its own completion event
    dist.all_reduce(data)
    torch.cuda.synchronize()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    dist.all_reduce(data)
    enqueued = time.monotonic()
    torch.cuda.synchronize()
    returned = time.monotonic()
    try:
        dist.all_reduce(data)
        torch.cuda.synchronize()
        message = ""
    except dist.DistBackendError as failure:
        message = str(failure)
    answer.send({"enqueued_s": enqueued - begin, "waited_s": returned - enqueued, "message": message})


def problem_of(rank: int, result: dict[str, Any] | None) -> str:
    if result is None:
        return f"rank {rank} did not finish within {LIMIT_S} s"
    if "isthmus" not in result["message"]:
        return f"rank {rank}: the call after the failure message {result['message']!r}"
    return ""


def run(size: int, backend: str) -> dict[str, Any]:
    """Returns the results of all ranks. `problem` is empty on success."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(size):
            here, there = context.Pipe(duplex=False)
            arguments = (rank, size, f"file://{folder}/store", backend, there)
            processes.append(context.Process(target=run_rank, args=arguments, daemon=True))
            processes[-1].start()
            there.close()
            pipes.append(here)
        end = time.monotonic() + LIMIT_S
        results: list[dict[str, Any] | None] = []
        for pipe in pipes[:-1]:
            arrived = pipe.poll(max(0.0, end - time.monotonic()))
            try:
                results.append(pipe.recv() if arrived else None)
            except EOFError:
                results.append({"message": "the process ended"})
        for process in processes:
            process.kill()
            process.join()
    if results[0] is not None and "skipped" in results[0]:
        return {"path": backend, "skipped": results[0]["skipped"], "problem": ""}
    problems = [text for rank, result in enumerate(results) if (text := problem_of(rank, result))]
    return {"path": backend, "ranks": results, "problem": "; ".join(problems)}


def main() -> None:
    size = int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count()
    results = [run(size, backend) for backend in PATHS]
    for result in results:
        print(json.dumps(result), flush=True)
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
    if any(result["problem"] for result in results) or "skipped" in results[0]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
