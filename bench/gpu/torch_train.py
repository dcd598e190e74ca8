#!/usr/bin/env python3
"""Effect of copy-engine all-gathers on sharded training: examples/zero3 with interleaved variants.

    torch_train.py --out FILE [--framework fsdp2|zero3] [--variants off,on,symmetric,both,all] [--layers N] ...

Variants (--variants):
    off        Isthmus without ISTHMUS_DMA_ALLGATHER
    on         with ISTHMUS_DMA_ALLGATHER
    symmetric  also with the buffers of FSDP2 in the symmetric heap
    both       on, and reduce-scatters by the copy engines
    all        symmetric, and reduce-scatters by the copy engines

The variants alternate in one set of processes, because sets of processes differ by more than the variants.
Every round starts new processes and uses another order. Afterwards all variants train a small model at the same
time, in separate processes, deterministically. `wrong` counts the steps whose loss differs in any bit from that
of the first variant. (Copy-engine reduce-scatters add in another order, but start at 1 MiB, which the small
model never reaches.) Writes records in the format of docs/internals/benchmarks.md: `time_us` is a step of the
slowest rank, `gain_pct` the median over turns of the median step of the first variant against that of this one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench/python"))
from measured import time_us, write_records  # noqa: E402

SMALL = ["--model", "gpt-tiny", "--length", "64", "--batch", "4", "--warmup", "1", "--rate", "1e-3"]
Work = Callable[..., Any]
UNTIMED = 3  # untimed steps of each turn, in which communicators are created
STAGING_BYTES = 512 << 20  # for all-gathers of hundreds of megabytes
COPY_ENGINE_RULE = "collective=reduce_scatter platform=cuda bytes=1M.. use=copy_engine"


@dataclass(frozen=True)
class Variant:
    provider: str
    dma: bool
    symmetric: bool = False
    rule: str = ""
    exact: bool = True  # it only moves data, so losses must match

    @property
    def environment(self) -> dict[str, str]:
        return {
            "ISTHMUS_DMA_ALLGATHER": "1" if self.dma else "0",
            "ISTHMUS_DMA_ALLGATHER_MAX_BYTES": str(STAGING_BYTES),
            "ISTHMUS_RULE": self.rule,
        }


VARIANTS = {
    "off": Variant("isthmus", dma=False),
    "on": Variant("isthmus_copy_engine", dma=True),
    "symmetric": Variant("isthmus_copy_engine_symmetric", dma=True, symmetric=True),
    "both": Variant("isthmus_copy_engine_both", dma=True, rule=COPY_ENGINE_RULE, exact=False),
    "all": Variant("isthmus_copy_engine_all", dma=True, symmetric=True, rule=COPY_ENGINE_RULE, exact=False),
}


@dataclass(frozen=True)
class Turns:
    """The interleaved variants, the number of turns, and the timed steps of a turn."""

    names: tuple[str, ...]
    turns: int
    steps: int


@dataclass(frozen=True)
class Run:
    options: argparse.Namespace
    names: tuple[str, ...]
    packages: str  # folder of packages that this Python lacks

    def common(self) -> list[str]:
        return ["--framework", self.options.framework, "--device", self.options.device]


class Ranks:
    """One new process per GPU that runs work(train, options, *more) with the parsed arguments of train.py."""

    def __init__(
        self, work: Work, arguments: list[str], variables: dict[str, str], size: int, packages: str, *more: Any
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        arguments = [*arguments, "--init-method", f"file://{self._folder.name}/store"]
        context = multiprocessing.get_context("forkserver")
        self._pipes, self._processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            own = variables | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            job = (there, own, [*sys.path, packages], work, arguments, *more)
            self._processes.append(context.Process(target=_serve, args=job, daemon=True))
            self._processes[-1].start()
            there.close()
            self._pipes.append(here)

    def results(self, limit_s: float) -> list[Any]:
        results: dict[int, Any] = {}
        deadline = time.monotonic() + limit_s
        while waiting := {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in results}:
            ready = multiprocessing.connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"ranks {sorted(waiting.values())} did not answer within {limit_s} s")
            for pipe in ready:
                succeeded, result = pipe.recv()
                if not succeeded:  # the other ranks wait for this one
                    raise RuntimeError(f"rank {waiting[pipe]}:\n{result}")
                results[waiting[pipe]] = result
        for process in self._processes:
            process.join(30)
        return [results[rank] for rank in range(len(self._pipes))]


def _bind_to_own_cores(rank: int, size: int) -> None:
    """Gives each rank an equal share of the cores, like --bind_cores_to_rank of DeepSpeed."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // size
    if share > 0:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])


def _serve(
    pipe: Any, variables: dict[str, str], path: list[str], work: Work, arguments: list[str], *more: Any
) -> None:
    os.environ.update(variables)
    _bind_to_own_cores(int(variables["RANK"]), int(variables["WORLD_SIZE"]))
    sys.path[:] = [str(ROOT / "examples/zero3"), *path]
    try:
        import torch.distributed as dist
        import train

        result = work(train, train.parse(arguments), *more)
        dist.destroy_process_group()
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def train_small(train: Any, options: argparse.Namespace) -> list[float]:
    """Returns the losses of a whole run."""
    return train.run(options)["losses"]


def take_turns(train: Any, options: argparse.Namespace, planned: Turns) -> list[dict[str, Any]]:
    """Measures each turn of each variant on this rank."""
    import torch

    import isthmus.torch

    shape = train.shape_of(options)
    trainer = train.start(options, shape)
    rank = torch.distributed.get_rank()
    batches = train.make_batches(options.batches, options.batch, options.length, shape.vocabulary, rank)
    results = []
    for name in planned.names * planned.turns:
        train_variant = VARIANTS[name]
        os.environ.update(train_variant.environment)
        if options.framework == "fsdp2":
            trainer.use_symmetric_heap(train_variant.symmetric)
        isthmus.torch.reload_rules()
        isthmus.torch.reset_report()
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = [
            train.timed_step(trainer, batches[step % len(batches)], options)[0]
            for step in range(UNTIMED + planned.steps)
        ]
        results.append(
            {
                "name": name,
                "steps_ms": [1e3 * each for each in seconds[UNTIMED:]],
                "paths": [asdict(row) for row in isthmus.torch.report()],
                "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if options.device == "cuda" else 0.0,
            }
        )
    return results


@dataclass
class Series:
    """Step times of one variant: for each turn, those of the slowest rank."""

    turns: list[list[float]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)

    def add(self, ranks: tuple[dict[str, Any], ...]) -> None:
        self.turns.append([max(times) for times in zip(*(rank["steps_ms"] for rank in ranks), strict=True)])
        self.last = ranks[0]

    @property
    def all_ms(self) -> list[float]:
        return [time for each in self.turns for time in each]

    def gain_pct(self, baseline: Series) -> float:
        pairs = zip(baseline.turns, self.turns, strict=True)
        return 100 * (median(median(there) / median(here) for there, here in pairs) - 1)


def path_of(collective: str, turn: dict[str, Any]) -> tuple[str, str, int]:
    """Path, reason and bytes per call of the path that moved most data of this collective in a turn."""
    rows = [row for row in turn["paths"] if row["collective"] == collective]
    if not rows:
        return "none", "", 0
    largest = max(rows, key=lambda row: row["bytes"])
    return largest["path"], largest["reason"], largest["bytes"] // largest["calls"]


def record(name: str, results: dict[str, Series], run: Run, losses_differ: int | None) -> dict[str, Any]:
    series, baseline = results[name], results[run.names[0]]
    times = [round(1e3 * time, 1) for time in series.all_ms]
    path, reason, call_bytes = path_of("allgather", series.last)
    options = run.options
    step_ms = median(series.all_ms)
    return {
        "collective": "allgather",
        "dtype": "bfloat16",
        "bytes": call_bytes,
        "ranks": options.ranks,
        "provider": VARIANTS[name].provider,
        "backend": path,
        "reason": reason,
        "reduce_scatter_backend": path_of("reduce_scatter", series.last)[0],
        "staging_bytes": STAGING_BYTES,
        "mode": options.framework,
        "time_us": time_us(times),
        "algbw_gbs": 0,  # bandwidths are not applicable to a whole step
        "busbw_gbs": 0,
        "wrong": losses_differ,
        "model": f"{options.model}, {options.layers} layers, {options.batch} x {options.length} words",
        "step_ms": round(step_ms, 2),
        "turn_step_ms": [round(median(each), 2) for each in series.turns],
        "turns_of_one_set_of_processes": options.turns,
        "gain_pct": round(series.gain_pct(baseline), 2),
        "tokens_per_s": round(options.ranks * options.batch * options.length / step_ms * 1e3),
        "torch_peak_gib": round(series.last["peak_gib"], 2),
        "samples": len(times),
    }


def measure(run: Run) -> dict[str, Series]:
    arguments = [*run.common(), "--model", run.options.model, "--layers", str(run.options.layers)]
    arguments += ["--batch", str(run.options.batch), "--length", str(run.options.length)]
    results = {name: Series() for name in run.names}
    begin = time.monotonic()
    for turn in range(run.options.rounds):
        if turn and (time.monotonic() - begin) * (turn + 1) / turn > run.options.limit:
            print(f"no time for round {turn}", flush=True)
            break
        first = turn % len(run.names)
        order = Turns((*run.names[first:], *run.names[:first]), run.options.turns, run.options.steps)
        ranks = Ranks(take_turns, arguments, {}, run.options.ranks, run.packages, order)
        for rank_results in zip(*ranks.results(run.options.limit), strict=True):
            results[rank_results[0]["name"]].add(rank_results)
        for name in run.names:
            last = [f"{median(each):.2f}" for each in results[name].turns[-run.options.turns :]]
            print(f"round {turn}: {name:10} {' '.join(last)} ms", flush=True)
    return results


def compare_losses(run: Run) -> dict[str, int]:
    """Counts the steps whose loss differs from the first variant. All run at once, because none is timed."""
    arguments = [*run.common(), *SMALL, "--deterministic", "--steps", str(run.options.loss_steps)]
    running = {}
    for name in run.names:
        train_variant = VARIANTS[name]
        own = [*arguments, "--symmetric"] if train_variant.symmetric else arguments
        running[name] = Ranks(train_small, own, train_variant.environment, run.options.ranks, run.packages)
    limit_s = 60 + run.options.loss_steps / 5
    losses = {name: ranks.results(limit_s)[0] for name, ranks in running.items()}
    first = losses[run.names[0]]
    if not first[-1] < first[0] - 0.2:
        raise RuntimeError(f"the loss of the small model does not fall: {first[0]} -> {first[-1]}")
    print(f"losses over {len(first)} steps: {first[0]:.4f} -> {first[-1]:.4f}")
    return {
        name: sum(mine != theirs for mine, theirs in zip(values, first, strict=True))
        for name, values in losses.items()
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--framework", choices=("fsdp2", "zero3"), default="fsdp2")
    parser.add_argument("--variants", default="off,on,symmetric", help="variants; the first is the baseline")
    parser.add_argument("--turns", type=int, default=3, help="turns of each variant in a round")
    parser.add_argument("--model", default="gpt-7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1, help="sequences per rank and step")
    parser.add_argument("--length", type=int, default=2048, help="words per sequence")
    parser.add_argument("--steps", type=int, default=10, help="timed steps per turn")
    parser.add_argument("--rounds", type=int, default=2, help="rounds, each with new processes")
    parser.add_argument("--limit", type=float, default=300, help="time limit of the rounds in seconds")
    parser.add_argument("--loss-steps", type=int, default=500, help="steps of the loss comparison (0: none)")
    parser.add_argument("--memory-gib", type=float, default=0, help="exit with 77 if a device has less memory")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to unpack and use")
    options = parser.parse_args()
    if unknown := [name for name in options.variants.split(",") if name not in VARIANTS]:
        parser.error(f"--variants {unknown[0]}: unknown variant; use {', '.join(VARIANTS)}")
    heap = [name for name in options.variants.split(",") if VARIANTS[name].symmetric]
    if options.framework == "zero3" and heap:
        parser.error(
            f"--variants {heap[0]} requires --framework fsdp2, because DeepSpeed allocates its own buffers"
        )
    return options


def min_memory_gib(options: argparse.Namespace) -> float:
    import torch

    if options.device != "cuda":
        return float("inf")
    sizes = (torch.cuda.get_device_properties(i).total_memory for i in range(options.ranks))
    return min(sizes) / 2**30


def main() -> int:
    options = parse()
    if (has := min_memory_gib(options)) < options.memory_gib:
        print(f"SKIPPED: needs devices with {options.memory_gib:.0f} GiB; the smallest has {has:.0f} GiB")
        return 77
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.distributed.fsdp"])
    with tempfile.TemporaryDirectory() as packages:
        for wheel in options.wheels.glob("*.whl") if options.wheels else ():
            zipfile.ZipFile(wheel).extractall(packages)
        run = Run(options, tuple(options.variants.split(",")), packages)
        results = measure(run)
        write(run, results, {})  # keeps the times if the comparison fails
        differ = compare_losses(run) if options.loss_steps else {}
    for each in write(run, results, differ):
        print(f"{each['mode']} {each['provider']:30} {each['backend']:22} {each['step_ms']:8.2f} ms", end=" ")
        print(f"{each['turn_step_ms']} {each['gain_pct']:+6.2f} % {each['torch_peak_gib']} GiB", end=" ")
        print(f"losses that differ: {each['wrong']}")
    return 1 if any(count for name, count in differ.items() if VARIANTS[name].exact) else 0


def write(run: Run, results: dict[str, Series], differ: dict[str, int]) -> list[dict[str, Any]]:
    import torch

    records = [record(name, results, run, differ.get(name)) for name in run.names]
    versions = {"torch": torch.__version__}
    if run.options.device == "cuda":
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    write_records(run.options.out, records, versions)
    return records


if __name__ == "__main__":
    sys.exit(main())
