#!/usr/bin/env python3
"""Decode steps of a tensor-parallel model under stock PyTorch, with and without the preloaded library for NCCL.

    torch_decode.py LIBRARY [--ranks N] [--rounds N] [--samples N] [--out FILE]

Layers of Llama 3's shape, bfloat16, random weights, each with two sums over the ranks by PyTorch's nccl:
as one CUDA graph a step, and call by call. The program that measures knows nothing of Isthmus; it is started by
turns with LIBRARY (libisthmus_nccl_preload.so) preloaded and without. A sample is the time of a step on the
slowest rank; "none" is the same step without its sums, which no figure can be below.
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

# Width, heads of queries and of keys, width of the inner layer.
SHAPES = {"llama-8b": (4096, 32, 8, 14336), "llama-70b": (8192, 64, 8, 28672)}
HEAD = 128
LAYERS = 8
CONTEXT = 1024  # tokens that the caches hold
BATCHES = (1, 16, 64)
STEPS = 8  # of a sample
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
    """step(sum_over_ranks), which computes from an input that stays, and its output."""
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
        # The newest token's place in the caches is the last one.
        layer["keys"][:, :, -1] = key.view(batch, keys, HEAD)
        layer["values"][:, :, -1] = value.view(batch, keys, HEAD)
        heads = query.view(batch, queries, 1, HEAD)
        attention = functional.scaled_dot_product_attention(heads, layer["keys"], layer["values"], enable_gqa=True)
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
    """Of the program that knows nothing of Isthmus: samples by point, and the outputs beside the file."""
    import torch
    import torch.distributed as dist

    found = []
    for shape in SHAPES:
        for batch in BATCHES:
            step, output = make_model(shape, batch, rank, size)
            ways = {"all": dist.all_reduce, "none": lambda _: None}
            for mode in ("graph", "eager"):
                for name, sums in ways.items():
                    samples = times_of(lambda step=step, sums=sums: step(sums), mode, arguments.samples)
                    point = {"model": shape, "batch": batch, "mode": mode, "sums": name, "samples": samples}
                    if name == "all" and rank == 0:
                        point["output"] = output.float().flatten()[:4096].tolist()
                    found.append(point)
            del step, output
            torch.cuda.empty_cache()
    return found


def run_job(arguments: argparse.Namespace, variables: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
    """The samples of a process a GPU, and what was printed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "samples.json")
        words = ["--measure", "--ranks", str(arguments.ranks), "--samples", str(arguments.samples), "--out", str(file)]
        done = subprocess.run(
            [sys.executable, __file__, arguments.library, *words],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"a job ended with {done.returncode}: {done.stdout[-3000:]}")
        return json.loads(file.read_text())["records"], done.stdout


def difference(ours: list[float], theirs: list[float]) -> float:
    """Of two outputs, relative to the length of the second. NaN never passes."""
    square = sum((a - b) ** 2 for a, b in zip(ours, theirs, strict=True))
    return (square / sum(b * b for b in theirs)) ** 0.5


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
        "algbw_gbs": 0,  # of a whole step
        "busbw_gbs": 0,
        "model": f"{LAYERS} layers of {point['model']}, {CONTEXT} tokens",
        "batch": point["batch"],
    }


def judge(points: dict[str, list[dict[str, Any]]]) -> float:
    """The largest difference of an output; raises where that is more than the order of two sums explains."""
    worst = 0.0
    for theirs, ours in zip(points["nccl"], points["nccl_preload"], strict=True):
        if "output" in theirs:
            found = difference(ours["output"], theirs["output"])
            if not found <= 0.02:
                raise RuntimeError(f"{theirs['model']}, batch {theirs['batch']}: outputs differ by {found}")
            worst = max(worst, found)
    return worst


def compare(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    ways = {"nccl": {}, "nccl_preload": {"LD_PRELOAD": arguments.library, "ISTHMUS_NCCL_REPORT": "1"}}
    samples: dict[tuple, list[float]] = {}
    points_by_key: dict[tuple, dict[str, Any]] = {}
    for turn in range(arguments.rounds):
        points = {}
        for way in sorted(ways, reverse=bool(turn % 2)):
            points[way], printed = run_job(arguments, ways[way])
            if way == "nccl_preload" and not re.search(r"ncclAllReduce +p2p", printed):
                raise RuntimeError(f"no sum was taken: {printed[-3000:]}")
            for point in points[way]:
                provider = "none" if point["sums"] == "none" else way
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
        nccl, ours, none = (medians[model, batch, mode, way] for way in ("nccl", "nccl_preload", "none"))
        print(
            f"{model:32} batch {batch:2} {mode:5}  nccl {nccl:8.1f}  preload {ours:8.1f}"
            f" ({ours / nccl - 1:+.1%})  none {none:8.1f}"
        )
    if arguments.out:
        write_records(arguments.out, records, {"torch": torch.__version__})
    return 0


if __name__ == "__main__":
    sys.exit(main())
