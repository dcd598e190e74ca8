#!/usr/bin/env python3
"""Symmetric-memory allreduce of PyTorch, a peer of gpu_bench p2p: one process per GPU, captured
graphs, no multicast.

    torch_symm_mem.py [--ranks N] [--samples N] [--out FILE]

A sample is the maximum over ranks of the time of a graph divided by its calls, a result the
median over samples.
"""

import argparse
import statistics
import sys
from typing import Any

from torch_ranks import parser, run, slowest, time_us

SIZES = [128, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 128 << 20]


def graph_times(call, calls: int, samples: int) -> list[float]:
    import torch
    import torch.distributed as dist

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(samples + 1):
        dist.barrier()
        call()  # aligns the ranks on the device
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(slowest(start.elapsed_time(stop) * 1e3 / calls))
    return times[1:]


def measure(rank: int, size: int, group: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch
    import torch.distributed._symmetric_memory as symm_mem

    ops = torch.ops.symm_mem
    records = []
    for dtype in (torch.float32, torch.bfloat16):
        for size_bytes in SIZES:
            count = size_bytes // dtype.itemsize
            tensor = symm_mem.empty(count, dtype=dtype, device="cuda")
            symm_mem.rendezvous(tensor, group)
            providers = {"torch_two_shot": lambda t=tensor: ops.two_shot_all_reduce_(t, "sum", group)}
            if size_bytes <= 1 << 20:
                providers["torch_one_shot"] = lambda t=tensor: ops.one_shot_all_reduce(t, "sum", group)
            for provider, call in providers.items():
                torch.manual_seed(rank)
                tensor.copy_(torch.rand(count, device="cuda") / (4 * size))
                try:
                    calls = 64 if size_bytes <= 256 << 10 else 16 if size_bytes <= 4 << 20 else 4
                    times = graph_times(call, calls, arguments.samples)
                except RuntimeError as error:
                    print(f"{provider} {dtype} {size_bytes}: {error}", file=sys.stderr)
                    continue
                median = statistics.median(times)
                records.append(
                    {
                        "collective": "allreduce",
                        "dtype": str(dtype).split(".")[1],
                        "op": "sum",
                        "bytes": size_bytes,
                        "ranks": size,
                        "provider": provider,
                        "backend": "torch",
                        "mode": "graph",
                        "time_us": time_us(times),
                        "algbw_gbs": size_bytes / median / 1e3,
                        "busbw_gbs": size_bytes / median / 1e3 * 2 * (size - 1) / size,
                    }
                )
                if rank == 0:
                    print(f"{size_bytes:9} {records[-1]['dtype']:8} {provider} {median:.2f}", flush=True)
    return records


def main() -> int:
    return run(measure, parser(__doc__, samples=15).parse_args())


if __name__ == "__main__":
    sys.exit(main())
