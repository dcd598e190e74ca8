#!/usr/bin/env python3
"""Decode steps of a tensor-parallel model in stock PyTorch, with and without the preloaded library for NCCL.

    torch_decode.py LIBRARY [--ranks N] [--rounds N] [--samples N] [--out FILE]

The model has layers of the shape of Llama 3 in bfloat16 with random weights, each with two allreduces by
the nccl backend of PyTorch. Steps run as one CUDA graph, and call by call. The measured program does not
use Isthmus; it is started alternately with and without LIBRARY (libisthmus_nccl_preload.so) preloaded. A
sample is the time of a step on the slowest rank. "none" is the same step without its allreduces, a lower
bound for all results.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_ranks import parser, run, time_us, timed

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
from measured import write_records

# Width, query heads, key heads, width of the inner layer.
SHAPES = {"llama-8b": (4096, 32, 8, 14336), "llama-70b": (8192, 64, 8, 28672)}
HEAD = 128
LAYERS = 8
CONTEXT = 1024  # tokens in the caches
BATCHES = (1, 16, 64)
STEPS = 8  # steps per sample
WARM_UP = 3
LIMIT_S = 240


def make_weights(
    width: int, queries: int, keys: int, inner: int, batch: int, rank: int
) -> list[dict[str, Any]]:
    import torch

    generator = torch.Generator("cuda").manual_seed(rank + 1)
    sizes = {
        "qkv": ((queries + 2 * keys) * HEAD, width),
        "out": (width, queries * HEAD),
        "up": (2 * inner, width),
        "down": (width, inner),
        "keys": (batch, keys, CONTEXT, HEAD),
        "values": (batch, keys, CONTEXT, HEAD),
    }

    def random(*size: int) -> torch.Tensor:
        values = torch.randn(*size, generator=generator, device="cuda", dtype=torch.bfloat16)
        return values * size[-1] ** -0.5

    return [{name: random(*size) for name, size in sizes.items()} for _ in range(LAYERS)]


def make_model(shape: str, batch: int, rank: int, size: int) -> tuple[Callable[[Callable], Any], Any]:
    """Returns step(sum_over_ranks), which uses a fixed input, and its output tensor."""
    import torch

    width, queries, keys, inner = SHAPES[shape]
    queries, keys, inner = queries // size, keys // size, inner // size
    layers = make_weights(width, queries, keys, inner, batch, rank)
    common_generator = torch.Generator("cuda").manual_seed(0)
    inputs = torch.randn(batch, width, generator=common_generator, device="cuda", dtype=torch.bfloat16)
    output = torch.full_like(inputs, float("nan"))
    functional = torch.nn.functional

    def attend(layer: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        parts = [queries * HEAD, keys * HEAD, keys * HEAD]
        query, key, value = functional.linear(x, layer["qkv"]).split(parts, 1)
        # The newest token is the last entry of the caches.
        layer["keys"][:, :, -1] = key.view(batch, keys, HEAD)
        layer["values"][:, :, -1] = value.view(batch, keys, HEAD)
        heads = query.view(batch, queries, 1, HEAD)
        attention = functional.scaled_dot_product_attention(
            heads, layer["keys"], layer["values"], enable_gqa=True
        )
        return functional.linear(attention.reshape(batch, queries * HEAD), layer["out"])

    def feed(layer: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        gate, up = functional.linear(x, layer["up"]).chunk(2, 1)
        return functional.linear(functional.silu(gate) * up, layer["down"])

    def step(sum_over_ranks: Callable[[torch.Tensor], Any]) -> None:
        x = inputs
        for layer in layers:
            for part in (attend, feed):
                partial = part(layer, functional.rms_norm(x, (width,)))
                sum_over_ranks(partial)
                x = x + partial
        output.copy_(x)

    return step, output


def times_of(call: Callable[[], None], mode: str, samples: int) -> list[float]:
    import torch

    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    if mode == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            call()
        call = graph.replay
    return [timed(call, STEPS) for _ in range(samples + 1)][1:]


def measure(rank: int, size: int, _: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs in the measured program: returns the samples of every point, with outputs for comparison."""
    import torch
    import torch.distributed as dist

    found = []
    for shape in SHAPES:
        for batch in BATCHES:
            step, output = make_model(shape, batch, rank, size)
            reducers = {"all": dist.all_reduce, "none": lambda _: None}
            for mode in ("graph", "eager"):
                for name, sums in reducers.items():
                    samples = times_of(lambda step=step, sums=sums: step(sums), mode, arguments.samples)
                    point = {"model": shape, "batch": batch, "mode": mode, "sums": name, "samples": samples}
                    if name == "all" and rank == 0:
                        point["output"] = output.float().flatten()[:4096].tolist()
                    found.append(point)
            del step, output
            torch.cuda.empty_cache()
    return found


def run_job(arguments: argparse.Namespace, variables: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
    """Runs one process per GPU and returns the samples and the output."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "samples.json")
        words = [
            "--measure",
            "--ranks",
            str(arguments.ranks),
            "--samples",
            str(arguments.samples),
            "--out",
            str(file),
        ]
        completed = subprocess.run(
            [sys.executable, __file__, arguments.library, *words],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if completed.returncode != 0:
            raise RuntimeError(f"a measured job exited with {completed.returncode}: {completed.stdout[-3000:]}")
        return json.loads(file.read_text())["records"], completed.stdout


def difference(actual: list[float], reference: list[float]) -> float:
    """The norm of the difference, relative to the second output. NaN never passes the check."""
    square = sum((a - b) ** 2 for a, b in zip(actual, reference, strict=True))
    return (square / sum(b * b for b in reference)) ** 0.5


def record(point: dict[str, Any], provider: str, samples: list[float], ranks: int) -> dict[str, Any]:
    return {
        "collective": "allreduce",
        "dtype": "bfloat16",
        "op": "sum",
        "bytes": point["batch"] * SHAPES[point["model"]][0] * 2,
        "ranks": ranks,
        "provider": provider,
        "mode": point["mode"],
        "time_us": time_us(samples),
        "algbw_gbs": 0,  # not applicable to a whole step
        "busbw_gbs": 0,
        "model": f"{LAYERS} layers of {point['model']}, {CONTEXT} tokens",
        "batch": point["batch"],
    }


def judge(points: dict[str, list[dict[str, Any]]]) -> float:
    """Returns the largest difference of an output; raises if the order of summation cannot explain it."""
    worst = 0.0
    for reference, actual in zip(points["nccl"], points["nccl_preload"], strict=True):
        if "output" in reference:
            found = difference(actual["output"], reference["output"])
            if not found <= 0.02:
                raise RuntimeError(
                    f"{reference['model']}, batch {reference['batch']}: outputs differ by {found}"
                )
            worst = max(worst, found)
    return worst


def compare(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    variants = {"nccl": {}, "nccl_preload": {"LD_PRELOAD": arguments.library, "ISTHMUS_NCCL_REPORT": "1"}}
    samples: dict[tuple, list[float]] = {}
    points_by_key: dict[tuple, dict[str, Any]] = {}
    for turn in range(arguments.rounds):
        points = {}
        for variant in sorted(variants, reverse=bool(turn % 2)):
            points[variant], printed = run_job(arguments, variants[variant])
            if variant == "nccl_preload" and not re.search(r"ncclAllReduce +p2p", printed):
                raise RuntimeError(f"ncclAllReduce did not use p2p: {printed[-3000:]}")
            for point in points[variant]:
                provider = "none" if point["sums"] == "none" else variant
                key = (point["model"], point["batch"], point["mode"], provider)
                samples.setdefault(key, []).extend(point["samples"])
                points_by_key[key] = point
        print(f"round {turn}: outputs differ by {judge(points):.2g} at most", flush=True)
    return [record(points_by_key[key], key[3], samples[key], arguments.ranks) for key in samples]


def main() -> int:
    arguments_parser = parser(__doc__, 15)
    arguments_parser.add_argument("library")
    arguments_parser.add_argument("--rounds", type=int, default=3)
    arguments_parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = arguments_parser.parse_args()
    if arguments.measure:
        return run(measure, arguments)
    try:
        import torch
    except ImportError:
        print("SKIPPED: no torch")
        return 77
    arguments.ranks = arguments.ranks or torch.cuda.device_count()
    arguments.library = str(Path(arguments.library).resolve())
    if arguments.ranks < 2:
        print("SKIPPED: fewer than two CUDA devices")
        return 77
    records = compare(arguments)
    medians = {(r["model"], r["batch"], r["mode"], r["provider"]): r["time_us"]["median"] for r in records}
    for model, batch, mode in dict.fromkeys(key[:3] for key in medians):
        nccl, preload, none = (
            medians[model, batch, mode, variant] for variant in ("nccl", "nccl_preload", "none")
        )
        print(
            f"{model:32} batch {batch:2} {mode:5}  nccl {nccl:8.1f}  preload {preload:8.1f}"
            f" ({preload / nccl - 1:+.1%})  none {none:8.1f}"
        )
    if arguments.out:
        write_records(arguments.out, records, {"torch": torch.__version__})
    return 0


if __name__ == "__main__":
    sys.exit(main())
