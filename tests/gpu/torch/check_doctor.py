#!/usr/bin/env python3
"""Injects a fault into one rank of a torch.distributed job on GPUs: check_doctor.py OUT.json.

For every fault of tests/python/job_faults.py, `isthmus doctor` must name the rank, with NCCL, p2p and
copy_engine. If the other ranks can only wait, their error after the group's timeout must name it as well. There
are three ranks, so that one differs from the majority. The jobs of all faults run concurrently.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import sharing
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

PYTHON_TESTS = Path(__file__).resolve().parents[2] / "python"
sys.path[:0] = [str(PYTHON_TESTS), str(PYTHON_TESTS / "torch")]

PATHS = ("nccl", "p2p", "copy_engine")
SIZE = 3
START_S = 90  # until all ranks have started (24 processes)
ERROR_S = 45  # until errors are reported after that, including the timeout and a library's own abort
# Timeout of the group, after which waiting ranks get an error. Calls that differ may complete on a
# device, or never.
TIMEOUT_S = {"die": 10.0, "stop": 10.0, "slow": 10.0}
UNLIMITED_S = 600.0


def run_rank(rank: int, fault: str, folder: str, backend: str) -> None:
    """Runs one rank. Writes its error to the folder, and keeps the process alive for the examination."""
    os.environ["ISTHMUS_RULE"] = f"collective=allreduce platform=cuda use={backend}"
    sharing.enter(rank, SIZE)
    import faulty_calls

    import isthmus.torch

    store = dist.FileStore(f"{folder}/store", SIZE)
    timeout = timedelta(seconds=TIMEOUT_S.get(fault, UNLIMITED_S))
    dist.init_process_group(
        "cpu:isthmus,cuda:isthmus", store=store, rank=rank, world_size=SIZE, timeout=timeout
    )
    try:
        faulty_calls.make_calls(fault, f"{folder}/here", "cuda")
        torch.cuda.synchronize()
        dist.all_reduce(torch.ones(4, device="cuda"))
        torch.cuda.synchronize()
        message = "nothing"
    except Exception as failure:  # the process must not end, because that would be another fault
        message = str(failure)
    used = {row.path for row in isthmus.torch.report() if row.collective == "allreduce"}
    Path(folder, f"message.{rank}.part").write_text(json.dumps({"message": message, "paths": sorted(used)}))
    Path(folder, f"message.{rank}.part").rename(Path(folder, f"message.{rank}"))
    time.sleep(UNLIMITED_S)


def start(fault: str, folder: str, backend: str) -> list[BaseProcess]:
    Path(folder, "here").mkdir()
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=run_rank, args=(rank, fault, folder, backend)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    return ranks


def problem_of(fault: str, folder: str, ranks: list[BaseProcess], end: float) -> str:
    from job_faults import FAULTS, FAULTY_RANK, device_sentence_pattern, wait_for_diagnosis

    here = Path(folder, "here")
    while len(list(here.iterdir())) < SIZE:
        if time.monotonic() > end:
            return f"only rank(s) {sorted(each.name for each in here.iterdir())} reached the fault"
        time.sleep(0.05)
    pid = ranks[0].pid
    assert pid is not None
    try:
        sentence = wait_for_diagnosis(pid, FAULTS[fault][0])["sentence"]
    except AssertionError as failure:
        return f"doctor reports {failure}"
    if re.search(device_sentence_pattern(fault), sentence) is None:
        return f"doctor reports {sentence!r}"
    for rank in range(SIZE) if fault in TIMEOUT_S else ():
        if rank == FAULTY_RANK:
            continue
        file = Path(folder, f"message.{rank}")
        end = time.monotonic() + ERROR_S
        while not file.exists():
            if time.monotonic() > end:
                return f"rank {rank} is still waiting"
            time.sleep(0.05)
        message = json.loads(file.read_text())["message"]
        if re.search(rf"\brank {FAULTY_RANK}\b", message) is None:
            return f"rank {rank}'s error does not name rank {FAULTY_RANK}: {message!r}"
    return ""


def run(backend: str, faults: list[str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as root:
        jobs = {}
        for fault in faults:
            Path(root, fault).mkdir()
            jobs[fault] = start(fault, f"{root}/{fault}", backend)
        end = time.monotonic() + START_S
        results = []
        for fault, ranks in jobs.items():
            problem = problem_of(fault, f"{root}/{fault}", ranks, end)
            results.append({"path": backend, "fault": fault, "problem": problem})
            print(json.dumps(results[-1]), flush=True)
        for ranks in jobs.values():
            for rank in ranks:
                rank.kill()
            for rank in ranks:
                with suppress(ValueError):
                    rank.join(10)
    return results


def main() -> None:
    from job_faults import FAULTS

    results = [each for backend in PATHS for each in run(backend, list(FAULTS))]
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
    if any(each["problem"] for each in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
