#!/usr/bin/env python3
"""Trains a decoder with sharded parameters over torch.distributed, and writes step times and losses.

    torchrun --nproc-per-node 2 train.py --model gpt-7b --layers 8 --framework zero3 --out off.json

off.sh runs it with the default backends, on.sh with all-gathers on the copy engines. --device cpu
--model gpt-tiny runs on any machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import os
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from models import SHAPES, Decoder, Layer, Shape
from text import make_batches
from torch import nn

import isthmus.torch

HERE = Path(__file__).resolve().parent
FRAMEWORKS = ("zero3", "fsdp2", "ddp")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="gpt-7b")
    parser.add_argument("--layers", type=int, help="number of layers; default: the model's")
    parser.add_argument("--framework", choices=FRAMEWORKS, default="zero3")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--backend", default="cpu:isthmus,cuda:isthmus", help="backend of torch.distributed")
    parser.add_argument("--init-method", default="env://", help="rendezvous of the ranks")
    parser.add_argument("--length", type=int, default=2048, help="words per sequence")
    parser.add_argument("--batch", type=int, default=1, help="sequences per rank and step")
    parser.add_argument("--batches", type=int, default=64, help="text batches, repeated cyclically")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10, help="steps that are not timed")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--in-place", action="store_true", help="fsdp2, zero3: gather large parameters without copies"
    )
    parser.add_argument(
        "--symmetric",
        action="store_true",
        help="put what the copy engines read into the symmetric heap (fsdp2; zero3 with --in-place)",
    )
    parser.add_argument("--deterministic", action="store_true", help="equal losses in every run")
    parser.add_argument("--config", type=Path, default=HERE / "zero3.json", help="configuration of DeepSpeed")
    parser.add_argument("--out", type=Path, help="result file, written by rank 0")
    options = parser.parse_args(arguments)
    if options.steps <= options.warmup:
        parser.error(f"--steps {options.steps} must be more than --warmup {options.warmup}")
    if options.in_place and options.framework == "ddp":
        parser.error("--in-place needs --framework fsdp2 or zero3: ddp gathers no parameters")
    if options.symmetric and options.framework != "fsdp2" and not options.in_place:
        parser.error("--symmetric needs --framework fsdp2, or zero3 with --in-place")
    return options


def rendezvous(options: argparse.Namespace) -> dict[str, Any]:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return {"init_method": options.init_method, "rank": rank, "world_size": size}


def connect(options: argparse.Namespace) -> dist.ProcessGroup:
    """Creates the default group."""
    dist.init_process_group(options.backend, timeout=timedelta(minutes=5), **rendezvous(options))
    return dist.group.WORLD


class TorchTrainer:
    """The common part of the trainers without DeepSpeed."""

    optimizer: torch.optim.Optimizer

    def update(self, loss: torch.Tensor) -> torch.Tensor:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def close(self) -> None:
        pass


class Ddp(TorchTrainer):
    """Training with a copy of the model on every rank."""

    def __init__(self, options: argparse.Namespace, shape: Shape, group: dist.ProcessGroup | None) -> None:
        group = group or connect(options)
        self.device = options.device
        with torch.device(options.device):
            model = Decoder(shape, options.length)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.model = nn.parallel.DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=True
        )
        self.optimizer = adam(self.model, options)

    def step(self, words: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.model(words)
        return self.update(loss)


def adam(model: nn.Module, options: argparse.Namespace) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), options.rate, fused=options.device == "cuda")


class Fsdp2(TorchTrainer):
    """Training with PyTorch's sharding, one unit per layer."""

    def __init__(self, options: argparse.Namespace, shape: Shape, group: dist.ProcessGroup | None) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = DeviceMesh.from_group(group or connect(options), options.device)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        with torch.device("meta"):
            self.model: nn.Module = Decoder(shape, options.length)
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        self.use_symmetric_heap(options.symmetric)
        if options.in_place:
            self.gather_in_place(options.symmetric)
        self.model.to_empty(device=options.device)
        # Each rank initializes its own shards. They are equal in every run, as a comparison requires.
        torch.manual_seed(options.seed + dist.get_rank())
        for parameter in self.model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter.to_local(), std=0.02)
        for module in self.model.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()
        self.optimizer = adam(self.model, options)

    def use_symmetric_heap(self, enabled: bool) -> None:
        """Selects whether gathered parameters and scattered gradients are in the symmetric heap."""
        for module in [*self.model.layers, self.model]:
            module.set_allocate_memory_from_process_group_for_comm(enabled)

    def gather_in_place(self, symmetric: bool, **more: int) -> None:
        """Gathers large parameters without copies."""
        isthmus.torch.gather_in_place(self.model, symmetric=symmetric, **more)

    def prefetch(self, count: int) -> None:
        """Starts gathers this many layers ahead, in both passes. FSDP2's default is one layer."""
        layers = list(self.model.layers)
        for index, layer in enumerate(layers):
            layer.set_modules_to_forward_prefetch(layers[index + 1 : index + 1 + count])
            layer.set_modules_to_backward_prefetch(layers[max(0, index - count) : index][::-1])

    def step(self, words: torch.Tensor) -> torch.Tensor:
        return self.update(self.model(words))


class OneDimension:
    """The argument `mpu` of DeepSpeed for sharding over this group, which contains all ranks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.get_data_parallel_group = lambda: group
        self.get_data_parallel_rank = self.get_data_parallel_group_rank = group.rank
        self.get_data_parallel_world_size = group.size
        self.get_data_parallel_group_ranks = lambda: range(group.size())
        self.get_model_parallel_group = lambda: None
        self.get_model_parallel_rank = lambda: 0
        self.get_model_parallel_world_size = lambda: 1


class Zero3:
    """Training with DeepSpeed, whose only setting for Isthmus is the backend name."""

    def __init__(self, options: argparse.Namespace, shape: Shape, group: dist.ProcessGroup | None) -> None:
        os.environ.setdefault("DS_ACCELERATOR", options.device)
        import deepspeed

        if options.device == "cpu":  # otherwise DeepSpeed compiles an extension, which takes most of a minute
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        mpu = None
        if group is not None:
            mpu = OneDimension(group)
            deepspeed.utils.groups.mpu = mpu  # zero.Init reads it before initialize() sets it
        # Without a launcher's variables DeepSpeed queries mpi4py, which sees each process as a separate world.
        deepspeed.init_distributed(
            dist_backend=options.backend, auto_mpi_discovery=False, verbose=False, **rendezvous(options)
        )
        configuration: dict[str, Any] = json.loads(options.config.read_text())
        configuration["train_micro_batch_size_per_gpu"] = options.batch
        configuration["optimizer"]["params"] |= {"lr": options.rate, "fused": options.device == "cuda"}
        with torch.device("meta"):
            layer_parameters = sum(parameter.numel() for parameter in Layer(shape).parameters())
        # Prefetch two layers; DeepSpeed's default bounds are smaller than one layer of a large model.
        bounds = {
            "stage3_prefetch_bucket_size": 2 * layer_parameters,
            "stage3_max_live_parameters": max(10**9, 4 * layer_parameters),
        }
        if options.deterministic:  # DeepSpeed keeps small parameters, and a comparison needs gathers
            bounds["stage3_param_persistence_threshold"] = 0
        configuration["zero_optimization"] = bounds | configuration["zero_optimization"]
        with deepspeed.zero.Init(config_dict_or_path=configuration, data_parallel_group=group):
            model = Decoder(shape, options.length)
        for parameter in model.parameters():
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                if dist.get_rank() == 0 and parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
        self.engine, *_ = deepspeed.initialize(model=model, config=configuration, mpu=mpu)
        if options.in_place:
            self.gather_in_place(options.symmetric)

    def gather_in_place(self, symmetric: bool, **more: int) -> None:
        """Gathers large parameters without copies."""
        isthmus.torch.gather_in_place(self.engine, symmetric=symmetric, **more)

    def step(self, words: torch.Tensor) -> torch.Tensor:
        loss = self.engine(words)
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def close(self) -> None:
        """Releases the memory, which DeepSpeed keeps alive in caches of its modules and functions."""
        from deepspeed.runtime.zero import parameter_offload

        self.engine.destroy()
        del self.engine
        parameter_offload.FWD_MODULE_STACK.clear()
        for each in gc.get_objects():
            if isinstance(each, functools._lru_cache_wrapper) and each.__module__.startswith("deepspeed"):
                each.cache_clear()


Trainer = Ddp | Fsdp2 | Zero3


def start(options: argparse.Namespace, shape: Shape, group: dist.ProcessGroup | None = None) -> Trainer:
    """Creates the trainer, and the default group unless a group of all ranks is passed."""
    if options.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # required by PyTorch
        torch.use_deterministic_algorithms(True)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.manual_seed(options.seed)
    return {"ddp": Ddp, "fsdp2": Fsdp2, "zero3": Zero3}[options.framework](options, shape, group)


def shape_of(options: argparse.Namespace) -> Shape:
    shape = SHAPES[options.model]
    return dataclasses.replace(shape, layers=options.layers or shape.layers)


def timed_step(
    trainer: Trainer, words: torch.Tensor, options: argparse.Namespace
) -> tuple[float, torch.Tensor]:
    """Runs one step; returns the time in seconds and the loss."""
    begin = time.perf_counter()
    loss = trainer.step(words.to(options.device))
    if options.device == "cuda":
        torch.cuda.synchronize()  # a step ends when the device has finished
    return time.perf_counter() - begin, loss


def run(options: argparse.Namespace) -> dict[str, Any]:
    shape = shape_of(options)
    trainer = start(options, shape)
    batches = make_batches(options.batches, options.batch, options.length, shape.vocabulary, dist.get_rank())
    times, losses = [], []
    isthmus.torch.reset_report()
    for step in range(options.steps):
        seconds, loss = timed_step(trainer, batches[step % len(batches)], options)
        times.append(seconds)
        losses.append(loss)
    paths = [dataclasses.asdict(row) for row in isthmus.torch.report()]
    mean = torch.stack(losses).float()
    dist.all_reduce(mean)
    losses = (mean / dist.get_world_size()).tolist()
    return results(options, shape, times[options.warmup :], losses) | {"paths": paths}


def results(
    options: argparse.Namespace, shape: Shape, times: list[float], losses: list[float]
) -> dict[str, Any]:
    size = dist.get_world_size()
    step_s = statistics.median(times)
    return {
        "model": options.model,
        "layers": shape.layers,
        "framework": options.framework,
        "backend": options.backend,
        "dma_allgather": os.environ.get("ISTHMUS_DMA_ALLGATHER", "0") == "1",
        "ranks": size,
        "length": options.length,
        "batch": options.batch,
        "step_ms": {
            "min": min(times) * 1e3,
            "median": step_s * 1e3,
            "max": max(times) * 1e3,
        },
        "steps_ms": [time * 1e3 for time in times],
        "tokens_per_s": size * options.batch * options.length / step_s,
        "memory_gib": used_memory_gib() if options.device == "cuda" else None,
        "losses": losses,
    }


def used_memory_gib() -> dict[str, float]:
    """PyTorch's peak, and all memory in use on the device, including the symmetric heap and NCCL's buffers."""
    free, total = torch.cuda.mem_get_info()
    return {"torch_peak": torch.cuda.max_memory_allocated() / 2**30, "device": (total - free) / 2**30}


def main() -> None:
    options = parse()
    summary = run(options)
    if dist.get_rank() == 0:
        if options.out:
            options.out.write_text(json.dumps(summary, indent=1) + "\n")
        print(
            f"{summary['framework']} {summary['model']} {summary['layers']} layers, {summary['ranks']} ranks, "
            f"DMA all-gather {'on' if summary['dma_allgather'] else 'off'}: "
            f"{summary['step_ms']['median']:.1f} ms a step, {summary['tokens_per_s']:.0f} words/s, "
            f"loss {summary['losses'][0]:.4f} -> {summary['losses'][-1]:.4f}"
        )
        for row in summary["paths"]:
            print(f"  {row['calls']:6} {row['collective']:15} {row['path']:20} {row['reason']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
