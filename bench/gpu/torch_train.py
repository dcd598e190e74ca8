#!/usr/bin/env python3
"""What all-gathers by the copy engines are worth to sharded training: examples/zero3 by turns, a process a GPU.

    torch_train.py --out FILE [--framework fsdp2|zero3] [--ways nccl,off,on,symmetric] [--layers N] ...

Ways: PyTorch's own backends (nccl); Isthmus without (off) and with ISTHMUS_DMA_ALLGATHER (on); with it and
FSDP2's buffers in the symmetric heap (symmetric). Every round starts new processes and takes the ways in
another order. Then all ways train a small model at once, deterministically: `wrong` counts the steps whose
loss differs from the first way's in any bit. Writes records in the format of docs/architecture.md: `time_us`
is a step of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = ["--model", "gpt-tiny", "--length", "64", "--batch", "4", "--warmup", "1", "--rate", "1e-3"]
DMA = {"ISTHMUS_DMA_ALLGATHER": "1"}


@dataclass(frozen=True)
class Way:
    provider: str
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


WAYS = {
    "nccl": Way("torch", ("--backend", "cpu:gloo,cuda:nccl")),
    "off": Way("isthmus"),
    "on": Way("isthmus_copy_engine", (), DMA),
    "symmetric": Way("isthmus_copy_engine_symmetric", ("--symmetric",), DMA),
}


class Ranks:
    """A fresh process for each GPU that trains with these arguments of train.py."""

    def __init__(self, way: Way, arguments: list[str], size: int, packages: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        arguments = [*arguments, *way.arguments, "--init-method", f"file://{self._folder.name}/store"]
        context = multiprocessing.get_context("forkserver")
        self._pipes, self._processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            own = way.environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            work = (there, own, arguments, [*sys.path, packages])
            self._processes.append(context.Process(target=_train, args=work, daemon=True))
            self._processes[-1].start()
            there.close()
            self._pipes.append(here)

    def results(self, limit_s: float = 60) -> list[dict[str, Any]]:
        found = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(limit_s):
                raise RuntimeError(f"rank {rank} gave no answer within {limit_s} s")
            good, result = pipe.recv()
            if not good:
                raise RuntimeError(f"rank {rank}:\n{result}")
            found.append(result)
        for process in self._processes:
            process.join(30)
        return found


def _keep_to_own_cores(rank: int, size: int) -> None:
    """A share of the cores for each rank, as DeepSpeed's --bind_cores_to_rank gives."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // size
    if share > 0:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])


def _train(pipe: Any, variables: dict[str, str], arguments: list[str], path: list[str]) -> None:
    os.environ.update(variables)
    _keep_to_own_cores(int(variables["RANK"]), int(variables["WORLD_SIZE"]))
    sys.path[:] = [str(ROOT / "examples/zero3"), *path]
    try:
        import torch.distributed as dist
        import train

        result = train.run(train.parse(arguments))
        dist.destroy_process_group()
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


@dataclass
class Series:
    """Steps of one way: per round the slowest rank's times."""

    rounds: list[list[float]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)

    def add(self, ranks: list[dict[str, Any]]) -> None:
        self.rounds.append([max(times) for times in zip(*(rank["steps_ms"] for rank in ranks), strict=True)])
        self.last = ranks[0]

    @property
    def median_ms(self) -> float:
        return statistics.median(time for each in self.rounds for time in each)


def gathering_path(result: dict[str, Any]) -> tuple[str, str, int]:
    """Path, reason and bytes a call of most of a run's all-gathers."""
    rows = [row for row in result["paths"] if row["collective"] == "allgather"]
    if not rows:
        return "torch", "", 0
    most = max(rows, key=lambda row: row["bytes"])
    return most["path"], most["reason"], most["bytes"] // most["calls"]


def record(way: Way, series: Series, baseline: Series, losses_differ: int | None) -> dict[str, Any]:
    last = series.last
    times = sorted(round(1e3 * time, 1) for each in series.rounds for time in each)
    path, reason, call_bytes = gathering_path(last)
    return {
        "collective": "allgather",
        "dtype": "bfloat16",
        "bytes": call_bytes,
        "ranks": last["ranks"],
        "provider": way.provider,
        "backend": path,
        "reason": reason,
        "mode": last["framework"],
        "time_us": {"min": times[0], "median": statistics.median(times), "max": times[-1]},
        "algbw_gbs": 0,  # bandwidths have no meaning for a whole step
        "busbw_gbs": 0,
        "wrong": losses_differ,
        "model": f"{last['model']}, {last['layers']} layers, {last['batch']} x {last['length']} words",
        "step_ms": round(series.median_ms, 2),
        "round_step_ms": [round(statistics.median(each), 2) for each in series.rounds],
        "gain_pct": round(100 * (baseline.median_ms / series.median_ms - 1), 2),
        "tokens_per_s": round(last["ranks"] * last["batch"] * last["length"] / series.median_ms * 1e3),
        "memory_gib": {name: round(value, 2) for name, value in (last["memory_gib"] or {}).items()},
        "samples": len(times),
    }


def measure(names: list[str], arguments: argparse.Namespace, packages: str) -> dict[str, Series]:
    options = ["--framework", arguments.framework, "--model", arguments.model, "--warmup", "6"]
    options += ["--layers", str(arguments.layers), "--steps", str(arguments.steps)]
    options += ["--batch", str(arguments.batch)]
    options += ["--device", arguments.device]
    found = {name: Series() for name in names}
    begin = time.monotonic()
    for turn in range(arguments.rounds):
        if turn and (time.monotonic() - begin) * (turn + 1) / turn > arguments.limit:
            print(f"no time for round {turn}", flush=True)
            break
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].add(Ranks(WAYS[name], options, arguments.ranks, packages).results())
            print(f"round {turn}: {name:10} {statistics.median(found[name].rounds[-1]):8.2f} ms", flush=True)
    return found


def compare_losses(names: list[str], arguments: argparse.Namespace, packages: str) -> dict[str, int]:
    """By way: steps whose loss is another than the first way's. All run at once, since no time is taken."""
    options = ["--framework", arguments.framework, *SMALL, "--deterministic"]
    options += ["--steps", str(arguments.loss_steps), "--device", arguments.device]
    running = {name: Ranks(WAYS[name], options, arguments.ranks, packages) for name in names}
    limit_s = 60 + arguments.loss_steps / 5
    losses = {name: ranks.results(limit_s)[0]["losses"] for name, ranks in running.items()}
    first = losses[names[0]]
    if not first[-1] < first[0] - 0.2:
        raise RuntimeError(f"the small model learns nothing: {first[0]} -> {first[-1]}")
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
    parser.add_argument("--ways", default="off,on,symmetric", help="the first is what all are held to")
    parser.add_argument("--model", default="gpt-7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1, help="sequences a rank and step")
    parser.add_argument("--steps", type=int, default=26)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300, help="seconds that the rounds may take")
    parser.add_argument("--loss-steps", type=int, default=500, help="0: no comparison")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that this Python lacks")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch.distributed.fsdp"])
    names = arguments.ways.split(",")
    with tempfile.TemporaryDirectory() as packages:
        for wheel in arguments.wheels.glob("*.whl") if arguments.wheels else ():
            zipfile.ZipFile(wheel).extractall(packages)
        found = measure(names, arguments, packages)
        write(arguments, names, found, {})  # should the comparison fail
        differ = compare_losses(names, arguments, packages) if arguments.loss_steps else {}
    for each in write(arguments, names, found, differ):
        print(f"{each['mode']} {each['provider']:30} {each['backend']:22} {each['step_ms']:8.2f} ms", end=" ")
        print(f"{each['round_step_ms']} {each['gain_pct']:+6.2f} % {each['memory_gib']}", end=" ")
        print(f"losses that differ: {each['wrong']}")
    return 1 if any(differ.values()) else 0


def write(
    arguments: argparse.Namespace, names: list[str], found: dict[str, Series], differ: dict[str, int]
) -> list[dict[str, Any]]:
    import torch

    records = [record(WAYS[name], found[name], found[names[0]], differ.get(name)) for name in names]
    versions = {"torch": torch.__version__}
    if arguments.device == "cuda":
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    arguments.out.write_text(json.dumps({"versions": versions, "records": records}), encoding="utf-8")
    return records


if __name__ == "__main__":
    sys.exit(main())
