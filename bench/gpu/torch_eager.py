#!/usr/bin/env python3
"""Host time of all_reduce calls of PyTorch that are issued one by one, with Isthmus and with NCCL, in one set of
processes.

    torch_eager.py [--ranks N] [--samples N] [--sizes BYTES,BYTES] [--native NAME] [--device cpu] [--out FILE]

A sample is the maximum over ranks of the mean time of 100 calls on the host. The device is idle before, and does not
delay the host. The providers alternate. All results are checked. --native measures only PyTorch's own backend and gives it
this name in the records: with LD_PRELOAD of Isthmus' library for NCCL, that is the cost of the preload.
"""

import argparse
import sys
import time
from typing import Any

from torch_ranks import parser, run, slowest, time_us

CALLS = 100


def host_us(call: Any, synchronize: Any, device: str) -> float:
    import torch.distributed as dist

    synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    elapsed = time.perf_counter() - begin
    synchronize()
    return slowest(elapsed / CALLS * 1e6, device)


def measure(rank: int, size: int, _group: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    device = arguments.device
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    native = {"cuda": "nccl", "cpu": "gloo"}[device]
    groups = {arguments.native or native: dist.group.WORLD}
    if not arguments.native:
        import isthmus.torch  # registers the backend

        groups["isthmus"] = dist.new_group(backend=f"{device}:isthmus")
    records = []
    for count in (int(each) // 2 for each in arguments.sizes.split(",")):
        # Each call multiplies the largest value by the number of ranks, so zeros are timed. The check uses other values.
        data = torch.zeros(count, dtype=torch.bfloat16, device=device)
        samples: dict[tuple[str, str], list[float]] = {}
        for turn in range(arguments.samples + 1):
            for name, used in list(groups.items())[:: 1 if turn % 2 else -1]:
                ways = {
                    "torch_sync_host": lambda used=used: dist.all_reduce(data, group=used),
                    "torch_async_host": lambda used=used: dist.all_reduce(data, group=used, async_op=True).wait(),
                }
                for mode, call in ways.items():
                    us = host_us(call, synchronize, device)
                    if turn > 0:
                        samples.setdefault((name, mode), []).append(us)
        for name, used in groups.items():
            own = torch.randint(-8, 8, (count,), generator=torch.Generator().manual_seed(rank)).to(data)
            expected = sum(
                torch.randint(-8, 8, (count,), generator=torch.Generator().manual_seed(each)) for each in range(size)
            )
            dist.all_reduce(own, group=used)
            wrong = int((own.cpu().long() != expected).sum())
            for mode in ("torch_sync_host", "torch_async_host"):
                times = samples[name, mode]
                records.append(
                    {
                        "collective": "allreduce",
                        "dtype": "bfloat16",
                        "bytes": count * 2,
                        "ranks": size,
                        "provider": name,
                        "backend": "torch",
                        "mode": mode,
                        "time_us": {key: round(value, 2) for key, value in time_us(times).items()},
                        "algbw_gbs": 0,  # only the host is timed
                        "busbw_gbs": 0,
                        "wrong": wrong,
                        "samples": len(times),
                    }
                )
                if rank == 0:
                    line = records[-1]
                    print(f"{line['bytes']:9} {name:16} {mode:17} {line['time_us']['median']:8.2f} us", flush=True)
    return records


def main() -> int:
    options = parser(__doc__, samples=9)
    options.add_argument("--sizes", default="8192,262144")
    options.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options.add_argument("--native", help="measure only PyTorch's own backend, under this name")
    arguments = options.parse_args()
    return run(measure, arguments, device=arguments.device)


if __name__ == "__main__":
    sys.exit(main())
