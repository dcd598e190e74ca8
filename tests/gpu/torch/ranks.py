"""Runs checks in the processes of one job on the GPUs of this machine, and writes their results."""

from __future__ import annotations

import faulthandler
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sharing
import torch
import torch.multiprocessing as multiprocessing

Check = Callable[[], Any]


def run(ranks: int, body: Callable[..., None], *arguments: Any) -> None:
    """Runs `body(rank, *arguments)` in one process per rank."""
    with tempfile.TemporaryDirectory() as folder:  # a file store: a free port could be taken before it is used
        os.environ.update(CHECK_STORE=f"file://{folder}/store", WORLD_SIZE=str(ranks))
        multiprocessing.spawn(_enter, (body, arguments), nprocs=ranks)


def run_with_losses(
    body: Callable[..., None], arguments: list[tuple[Any, ...]], limit_s: float
) -> list[int | None]:
    """Runs `body` in one process for each element of `arguments`. Processes may be killed.

    Returns the exit codes, with None for those that still run after `limit_s`. Kills these.
    """
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=body, args=each) for each in arguments]
    for rank in ranks:
        rank.start()
    end = time.monotonic() + limit_s
    for rank in ranks:
        rank.join(max(0.0, end - time.monotonic()))
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
        rank.join()
    return codes


def write_results(results: list[dict[str, Any]], out: Path) -> None:
    """Prints and writes the results, and fails if one of them has a problem."""
    for result in results:
        print(json.dumps(result), flush=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    if any(result["problem"] for result in results):
        raise SystemExit(1)


def init_arguments() -> dict[str, Any]:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return {"init_method": os.environ["CHECK_STORE"], "rank": rank, "world_size": size}


def _enter(rank: int, body: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    # Print stack traces of Python and C++ on a crash.
    faulthandler.enable()
    torch._C._set_print_stack_traces_on_fatal_signal(True)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    sharing.enter(rank, int(os.environ["WORLD_SIZE"]))
    body(rank, *arguments)


def run_checks(rank: int, checks: list[Check], out: Path) -> None:
    """Runs the checks in order. A failure is recorded and ends the run, because ranks would get out of step."""
    results = []
    for check in checks:
        start = time.monotonic()
        problem, value = "", None
        try:
            value = check()
            torch.cuda.synchronize()
        except BaseException:
            problem = traceback.format_exc()
        seconds = time.monotonic() - start
        results.append(
            {"check": check.__name__, "seconds": round(seconds, 2), "problem": problem, "value": value}
        )
        if rank == 0 or problem:
            outcome = "FAILED" if problem else "passed"
            note = "" if value is None else f"  {value}"
            print(f"rank {rank} {outcome} {seconds:6.2f} s  {check.__name__}{note}", flush=True)
        if problem:
            print(problem[-1500:], flush=True)
            break
    out.with_name(f"{out.stem}-rank{rank}.json").write_text(json.dumps(results, indent=1) + "\n")
    if any(result["problem"] for result in results):
        raise SystemExit(1)
