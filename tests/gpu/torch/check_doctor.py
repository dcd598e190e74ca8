#!/usr/bin/env python3
"""One rank of a torch.distributed job on GPUs does something wrong: check_doctor.py OUT.json.

For every fault of tests/python/job_faults.py `isthmus doctor` names the rank, over NCCL, peer memory and copy
engines; where the others can only wait, so does their error after the group's timeout. Three ranks, so that one
differs from the others. The jobs of all faults run at once.
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
START_S = 90  # for all ranks to be there, which are 24 processes
ERROR_S = 45  # for an error to be told behind that, the timeout and a library's own abort included
# Of the group. Those who wait are told then; calls that differ may end on a device, or never.
TIMEOUT_S = {"die": 10.0, "stop": 10.0, "slow": 10.0}
UNLIMITED_S = 600.0


def play(rank: int, fault: str, folder: str, wanted: str) -> None:
    """What one rank does: it leaves what its error said in the folder, and stays so that it can be examined."""
    os.environ["ISTHMUS_RULE"] = f"collective=allreduce platform=cuda use={wanted}"
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
        said = "nothing"
    except Exception as failure:  # a process that ended would be another fault
        said = str(failure)
    taken = {row.path for row in isthmus.torch.report() if row.collective == "allreduce"}
    Path(folder, f"said.{rank}.part").write_text(json.dumps({"said": said, "paths": sorted(taken)}))
    Path(folder, f"said.{rank}.part").rename(Path(folder, f"said.{rank}"))
    time.sleep(UNLIMITED_S)


def start(fault: str, folder: str, wanted: str) -> list[BaseProcess]:
    Path(folder, "here").mkdir()
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=play, args=(rank, fault, folder, wanted)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    return ranks


def problem_of(fault: str, folder: str, ranks: list[BaseProcess], end: float) -> str:
    from job_faults import FAULTY_RANK, FAULTS, wait_for_diagnosis, device_sentence_pattern

    here = Path(folder, "here")
    while len(list(here.iterdir())) < SIZE:
        if time.monotonic() > end:
            return f"only rank(s) {sorted(each.name for each in here.iterdir())} came to the fault"
        time.sleep(0.05)
    pid = ranks[0].pid
    assert pid is not None
    try:
        sentence = wait_for_diagnosis(pid, FAULTS[fault][0])["sentence"]
    except AssertionError as failure:
        return f"doctor says {failure}"
    if re.search(device_sentence_pattern(fault), sentence) is None:
        return f"doctor says {sentence!r}"
    for rank in range(SIZE) if fault in TIMEOUT_S else ():
        if rank == FAULTY_RANK:
            continue
        file = Path(folder, f"said.{rank}")
        end = time.monotonic() + ERROR_S
        while not file.exists():
            if time.monotonic() > end:
                return f"rank {rank} still waits"
            time.sleep(0.05)
        said = json.loads(file.read_text())["said"]
        if re.search(rf"\brank {FAULTY_RANK}\b", said) is None:
            return f"rank {rank}'s error does not name rank {FAULTY_RANK}: {said!r}"
    return ""


def run(wanted: str, faults: list[str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as root:
        jobs = {}
        for fault in faults:
            Path(root, fault).mkdir()
            jobs[fault] = start(fault, f"{root}/{fault}", wanted)
        end = time.monotonic() + START_S
        results = []
        for fault, ranks in jobs.items():
            problem = problem_of(fault, f"{root}/{fault}", ranks, end)
            results.append({"path": wanted, "fault": fault, "problem": problem})
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

    results = [each for wanted in PATHS for each in run(wanted, list(FAULTS))]
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
    if any(each["problem"] for each in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
