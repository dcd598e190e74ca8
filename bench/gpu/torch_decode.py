#!/usr/bin/env python3
"""Decode steps of a tensor-parallel model in stock PyTorch, with and without the preloaded library for NCCL.

    torch_decode.py LIBRARY [--ranks N] [--rounds N] [--samples N] [--device cpu] [--out FILE]

The model has layers of the shape of Llama 3 in bfloat16 with random weights, each with two allreduces by
the nccl backend of PyTorch. Steps run as one CUDA graph, and call by call. "none" is the same step without its
allreduces, a lower bound for all results.

The measured program does not use Isthmus. It runs in two jobs, one of them with LIBRARY
(libisthmus_nccl_preload.so) preloaded. Only one job works at a time, while the ranks of the other sleep. The
jobs take one sample each in turn, A B B A. Rank r of both jobs runs on the same core, which changes after each
pair of samples. If the machine or a core changes its speed, this affects both jobs. A sample is the time of a
step on the slowest rank. `gain_pct` is the median over the pairs of the time without LIBRARY against that with
it, `gain_quartiles_pct` are the quartiles. For "none" they compare the same work in both jobs, which shows the
error of the measurement. --rounds starts new jobs. With --device cpu, the jobs run a small model with gloo.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from torch_ranks import host_us, parser, run, slowest, time_us, timed

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
from measured import quartiles, write_records

# Width, query heads, key heads, width of the inner layer.
SHAPES = {"llama-8b": (4096, 32, 8, 14336), "llama-70b": (8192, 64, 8, 28672), "small": (256, 2, 2, 256)}
MODELS = {"cuda": ("llama-8b", "llama-70b"), "cpu": ("small",)}
BATCHES = {"cuda": (1, 16, 64), "cpu": (1, 2)}
MODES = {"cuda": ("graph", "eager"), "cpu": ("eager",)}
HEAD = 128
LAYERS = 8
CONTEXT = 1024  # tokens in the caches
STEPS = 8  # steps per sample
WARM_UP = 3
LIMIT_S = 240  # of a job
TURN_LIMIT_S = 120
VARIANTS = ("nccl", "nccl_preload")


class Turns:
    """One rank's view of the turns of two jobs. A turn starts when all ranks have ended the turn before."""

    def __init__(self, store: Any, job: int, rank: int, size: int) -> None:
        self._store, self._job, self._size = store, job, size
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // size)
        self._cores = cores[rank % len(cores) * share :][:share] or cores
        self._pairs = 0

    @contextlib.contextmanager
    def turn(self, index: int = 0) -> Iterator[None]:
        """Sleeps until this job has its turn, and runs the calling thread on a core that depends on `index`."""
        number = 2 * self._pairs + (self._job + index) % 2
        self._pairs += 1
        if number > 0:
            self._store.wait([f"ended {number - 1}"])
        os.sched_setaffinity(0, {self._cores[index % len(self._cores)]})
        yield
        if self._store.add(f"ranks of {number}", 1) == self._size:
            self._store.set(f"ended {number}", "")


def make_weights(
    width: int, queries: int, keys: int, inner: int, batch: int, rank: int, device: str
) -> list[dict[str, Any]]:
    import torch

    generator = torch.Generator(device).manual_seed(rank + 1)
    sizes = {
        "qkv": ((queries + 2 * keys) * HEAD, width),
        "out": (width, queries * HEAD),
        "up": (2 * inner, width),
        "down": (width, inner),
        "keys": (batch, keys, CONTEXT, HEAD),
        "values": (batch, keys, CONTEXT, HEAD),
    }

    def random(*size: int) -> torch.Tensor:
        values = torch.randn(*size, generator=generator, device=device, dtype=torch.bfloat16)
        return values * size[-1] ** -0.5

    return [{name: random(*size) for name, size in sizes.items()} for _ in range(LAYERS)]


def make_model(
    shape: str, batch: int, rank: int, size: int, device: str
) -> tuple[Callable[[Callable], Any], Any]:
    """Returns step(sum_over_ranks), which uses a fixed input, and its output tensor."""
    import torch

    width, queries, keys, inner = SHAPES[shape]
    queries, keys, inner = queries // size, keys // size, inner // size
    layers = make_weights(width, queries, keys, inner, batch, rank, device)
    common_generator = torch.Generator(device).manual_seed(0)
    inputs = torch.randn(batch, width, generator=common_generator, device=device, dtype=torch.bfloat16)
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


def prepared(call: Callable[[], None], mode: str) -> Callable[[], None]:
    """Warms up the call and captures it if the mode is "graph"."""
    import torch

    for _ in range(WARM_UP):
        call()
    if mode == "eager":
        return call
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph.replay


def sample_of(call: Callable[[], None], device: str) -> float:
    import torch.distributed as dist

    for _ in range(WARM_UP):
        call()
    if device == "cuda":
        return timed(call, STEPS)
    dist.barrier()
    return slowest(host_us(call, STEPS), device)


def measure(rank: int, size: int, _: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs in the measured program: returns the samples of every point, with outputs for comparison."""
    import torch
    import torch.distributed as dist

    gc.disable()
    store = dist.TCPStore("127.0.0.1", arguments.port, timeout=timedelta(seconds=TURN_LIMIT_S))
    turns = Turns(store, arguments.job, rank, size)
    device = arguments.device
    reducers: dict[str, Callable] = {"all": dist.all_reduce, "none": lambda _: None}
    found = []
    for shape, batch in itertools.product(MODELS[device], BATCHES[device]):
        with turns.turn():
            step, output = make_model(shape, batch, rank, size, device)
            calls = {
                (mode, name): prepared(partial(step, sums), mode)
                for mode in MODES[device]
                for name, sums in reducers.items()
            }
        samples: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
        for index in range(arguments.samples):
            for key, call in calls.items():
                with turns.turn(index):
                    samples[key].append(sample_of(call, device))
        with turns.turn():
            for (mode, name), call in calls.items():
                call()
                point = {"model": shape, "batch": batch, "mode": mode, "sums": name}
                result = output.float().flatten()[:4096].tolist()
                found.append(point | {"samples": samples[mode, name], "output": result})
            del step, output, calls, call
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    return found


def run_jobs(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Runs both jobs, with one process per GPU, and returns the points of each."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    words = [f"--{name}={getattr(arguments, name)}" for name in ("ranks", "samples", "device")]
    command = [sys.executable, __file__, arguments.library, *words, f"--port={store.port}"]
    variables = {
        "nccl": {},
        "nccl_preload": {"LD_PRELOAD": arguments.library, "ISTHMUS_NCCL_REPORT": "1"},
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        jobs = []
        for job, name in enumerate(VARIANTS):
            each = subprocess.Popen(
                [*command, f"--job={job}", f"--out={folder}/{name}.json"],
                env=os.environ | variables[name],
                stdout=running.enter_context(Path(folder, name).open("w")),
                stderr=subprocess.STDOUT,
            )
            jobs.append(each)
            running.callback(each.kill)
        codes = [each.wait(LIMIT_S) for each in jobs]
        texts = [Path(folder, name).read_text() for name in VARIANTS]
        if any(codes):
            raise RuntimeError(f"the measured jobs exited with {codes}: " + "\n".join(t[-3000:] for t in texts))
        if arguments.device == "cuda" and not re.search(r"ncclAllReduce +p2p", texts[1]):
            raise RuntimeError(f"ncclAllReduce did not use p2p: {texts[1][-3000:]}")
        return {name: json.loads(Path(folder, f"{name}.json").read_text())["records"] for name in VARIANTS}


def difference(actual: list[float], reference: list[float]) -> float:
    """The norm of the difference, relative to the second output. NaN never passes the check."""
    square = sum((a - b) ** 2 for a, b in zip(actual, reference, strict=True))
    return (square / sum(b * b for b in reference)) ** 0.5


def records_of(
    point: tuple[str, int, str, str], samples: dict[str, list[float]], ranks: int
) -> list[dict[str, Any]]:
    """The records of a point. The samples of both jobs are in the same order."""
    model, batch, mode, sums = point
    nccl, preload = (samples[name] for name in VARIANTS)
    gains = [100 * (without_us / with_us - 1) for without_us, with_us in zip(nccl, preload, strict=True)]
    common = {
        "collective": "allreduce",
        "dtype": "bfloat16",
        "op": "sum",
        "bytes": batch * SHAPES[model][0] * 2,
        "ranks": ranks,
        "mode": mode,
        "algbw_gbs": 0,  # not applicable to a whole step
        "busbw_gbs": 0,
        "model": f"{LAYERS} layers of {model}, {CONTEXT} tokens",
        "batch": batch,
    }
    comparison = {"gain_pct": round(median(gains), 2), "gain_quartiles_pct": quartiles(gains)}
    if sums == "none":
        return [common | comparison | {"provider": "none", "time_us": time_us(nccl + preload)}]
    return [
        common | {"provider": "nccl", "time_us": time_us(nccl)},
        common | comparison | {"provider": "nccl_preload", "time_us": time_us(preload)},
    ]


def largest_difference(points: dict[str, list[dict[str, Any]]]) -> float:
    """Returns the largest difference of an output; raises if the order of summation cannot explain it."""
    largest = 0.0
    for reference, actual in zip(points["nccl"], points["nccl_preload"], strict=True):
        error = difference(actual["output"], reference["output"])
        if not error <= (0.02 if reference["sums"] == "all" else 0):
            point = {key: reference[key] for key in ("model", "batch", "mode", "sums")}
            raise RuntimeError(f"outputs of {point} differ by {error}")
        largest = max(largest, error)
    return largest


def compare(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    samples: dict[tuple[str, int, str, str], dict[str, list[float]]] = {}
    for number in range(arguments.rounds):
        points = run_jobs(arguments)
        print(f"round {number}: outputs differ by {largest_difference(points):.2g} at most", flush=True)
        for name in VARIANTS:
            for each in points[name]:
                key = (each["model"], each["batch"], each["mode"], each["sums"])
                samples.setdefault(key, {each: [] for each in VARIANTS})[name] += each["samples"]
    return [each for point, times in samples.items() for each in records_of(point, times, arguments.ranks)]


def main() -> int:
    arguments_parser = parser(__doc__, 15)
    arguments_parser.add_argument("library")
    arguments_parser.add_argument("--rounds", type=int, default=2)
    arguments_parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments_parser.add_argument("--job", type=int, help=argparse.SUPPRESS)  # index in VARIANTS
    arguments_parser.add_argument("--port", type=int, help=argparse.SUPPRESS)  # of the store
    arguments = arguments_parser.parse_args()
    if arguments.job is not None:
        return run(measure, arguments, device=arguments.device)
    try:
        import torch
    except ImportError:
        print("SKIPPED: no torch")
        return 77
    arguments.ranks = arguments.ranks or (torch.cuda.device_count() if arguments.device == "cuda" else 2)
    arguments.library = str(Path(arguments.library).resolve())
    if arguments.ranks < 2:
        print("SKIPPED: fewer than two CUDA devices")
        return 77
    records = compare(arguments)
    for each in records:
        line = f"{each['model']:32} batch {each['batch']:2} {each['mode']:5} {each['provider']:12}"
        gain = f"gain {each['gain_pct']:+.1f}% {each['gain_quartiles_pct']}" if "gain_pct" in each else ""
        print(f"{line} {each['time_us']['median']:8.1f} us {gain}")
    if arguments.out:
        write_records(arguments.out, records, {"torch": torch.__version__})
    return 0


if __name__ == "__main__":
    sys.exit(main())
