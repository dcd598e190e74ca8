#!/usr/bin/env python3
"""Training steps of a small transformer on CPUs with DDP and FSDP2: Isthmus against gloo, interleaved.

    torch_steps.py [--ranks N,N] [--rounds N] [--steps N] [--width N] [--layers N] [--out FILE]

A sample is the time of one step (forward, backward, SGD) on the slowest rank. Ranks synchronize before each
step and are not bound to cores. Both providers start with the same parameters and use the same data. `wrong`
counts final parameters that differ by more than BOUND of the largest, because sums over ranks round
differently by order.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import isthmus.torch
from isthmus.records import Record

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
from measured import time_us
from torch_cpu_ranks import SharedRanks, run

WORDS, LENGTH, BATCH = 1024, 16, 2
BOUND = 1e-4


class Model(nn.Module):
    """Predicts the next word."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def wrap_ddp(model: Model, group: dist.ProcessGroup) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, process_group=group)


def wrap_fsdp2(model: Model, group: dist.ProcessGroup) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


WRAPPERS: dict[str, Callable[[Model, dist.ProcessGroup], nn.Module]] = {"ddp": wrap_ddp, "fsdp2": wrap_fsdp2}


def train(shared: SharedRanks, model: nn.Module, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    generator = torch.Generator().manual_seed(100 + shared.rank)
    text = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=generator)
    for index in range(-2, steps):  # two warm-up steps
        shared.barrier()
        begin = time.perf_counter()
        logits = model(text[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if index >= 0:
            shared.times[shared.rank, index] = time.perf_counter() - begin
    return shared.slowest(steps)


def parameters_of(model: nn.Module) -> torch.Tensor:
    """All parameters, gathered on every rank."""
    full_parameters = [
        each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()
    ]
    return torch.cat([each.detach().flatten() for each in full_parameters])


def measure(shared: SharedRanks, arguments: argparse.Namespace) -> list[list[Record]]:
    groups = {"gloo": dist.new_group(backend="gloo"), "isthmus": dist.new_group(backend="cpu:isthmus")}
    rounds: list[list[Record]] = []
    for turn in range(arguments.rounds):
        rounds.append([])
        for way, make in WRAPPERS.items():
            final_parameters: dict[str, torch.Tensor] = {}
            for provider, group in list(groups.items())[:: 1 if turn % 2 == 0 else -1]:
                torch.manual_seed(1)
                isthmus.torch.reset_report()
                model = make(Model(arguments.width, arguments.layers), group)
                seconds = train(shared, model, arguments.steps)
                paths = ", ".join(sorted({f"{row.collective} {row.path}" for row in isthmus.torch.report()}))
                final_parameters[provider] = parameters_of(model)
                other = next(iter(final_parameters.values()))
                wrong = (final_parameters[provider] - other).abs() > BOUND * other.abs().max()
                size = 4 * final_parameters[provider].numel()
                made = record_of(
                    f"{way}_step", provider, paths, size, arguments.ranks, seconds, int(wrong.sum())
                )
                rounds[-1].append(made)
    return rounds


def record_of(
    what: str, provider: str, paths: str, size: int, ranks: int, seconds: list[float], wrong: int
) -> Record:
    figures = time_us(each * 1e6 for each in seconds)
    return Record.model_validate(
        {
            "collective": what,
            "dtype": "float32",
            "bytes": size,
            "ranks": ranks,
            "provider": provider,
            "backend": paths or "torch:gloo",
            "mode": "torch",
            "time_us": figures,
            "algbw_gbs": size / figures["median"] / 1e3,
            "busbw_gbs": 0.0,
            "wrong": wrong,
        }
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2", help="list")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--out")
    return run(parser.parse_args(), measure)


if __name__ == "__main__":
    sys.exit(main())
