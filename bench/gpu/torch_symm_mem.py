#!/usr/bin/env python3
"""Allreduce of PyTorch's symmetric memory against NCCL and Isthmus, without multicast. All run in one set of
processes, one for each GPU, in captured graphs.

    torch_symm_mem.py [--ranks N] [--samples N] [--sizes BYTES,BYTES] [--device cpu] [--out FILE]

A sample is the maximum over ranks of the time of a graph divided by its calls, a result the median over
samples. The order of the providers rotates. The result of each is compared with the sum of all inputs. On the
CPU, gloo and Isthmus are compared without graphs.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

from torch_ranks import host_us, parser, run, slowest, time_us

SIZES = [128, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 128 << 20]
ONE_SHOT_BYTES = 1 << 20  # at most
Call = Callable[[], Any]


def inputs_of(rank: int, size: int, count: int, dtype: Any, device: str) -> Any:
    """Values of both signs. Repeated calls of two ranks double the sums, which stay finite for 100 calls."""
    import torch

    generator = torch.Generator(device).manual_seed(rank)
    return ((torch.rand(count, generator=generator, device=device) - 0.5) / size).to(dtype)


def count_wrong(call: Call, tensor: Any, size: int, own: Any) -> int:
    """Elements of all ranks outside of the error bound of any order of additions."""
    import torch

    inputs = [inputs_of(rank, size, tensor.numel(), tensor.dtype, tensor.device.type) for rank in range(size)]
    expected = sum(each.double() for each in inputs)
    bound = size * torch.finfo(tensor.dtype).eps * sum(each.double().abs() for each in inputs)
    tensor.copy_(own)
    result = call()
    actual = (result if isinstance(result, torch.Tensor) else tensor).double()
    wrong = int((~((actual - expected).abs() <= bound)).sum())  # NaN is wrong
    total = torch.tensor([wrong], device=tensor.device)
    torch.distributed.all_reduce(total)
    return int(total.item())


class GraphTimer:
    """Times `calls` calls in a captured graph, after two calls that align the ranks."""

    def __init__(self, call: Call, calls: int) -> None:
        import torch

        for _ in range(3):
            call()
        torch.cuda.synchronize()
        self._calls = calls
        self._align, self._timed = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        for graph, number in ((self._align, 2), (self._timed, calls)):
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(number):
                    call()
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def sample(self) -> float:
        import torch

        self._align.replay()
        self._events[0].record()
        self._timed.replay()
        self._events[1].record()
        torch.cuda.synchronize()
        return self._events[0].elapsed_time(self._events[1]) * 1e3 / self._calls


class HostTimer:
    def __init__(self, call: Call, calls: int) -> None:
        self._call, self._calls = call, calls

    def sample(self) -> float:
        return host_us(self._call, self._calls)


def make_calls(tensor: Any, size_bytes: int, group: str, own_group: Any) -> dict[str, Call]:
    import torch
    import torch.distributed as dist

    def reduce(of: Any) -> None:
        dist.all_reduce(tensor, group=of)

    calls: dict[str, Call] = {"isthmus": lambda: reduce(own_group)}
    if tensor.device.type == "cpu":
        return calls | {"gloo": lambda: reduce(None)}
    ops = torch.ops.symm_mem
    calls["nccl"] = lambda: reduce(None)
    calls["torch_two_shot"] = lambda: ops.two_shot_all_reduce_(tensor, "sum", group)
    if size_bytes <= ONE_SHOT_BYTES:
        calls["torch_one_shot"] = lambda: ops.one_shot_all_reduce(tensor, "sum", group)
    return calls


def make_tensor(count: int, dtype: Any, device: str, group: str) -> Any:
    import torch

    if device == "cpu":
        return torch.empty(count, dtype=dtype)
    import torch.distributed._symmetric_memory as symm_mem

    tensor = symm_mem.empty(count, dtype=dtype, device=device)
    symm_mem.rendezvous(tensor, group)
    return tensor


def record_of(
    provider: str, dtype: Any, size_bytes: int, size: int, device: str, samples: list[float]
) -> dict[str, Any]:
    rate = size_bytes / statistics.median(samples) / 1e3
    return {
        "collective": "allreduce",
        "dtype": str(dtype).split(".")[1],
        "op": "sum",
        "bytes": size_bytes,
        "ranks": size,
        "provider": provider,
        "backend": "torch",
        "mode": "graph" if device == "cuda" else "host",
        "time_us": time_us(samples),
        "algbw_gbs": rate,
        "busbw_gbs": rate * 2 * (size - 1) / size,
    }


def compare(
    rank: int, size: int, group: str, own_group: Any, dtype: Any, size_bytes: int, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    import torch.distributed as dist

    count, device = size_bytes // dtype.itemsize, arguments.device
    tensor = make_tensor(count, dtype, device, group)
    own = inputs_of(rank, size, count, dtype, device)
    number = 64 if size_bytes <= 256 << 10 else 16 if size_bytes <= 4 << 20 else 4
    wrong, timers, times = {}, {}, {}
    for provider, call in make_calls(tensor, size_bytes, group, own_group).items():
        try:
            wrong[provider] = count_wrong(call, tensor, size, own)
            tensor.copy_(own)
            timers[provider] = (GraphTimer if device == "cuda" else HostTimer)(call, number)
        except RuntimeError as error:  # the same on all ranks: the provider does not support the call
            print(f"{provider} {dtype} {size_bytes}: {error}", file=sys.stderr)
            continue
        times[provider] = []
    for turn in range(-1, arguments.samples):
        names = list(timers)
        for position in range(len(names)):
            provider = names[(position + turn) % len(names)]
            tensor.copy_(own)
            dist.barrier()
            value = slowest(timers[provider].sample(), device)
            if turn >= 0:
                times[provider].append(value)
    records = [
        record_of(provider, dtype, size_bytes, size, device, samples) | {"wrong": wrong[provider]}
        for provider, samples in times.items()
    ]
    if rank == 0:
        results = " ".join(
            f"{each['provider']} {each['time_us']['median']:.2f}{' WRONG' if each['wrong'] else ''}"
            for each in records
        )
        print(f"{size_bytes:9} {str(dtype).split('.')[1]:8} {results}", flush=True)
    return records


def measure(rank: int, size: int, group: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    import isthmus.torch  # noqa: F401 (registers the backend)

    own_group = dist.new_group(backend=f"{arguments.device}:isthmus")
    return [
        record
        for dtype in (torch.float32, torch.bfloat16)
        for size_bytes in arguments.sizes
        for record in compare(rank, size, group, own_group, dtype, size_bytes, arguments)
    ]


def main() -> int:
    options = parser(__doc__, samples=15)
    options.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=SIZES)
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = options.parse_args()
    return run(measure, arguments, device=arguments.device)


if __name__ == "__main__":
    sys.exit(main())
