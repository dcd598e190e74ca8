#!/usr/bin/env python3
"""A rank of a torch.distributed job on GPUs is killed: check_death.py OUT.json [RANKS].

The last rank dies within a second of a call that all made. The others enqueue one more, call nothing else and
wait in torch.cuda.synchronize(): it returns soon after the group's timeout, and the next call says what
happened. Once over NCCL, and once over peer memory where that is built.
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
LIMIT_S = 45  # for a rank to be through, set-up included; the timeout and what a library's own abort may take
PATHS = ("nccl", "p2p")


def play(rank: int, size: int, store: str, wanted: str, answer: Connection) -> None:
    """What one rank does; tells how long synchronize() took and what the next call said."""
    os.environ["ISTHMUS_RULE"] = f"collective=allreduce platform=cuda use={wanted}"
    sharing.enter(rank, size)
    import isthmus.torch

    dist.init_process_group(
        "cpu:isthmus,cuda:isthmus", store, timeout=timedelta(seconds=TIMEOUT_S), rank=rank, world_size=size
    )
    data = torch.ones(1 << 16, device="cuda")
    dist.all_reduce(data)
    torch.cuda.synchronize()
    taken = {row.path.split(":")[0] for row in isthmus.torch.report() if row.device != "cpu"}
    if wanted not in taken:
        answer.send({"skipped": f"all_reduce took {', '.join(sorted(taken))}"})
        dist.destroy_process_group()
        return
    time.sleep(1.5)  # the call that follows is the first of its second
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
        said = ""
    except dist.DistBackendError as failure:
        said = str(failure)
    answer.send({"enqueued_s": enqueued - begin, "waited_s": returned - enqueued, "said": said})


def problem_of(rank: int, result: dict[str, Any] | None) -> str:
    if result is None:
        return f"rank {rank} was not through after {LIMIT_S} s"
    if "isthmus" not in result["said"]:
        return f"rank {rank}: the call after the failure said {result['said']!r}"
    return ""


def run(size: int, wanted: str) -> dict[str, Any]:
    """The path's results by rank; `problem` is empty where all is well."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(size):
            here, there = context.Pipe(duplex=False)
            arguments = (rank, size, f"file://{folder}/store", wanted, there)
            processes.append(context.Process(target=play, args=arguments, daemon=True))
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
                results.append({"said": "the process ended"})
        for process in processes:
            process.kill()
            process.join()
    if results[0] is not None and "skipped" in results[0]:
        return {"path": wanted, "skipped": results[0]["skipped"], "problem": ""}
    problems = [text for rank, result in enumerate(results) if (text := problem_of(rank, result))]
    return {"path": wanted, "ranks": results, "problem": "; ".join(problems)}


def main() -> None:
    size = int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count()
    results = [run(size, wanted) for wanted in PATHS]
    for result in results:
        print(json.dumps(result), flush=True)
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
    if any(result["problem"] for result in results) or "skipped" in results[0]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
