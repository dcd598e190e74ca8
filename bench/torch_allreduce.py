#!/usr/bin/env python3
"""all_reduce of CPU tensors through torch.distributed: Isthmus beside gloo, turn by turn in the same processes.

    torch_allreduce.py [--ranks N] [--rounds N] [--sizes BYTES,BYTES] [--out FILE]

A sample is the maximum over ranks of one call's time; ranks meet in a barrier of this program before each.
Every result is compared with the sum. Ranks are bound to no core: gloo has threads of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from isthmus import machine
from isthmus.records import Record, merge_rounds, report_from
from isthmus.sizes import format_size, parse_size

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
from measured import time_us

BATCH_BYTES, MOST_SAMPLES, LEAST_SAMPLES = 64 << 20, 400, 8


class Meeting:
    """What the ranks share: a word each for the barrier, and their times. For one thread of each rank."""

    def __init__(self, rank: int, words: torch.Tensor, times: torch.Tensor) -> None:
        self.rank, self.times = rank, times
        self._words = words.numpy()
        self._turn = 0

    def meet(self) -> None:
        self._turn += 1
        self._words[self.rank] = self._turn
        while self._words.min() < self._turn:
            os.sched_yield()  # gloo's threads may have this core; without it they took six times as long


def samples_of(meeting: Meeting, group: dist.ProcessGroup, size: int, ranks: int) -> tuple[list[float], int]:
    """Seconds of each call, the slowest rank's, and this rank's wrong elements."""
    count = size // 4
    # Whole numbers: any order of additions gives the same sum.
    parts = [
        torch.randint(-1000, 1000, (count,), generator=torch.Generator().manual_seed(rank)).float()
        for rank in range(ranks)
    ]
    data, expected = torch.empty(count), torch.stack(parts).sum(0)
    number = max(LEAST_SAMPLES, min(MOST_SAMPLES, BATCH_BYTES // size))
    wrong = 0
    for index in range(-2, number):  # two to warm up
        data.copy_(parts[meeting.rank])
        meeting.meet()
        begin = time.perf_counter()
        dist.all_reduce(data, group=group)
        elapsed = time.perf_counter() - begin
        wrong += int((data != expected).sum())
        if index >= 0:
            meeting.times[meeting.rank, index] = elapsed
    meeting.meet()
    slowest = meeting.times[:, :number].max(0).values.tolist()
    meeting.meet()  # nobody writes the next times before all have read these
    return slowest, wrong


def path_taken() -> tuple[str, str]:
    """Backend and reason of the calls since the last reset."""
    import isthmus.torch

    (row,) = [row for row in isthmus.torch.report() if row.collective == "allreduce"]
    isthmus.torch.reset_report()
    return row.path, row.reason


def record_of(
    provider: str, size: int, ranks: int, seconds: list[float], wrong: int, path: tuple[str, str]
) -> Record:
    figures = time_us(each * 1e6 for each in seconds)
    bandwidth = size / figures["median"] / 1e3
    return Record.model_validate(
        {
            "collective": "allreduce",
            "dtype": "float32",
            "op": "sum",
            "bytes": size,
            "ranks": ranks,
            "provider": provider,
            "backend": path[0],
            "reason": path[1],
            "mode": "torch",
            "time_us": figures,
            "algbw_gbs": bandwidth,
            "busbw_gbs": bandwidth * 2 * (ranks - 1) / ranks,
            "wrong": wrong,
        }
    )


def measure(rank: int, given: argparse.Namespace, store: str, words: torch.Tensor, times: torch.Tensor) -> None:
    import isthmus.torch

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store, timedelta(minutes=5), given.ranks, rank)
    groups = {"gloo": dist.group.WORLD, "isthmus": dist.new_group(backend="cpu:isthmus")}
    meeting = Meeting(rank, words, times)
    rounds: list[list[Record]] = []
    for _ in range(given.rounds):
        rounds.append([])
        for size in given.sizes:
            for provider, group in groups.items():
                isthmus.torch.reset_report()
                seconds, own = samples_of(meeting, group, size, given.ranks)
                path = path_taken() if provider == "isthmus" else ("torch:gloo", "")
                wrong = torch.tensor(own)
                dist.all_reduce(wrong)
                made = record_of(provider, size, given.ranks, seconds, int(wrong), path)
                rounds[-1].append(made)
    if rank == 0:
        finish(given, merge_rounds(rounds))
    dist.destroy_process_group()


def finish(given: argparse.Namespace, records: list[Record]) -> None:
    for gloo, own in zip(records[::2], records[1::2], strict=True):
        theirs, ours = gloo.time_us.median, own.time_us.median
        print(
            f"{format_size(own.bytes):>8}  gloo {theirs:9.1f} us, isthmus {ours:9.1f} us {theirs / ours:.1f}x  "
            f"{own.backend}  wrong {gloo.wrong or 0} {own.wrong or 0}"
        )
    if given.out:
        versions: dict[str, Any] = machine.versions() | {"torch": torch.__version__}
        command = "bench/torch_allreduce.py " + " ".join(sys.argv[1:])
        block = machine.describe() | {"load_before": given.load}
        report = report_from(
            records, command=command, commit=machine.commit(), machine=block, versions=versions
        )
        report.save(given.out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="64,64K,1M,16M")
    parser.add_argument("--out")
    given = parser.parse_args()
    given.sizes = [parse_size(each) for each in given.sizes.split(",")]
    given.load = os.getloadavg()[0]
    words = torch.zeros(given.ranks, dtype=torch.int64).share_memory_()
    times = torch.zeros(given.ranks, MOST_SAMPLES, dtype=torch.float64).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (given, f"file://{folder}/store", words, times)
        torch.multiprocessing.spawn(measure, args=arguments, nprocs=given.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
