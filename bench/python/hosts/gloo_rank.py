"""One rank of the gloo measurement between hosts: gloo_rank.py ADDRESS RANK RANKS SIZES SECONDS OUT."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measured import time_us

MIN_SAMPLES, MAX_SAMPLES = 5, 100


def calls_of(size: int, ranks: int) -> dict[str, Callable[[], object]]:
    """The measured calls on float32 buffers of the size in the records."""
    count = size // 4
    full_block, chunk = torch.ones(count), torch.ones(max(1, count // ranks))
    gathered, exchanged = torch.empty(count * ranks), torch.empty(count)
    return {
        "allreduce": lambda: dist.all_reduce(full_block),
        "allgather": lambda: dist.all_gather_into_tensor(gathered, full_block),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(chunk, full_block),
        "alltoall": lambda: dist.all_to_all_single(exchanged, full_block),
    }


def samples_of(call: Callable[[], object], seconds: float) -> list[float]:
    """Times of the slowest rank in microseconds, until `seconds` have passed on some rank."""
    samples: list[float] = []
    call()
    begin = time.perf_counter()
    while True:
        dist.barrier()
        start = time.perf_counter()
        call()
        elapsed = torch.tensor([time.perf_counter() - start, time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        samples.append(float(elapsed[0]) * 1e6)
        enough = len(samples) >= MIN_SAMPLES and float(elapsed[1]) > seconds
        if enough or len(samples) == MAX_SAMPLES:
            return samples


def main() -> None:
    address, rank, ranks, sizes, seconds, out = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://{address}", timedelta(minutes=2), int(ranks), int(rank))
    points, left_out = [], []
    for size in map(int, sizes.split(",")):
        for name, call in calls_of(size, int(ranks)).items():
            try:
                samples = samples_of(call, float(seconds))
            except (RuntimeError, NotImplementedError) as problem:  # gloo lacks the collective on all ranks
                left_out.append(f"{name}: {str(problem).splitlines()[0]}")
                continue
            points.append({"collective": name, "bytes": size, "time_us": time_us(samples)})
    if rank == "0":
        Path(out).write_text(json.dumps({"points": points, "left_out": left_out}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
