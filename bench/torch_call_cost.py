#!/usr/bin/env python3
"""Cost of an all_reduce call in PyTorch with nothing to communicate: one rank, 16 floats, on the host.

    torch_call_cost.py [--call-cost FILE] [--out FILE]

`torch_nothing` uses the `fake` backend of PyTorch, which does nothing, and so shows the cost of PyTorch alone.
--call-cost reads records of build/bin/call_cost, which has the same call through the C API.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend

import isthmus.torch
from isthmus import machine
from isthmus.records import Record, Report, report_from

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
from measured import time_us

CALLS, REPETITIONS, ROUNDS = 1000, 10, 5


def microseconds_of(call: Callable[[], object]) -> list[float]:
    samples = []
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        samples.append((time.perf_counter() - begin) / CALLS * 1e6)
    return samples


def calls() -> dict[str, Callable[[], object]]:
    data = torch.ones(16)
    isthmus_group, fake_group = dist.new_group(backend="cpu:isthmus"), dist.new_group(backend="fake")
    return {
        "isthmus": lambda: dist.all_reduce(data, group=isthmus_group),
        "isthmus_direct": lambda: isthmus.torch.all_reduce(data, group=isthmus_group),
        "torch_nothing": lambda: dist.all_reduce(data, group=fake_group),
        "gloo": lambda: dist.all_reduce(data),
    }


def record_of(provider: str, samples: list[float]) -> Record:
    figures = time_us(samples)
    return Record.model_validate(
        {
            "collective": "allreduce",
            "dtype": "float32",
            "op": "sum",
            "bytes": 64,
            "ranks": 1,
            "provider": provider,
            "mode": "torch",
            "time_us": figures,
            "host_overhead_us": figures["median"],
            "algbw_gbs": 0.0,
            "busbw_gbs": 0.0,
        }
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--call-cost", metavar="FILE")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", f"file://{folder}/store", world_size=1, rank=0)
        compared = calls()
        gc.disable()
        for _ in range(ROUNDS):
            for provider, call in compared.items():
                samples.setdefault(provider, []).extend(microseconds_of(call))
        dist.destroy_process_group()
    records = [record_of(*each) for each in samples.items()]
    if arguments.call_cost:
        through_c = Report.load(arguments.call_cost).records
        records += [each for each in through_c if (each.collective, each.backend) == ("allreduce", "shm")]
    for each in records:
        took = each.time_us
        print(f"{each.provider:16} {each.mode:6} median {took.median:7.3f} us, min {took.min:7.3f}")
    if arguments.out:
        command = "bench/torch_call_cost.py " + " ".join(sys.argv[1:])
        versions = machine.versions() | {"torch": torch.__version__}
        report = report_from(
            records, command=command, commit=machine.commit(), machine=machine.describe(), versions=versions
        )
        report.save(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
