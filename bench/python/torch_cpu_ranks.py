"""What measurements of torch.distributed on CPUs share: ranks, their meeting before each call, and files."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import isthmus.torch
from isthmus import machine
from isthmus.records import Record, merge_rounds, report_from

MAX_SAMPLES = 400


class SharedRanks:
    """What the ranks share: a word each for the barrier, and their times. For one thread of each rank."""

    def __init__(self, rank: int, words: torch.Tensor, times: torch.Tensor) -> None:
        self.rank, self.times = rank, times
        self._words = words.numpy()
        self._turn = 0

    def barrier(self) -> None:
        self._turn += 1
        self._words[self.rank] = self._turn
        while self._words.min() < self._turn:
            os.sched_yield()  # gloo's threads may have this core; without it they took six times as long

    def slowest(self, number: int) -> list[float]:
        """Of the first `number` times of all ranks the largest each, when every rank has written its own."""
        self.barrier()
        slowest = self.times[:, :number].max(0).values.tolist()
        self.barrier()  # nobody writes the next times before all have read these
        return slowest


def run(arguments: argparse.Namespace, measure: Callable[[SharedRanks, argparse.Namespace], list[list[Record]]]) -> int:
    """Forks given.ranks ranks, which meet through gloo. Rank 0 prints and keeps what its `measure` returns,
    records by round: a line for each, and given.out as a file."""
    arguments.load = os.getloadavg()[0]
    words = torch.zeros(arguments.ranks, dtype=torch.int64).share_memory_()
    times = torch.zeros(arguments.ranks, MAX_SAMPLES, dtype=torch.float64).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        process_arguments = (arguments, f"file://{folder}/store", words, times, measure)
        torch.multiprocessing.start_processes(_rank, process_arguments, arguments.ranks, start_method="fork")
    return 0


def _rank(rank: int, arguments: argparse.Namespace, store: str, words: Any, times: Any, measure: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store, timedelta(minutes=5), arguments.ranks, rank)
    rounds = measure(SharedRanks(rank, words, times), arguments)
    if rank == 0:
        _finish(arguments, merge_rounds(rounds))
    dist.barrier()
    dist.destroy_process_group()


def _finish(arguments: argparse.Namespace, records: list[Record]) -> None:
    points: dict[tuple, list[Record]] = {}
    for record in records:
        points.setdefault(record.point, []).append(record)
    for (collective, _, _, size, _), found in points.items():
        times = ", ".join(f"{each.provider} {each.time_us.median:.1f}" for each in found)
        wrong = sum(each.wrong or 0 for each in found)
        print(f"{collective} {size:>9}  us: {times}  wrong {wrong}", flush=True)
    if arguments.out:
        versions: dict[str, Any] = machine.versions() | {"torch": torch.__version__}
        block = machine.describe() | {"load_before": arguments.load}
        command = os.path.basename(sys.argv[0]) + " " + " ".join(sys.argv[1:])
        report = report_from(
            records, command=f"bench/{command}", commit=machine.commit(), machine=block, versions=versions
        )
        report.save(arguments.out)


def path_taken(collective: str) -> tuple[str, str]:
    """Backends and reasons of this collective's calls since the last reset, which this is one."""
    rows = [row for row in isthmus.torch.report() if row.collective == collective]
    isthmus.torch.reset_report()
    return ", ".join(dict.fromkeys(row.path for row in rows)), "; ".join(
        dict.fromkeys(row.reason for row in rows)
    )
