#!/usr/bin/env python3
"""all_reduce of CPU tensors through torch.distributed: Isthmus against gloo, interleaved in the same processes.

    torch_allreduce.py [--ranks N,N] [--rounds N] [--samples N] [--sizes BYTES,BYTES] [--out FILE]
                       [--deepspeed FILE]

A sample is the maximum over ranks of the time of one call; the ranks synchronize before each call with a
barrier of this program. Every result is compared with the sum. Ranks are not bound to cores, because gloo has
its own threads. `isthmus_direct` is isthmus.torch.all_reduce. --deepspeed adds the shm allreduce of DeepSpeed,
from its built deepspeed_shm_comm.so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import isthmus.torch
from isthmus.records import Record
from isthmus.sizes import parse_size

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
from measured import time_us
from torch_cpu_ranks import MAX_SAMPLES, SharedRanks, path_taken, run

BATCH_BYTES, MIN_SAMPLES = 64 << 20, 8


def samples_of(
    shared: SharedRanks, all_reduce: Callable[[torch.Tensor], object], size: int, ranks: int, samples: int
) -> tuple[list[float], int]:
    """Seconds of each call on the slowest rank, and the wrong elements of this rank."""
    count = size // 4
    # Integers, because any order of additions gives the same sum.
    parts = [
        torch.randint(-1000, 1000, (count,), generator=torch.Generator().manual_seed(rank)).float()
        for rank in range(ranks)
    ]
    data, expected = torch.empty(count), torch.stack(parts).sum(0)
    number = max(MIN_SAMPLES, min(samples, BATCH_BYTES // size))
    wrong = 0
    for index in range(-2, number):  # two warm-up calls
        data.copy_(parts[shared.rank])
        shared.barrier()
        begin = time.perf_counter()
        all_reduce(data)
        elapsed = time.perf_counter() - begin
        wrong += int((data != expected).sum())
        if index >= 0:
            shared.times[shared.rank, index] = elapsed
    return shared.slowest(number), wrong


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


def providers(arguments: argparse.Namespace, rank: int) -> dict[str, Callable[[torch.Tensor], object]]:
    own = dist.new_group(backend="cpu:isthmus")
    found: dict[str, Callable[[torch.Tensor], object]] = {
        "gloo": dist.all_reduce,
        "isthmus": lambda data: dist.all_reduce(data, group=own),
        "isthmus_direct": lambda data: isthmus.torch.all_reduce(data, group=own),
    }
    if arguments.deepspeed:
        os.environ["LOCAL_SIZE"] = str(arguments.ranks)  # DeepSpeed names its segments after these variables
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "bench", str(os.getppid())
        spec = importlib.util.spec_from_file_location("deepspeed_shm_comm", arguments.deepspeed)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.initialize(arguments.ranks, rank)
        found["deepspeed_shm"] = torch.ops.deepspeed.inference_all_reduce_
    return found


def measure(shared: SharedRanks, arguments: argparse.Namespace) -> list[list[Record]]:
    compared = providers(arguments, shared.rank)
    rounds: list[list[Record]] = []
    for turn in range(arguments.rounds):
        rounds.append([])
        for size in arguments.sizes:
            for provider, all_reduce in list(compared.items())[:: 1 if turn % 2 == 0 else -1]:
                isthmus.torch.reset_report()
                seconds, own = samples_of(shared, all_reduce, size, arguments.ranks, arguments.samples)
                path = path_taken("allreduce") if provider.startswith("isthmus") else (f"torch:{provider}", "")
                wrong = torch.tensor(own)
                dist.all_reduce(wrong)
                rounds[-1].append(record_of(provider, size, arguments.ranks, seconds, int(wrong), path))
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2", help="list")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--samples",
        type=int,
        choices=range(MIN_SAMPLES, MAX_SAMPLES + 1),
        metavar="N",
        default=MAX_SAMPLES,
        help="most samples of a round",
    )
    parser.add_argument("--sizes", default="64,64K,1M,16M")
    parser.add_argument("--deepspeed", metavar="FILE")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    arguments.sizes = [parse_size(each) for each in arguments.sizes.split(",")]
    return run(arguments, measure)


if __name__ == "__main__":
    sys.exit(main())
