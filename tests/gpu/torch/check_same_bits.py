#!/usr/bin/env python3
"""Deterministic sums on GPUs: check_same_bits.py OUT.json [RANKS].

With ISTHMUS_DETERMINISTIC=1, every slice of a reduction must have the bits of a sum in rank order, for every
path, datatype, stream and graph. The oracle adds on the CPU with PyTorch.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import ranks
import torch
import torch.distributed as dist

import isthmus.torch  # noqa: F401  registers the backend

COUNT = 1_500_007
# Element ranges of the calls. Most begin and end between vectors.
SLICES = [
    (0, COUNT),
    (1, 1),
    (3, 8),
    (17, 129),
    (5, 1026),
    (777, 4099),
    (9, 70_001),
    (3, 270_002),
    (1, COUNT - 2),
]
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PATHS = ["default rules", "p2p:one_shot", "p2p:two_shot", "copy_engine", "nccl"]  # nccl: only sums of two ranks
OPERATIONS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG}


class Reference:
    """The contributions of all ranks, and the result in rank order."""

    def __init__(self, size: int, dtype: torch.dtype, device: str) -> None:
        generator = torch.Generator().manual_seed(size)
        wide = dtype if dtype.itemsize >= 4 else torch.float32

        def random_values() -> torch.Tensor:
            scale = torch.exp2(torch.rand(COUNT, generator=generator) * 24 - 14)
            return (torch.randn(COUNT, generator=generator) * scale).to(dtype)

        values = [random_values() for _ in range(size)]
        if size > 2:
            # The result consists of small contributions and their rounding errors.
            values[-1][::2] = -values[0][::2]
        total = values[0].to(wide)
        for each in values[1:]:
            total = total + each.to(wide)
        self.contributions = [each.to(device) for each in values]
        self.results = {"sum": total.to(dtype).to(device), "avg": (total / size).to(dtype).to(device)}


@functools.cache
def reference_of(size: int, dtype: torch.dtype, device: str) -> Reference:
    return Reference(size, dtype, device)


def expect_equal(actual: torch.Tensor, expected: torch.Tensor, words: str) -> None:
    wrong = int((actual.view(torch.uint8) != expected.view(torch.uint8)).sum())
    assert wrong == 0, f"{words}: {wrong} of {actual.nbytes} bytes differ"


class Checker:
    """The calls of one rank with one datatype."""

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup, reference: Reference) -> None:
        self._rank, self._size, self._group, self._reference = rank, size, group, reference
        self._own = reference.contributions[rank]

    def start(self, name: str, op: str, first: int, count: int) -> Callable[[], None]:
        """Issues a call. Returns a function that checks its result."""
        send, result = self._own[first : first + count], self._reference.results[op]
        words = f"{name} {op} of {send.dtype}, elements {first} to {first + count}"
        if name == "reduce_scatter":
            count //= self._size
            received = torch.full_like(send[:count], float("nan"))
            dist.reduce_scatter_tensor(received, send[: count * self._size], OPERATIONS[op], self._group)
            begin = first + self._rank * count
            return lambda: expect_equal(received, result[begin : begin + count], words)
        buffer = send.clone()
        if name == "reduce":
            root = self._size - 1
            dist.reduce(buffer, root, OPERATIONS[op], self._group)
            if self._rank != root:
                return lambda: None
        else:
            dist.all_reduce(buffer, OPERATIONS[op], self._group)
        return lambda: expect_equal(buffer, result[first : first + count], words)

    def start_all(self, slices: list[tuple[int, int]]) -> list[Callable[[], None]]:
        return [
            self.start(name, op, first, count)
            for name in ("all_reduce", "reduce", "reduce_scatter")
            for op in OPERATIONS
            for first, count in slices
        ]


def check_path(rank: int, size: int, path: str, device: str) -> int:
    """Returns the number of calls."""
    os.environ["ISTHMUS_RULE"] = "" if path == PATHS[0] else f"platform=cuda use={path}"
    group = dist.new_group(backend="isthmus", timeout=timedelta(seconds=60))
    calls = 0
    skew = random.Random(rank)
    for dtype in TYPES:
        checker = Checker(rank, size, group, reference_of(size, dtype, device))
        checks = checker.start_all(SLICES)
        if device == "cuda":
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(skew.randrange(1_000_000))  # ranks and streams are skewed
                checks += checker.start_all(SLICES[1:5])
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                checks += checker.start_all(SLICES)
            graph.replay()
            torch.cuda.synchronize()
            graph.reset()  # otherwise it keeps the communicator of NCCL
        for check in checks:
            check()
        calls += len(checks)
    dist.destroy_process_group(group)
    return calls


def body(rank: int, out: Path, device: str) -> None:
    os.environ["ISTHMUS_DETERMINISTIC"] = "1"
    dist.init_process_group("isthmus", timeout=timedelta(seconds=60), **ranks.init_arguments())

    def check_of(path: str) -> Callable[[], int]:
        def check() -> int:
            return check_path(rank, dist.get_world_size(), path, device)

        check.__name__ = path
        return check

    ranks.run_checks(rank, [check_of(path) for path in PATHS], out)
    dist.destroy_process_group()


def main() -> None:
    size = int(sys.argv[2]) if len(sys.argv) > 2 else torch.cuda.device_count()
    ranks.run(size, body, Path(sys.argv[1]), "cuda")


if __name__ == "__main__":
    main()
