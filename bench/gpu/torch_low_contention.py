#!/usr/bin/env python3
"""_low_contention_all_gather of PyTorch, for comparison with gpu_bench copy_engine: one process per GPU.

    torch_low_contention.py [--ranks N] [--samples N] [--rounds N] [--out FILE]

The input is in symmetric memory. Calls are issued directly: the operation runs on its own stream and returns a
Work, which graphs cannot capture. A sample is the maximum over ranks of the time divided by the calls, a result
the median over samples. Concurrent matrix products are compared with products alone just before and just after.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

from torch_ranks import parser, run, slowest, time_us, timed

SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 32 << 20, 64 << 20, 256 << 20]
OVERLAP_BYTES = 64 << 20
SIDE = 8192
PRODUCTS = 20


def make_gather(size_bytes: int, group: str) -> tuple[Callable[[], object], int]:
    """Returns the call, and the number of wrong words in its first result."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    tensor = symm_mem.empty(size_bytes // 4, dtype=torch.int32, device="cuda")
    symm_mem.rendezvous(tensor, group)
    torch.manual_seed(dist.get_rank())
    tensor.random_()
    wait = torch.ops._c10d_functional.wait_tensor

    def call() -> torch.Tensor:
        return wait(torch.ops.symm_mem._low_contention_all_gather(tensor, group))

    expected = torch.empty(tensor.numel() * dist.get_world_size(), dtype=torch.int32, device="cuda")
    dist.all_gather_into_tensor(expected, tensor)
    return call, int((call() != expected).sum().item())


def record(size: int, size_bytes: int, times: list[float], wrong: int) -> dict:
    median = statistics.median(times)
    return {
        "collective": "allgather",
        "dtype": "int32",
        "bytes": size_bytes,
        "ranks": size,
        "in_place": False,
        "provider": "torch_low_contention",
        "backend": "torch",
        "mode": "stream",
        "time_us": time_us(times),
        "algbw_gbs": size_bytes / median / 1e3,
        "busbw_gbs": size_bytes * (size - 1) / median / 1e3,
        "wrong": wrong,
    }


def measure_with_products(
    call: Callable[[], object], call_us: float, rounds: int
) -> tuple[float, float, list[float]]:
    """Returns the slowdown of products with and without concurrent calls (percent), and their times (ms)."""
    import torch
    import torch.distributed as dist

    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    compute, comm = torch.cuda.Stream(), torch.cuda.Stream()
    start, stop, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))

    def sample(calls: int) -> float:
        torch.cuda.synchronize()
        dist.barrier()
        with torch.cuda.stream(compute):
            start.record()
            for _ in range(PRODUCTS):
                torch.mm(a, b, out=c)
            stop.record()
        with torch.cuda.stream(comm):
            for _ in range(calls):
                call()
            end.record()
        torch.cuda.synchronize()
        if calls > 0 and stop.elapsed_time(end) < 0:
            raise RuntimeError("the collectives ended before the concurrent products")
        return slowest(start.elapsed_time(stop))

    for _ in range(3):
        alone = sample(0)
    calls = int(1.5 * alone * 1e3 / call_us) + 1
    ratios: dict[int, list[float]] = {calls: [], 0: []}
    times = []
    previous_ms = alone
    for _ in range(rounds):
        for number in (calls, 0):
            ms, next_ms = sample(number), sample(0)
            ratios[number].append(2 * ms / (previous_ms + next_ms))
            if number:
                times.append(ms)
            previous_ms = next_ms
    slowdown = {number: 100 * (statistics.median(values) - 1) for number, values in ratios.items()}
    return slowdown[calls], slowdown[0], times


def measure(rank: int, size: int, group: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    records = []
    for size_bytes in SIZES:
        call, wrong = make_gather(size_bytes, group)
        calls = 48 if size_bytes <= 256 << 10 else 16 if size_bytes <= 4 << 20 else 6
        timed(call, calls)
        times = [timed(call, calls) for _ in range(arguments.samples)]
        records.append(record(size, size_bytes, times, int(slowest(wrong))))
        if rank == 0:
            print(f"{size_bytes:9} {statistics.median(times):8.2f} us, {wrong} wrong words", flush=True)
        if size_bytes == OVERLAP_BYTES and arguments.rounds > 0:
            slowdown, noise, products = measure_with_products(call, statistics.median(times), arguments.rounds)
            more = record(size, size_bytes, times, wrong) | {
                "beside": f"{PRODUCTS} products {SIDE}x{SIDE}x{SIDE} bfloat16",
                "gemm_slowdown_pct": slowdown,
                "method_noise_pct": noise,
                "gemm_ms": time_us(products),
            }
            records.append(more)
            if rank == 0:
                print(f"concurrent products: {slowdown:+.2f} %, without calls {noise:+.2f} %", flush=True)
    return records


def main() -> int:
    options = parser(__doc__, samples=11)
    options.add_argument("--rounds", type=int, default=12, help="rounds of concurrent products")
    return run(measure, options.parse_args())


if __name__ == "__main__":
    sys.exit(main())
