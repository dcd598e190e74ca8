#!/usr/bin/env python3
"""Row-parallel layers: torch.ops.isthmus.matmul_allreduce against products and allreduces of Isthmus and NCCL.
All run in one set of processes, one for each GPU, in captured graphs.

    torch_matmul.py [--ranks N] [--samples N] [--rows M,M] [--shapes KxN,KxN] [--device cpu] [--out FILE]

K is the inner dimension of one rank. The calls of a graph use different weights, which the L2 cache does not
hold. A sample is the maximum over ranks of the time of a graph divided by its calls, a result the median over
samples. The order of the providers rotates. Results are compared with float64, and must have equal bits on all
ranks. On the CPU, the providers are compared without graphs, with gloo instead of NCCL.
"""

import argparse
import itertools
import statistics
import sys
from typing import Any

from torch_ranks import parser, run, slowest, time_us
from torch_symm_mem import Call, GraphTimer, HostTimer

# One of two ranks: attention and MLP of Llama 8B, the same of Llama 70B.
SHAPES = ["2048x4096", "7168x4096", "4096x8192", "14336x8192"]
ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
WEIGHT_BYTES = 150 << 20  # of all weights; the L2 cache of an H200 has 60 MB
CALLS = 24


def random(rows: int, columns: int, seed: int, device: str) -> Any:
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    return (2 * torch.rand((rows, columns), generator=generator, device=device) - 1).to(torch.bfloat16)


def make_calls(own: Any, weights: list[Any], group: Any) -> dict[str, Call]:
    """Every call uses the next weight, the first one weights[0], and returns its result."""
    import torch
    import torch.distributed as dist

    def fused(weight: Any) -> Any:
        return torch.ops.isthmus.matmul_allreduce(own, weight, group.group_name)

    def separate(weight: Any, of: Any) -> Any:
        product = torch.mm(own, weight.t())
        dist.all_reduce(product, group=of)
        return product

    def rotating(function: Any, *arguments: Any) -> Call:
        turns = itertools.cycle(weights)
        return lambda: function(next(turns), *arguments)

    other = "nccl" if own.is_cuda else "gloo"
    return {
        "isthmus": rotating(fused),
        "isthmus_separate": rotating(separate, group),
        f"{other}_separate": rotating(separate, None),
    }


def count_wrong(output: Any, own: Any, weight: Any) -> int:
    """Elements of all ranks outside of the error bound, or with other bits than on rank 0."""
    import torch
    import torch.distributed as dist

    product = own.double() @ weight.double().t()
    magnitude = own.double().abs() @ weight.double().abs().t()
    unit = torch.finfo(output.dtype).eps
    bound = (own.shape[1] + 8) * 2.0**-24 * magnitude + unit * product.abs()
    dist.all_reduce(product)
    dist.all_reduce(bound)
    first = output.clone()
    dist.broadcast(first, 0)
    is_right = (output.double() - product).abs() <= bound + unit * product.abs()  # NaN is wrong
    wrong = (~(is_right & (first == output))).sum()
    dist.all_reduce(wrong)
    return int(wrong.item())


def compare(
    rank: int, size: int, group: Any, shape: tuple[int, int], rows: int, weights: list[Any], samples: int
) -> list[dict[str, Any]]:
    import torch.distributed as dist

    (inner, columns), device = shape, weights[0].device.type
    own = random(rows, inner, rank + 7, device)
    wrong, timers = {}, {}
    for provider, call in make_calls(own, weights, group).items():
        wrong[provider] = count_wrong(call(), own, weights[0])
        timers[provider] = (GraphTimer if device == "cuda" else HostTimer)(call, CALLS)
    times: dict[str, list[float]] = {provider: [] for provider in timers}
    names = list(timers)
    for turn in range(-1, samples):
        for position in range(len(names)):
            provider = names[(position + turn) % len(names)]
            dist.barrier()
            value = slowest(timers[provider].sample(), device)
            if turn >= 0:
                times[provider].append(value)
    if rank == 0:
        results = " ".join(
            f"{provider} {statistics.median(times[provider]):.2f}{' WRONG' if wrong[provider] else ''}"
            for provider in names
        )
        print(f"{rows:4} rows, {inner} x {columns}: {results}", flush=True)
    fields = {
        "collective": "matmul_allreduce",
        "bytes": 2 * rows * columns,
        "m": rows,
        "k": inner,
        "n": columns,
    }
    fields |= {"ranks": size, "mode": "graph" if device == "cuda" else "host"}
    return [record_of(fields, provider, times[provider], wrong[provider]) for provider in names]


def record_of(fields: dict[str, Any], provider: str, samples: list[float], wrong: int) -> dict[str, Any]:
    """Returns the record of a provider. Rates are 0, because most of the time does not depend on the links."""
    return fields | {
        "dtype": "bfloat16",
        "provider": provider,
        "backend": "torch",
        "time_us": time_us(samples),
        "algbw_gbs": 0,
        "busbw_gbs": 0,
        "wrong": wrong,
    }


def measure(rank: int, size: int, _: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    import isthmus.torch  # noqa: F401 (registers the backend and the operator)

    group = dist.new_group(backend=f"{arguments.device}:isthmus")
    records = []
    with torch.no_grad():
        for text in arguments.shapes:
            inner, columns = (int(each) for each in text.split("x"))
            count = max(2, WEIGHT_BYTES // (2 * inner * columns) + 1) if arguments.device == "cuda" else 2
            weights = [random(columns, inner, 100 * rank + seed, arguments.device) for seed in range(count)]
            for rows in arguments.rows:
                records += compare(rank, size, group, (inner, columns), rows, weights, arguments.samples)
    return records


def main() -> int:
    options = parser(__doc__, samples=15)
    options.add_argument("--shapes", type=lambda text: text.split(","), default=SHAPES)
    options.add_argument("--rows", type=lambda text: [int(each) for each in text.split(",")], default=ROWS)
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = options.parse_args()
    return run(measure, arguments, device=arguments.device)


if __name__ == "__main__":
    sys.exit(main())
