#!/usr/bin/env python3
"""Host time of all_reduce calls of PyTorch that are issued one by one, with Isthmus and with NCCL, in one
set of processes.

    torch_eager.py [--ranks N] [--samples N] [--sizes BYTES,BYTES] [--native NAME] [--device cpu] [--out FILE]

The modes are all_reduce, all_reduce with async_op=True and wait(), and isthmus.torch.all_reduce
(torch_direct_host), which also replaces all_reduce in programs that `python -m isthmus.torch` starts.
A sample is the maximum over ranks of the mean time of 100 calls on the host. The device is idle before, and
does not delay the host. The providers alternate. All results are checked. --native measures only PyTorch's own
backend and gives it this name in the records: with LD_PRELOAD of Isthmus' library for NCCL, that is the cost of
the preload.
"""

import argparse
import sys
from typing import Any

from torch_ranks import host_us, parser, run, slowest, time_us

CALLS = 100


def sample_of(call: Any, synchronize: Any, device: str) -> float:
    import torch.distributed as dist

    synchronize()
    dist.barrier()
    us = host_us(call, CALLS)
    synchronize()
    return slowest(us, device)


def inputs_of(rank: int, count: int) -> Any:
    import torch

    return torch.randint(-8, 8, (count,), generator=torch.Generator().manual_seed(rank))


def count_wrong(group: Any, data: Any, rank: int, size: int) -> int:
    """Elements that differ from the sum of all inputs, which bfloat16 represents."""
    import torch.distributed as dist

    own = inputs_of(rank, data.numel()).to(data)
    dist.all_reduce(own, group=group)
    expected = sum(inputs_of(each, data.numel()) for each in range(size))
    return int((own.cpu().long() != expected).sum())


def groups_of(device: str, native_name: str | None) -> dict[str, Any]:
    import torch.distributed as dist

    native = {"cuda": "nccl", "cpu": "gloo"}[device]
    groups = {native_name or native: dist.group.WORLD}
    if not native_name:
        import isthmus.torch  # noqa: F401  registers the backend

        groups["isthmus"] = dist.new_group(backend=f"{device}:isthmus")
    return groups


def samples_of(groups: dict[str, Any], data: Any, turns: int) -> dict[tuple[str, str], list[float]]:
    """The samples of each provider and mode. The first turn warms up."""
    import torch
    import torch.distributed as dist

    synchronize = torch.cuda.synchronize if data.is_cuda else lambda: None
    samples: dict[tuple[str, str], list[float]] = {}
    for turn in range(turns + 1):
        for name, group in list(groups.items())[:: 1 if turn % 2 else -1]:
            ways = {
                "torch_sync_host": lambda group=group: dist.all_reduce(data, group=group),
                "torch_async_host": lambda g=group: dist.all_reduce(data, group=g, async_op=True).wait(),
            }
            if name == "isthmus":
                import isthmus.torch

                ways["torch_direct_host"] = lambda group=group: isthmus.torch.all_reduce(data, group=group)
            for mode, call in ways.items():
                us = sample_of(call, synchronize, data.device.type)
                if turn > 0:
                    samples.setdefault((name, mode), []).append(us)
    return samples


def measure(rank: int, size: int, _group: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    groups = groups_of(arguments.device, arguments.native)
    records = []
    for count in (int(each) // 2 for each in arguments.sizes.split(",")):
        data = torch.zeros(count, dtype=torch.bfloat16, device=arguments.device)  # sums of zeros stay finite
        samples = samples_of(groups, data, arguments.samples)
        wrong = {name: count_wrong(group, data, rank, size) for name, group in groups.items()}
        for (name, mode), times in samples.items():
            figures = {key: round(value, 2) for key, value in time_us(times).items()}
            records.append(
                {
                    "collective": "allreduce",
                    "dtype": "bfloat16",
                    "bytes": count * 2,
                    "ranks": size,
                    "provider": name,
                    "backend": "torch",
                    "mode": mode,
                    "time_us": figures,
                    "algbw_gbs": 0,  # only the host is timed
                    "busbw_gbs": 0,
                    "wrong": wrong[name],
                    "samples": len(times),
                }
            )
            if rank == 0:
                print(f"{count * 2:9} {name:16} {mode:17} {figures['median']:8.2f} us", flush=True)
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
