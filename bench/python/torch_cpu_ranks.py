"""Common parts of the torch.distributed benchmarks on CPUs: ranks, the barrier before each call, files."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import isthmus.torch
from isthmus import machine
from isthmus.records import Record, merge_rounds, report_from

MAX_SAMPLES = 400


class SharedRanks:
    """Shared memory of the ranks: a word per rank for the barrier, and times. Use one thread per rank."""

    def __init__(self, rank: int, words: torch.Tensor, times: torch.Tensor) -> None:
        self.rank, self.times = rank, times
        self._words = words.numpy()
        self._turn = 0

    def barrier(self) -> None:
        self._turn += 1
        self._words[self.rank] = self._turn
        while self._words.min() < self._turn:
            os.sched_yield()  # without it, threads of gloo on this core took six times as long

    def slowest(self, number: int) -> list[float]:
        """Waits for the times of all ranks; returns the maximum over ranks of each of the first `number`."""
        self.barrier()
        slowest = self.times[:, :number].max(0).values.tolist()
        self.barrier()  # no rank writes new times before all have read these
        return slowest


def run(
    arguments: argparse.Namespace, measure: Callable[[SharedRanks, argparse.Namespace], list[list[Record]]]
) -> int:
    """For each number in the list arguments.ranks, forks that many ranks, which connect through gloo.

    `measure` gets one of the numbers in arguments.ranks and returns the records of each round. Prints one
    line per point and writes all records to arguments.out.
    """
    load = os.getloadavg()[0]
    records: list[Record] = []
    for ranks in map(int, arguments.ranks.split(",")):
        words = torch.zeros(ranks, dtype=torch.int64).share_memory_()
        times = torch.zeros(ranks, MAX_SAMPLES, dtype=torch.float64).share_memory_()
        with tempfile.TemporaryDirectory() as folder:
            rank_arguments = argparse.Namespace(**vars(arguments) | {"ranks": ranks})
            process_arguments = (rank_arguments, folder, words, times, measure)
            torch.multiprocessing.start_processes(_rank, process_arguments, ranks, start_method="fork")
            lines = (Path(folder) / "records").read_text().splitlines()
        merged = [Record.model_validate_json(line) for line in lines]
        _print(merged)
        records += merged
        _save(arguments, load, records)
    return 0


def _rank(rank: int, arguments: argparse.Namespace, folder: str, words: Any, times: Any, measure: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(minutes=5), arguments.ranks, rank)
    rounds = measure(SharedRanks(rank, words, times), arguments)
    if rank == 0:
        merged = merge_rounds(rounds)
        (Path(folder) / "records").write_text("\n".join(each.model_dump_json() for each in merged))
    dist.barrier()
    dist.destroy_process_group()


def _print(records: list[Record]) -> None:
    points: dict[tuple, list[Record]] = {}
    for record in records:
        points.setdefault((record.collective, record.ranks, record.bytes), []).append(record)
    for (collective, ranks, size), found in points.items():
        times = ", ".join(f"{each.provider} {each.time_us.median:.1f}" for each in found)
        wrong = sum(each.wrong or 0 for each in found)
        print(f"{collective} {ranks:>2} ranks {size:>9}  us: {times}  wrong {wrong}", flush=True)


def _save(arguments: argparse.Namespace, load: float, records: list[Record]) -> None:
    if arguments.out:
        versions: dict[str, Any] = machine.versions() | {"torch": torch.__version__}
        block = machine.describe() | {"load_before": load}
        command = os.path.basename(sys.argv[0]) + " " + " ".join(sys.argv[1:])
        report = report_from(
            records, command=f"bench/{command}", commit=machine.commit(), machine=block, versions=versions
        )
        report.save(arguments.out)


def path_taken(collective: str) -> tuple[str, str]:
    """Backends and reasons of the calls of this collective since the last reset; resets the report."""
    rows = [row for row in isthmus.torch.report() if row.collective == collective]
    isthmus.torch.reset_report()
    return ", ".join(dict.fromkeys(row.path for row in rows)), "; ".join(
        dict.fromkeys(row.reason for row in rows)
    )
